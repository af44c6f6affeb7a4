"""One trace of a function: leaves in, a Fusion and how to call it out.

Knows: the recorder, captures, what each leaf of the arguments is. Must not know: caches, compilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tracefuse import pytrees, source
from tracefuse.dtypes import dtype_of
from tracefuse.dynamic.guard_failures import Miss, first_miss
from tracefuse.dynamic.guards import Guard
from tracefuse.errors import TraceError, TracefuseError
from tracefuse.frontend.numpy_api import replacements
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer import captures, traced_ops
from tracefuse.frontend.tracer.assumptions import ScalarGuard
from tracefuse.frontend.tracer.captures import Place, State
from tracefuse.frontend.tracer.code_names import CodeNames
from tracefuse.frontend.tracer.printed_values import Print, printed
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
from tracefuse.frontend.tracer.traced import Traced, ViewGroup
from tracefuse.frontend.tracer.write_protection import WriteProtection
from tracefuse.generated_code import compile_expression
from tracefuse.ir.extents import Symbol, python_text
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.argument_leaves import Leaf, array_key

Rebuild: TypeAlias = Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(slots=True, eq=False)
class Captured:
    """One captured array: where it is read at every call (None: this very object), and what it must be like."""

    place: Place | None
    array: Any
    key: tuple[Any, ...]
    scalar: bool = False

    @property
    def path(self) -> str:
        return self.place.path if self.place is not None else "a constant array"

    def read(self, bound: Any) -> Any:
        return self.array if self.place is None else self.place.read(bound)


@dataclass(slots=True, eq=False)
class Trace:
    """A recorded function.

    sources: for each input of the fusion the position of its leaf, or -(k + 1) for the k-th capture. results: where
    each leaf of the result comes from. device: the GPU that arguments or `device=` name, or None. prints: what a call
    prints. sizes: extents and scalars of the call that it was recorded for. pairs: places that lead to one object, as
    they have to at every call.
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

    def facts(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """Extents and scalars of a call, for arguments in the order of the fusion's inputs."""
        by_value = dict(zip(self.fusion.inputs, arguments, strict=True))
        facts: dict[int, Any] = {key: by_value[value].shape[axis] for key, value, axis in self.fusion.axis_ids()}
        for number in self.fusion.scalar_inputs:
            facts[number] = by_value[number]
        return facts

    def never_one(self) -> tuple[Guard, ...]:
        """What the key of the trace says of the axes of arguments that are symbolic: their extents are not 1."""
        reason = "an extent of 1 is another trace"
        symbolic = (self.fusion.values[v].shape[axis] for _, v, axis in self.fusion.axis_ids())
        return tuple(Guard(extent, "!=", 1, reason) for extent in symbolic if not isinstance(extent, int))

    def guard_failure(self, arguments: Sequence[Any], before: Mapping[int, Any]) -> Miss | None:
        """The first guard that does not hold for other arguments; before: the facts that it was recorded with."""
        return first_miss(self.fusion, self.guards, before, self.facts(arguments))

    def guard_function(self) -> Callable[[Sequence[Any]], bool] | None:
        """Whether the facts that were used hold, as a function of the arguments in the fusion's order."""
        if not self.guards:
            return None
        axis_of = {key: (self.fusion.inputs.index(value), axis) for key, value, axis in self.fusion.axis_ids()}

        def name(symbol: Symbol) -> str:
            assert symbol.id is not None
            if symbol.id >= 0:
                return f"int(a[{self.fusion.inputs.index(symbol.id)}])"
            position, axis = axis_of[symbol.id]
            return f"a[{position}].shape[{axis}]"

        tests = dict.fromkeys(
            f"{python_text(g.left, name)} {g.relation} {python_text(g.right, name)}" for g in self.guards
        )
        return compile_expression("a", " and ".join(tests), "guards of a trace")


@dataclass(slots=True)
class _Inputs:
    """The leaves of a call as the traced function gets them."""

    given: list[Any] = field(default_factory=list)
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
) -> Trace:
    """Calls `function` with tracers in place of arrays and records what it does.

    rebuild: the arguments of the call from its leaves. bound: the object that a method belongs to, or None.
    device: the GPU of the array arguments, or None for the host. same: leaves that get the tracer of an earlier one.
    """
    name = getattr(function, "__name__", type(function).__name__)
    recorder = Recorder(Tracer, name)
    recorder.device, recorder.is_placed = device, any(leaf.kind == "array" for leaf in leaves)
    names = CodeNames()
    found_before = list(captures.places(function, bound, names))
    watch = RandomWatch(function, found_before, names)
    inputs = _inputs(recorder, leaves, function, dynamic, same)
    positional, keywords = rebuild(inputs.given)
    protection = WriteProtection(found_before, _line_of(function))
    recorder.captured_paths = protection.paths
    outside = current.get()
    try:
        # Inside, and undone first of all: an interrupt before or after leaves no recorder behind.
        current.set(recorder)
        result = protection.run(lambda: _called(function, positional, keywords, protection))
        if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
            raise not_a_function(function, name)
        found, structure = pytrees.flatten(result)
        results = tuple(_result(recorder, leaf, inputs) for leaf in found)
        _update_arguments(recorder)
        prints = printed(recorder)
        closed_over = [capture.array for capture in recorder.captures.values()]
        state = captures.state_of(function, bound, closed_over, names)
        captured, order = _captured(recorder, state)
        fusion = recorder.build()
        watch.warn()
    finally:
        current.set(outside)
        recorder.alive = False
    sources = tuple(inputs.numbers[n] if n in inputs.numbers else -(order[n] + 1) for n in fusion.inputs)
    return Trace(
        fusion, tuple(recorder.guards), tuple(recorder.scalar_guards), sources, captured, tuple(state.plain), results,
        structure, tuple(leaf.path for leaf in leaves), recorder.device, prints,
        dict(recorder.hints), tuple(state.pairs),
    )  # fmt: skip


