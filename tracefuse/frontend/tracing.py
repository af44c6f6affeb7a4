"""Traces a function: calls it with tracers and returns the recorded Fusion, with what a later call needs to run it.

Must not know: compilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from tracefuse import pytrees, source
from tracefuse.dynamic.guard_failures import GuardFailure, first_failure
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.errors import TraceError, TracefuseError
from tracefuse.frontend.numpy_api import replacements
from tracefuse.frontend.numpy_api.creation import recording
from tracefuse.frontend.numpy_api.random_calls import RecordingGenerator, twin_of
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer import captures, traced_ops, views
from tracefuse.frontend.tracer.assumptions import ScalarGuard
from tracefuse.frontend.tracer.bypassed_arrays import BypassedArray, ContentsBefore, warn_of_cost
from tracefuse.frontend.tracer.captures import Place, State
from tracefuse.frontend.tracer.code_names import CodeNames
from tracefuse.frontend.tracer.masked_elements import MaskedElements
from tracefuse.frontend.tracer.printed_values import Print, printed
from tracefuse.frontend.tracer.prologue import Prologue
from tracefuse.frontend.tracer.questions import Answers
from tracefuse.frontend.tracer.random_watch import RandomWatch
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.result_leaves import (
    ArgumentLeaf,
    ConstantLeaf,
    NumberLeaf,
    OutputLeaf,
    ResultLeaf,
    SizeLeaf,
)
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.traced import Memory, Traced
from tracefuse.frontend.tracer.write_protection import WriteProtection
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import Symbol, python_text
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.argument_leaves import Leaf, array_key
from tracefuse.runtime.devices.arrays import dtype_of_array, element_strides

Rebuild: TypeAlias = Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(slots=True, eq=False)
class Captured:
    """A captured array. place: where calls read it; None: this object itself. key: the type and rank it must have."""

    place: Place | None
    array: Any
    key: tuple[Any, ...]

    @property
    def path(self) -> str:
        return self.place.path if self.place is not None else "a constant array"

    def read(self, bound: Any) -> Any:
        return self.array if self.place is None else self.place.read(bound)


@dataclass(slots=True, eq=False)
class Trace:
    """A recorded function.

    guards: facts about sizes that the recording assumed; scalar_guards: about scalars. sources: for each input of the
    fusion the position of its leaf, or -(k + 1) for the k-th of the captured arrays and the results of the prologue.
    statics: the state that the function read, to be compared at every call. bypassed: arrays among it, compared by
    contents. results: the origin of each leaf of the result. structure: the pytree of the result. device:
    the GPU of the arguments or of `device=`, or None. prints: the values that a call prints. sizes: extents and scalars
    of the traced call. pairs: places that must lead to the same object at every call. updated_numbers: the leaves of
    0-d arrays that the function updates in place; the last outputs that are returned are their new values.
    """

    fusion: Fusion
    guards: tuple[Guard, ...]
    scalar_guards: tuple[ScalarGuard, ...]
    sources: tuple[int, ...]
    captured: tuple[Captured, ...]
    statics: tuple[Place, ...]
    results: tuple[ResultLeaf, ...]
    structure: Any
    names: tuple[str, ...] = field(default=())
    device: int | None = None
    prints: tuple[Print, ...] = ()
    sizes: Mapping[int, Any] = field(default_factory=dict)
    pairs: tuple[tuple[Place, Place], ...] = ()
    prologue: Prologue | None = None
    bypassed: tuple[BypassedArray, ...] = ()
    updated_numbers: tuple[int, ...] = ()

    def facts(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """Extents and scalars of a call, for arguments in the order of the fusion's inputs."""
        by_value = dict(zip(self.fusion.inputs, arguments, strict=True))
        facts: dict[int, Any] = {key: by_value[value].shape[axis] for key, value, axis in self.fusion.axis_ids()}
        for number in self.fusion.scalar_inputs:
            facts[number] = by_value[number]
        return facts

    def never_one(self) -> tuple[Guard, ...]:
        """The guards that the trace key implies: no symbolic extent of an argument is 1."""
        reason = "an extent of 1 is another trace"
        symbolic = (self.fusion.values[v].shape[axis] for _, v, axis in self.fusion.axis_ids())
        return tuple(Guard(extent, "!=", 1, reason) for extent in symbolic if not isinstance(extent, int))

    def guard_failure(self, arguments: Sequence[Any], before: Mapping[int, Any]) -> GuardFailure | None:
        """The first guard that fails for these arguments. before: the extents and scalars of the traced call."""
        return first_failure(self.fusion, self.guards, before, self.facts(arguments))

    def guard_function(self) -> Callable[[Sequence[Any]], bool] | None:
        """Compiles the guards into a function of the arguments, in the fusion's order; None without guards."""
        if not self.guards:
            return None
        axis_of = {key: (self.fusion.inputs.index(value), axis) for key, value, axis in self.fusion.axis_ids()}

        def name(symbol: Symbol) -> str:
            assert symbol.id is not None
            if symbol.id >= 0:
                return f"int(a[{self.fusion.inputs.index(symbol.id)}])"
            position, axis = axis_of[symbol.id]
            return f"a[{position}].shape[{axis}]"

        def fact(symbol: Symbol) -> str:
            match = STRIDE_NAME.fullmatch(symbol.name) if symbol.id is None else None
            if match is None:
                return name(symbol)
            number, axis = map(int, match.groups())
            itemsize = self.fusion.values[number].dtype.itemsize
            return f"(a[{self.fusion.inputs.index(number)}].strides[{axis}] // {itemsize})"

        tests = dict.fromkeys(
            f"{python_text(g.left, fact)} {g.relation} {python_text(g.right, fact)}" for g in self.guards
        )
        return compile_expression("a", " and ".join(tests), "guards of a trace")


