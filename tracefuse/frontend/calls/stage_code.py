"""Generated Python for one stage of a tree of questions: from the values of a call to the stages that may come next.

The function compares the state that the trace read, tests the guards of the stage, runs its plan, reads the answer to
its question and drops the values that no later stage reads. The last stage writes what the call changes and builds the
result. It serves stages that draw no random numbers and print nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tracefuse.compiler.executable import Executable
from tracefuse.dynamic.layouts import numbers_of_stride
from tracefuse.frontend.calls.compiled_stages import CompiledStage, Environment, check_stage
from tracefuse.frontend.calls.input_texts import InputWriter, array_tests, host_size
from tracefuse.frontend.calls.leaf_texts import LeafTexts
from tracefuse.frontend.calls.question_tree import TreeNode
from tracefuse.frontend.calls.shared_arguments import can_overwrite
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.recorded_trace import FROM_STAGE, Captured
from tracefuse.frontend.tracer.effects.questions import IntegerQuestion, ValueQuestion
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent, Symbol, python_text
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, returned

DECLINED = object()
"""What a stage returns whose guards do not hold."""

FINISHED = object()
"""What the last stage returns; the result is among the values, under `RESULT`."""

IN_FULL = object()
"""What a stage returns whose call has to follow the tree in full."""

RESULT = "result"

CallLeaves = tuple[Sequence[Any], Mapping[str, Any], Any, Sequence[Any]]
"""Positional arguments, keyword arguments, the object that a method is bound to, and the leaves of the arguments."""

Step = Callable[[dict[Any, Any], CallLeaves], Any]
"""Takes the values of a call by number, and its arguments. Returns the next stages by preference, DECLINED, FINISHED or
IN_FULL."""


def give_up(values: Any, arguments: Any) -> Any:
    """The step of a stage that has no code."""
    return IN_FULL


def step_of(node: TreeNode, compiled: CompiledStage) -> Step:
    """Generates the step of a stage."""
    return _StageWriter(node, compiled).function() if node.has_code else give_up


class _StageWriter(InputWriter):
    """Writes the step of one stage; in it, `v` holds the values of the call by number.

    Nothing is stored in `v` before every guard holds: another stage may be tried next.
    """

    def __init__(self, node: TreeNode, compiled: CompiledStage) -> None:
        entry: Any = node.origin or node.entry
        super().__init__(entry, NO_BUFFER_USE)
        self.otherwise = "DECLINED"
        self.node, self.compiled, self.stage = node, compiled, node.stage
        self.names |= {"DECLINED": DECLINED, "FINISHED": FINISHED, "IN_FULL": IN_FULL}
        self.names["ERRORS_OF_NUMBERS"] = number_conditions.ERRORS_OF_NUMBERS
        self._new: dict[int, str] = {}  # variables of captured arrays and numbers, which are not in `v` yet

    def function(self) -> Step:
        self._new = self._state()
        body: list[str] = []
        for number, read in self.stage.host_sizes:
            body += self._host_sizes([(number, read)], self._fact)
            self._new[number] = host_size(number)
        body += [*self._guards(), *self._requirements()]
        body += [f"v[{number}] = {variable}" for number, variable in self._new.items()]
        body += [*self._run(), *self._end()]
        reads = self.lines  # of the state, those of the result too
        if reads:
            reads = ["args, kwargs, bound, leaves = call", "try:", *(f"    {line}" for line in reads)]
            reads += ["except CHANGED:", "    return DECLINED"]
        elif self.node.entry is not None:
            reads = ["args, kwargs, bound, leaves = call"]
        text = "\n".join(["def step(v, call):", *(f"    {line}" for line in (*reads, *body)), ""])
        return compile_function(text, "step", self.names, "stage")  # type: ignore[no-any-return]

    # -- state --------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[int, str]:
        """The variables of the inputs of the trace that are captured or computed in its prologue, by number."""
        origin = self.node.origin
        if origin is None or not origin.trace.reads_state:
            return {}
        values, trace = self._captured_inputs(), origin.trace
        sources = zip(trace.fusion.inputs, trace.sources, strict=True)
        return {
            number: values[-source - 1]
            for number, source in sources
            if source < 0 and source != FROM_STAGE and number >= self.stage.first
        }

    def _captured(self, capture: Captured) -> str:
        """The variable of a captured array or number, after code that tests that the trace holds for it."""
        variable = super()._captured(capture)
        if capture.scalar:
            if capture.key is int:
                self._unless(f"{-(2**63)} <= {variable} < {2**63}")
        elif capture.place is not None:
            tests = " and ".join(array_tests(variable, capture.array, self._name))
            self._unless(f"{variable} is {self._name('c', capture.array)} or {tests}")
        return variable

    # -- facts --------------------------------------------------------------------------------------------------------

    def _fact(self, key: int) -> str:
        """The text of an extent or a scalar, by id."""
        if key >= 0:
            return self._value(key)
        number, axis = self.node.axes[key]
        return f"{self._value(number)}.shape[{axis}]"

    def _value(self, number: int) -> str:
        return self._new.get(number, f"v[{number}]")

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.id is not None:
            return self._fact(symbol.id)
        number, axis = numbers_of_stride(symbol.name)
        array = self._value(number)
        return f"({array}.strides[{axis}] // {array}.dtype.itemsize)"

    def _extent(self, extent: Extent) -> str:
        return python_text(extent, self._symbol)

    def _facts(self, keys: Iterable[int]) -> str:
        return f"{{{', '.join(f'{key}: {self._fact(key)}' for key in keys)}}}"

    # -- before the run -----------------------------------------------------------------------------------------------

    def _guards(self) -> Iterable[str]:
        tests = dict.fromkeys(f"{self._extent(g.left)} {g.relation} {self._extent(g.right)}" for g in self.stage.guards)
        if tests:
            yield from (f"if not ({' and '.join(tests)}):", "    return DECLINED")
        if self.stage.scalar_guards:
            holds = (guard.test_text(self._fact, self._name) for guard in self.stage.scalar_guards)
            yield from (f"if not ({' and '.join(holds)}):", "    return DECLINED")

    def _requirements(self) -> Iterable[str]:
        tests = dict.fromkeys(
            f"{self._extent(r.left)} {r.relation} {self._extent(r.right)}" for r in self.stage.requirements
        )
        if tests:
            check = f"{self._name('check', check_stage)}({self._name('stage', self.stage)}"
            yield from (f"if not ({' and '.join(tests)}):", f"    {check}, {self._environment()})")

    def _environment(self) -> str:
        new = "".join(f", {number}: {variable}" for number, variable in self._new.items())
        values = f"{{**v{new}}}" if new else "v"
        return f"{self._name('environment', Environment)}({values}, {self._name('axes', self.node.axes)})"

    def _run(self) -> Iterable[str]:
        compiled = self.compiled
        if compiled.executable is None:
            return
        if compiled.is_plain:
            read = [f"v[{number}]" for number in compiled.read]
        else:
            yield f"h = {self._name('host', compiled.host)}({self._facts(compiled.facts_read)})"
            on_host = compiled.on_host
            read = [f"h[{number}]" if number in on_host else self._fact(number) for number in compiled.read]
        lines = [f"a = ({''.join(f'{text}, ' for text in read)})"]
        if isinstance(compiled.executable, Executable):
            plans = self._name("plans", compiled.executable.plans)
            lines += [f"r = {plans}.first(a)", "if r is None:", f"    r = {plans}.attempt(a)"]
            lines += ["    if r is None:", "        return IN_FULL"]  # where a plan is built, or the function runs
        else:
            lines += [f"r = {self._name('executable', compiled.executable)}(a)"]
        if self.node.has_conditions:  # Python may raise another error
            lines = ["try:", *(f"    {line}" for line in lines), "except ERRORS_OF_NUMBERS:", "    return IN_FULL"]
        yield from lines
        yield f"{' '.join(f'v[{number}],' for number in compiled.outputs)} = r"

    # -- after the run ------------------------------------------------------------------------------------------------

    def _end(self) -> Iterable[str]:
        if self.stage.condition is not None:
            yield from (f"if not v[{self.stage.condition}]:", "    return IN_FULL")
        question, get = self.stage.question, f"{self._name('children', self.node.children)}.get"
        if question is None:
            yield from self._result()
            return
        if isinstance(question, ValueQuestion) and question.is_choice:
            key, lines = f"True if v[{question.number}] else False", []
        elif isinstance(question, IntegerQuestion):
            lines = [f"k = v[{question.result}] = int(v[{question.number}])"]
            key = "k if 0 <= k < 2 else 2 if k > 0 else -1"
        else:
            question_name = self._name("question", question)
            lines, key = [f"k = {question_name}.answer(v)"], f"{question_name}.key_of(k)"
            if question.results:
                lines.append(f"v.update(zip({question_name}.results_of(k), k))")
        yield from lines
        yield f"k = {key}"
        yield from (f"v.pop({number}, None)" for number in self.node.drops)
        yield f"return {get}(k, ())"

    def _result(self) -> Iterable[str]:
        """The statements that write what the call changes and return the result; `r` holds the outputs."""
        entry = self.node.entry
        assert entry is not None
        self.entry, trace, fusion = entry, entry.trace, entry.trace.fusion
        yield f"r = [{', '.join(f'v[{number}]' for number in returned(fusion))}]"
        if trace.conditions:
            yield from (f"if not r[{number_conditions.position(trace)}]:", "    return IN_FULL")
        if fusion.aliases:
            tensors = fusion.tensor_inputs
            owners = list(dict.fromkeys(fusion.aliases.values()))
            changed, other_names = (
                "".join(f"v[{n}], " for n in some) for some in (owners, sorted({*tensors} - {*owners}))
            )
            device = self._name("device", entry.array_device)
            yield f"if not {self._name('can_overwrite', can_overwrite)}({device}, ({changed}), ({other_names})):"
            yield "    return IN_FULL"
            copy = self._name("copy", entry.array_device.copy)
            yield from (f"{copy}(v[{number}], v[{owner}])" for number, owner in fusion.aliases.items())
        facts = {key: self._fact(key) for key in (*self.node.axes, *fusion.scalar_inputs)}
        leaves = [f"leaves[{position}]" for position in range(len(trace.names))]
        texts = LeafTexts(trace, self._name, self._read, leaves, facts)
        yield from self._finished(entry, texts)
        yield "return FINISHED"

    def _finished(self, entry: Entry, texts: LeafTexts) -> Iterable[str]:
        if texts.are_possible():
            yield f"result = {texts.result()}"
            yield from texts.writes()
            yield f"v[{RESULT!r}] = result"
        else:
            arguments = "".join(f"v[{number}], " for number in entry.trace.fusion.inputs)
            self.names["entry"] = entry
            yield f"v[{RESULT!r}] = finish_call(entry, leaves, ({arguments}), r, CallRoots(bound, args, kwargs))"
