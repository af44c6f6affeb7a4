"""The fast path: a Python function generated for a call signature, from arguments to result.

A call signature is the types of the arguments and of `out`, and the names of the keywords. The generated function
unpacks the pytrees (tuples, lists, dicts, NamedTuples and dataclasses), compares static values and the state that the
trace read, tries the plans of the executable, which test the arrays themselves, and builds the result. If anything
differs, it returns NOT_APPLICABLE before anything has run, and the call is flattened and looked up in full.

Must not know: options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracefuse import pytrees
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.leaf_texts import LeafTexts
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.recorded_trace import Captured
from tracefuse.frontend.tracer.captures import is_equal
from tracefuse.frontend.tracer.result_leaves import OutputLeaf
from tracefuse.frontend.tracer.routes import CHANGED, CallRoots, Route
from tracefuse.generated_code import compile_function
from tracefuse.runtime.argument_leaves import Leaf, LeafKind
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.donated_arrays import DONORS
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse

NOT_APPLICABLE = object()
"""What a fast path returns if it does not apply to a call."""


class FastPath(NamedTuple):
    """The function for calls with one signature.

    run: takes (args, kwargs, the `self` of a bound method, out). use: the output buffers and donated arguments of such
    a call. plans_alone: `first(args)` returns the outputs or None, if the plans of the executable decide alone: the
    positional arguments go to them, NumPy scalars as Python numbers, their one output is the result, and nothing else
    has to be compared.
    """

    run: Callable[[Sequence[Any], Mapping[str, Any], Any, Any], Any]
    entry: Entry
    use: OutputBufferUse
    plans_alone: PlanCache[Any] | ScalarsRead | None


class ScalarsRead(NamedTuple):
    """The first plan of an executable, for arguments with NumPy scalars."""

    first: Callable[[Sequence[Any]], list[Any] | None]


MOST_PASSING = 256
"""Sizes and scalars that a fast path remembers as passing its guards."""

_OUT, _BOUND = object(), object()


def call_signature(
    args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, is_bound: bool, out: Any
) -> tuple[Any, ...]:
    """The key of fast paths: types of the arguments, names of keywords."""
    types: tuple[Any, ...] = tuple(map(type, args))
    if kwargs:
        types = (*types, *kwargs, *map(type, kwargs.values()))
    if is_bound:
        types = (_BOUND, type(bound), *types)
    return types if out is None else (_OUT, type(out), *types)


def write_fast_path(entry: Entry, call: CallArguments, use: OutputBufferUse, has_out: bool) -> FastPath | None:
    """Generates the fast path for calls like this one; None if they have to be flattened in full.

    use: output buffers and donated arguments of the call. has_out: whether the call has `out`.
    """
    trace = entry.trace
    inputs = [k for k, leaf in enumerate(call.leaves) if not leaf.is_static]
    fits = sorted(origin for origin in trace.sources if origin >= 0) == inputs and not trace.prints
    fits = fits and not trace.updated_numbers
    fits = fits and isinstance(entry.executable, Executable) and entry.kind in ("numpy", "cupy")
    if not fits or not all(_is_native(leaf) for leaf in call.leaves):
        return None
    writer = _Writer(entry, use)
    try:
        text = writer.write(call, has_out)
    except _NoFastPath:
        return None
    run = compile_function(text, "call", writer.names, "fast path")
    plans: PlanCache[Any] | ScalarsRead | None = None
    if isinstance(entry.executable, Executable) and _is_flat(entry, call) and not has_out and use == OutputBufferUse():
        plans = entry.executable.plans
        if any(map(_is_numpy_number, call.leaves)):
            writer = _Writer(entry, use, otherwise="None")
            text = writer.write_first(call)
            plans = ScalarsRead(compile_function(text, "first", writer.names, "fast path"))
    return FastPath(run, entry, use, plans)


def _is_flat(entry: Entry, call: CallArguments) -> bool:
    """See `FastPath.plans_alone`."""
    trace, (positional, keywords) = entry.trace, call.structure.children()
    is_flat = not keywords.num_children and all(node.is_leaf() for node in positional.children())
    has_reads = (
        trace.conditions
        or trace.statics
        or trace.bypassed
        or trace.captured
        or trace.pairs
        or trace.apart
        or trace.scalar_guards
    )
    return entry.single and is_flat and not has_reads and trace.sources == tuple(range(len(call.leaves)))


def _is_native(leaf: Leaf) -> bool:
    """Whether a leaf is static, a number, or a NumPy or CuPy array; of CuPy's, with at least one axis."""
    if leaf.is_array:
        return arrays.is_own(leaf.value) and bool(leaf.value.shape)
    return not leaf.of_array or type(leaf.value) is np.ndarray