@dataclass(slots=True)
class _Inputs:
    """The leaves of a call as the traced function receives them."""

    values: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # value number -> leaf


def trace(
    function: Callable[..., Any],
    leaves: Sequence[Leaf],
    rebuild: Rebuild,
    bound: Any,
    *,
    dynamic: bool = True,
    device: int | None = None,
    same: Mapping[int, int] = MappingProxyType({}),
    answers: Answers | None = None,
) -> Trace:
    """Calls `function` with tracers in place of arrays and records its operations.

    rebuild: unflattens leaves into the arguments of the call. bound: the `self` of a bound method, or None. dynamic:
    whether extents stay symbolic. device: the GPU of the array arguments, or None for the host. same: leaves that share
    the tracer of an earlier leaf. answers: answers questions about computed values, which raise without it. Raises
    TraceError for a generator or an async function, and any error of `function`.
    """
    name = getattr(function, "__name__", type(function).__name__)
    recorder = Recorder(Tracer, name)
    recorder.answers = answers
    recorder.device, recorder.is_placed = device, any(leaf.is_array for leaf in leaves)
    names = CodeNames()
    places_before = list(captures.places(function, bound, names))
    before = ContentsBefore(places_before)
    watch = RandomWatch(function, places_before, names)
    inputs = _record_inputs(recorder, leaves, function, dynamic, same)
    positional, keywords = rebuild(inputs.values)
    protection = WriteProtection(places_before, _first_line(function))
    recorder.captured_paths = protection.paths
    outside = current.get()
    try:
        # Set inside the try and reset first in its finally, so that no interrupt leaves a recorder behind.
        current.set(recorder)
        generators = [place.value for place in places_before if isinstance(place.value, captures.GENERATORS)]
        traced = recording(function, names, generators)
        result = protection.run(lambda: _call_function(traced, positional, keywords, protection))
        if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
            raise not_a_function(function, name)
        result_leaves, structure = pytrees.flatten(result)
        results = tuple(_record_result(recorder, leaf, inputs) for leaf in result_leaves)
        updated_numbers = _update_arguments(recorder, inputs)
        prints = printed(recorder)
        closed_over = [capture.array for capture in recorder.captures.values()]
        state = captures.state_of(function, bound, closed_over, names)
        captured, order = _collect_captures(recorder, state)
        if answers is not None and answers.stages:
            answers.stages.append(answers.stage(recorder, None))
        prologue = recorder.contents.prologue(order)
        bypassed = before.compared(state.arrays_outside)
        fusion = recorder.build()
        watch.warn(recorder.makes_generators)
        warn_of_cost(name, getattr(function, "__code__", None), bypassed)
    finally:
        current.set(outside)
        recorder.alive = False
    sources = tuple(inputs.numbers[n] if n in inputs.numbers else -(order[n] + 1) for n in fusion.inputs)
    return Trace(
        fusion, tuple(recorder.guards), tuple(recorder.scalar_guards), sources, captured, tuple(state.plain), results,
        structure, tuple(leaf.path for leaf in leaves), recorder.device, prints,
        dict(recorder.hints), tuple(state.pairs), prologue, bypassed, updated_numbers,
    )  # fmt: skip


def _first_line(function: Any) -> str | None:
    """The line where a function begins; None for a callable without Python code."""
    code = getattr(function, "__code__", None)
    return None if code is None else source.line_of(code)


def _call_function(
    function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any], protection: WriteProtection
) -> Any:
    """Calls the function; explains errors of wrong arguments, read-only arrays, and CuPy's and JAX's functions."""
    try:
        return function(*positional, **keywords)
    except Exception as error:
        if isinstance(error, TypeError) and not _accepts(function, positional, keywords):
            raise TraceError(str(error), hint=f"it is {_signature_text(function)}") from None
        refusal: TracefuseError | None = protection.refusal(error)
        if refusal is None:
            refusal = replacements.of_library(error)
        if refusal is None:
            raise
        raise refusal.with_traceback(error.__traceback__) from None