def _line_of(function: Any) -> str | None:
    """The line where a function begins; None of what has no code."""
    code = getattr(function, "__code__", None)
    return None if code is None else source.line_of(code)


def _called(
    function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any], protection: WriteProtection
) -> Any:
    """The function's result; a function of CuPy that does not take traced arrays is named, with what to write."""
    try:
        return function(*positional, **keywords)
    except Exception as error:
        if isinstance(error, TypeError) and not _takes(function, positional, keywords):
            raise TraceError(str(error), hint=f"it is {_spelled(function)}") from None
        refusal: TracefuseError | None = protection.refusal(error)
        if refusal is None:
            refusal = replacements.of_cupy(error, lambda value: isinstance(value, Traced))
        if refusal is None:
            raise
        raise refusal.with_traceback(error.__traceback__) from None


def _takes(function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether the arguments fit the function's parameters, as far as they are known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _spelled(function: Callable[..., Any]) -> str:
    """The function with its parameters, as it is written."""
    return f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"


def not_a_function(function: Any, name: str) -> TraceError:
    """The refusal of generators and coroutines."""
    return TraceError(
        f"{name} is a generator or an async function", hint="return a tuple or a list of arrays instead of yielding"
    )


def _inputs(
    recorder: Recorder, leaves: Sequence[Leaf], function: Any, dynamic: bool, same: Mapping[int, int]
) -> _Inputs:
    where = _line_of(function)
    inputs = _Inputs()
    for position, leaf in enumerate(leaves):
        if leaf.kind == "static":
            inputs.given.append(leaf.value)
            continue
        if position in same:
            inputs.given.append(inputs.given[same[position]])
            continue
        assert leaf.dtype is not None
        if leaf.kind == "array":
            traced = recorder.tensor_argument(leaf.value.shape, leaf.dtype, leaf.path, where)
            if not dynamic:
                for extent in traced.extents:
                    recorder.pin(extent, "option dynamic=False")
        else:
            value = leaf.value.item() if isinstance(leaf.value, np.generic) else leaf.value
            traced = recorder.scalar_argument(value, leaf.dtype, leaf.weak, leaf.path, where)
            if leaf.of_array:
                traced.group = ViewGroup(leaf.path)
        inputs.numbers[recorder.builder.inputs[-1]] = position
        inputs.given.append(traced)
    return inputs


def _result(recorder: Recorder, leaf: Any, inputs: _Inputs) -> ResultLeaf:
    """Where one leaf of the result comes from."""
    for position, given in enumerate(inputs.given):
        if leaf is given and isinstance(leaf, (Traced, SymbolicSize)):
            return ArgumentLeaf(position)
    if isinstance(leaf, SymbolicSize):
        extent = recorder.simplify(leaf.extent)
        return ConstantLeaf(extent) if isinstance(extent, int) else SizeLeaf(extent)
    if not isinstance(leaf, Traced):
        return ConstantLeaf(leaf)
    recorder.resolve(leaf)
    if leaf.on_host and leaf.weak is not None and leaf.read is not None:
        return NumberLeaf(leaf.read)
    if leaf.on_host:
        leaf = traced_ops.as_tensor(leaf)
    if leaf.number in recorder.builder.inputs or leaf.number in recorder.builder.outputs:
        # Results share memory with no argument and no other result.
        leaf = recorder.movement("permute", [leaf], dims=tuple(range(len(leaf.extents))))
    recorder.builder.output(leaf.number)
    return OutputLeaf(len(recorder.builder.outputs) - 1)


def _update_arguments(recorder: Recorder) -> None:
    """Makes the arguments that were changed in place aliased outputs, after all others."""
    builder = recorder.builder
    for argument, traced in recorder.updated.items():
        if traced.number in builder.inputs or traced.number in builder.outputs:
            traced = traced_ops.copy(traced)
        builder.output(traced.number, argument)


def _captured(recorder: Recorder, state: State) -> tuple[tuple[Captured, ...], dict[int, int]]:
    """The captured arrays, with the nearest place of each, and their positions by the number of their input."""
    found: list[Captured] = []
    order: dict[int, int] = {}
    for capture in recorder.captures.values():
        place = next(iter(state.arrays.get(id(capture.array), ())), None)
        order[capture.number] = len(found)
        key = array_key(capture.array, dtype_of(capture.array.dtype))
        found.append(Captured(place, capture.array, key))
        if place is not None:
            recorder.rename(capture.number, place.path)
    return tuple(found), order
