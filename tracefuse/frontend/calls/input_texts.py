"""The part of a fast path that reads the arguments and the state: unpacking, comparisons, conversions.

Must not know: options, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.recorded_trace import FROM_STAGE, Captured, Trace
from tracefuse.frontend.tracer.captured.captures import is_equal
from tracefuse.frontend.tracer.captured.routes import CHANGED, CallRoots, Route
from tracefuse.frontend.tracer.values.host_numbers import HostNumber, compiled
from tracefuse.frontend.tracer.values.result_leaves import OutputLeaf
from tracefuse.runtime.argument_leaves import Leaf, LeafKind
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import FOREIGN
from tracefuse.runtime.donated_arrays import DONORS
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse

NOT_APPLICABLE = object()
"""What a fast path returns if it does not apply to a call."""


def is_native(leaf: Leaf, kind: str) -> bool:
    """Whether a leaf is static, a number, or an array of NumPy, of CuPy with at least one axis, or of a kind."""
    if leaf.is_array:
        return _is_foreign(leaf.value, kind) or (arrays.is_own(leaf.value) and bool(leaf.value.shape))
    return not leaf.of_array or type(leaf.value) is np.ndarray


def _is_foreign(array: Any, kind: str) -> bool:
    return kind in FOREIGN and arrays.kind_of(array) == kind


def are_captured_native(trace: Trace, kind: str) -> bool:
    """Whether captured arrays are numbers, arrays of NumPy or CuPy, or of a kind; those no prologue can compare."""
    shared = [capture for capture in trace.captured if not (capture.scalar or arrays.is_own(capture.array))]
    return all(_is_foreign(capture.array, kind) for capture in shared) and not (shared and trace.prologue is not None)


def is_numpy_number(leaf: Leaf) -> bool:
    """Whether a leaf is a NumPy scalar or a NumPy array without axes."""
    return leaf.kind is LeafKind.SCALAR and leaf.weak is None


class InputWriter:
    """Writes the statements before the call of the executable.

    names: globals of the function. lines: statements before the call of the executable. is_first: see `FastPath.first`.
    otherwise: the expression that the function returns if it does not apply.
    """

    def __init__(self, entry: Entry | None, use: OutputBufferUse, is_first: bool = False) -> None:
        self.entry: Any = entry
        self.kind = "numpy" if entry is None else entry.kind
        self.use, self.is_first = use, is_first
        self.otherwise = "None" if is_first else "NOT_APPLICABLE"
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

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _arguments(self, call: CallArguments) -> list[str]:
        """The variables of the leaves, after code that compares static values and rejects arrays donated earlier."""
        positional, keywords = call.structure.children()
        tops = [f"a{k}" for k in range(positional.num_children)]
        if tops:
            self.lines.append(f"{', '.join(tops)}, = args")
        for key, value in call.statics.items():
            text = tops[key] if isinstance(key, int) else f"kwargs[{key!r}]"
            same, kind = self._name("s", value), self._name("t", type(value))
            self._unless(f"{text} is {same} or (type({text}) is {kind} and {text} == {same})")
        variables: list[str] = []
        for position, (name, node) in enumerate(zip(tops, positional.children(), strict=True)):
            placeholder = position in call.statics  # a leaf that is None
            variables += ["None"] if placeholder else self._leaves(node, name, is_known=not self.is_first)
        for key, node in zip(keywords.entries(), keywords.children(), strict=True):
            variables += self._leaves(node, f"kwargs[{key!r}]", is_known=True)
        for variable, leaf in zip(variables, call.leaves, strict=True):
            if variable == "None":
                continue
            if leaf.generator is not None:
                self._unless(f"type({variable}) is {self._name('t', type(leaf.value))}")
                self.lines.append(f"{self._name('g', leaf.generator)}.bind({variable})")
            elif leaf.is_object:
                self._unless(f"type({variable}) is {self._name('t', type(leaf.value))}")
            elif leaf.is_static:
                value, kind = self._name("s", leaf.value), self._name("t", type(leaf.value))
                self._unless(f"{variable} is {value} or (type({variable}) is {kind} and {variable} == {value})")
            elif is_numpy_number(leaf):
                self._read_number(variable, leaf)
            elif leaf.is_array and _is_foreign(leaf.value, self.kind):
                self._enter(variable, leaf)
        is_donor = [f"id({v}) in DONORS" for v, leaf in zip(variables, call.leaves, strict=True) if leaf.is_array]
        if is_donor:
            self._unless(f"not DONORS or not ({' or '.join(is_donor)})")
        return variables

    def _read_number(self, variable: str, leaf: Leaf) -> None:
        """Reads the Python number of a NumPy scalar or of an array without axes, after code that checks its type."""
        self._unless(f"type({variable}) is {self._name('t', type(leaf.value))}")
        if leaf.of_array:
            self._unless(f"not {variable}.ndim and {variable}.dtype == {self._name('d', leaf.value.dtype)}")
        number = self._numbers[variable] = self._name("n")
        self.lines.append(f"{number} = {variable}.item()")

    def _enter(self, variable: str, leaf: Leaf) -> None:
        """Shares the memory of an argument of another library."""
        self._numbers[variable] = self._entered(variable, leaf.value)

    def _entered(self, variable: str, array: Any) -> str:
        """Returns the variable of the array that shares the memory of one like `array` of another library, after code
        that checks that it is in the same place.
        """
        text, value = arrays.place_test(array)
        self._unless(text.format(variable, self._name("h", value)))
        entered = self._name("n")
        self.lines.append(f"{entered} = {self._name('enter', arrays.entering_after_test(self.entry.kind))}({variable})")
        return entered

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
            if kind is not dict and node.num_children:
                inner = [self._name("v") for _ in inner]
                self.lines.append(f"{', '.join(inner)}, = {variable}")
        elif fields is not None:
            inner = [f"{variable}.{field}" for field in fields]
        else:
            leaves, structure = self._name("v"), self._name("v")
            self.lines.append(f"{leaves}, {structure} = {self._name('flatten', pytrees.flatten)}({variable})")
            self._unless(f"{structure} == {self._name('s', node)}")
            for position in range(node.num_leaves):
                yield from self._leaves(pytrees.LEAF, f"{leaves}[{position}]")
            return
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
        captured = self._captured_inputs()
        numbers = [self._numbers.get(leaf, leaf) for leaf in leaves]
        trace = self.entry.trace
        return [
            numbers[origin] if origin >= 0 else host_size(number) if origin == FROM_STAGE else captured[-origin - 1]
            for number, origin in zip(trace.fusion.inputs, trace.sources, strict=True)
        ]

    def _host_sizes(self, sizes: Iterable[tuple[int, HostNumber]], fact: Callable[[int], str]) -> Iterator[str]:
        """Yields statements that compute sizes of the host. fact: returns the text of an extent or a scalar, by id."""
        for number, read in sizes:
            function, facts = compiled(read)
            yield f"{host_size(number)} = int({self._name('number', function)}({', '.join(map(fact, facts))}))"

    def _captured_inputs(self) -> list[str]:
        """The captured arrays and the results of the prologue, after code that compares the state the trace read."""
        trace = self.entry.trace
        for place in trace.statics:
            self._unless(self._equals(self._read(place.route), place.value))
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
            self.lines.append(f"{results} = {run}({tuple_text([captured[k] for k in trace.prologue.captured])})")
            self._unless(f"{results} is not None")
            captured += [f"{results}[{k}]" for k in range(len(trace.prologue.inputs))]
        return captured

    def _equals(self, variable: str, value: Any) -> str:
        """The condition that `is_equal` tests."""
        same, kind = self._name("s", value), type(value)
        if kind in (int, str, bytes) or (kind is float and value == value and value):
            return f"{variable} is {same} or (type({variable}) is {self._name('t', kind)} and {variable} == {same})"
        return f"{variable} is {same} or is_equal({variable}, {same})"

    def _captured(self, capture: Captured) -> str:
        """The variable of a captured array or number, after code that compares the class of a number."""
        variable = self._name("c", capture.array) if capture.place is None else self._read(capture.place.route)
        if not capture.scalar:
            is_foreign = _is_foreign(capture.array, self.entry.kind)
            return self._entered(variable, capture.array) if is_foreign else variable
        if capture.place is None:
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
        for route_step in reversed(steps):
            key = (text, route_step.kind, route_step.key if route_step.kind == "attribute" else id(route_step.key))
            if key not in self._followed:
                self._followed[key] = self._step(text, route_step)
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
        if step.kind == "computed":
            numbers = "".join(f", {self._read(route)}" for route in step.key.routes)
            texts["computed"] = f"{self._name('read', step.key.function)}({before}{numbers})"
        if step.kind == "call":
            texts["call"] = f"{self._name('read', step.key)}({before})"
        variable = self._name("v")
        self.lines.append(f"{variable} = {texts[step.kind]}")
        return variable


def host_size(number: int) -> str:
    """Returns the variable of an input that is a size which the host computes."""
    return f"size_{number}"


def array_tests(variable: str, array: Any, name: Callable[[str, Any], str]) -> list[str]:
    """Returns the conditions under which an array has the type, the rank and the extents of 1 of another one.

    name: adds a global of the generated code and returns its name.
    """
    tests = [f"type({variable}) is {name('t', type(array))}"]
    tests.append(f"{variable}.dtype.num == {array.dtype.num} and {variable}.ndim == {array.ndim}")
    signs = ("==" if extent == 1 else "!=" for extent in array.shape)
    tests += [f"{variable}.shape[{axis}] {sign} 1" for axis, sign in enumerate(signs)]
    tests.append(f"{variable}.dtype.isnative")
    if not isinstance(array, np.ndarray):
        tests.append(f"{variable}.device.id == {array.device.id}")
    return tests


def tuple_text(texts: Sequence[str]) -> str:
    """Returns the text of a tuple of expressions."""
    return f"({''.join(f'{text}, ' for text in texts)})"