def _is_numpy_number(leaf: Leaf) -> bool:
    """Whether a leaf is a NumPy scalar or a NumPy array without axes."""
    return leaf.kind is LeafKind.SCALAR and leaf.weak is None


class _NoFastPath(Exception):
    """A pytree node that only optree can flatten."""


class _Writer:
    """Writes one fast path.

    names: globals of the function. lines: statements before the call of the executable. otherwise: the expression that
    the function returns if it does not apply.
    """

    def __init__(self, entry: Entry, use: OutputBufferUse, otherwise: str = "NOT_APPLICABLE") -> None:
        self.entry, self.use, self.otherwise = entry, use, otherwise
        self.names: dict[str, Any] = {
            "NOT_APPLICABLE": NOT_APPLICABLE,
            "DONORS": DONORS,
            "finish_call": finish_call,
            "entry": entry,
        }
        self.names |= {"CHANGED": CHANGED, "CallRoots": CallRoots, "is_equal": is_equal}
        self.lines: list[str] = []
        self._followed: dict[Any, str] = {}
        self._numbers: dict[str, str] = {}  # the variable of the number of each NumPy scalar

    def _name(self, prefix: str, value: Any = None) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def _unless(self, condition: str) -> None:
        self.lines += [f"if not ({condition}):", f"    return {self.otherwise}"]

    def write(self, call: CallArguments, has_out: bool) -> str:
        executable = self.entry.executable
        assert isinstance(executable, Executable)
        leaves = self._arguments(call)
        buffers = self._buffers() if has_out else []
        arguments = [*self._inputs(leaves), *buffers]
        self._guards(call, arguments)
        if self.use == OutputBufferUse():
            self.names["attempt"], more = executable.plans.attempt, ""
        else:
            self.names["attempt"], more = executable.plans.attempt_into, f", {self._name('use', self.use)}"
        after = [f"    {line}" for line in self._result(leaves, arguments)]
        trace = self.entry.trace
        failed = f"r is None or not r[{number_conditions.position(trace)}]" if trace.conditions else "r is None"
        before = (f"        {line}" for line in self.lines or ["pass"])
        lines = [
            "def call(args, kwargs, bound, out):", "    try:", *before,
            "    except CHANGED:", "        return NOT_APPLICABLE",
            f"    arguments = {_tuple(arguments)}", f"    r = attempt(arguments{more})",
            f"    if {failed}:", "        return NOT_APPLICABLE", *after, "",
        ]  # fmt: skip
        return "\n".join(lines)

    def write_first(self, call: CallArguments) -> str:
        """The function that reads the numbers of NumPy scalars and calls the first plan; see `FastPath.plans_alone`."""
        executable = self.entry.executable
        assert isinstance(executable, Executable)
        arguments = self._inputs(self._arguments(call))
        plans = self._name("plans", executable.plans)
        lines = ["def first(args):", *(f"    {line}" for line in self.lines)]
        return "\n".join([*lines, f"    return {plans}.first({_tuple(arguments)})", ""])

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _arguments(self, call: CallArguments) -> list[str]:
        """The variables of the leaves, after code that compares static values and rejects arrays donated earlier."""
        positional, keywords = call.structure.children()
        tops = [f"a{k}" for k in range(positional.num_children)]
        if tops:
            self.lines.append(f"{', '.join(tops)}, = args")
        variables: list[str] = []
        for name, node in zip(tops, positional.children(), strict=True):
            variables += self._leaves(node, name, is_known=True)
        for key, node in zip(keywords.entries(), keywords.children(), strict=True):
            variables += self._leaves(node, f"kwargs[{key!r}]", is_known=True)
        for variable, leaf in zip(variables, call.leaves, strict=True):
            if leaf.generator is not None:
                self._unless(f"type({variable}) is {self._name('t', type(leaf.value))}")
                self.lines.append(f"{self._name('g', leaf.generator)}.bind({variable})")
            elif leaf.is_static:
                value, kind = self._name("s", leaf.value), self._name("t", type(leaf.value))
                self._unless(f"{variable} is {value} or (type({variable}) is {kind} and {variable} == {value})")
            elif _is_numpy_number(leaf):
                self._read_number(variable, leaf)
        taken = [f"id({v}) in DONORS" for v, leaf in zip(variables, call.leaves, strict=True) if leaf.is_array]
        if taken:
            self._unless(f"not DONORS or not ({' or '.join(taken)})")
        return variables

    def _read_number(self, variable: str, leaf: Leaf) -> None:
        """Reads the Python number of a NumPy scalar or of an array without axes, after code that checks its type."""
        self._unless(f"type({variable}) is {self._name('t', type(leaf.value))}")
        if leaf.of_array:
            self._unless(f"not {variable}.ndim and {variable}.dtype == {self._name('d', leaf.value.dtype)}")
        number = self._numbers[variable] = self._name("n")
        self.lines.append(f"{number} = {variable}.item()")

    def _leaves(self, node: Any, text: str, is_known: bool = False) -> Iterator[str]:
        """Variables of the leaves of a pytree. is_known: the call signature implies its type."""
        variable = text if text.isidentifier() else self._name("v")
        if variable != text:
            self.lines.append(f"{variable} = {text}")
        if node.is_leaf():
            yield variable
            return
        kind = node.type
        if not is_known:
            self._unless(f"type({variable}) is {self._name('t', kind)}")
        fields = pytrees.field_names(kind)
        if kind in (dict, list, tuple):
            self._unless(f"len({variable}) == {node.num_children}")
            inner = [f"{variable}[{self._name('k', key)}]" for key in node.entries()]
        elif fields is not None:
            inner = [f"{variable}.{field}" for field in fields]
        else:
            raise _NoFastPath
        for text, child in zip(inner, node.children(), strict=True):
            yield from self._leaves(child, text)

    def _buffers(self) -> list[str]:
        """The variables of the output buffers, in the order of the outputs that have one."""
        leaves = list(self._leaves(self.entry.trace.structure, "out", is_known=True))
        buffers: dict[int, str] = {}
        for variable, result in zip(leaves, self.entry.trace.results, strict=True):
            if isinstance(result, OutputLeaf) and result.position in self.use.outputs:
                buffers[result.position] = variable
            else:
                self._unless(f"{variable} is None")
        return [buffers[position] for position in sorted(buffers)]

    def _inputs(self, leaves: Sequence[str]) -> list[str]:
        """The arguments of the fusion, after code that compares the state the trace read and reads captured arrays."""
        trace = self.entry.trace
        for place in trace.statics:
            variable, value = self._read(place.route), self._name("s", place.value)
            self._unless(f"{variable} is {value} or is_equal({variable}, {value})")
        for array in trace.bypassed:
            self._unless(f"{self._name('holds', array.holds)}({self._read(array.place.route)})")
        for first, second in trace.pairs:
            self._unless(f"{self._read(first.route)} is {self._read(second.route)}")
        for group in trace.apart:
            ids = ", ".join(f"id({self._read(place.route)})" for place in group)
            self._unless(f"len({{{ids}}}) == {len(group)}")
        captured = [self._captured(capture) for capture in trace.captured]
        if trace.prologue is not None:
            run, results = self._name("prologue", trace.prologue.results), self._name("results")
            self.lines.append(f"{results} = {run}({_tuple([captured[k] for k in trace.prologue.captured])})")
            self._unless(f"{results} is not None")
            captured += [f"{results}[{k}]" for k in range(len(trace.prologue.inputs))]
        numbers = [self._numbers.get(leaf, leaf) for leaf in leaves]
        return [numbers[origin] if origin >= 0 else captured[-origin - 1] for origin in trace.sources]

    def _captured(self, capture: Captured) -> str:
        """The variable of a captured array or number, after code that compares the class of a number."""
        if capture.place is None:
            return self._name("c", capture.array)
        variable = self._read(capture.place.route)
        if not capture.scalar:
            return variable
        self._unless(f"type({variable}) is {self._name('t', capture.key)}")
        if not issubclass(capture.key, np.generic):
            return variable
        number = self._name("v")
        self.lines.append(f"{number} = {variable}.item()")
        return number

    def _read(self, route: Route) -> str:
        """The variable for the object at the end of a route; a prefix that routes share is evaluated once."""
        steps: list[Route] = []
        step: Route | None = route
        while step is not None:
            steps.append(step)
            step = step.before
        text = ""
        for one in reversed(steps):
            key = (text, one.kind, one.key if one.kind == "attribute" else id(one.key))
            if key not in self._followed:
                self._followed[key] = self._step(text, one)
            text = self._followed[key]
        return text

    def _step(self, before: str, step: Route) -> str:
        """The variable for the object that one step of a route leads to."""
        if step.kind == "self":
            return "bound"
        if step.kind in ("argument", "keyword"):
            return f"args[{step.key}]" if step.kind == "argument" else f"kwargs[{step.key!r}]"
        if step.kind == "object":
            return self._name("o", step.key)
        texts = {"attribute": f"{before}.{step.key}", "cell": f"{before}.cell_contents"}
        if step.kind == "entry":
            texts["entry"] = f"{before}[{self._name('k', step.key)}]"
        if step.kind == "call":
            texts["call"] = f"{self._name('read', step.key)}({before})"
        variable = self._name("v")
        self.lines.append(f"{variable} = {texts[step.kind]}")
        return variable

    def _facts(self, arguments: Sequence[str]) -> dict[int, str]:
        """The texts of the extents and scalars of the call, by id."""
        fusion = self.entry.trace.fusion
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        facts = {key: f"{by_value[value]}.shape[{axis}]" for key, value, axis in fusion.axis_ids()}
        return facts | {number: by_value[number] for number in fusion.scalar_inputs}

    def _guards(self, call: CallArguments, arguments: Sequence[str]) -> None:
        """Guards on scalars and sizes, skipped for values that passed before."""
        trace, fusion = self.entry.trace, self.entry.trace.fusion
        if not trace.scalar_guards:
            return
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        facts = self._facts(arguments)
        signs: list[str] = []
        for number, origin in zip(fusion.inputs, trace.sources, strict=True):
            if number in fusion.scalar_inputs:
                kind = self._kind_of_number(call, origin, number)
                if -origin <= len(trace.captured):  # the prologue checks its own results
                    self._unless(f"type({by_value[number]}) is {self._name('t', kind)}")
                # Zeros are equal, whatever their sign.
                parts = [".real", ".imag"] if kind is complex else [""] if kind is float else []
                signs += [f"copysign(1.0, {by_value[number]}{part})" for part in parts]
        passed, tests = self._name("passed", set()), [self._name("holds", guard.holds) for guard in trace.scalar_guards]
        self.names |= {"copysign": math.copysign, "MOST_PASSING": MOST_PASSING}
        self.lines += [
            f"key = {_tuple([*facts.values(), *signs])}", f"if key not in {passed}:",
            f"    facts = {{{', '.join(f'{key}: {text}' for key, text in facts.items())}}}",
            f"    if not ({' and '.join(f'{one}(facts)' for one in tests)}):", "        return NOT_APPLICABLE",
            f"    if len({passed}) >= MOST_PASSING:", f"        {passed}.clear()", f"    {passed}.add(key)",
        ]  # fmt: skip

    def _kind_of_number(self, call: CallArguments, origin: int, number: int) -> type:
        """The class of the Python number that the fusion receives for a scalar input."""
        trace = self.entry.trace
        if origin >= 0:
            return type(call.leaves[origin].number)
        if -origin <= len(trace.captured):
            return _item_type(trace.captured[-origin - 1].key)
        return _item_type(trace.fusion.values[number].dtype.numpy.type)

    # -- results -----------------------------------------------------------------------------------------------------

    def _result(self, leaves: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """The statements after the run, which write the state back and return the result; `r` holds the outputs."""
        if self.entry.single:
            return ["return r[0]"]
        texts = LeafTexts(self.entry.trace, self._name, self._read, leaves, self._facts(arguments))
        if not texts.are_possible():
            return [f"return finish_call(entry, {_tuple(leaves)}, arguments, r, CallRoots(bound, args, kwargs))"]
        result, writes = texts.result(), texts.writes()
        return [f"result = {result}", *writes, "return result"] if writes else [f"return {result}"]


def _item_type(kind: type) -> type:
    """The class of Python numbers that a fusion receives for a number of a class."""
    return type(kind().item()) if issubclass(kind, np.generic) else kind


def _tuple(texts: Sequence[str]) -> str:
    return f"({''.join(f'{text}, ' for text in texts)})"
