"""Generated Python for one stage of a tree of questions: from the values of a call to the stages that may come next.

The function tests the guards of the stage, runs its plan, reads the answer to its question and drops the values that no
later stage reads. It serves stages without effects whose results are computed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracefuse.compiler.executable import Executable
from tracefuse.dynamic.layouts import numbers_of_stride
from tracefuse.errors import InternalError
from tracefuse.frontend.calls.compiled_stages import CompiledStage, Environment, check_stage
from tracefuse.frontend.calls.leaf_texts import LeafTexts
from tracefuse.frontend.calls.question_tree import TreeNode
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.tracer.questions import IntegerQuestion, ValueQuestion
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent, Symbol, python_text
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import returned

DECLINED = object()
"""What a stage returns whose guards do not hold."""

FINISHED = object()
"""What the last stage returns; the result is among the values, under `RESULT`."""

RESULT = "result"

Step = Callable[[dict[Any, Any]], Any]
"""Takes the values of a call by number. Returns the next stages by preference, DECLINED or FINISHED."""


def give_up(values: Any) -> Sequence[TreeNode]:
    """The step of a stage that has no code: no stage comes next, and the call follows the tree."""
    return ()


def step_of(node: TreeNode, compiled: CompiledStage) -> Step:
    """Generates the step of a stage."""
    writer = _StageWriter(node, compiled)
    return writer.function() if node.is_pure else give_up


class _StageWriter:
    """Writes the step of one stage; in it, `v` holds the values of the call by number."""

    def __init__(self, node: TreeNode, compiled: CompiledStage) -> None:
        self.node, self.compiled, self.stage = node, compiled, node.stage
        self.names: dict[str, Any] = {"DECLINED": DECLINED, "FINISHED": FINISHED}

    def function(self) -> Step:
        body = [*self._guards(), *self._requirements(), *self._run(), *self._end()]
        text = "\n".join(["def step(v):", *(f"    {line}" for line in body), ""])
        return compile_function(text, "step", self.names, "stage")  # type: ignore[no-any-return]

    def _name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    # -- facts --------------------------------------------------------------------------------------------------------

    def _fact(self, key: int) -> str:
        """The text of an extent or a scalar, by id."""
        if key >= 0:
            return f"v[{key}]"
        number, axis = self.node.axes[key]
        return f"v[{number}].shape[{axis}]"

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.id is not None:
            return self._fact(symbol.id)
        number, axis = numbers_of_stride(symbol.name)
        return f"{self._name('strides', arrays.element_strides)}(v[{number}])[{axis}]"

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
            environment = self._name("environment", Environment)
            yield f"facts = {environment}(v, {self._name('axes', self.node.axes)}).facts()"
            holds = (f"{self._name('holds', guard.holds)}(facts)" for guard in self.stage.scalar_guards)
            yield from (f"if not ({' and '.join(holds)}):", "    return DECLINED")

    def _requirements(self) -> Iterable[str]:
        tests = dict.fromkeys(
            f"{self._extent(r.left)} {r.relation} {self._extent(r.right)}" for r in self.stage.requirements
        )
        if tests:
            check = f"{self._name('check', check_stage)}({self._name('stage', self.stage)}"
            environment = f"{self._name('environment', Environment)}(v, {self._name('axes', self.node.axes)})"
            yield from (f"if not ({' and '.join(tests)}):", f"    {check}, {environment})")

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
        executable = self._name("executable", compiled.executable)
        if isinstance(compiled.executable, Executable):
            plans = self._name("plans", compiled.executable.plans)
            lines += [f"r = {plans}.first(a)", "if r is None:", f"    r = {executable}(a)"]
        else:
            lines += [f"r = {executable}(a)"]
        if self.node.has_conditions:  # Python may raise another error
            lines = ["try:", *(f"    {line}" for line in lines), "except Exception:", "    return ()"]
        yield from lines
        yield f"{' '.join(f'v[{number}],' for number in compiled.outputs)} = r"

    # -- after the run ------------------------------------------------------------------------------------------------

    def _end(self) -> Iterable[str]:
        if self.stage.condition is not None:
            yield from (f"if not v[{self.stage.condition}]:", "    return ()")
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
            asked = self._name("question", question)
            lines, key = [f"k = {asked}.answer(v)"], f"{asked}.key_of(k)"
            if question.results:
                lines.append(f"{' '.join(f'v[{number}],' for number in question.results)} = k")
        yield from lines
        yield f"k = {key}"
        yield from (f"v.pop({number}, None)" for number in self.node.drops)
        yield f"return {get}(k, ())"

    def _result(self) -> Iterable[str]:
        entry = self.node.entry
        assert entry is not None
        trace = entry.trace
        yield f"r = [{', '.join(f'v[{number}]' for number in returned(trace.fusion))}]"
        if trace.conditions:
            yield from (f"if not r[{number_conditions.position(trace)}]:", "    return ()")
        facts = {key: self._fact(key) for key in (*self.node.axes, *trace.fusion.scalar_inputs)}
        texts = LeafTexts(trace, self._name, _no_state, (), facts)
        yield f"v[{RESULT!r}] = {texts.result()}"
        yield "return FINISHED"


def _no_state(route: Any) -> str:
    raise InternalError(f"a stage that reads no state reads {route}")