def _accepts(function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether the arguments fit the function's parameters; True if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _signature_text(function: Callable[..., Any]) -> str:
    """The function with its parameters, as Python source."""
    return f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"


def not_a_function(function: Any, name: str) -> TraceError:
    """The error for generators and async functions."""
    return TraceError(
        f"{name} is a generator or an async function", hint="return a tuple or a list of arrays instead of yielding"
    )


def _record_inputs(
    recorder: Recorder, leaves: Sequence[Leaf], function: Any, dynamic: bool, same: Mapping[int, int]
) -> _Inputs:
    where = _first_line(function)
    inputs = _Inputs()
    for position, leaf in enumerate(leaves):
        if leaf.is_static:
            inputs.values.append(twin_of(leaf.value) if isinstance(leaf.value, captures.GENERATORS) else leaf.value)
            continue
        if position in same:
            inputs.values.append(inputs.values[same[position]])
            continue
        assert leaf.dtype is not None
        if leaf.is_array:
            traced = recorder.tensor_argument(leaf.value.shape, leaf.dtype, leaf.path, where)
            views.add_layout(traced, element_strides(leaf.value))
            if not dynamic:
                for extent in traced.extents:
                    recorder.pin(extent, "option dynamic=False")
        else:
            traced = recorder.scalar_argument(leaf.number, leaf.dtype, leaf.weak, leaf.path, where)
            if leaf.of_array:
                traced.memory = Memory(leaf.path, traced.number)
        inputs.numbers[recorder.builder.inputs[-1]] = position
        inputs.values.append(traced)
    return inputs


def _record_result(recorder: Recorder, leaf: Any, inputs: _Inputs) -> ResultLeaf:
    """Records a leaf of the result and returns its origin."""
    for position, values in enumerate(inputs.values):
        if leaf is values and isinstance(leaf, (Traced, SymbolicSize)):
            return ArgumentLeaf(position)
    if isinstance(leaf, SymbolicSize):
        extent = recorder.simplify(leaf.extent)
        return ConstantLeaf(extent) if isinstance(extent, int) else SizeLeaf(extent)
    if isinstance(leaf, MaskedElements):
        leaf = leaf.elements()
    if not isinstance(leaf, Traced):
        return ConstantLeaf(leaf.original if isinstance(leaf, RecordingGenerator) else leaf)
    recorder.resolve(leaf)
    if leaf.on_host and leaf.weak is not None and leaf.read is not None:
        return NumberLeaf(leaf.read)
    if leaf.on_host:
        leaf = traced_ops.as_tensor(leaf)
    if leaf.number in recorder.builder.inputs or leaf.number in recorder.builder.outputs:
        # A result shares no memory with an argument or another result.
        leaf = recorder.movement("permute", [leaf], dims=tuple(range(len(leaf.extents))))
    recorder.builder.output(leaf.number)
    return OutputLeaf(len(recorder.builder.outputs) - 1)


def _update_arguments(recorder: Recorder, inputs: _Inputs) -> tuple[int, ...]:
    """Adds an output for each argument that was updated in place, after all other outputs; aliased for arrays.

    Returns the leaves of updated arguments without axes, in the order of their outputs.
    """
    builder = recorder.builder
    numbers = [argument for argument in recorder.updated if not builder.values[argument].is_tensor]
    for argument in numbers:
        builder.output(traced_ops.copy(traced_ops.as_tensor(recorder.updated[argument])).number)
    for argument, traced in recorder.updated.items():
        if argument in numbers:
            continue
        if traced.number in builder.inputs or traced.number in builder.outputs:
            traced = traced_ops.copy(traced)
        builder.output(traced.number, argument)
    return tuple(inputs.numbers[argument] for argument in numbers)


def _collect_captures(recorder: Recorder, state: State) -> tuple[tuple[Captured, ...], dict[int, int]]:
    """The captured arrays, each with its nearest place, and the positions of all inputs that are no arguments.

    The results of the prologue follow the captured arrays.
    """
    captured: list[Captured] = []
    order: dict[int, int] = {}
    for capture in recorder.captures.values():
        place = next(iter(state.arrays.get(id(capture.array), ())), None)
        order[capture.number] = len(captured)
        key = array_key(capture.array, dtype_of_array(capture.array))
        captured.append(Captured(place, capture.array, key))
        if place is not None:
            recorder.rename(capture.number, place.path)
    order.update((number, len(captured) + k) for k, number in enumerate(recorder.contents.inputs))
    return tuple(captured), order
