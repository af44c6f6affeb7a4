"""Makes a function of jax.numpy one that the tracer can record: JAX traces it, and its jaxpr is recorded.

Sizes stay symbolic where JAX can compare them: first every symbolic extent is a dimension of its own, then extents that
are equal in this call share one, under a guard. Then only first axes of arguments are symbolic, whose sizes no other
axis has: batches. At last every size is a constant of the trace, with a guard; from the attempt before on, so is every
number that the function is given. Each of these is an attempt: the function runs again from the start. The clone of
the function runs inside of JAX's trace, so that arrays that it captures are arguments there; those that an attempt
meets first are arguments of the next one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees
from tracefuse.dtypes import dtype_of
from tracefuse.errors import TracefuseError
from tracefuse.frontend.jax_api import (
    control_flow_primitives,
    effect_primitives,
    library_primitives,
    movement_primitives,
    pointwise_primitives,
    position_primitives,
    random_primitives,
    small_matrix_primitives,
    window_primitives,
)
from tracefuse.frontend.jax_api.jaxpr_recording import JaxprRecording, StaticSizesNeeded
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.rebuilt_trees import as_ordinary, with_shadows
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.state.container_overlays import OVERLAY_CLASSES
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, symbols

RULES = (
    control_flow_primitives, effect_primitives, library_primitives, movement_primitives, pointwise_primitives,
    position_primitives, random_primitives, small_matrix_primitives, window_primitives,
)  # fmt: skip
"""The modules that define the rules of primitives."""


@dataclass(slots=True)
class JaxAttempts:
    """What attempts to trace one call learn. captured: arrays that the function captures, with their places.

    naming: how extents are named, see `_names`. constant: array and axis of each extent that has to be a constant.
    """

    captured: list[tuple[Any, Place]] = field(default_factory=list)
    naming: int = 0
    constant: set[tuple[int, int]] = field(default_factory=set)


BATCH_NAMING = 2
"""The naming in which numbers, and all sizes but those of the first axes of arguments, are constants of the trace."""
LAST_NAMING = 3
"""The naming in which every size is a constant of the trace."""


def traced_by_jax(function: Callable[..., Any], falls_back: bool = False) -> Callable[..., Any]:
    """Returns a function that records `function`, written with jax.numpy, in the trace in progress.

    Arrays that `function` captures are inputs, read at every call. Raises what the function raises, and
    UnsupportedError for a primitive without a rule; with `falls_back`, JAX computes it in a segment of its own.
    """

    @functools.wraps(function, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = current.get()
        assert recorder is not None
        args, kwargs = as_ordinary(recorder, args), as_ordinary(recorder, kwargs)
        return _JaxCall(recorder, function, args, kwargs).recorded(falls_back)

    return call


_registered: set[type] = set()
"""The classes of containers of captured state that are pytree nodes of JAX."""


def _register_containers() -> None:
    """Makes captured dicts and lists, as a clone sees them, pytree nodes of JAX."""
    import jax

    for base, overlay in OVERLAY_CLASSES.items():
        if overlay in _registered or not issubclass(base, (dict, list)):
            continue
        _registered.add(overlay)
        if issubclass(base, dict):
            jax.tree_util.register_pytree_node(
                overlay, lambda tree: ([tree[key] for key in sorted(tree)], tuple(sorted(tree))),
                lambda keys, entries: dict(zip(keys, entries, strict=True)),
            )  # fmt: skip
        else:
            jax.tree_util.register_pytree_node(overlay, lambda tree: (list(tree), None), lambda _, entries: [*entries])


class _JaxCall:
    """One attempt to record a call of a function that JAX traces."""

    def __init__(self, recorder: Recorder, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        import jax

        _register_containers()
        self.recorder, self.function = recorder, function
        recorder.calls_traced_outside += 1
        self.attempts: JaxAttempts = recorder.kept_alive.setdefault(recorder.calls_traced_outside, JaxAttempts())
        self.leaves, self.structure = jax.tree_util.tree_flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
        self.positions = [k for k, leaf in enumerate(self.leaves) if self._is_input(leaf)]
        self.arrays = [traced_ops.as_tensor(self.leaves[k]) for k in self.positions]
        self.weak = [self._is_weak(self.leaves[k]) for k in self.positions]
        for array, place in self.attempts.captured:
            self.arrays.append(traced_ops.as_tensor(recorder.capture_later(array, place)))
            self.weak.append(bool(getattr(array, "weak_type", False)))
        self.known = len(self.attempts.captured)
        self.result: Any = None

    def _is_input(self, leaf: Any) -> bool:
        """Whether JAX traces a leaf; in the last namings, numbers of Python keep their values."""
        traces_numbers = self.attempts.naming < BATCH_NAMING
        if isinstance(leaf, SymbolicSize):
            return traces_numbers
        return isinstance(leaf, Traced) and (traces_numbers or not leaf.on_host or leaf.weak is None)

    def _is_weak(self, leaf: Any) -> bool:
        return isinstance(leaf, SymbolicSize) or leaf.weak is not None or leaf.number in self.recorder.weak_inputs

    def recorded(self, falls_back: bool) -> Any:
        """Returns the recorded result of the call. Raises AnotherAttempt if the function has to be traced again."""
        import jax

        recorder, attempts = self.recorder, self.attempts
        self._require_elements()
        names = _names(recorder, self.arrays, len(self.positions), attempts)
        closed = self._traced_by_jax(names)
        if attempts.naming >= BATCH_NAMING:
            _pin(recorder, self.arrays, names)
        sizes = _sizes(recorder, names)
        inputs = [
            converted(recorder, array, dtype_of(variable.aval.dtype))
            for array, variable in zip(self.arrays, closed.jaxpr.invars, strict=True)
        ]
        try:
            results = JaxprRecording(recorder, sizes, falls_back).record(closed, inputs)
        except StaticSizesNeeded as error:
            attempts.naming = max(attempts.naming, BATCH_NAMING - 1)
            needed = set() if error.extent is None else set(symbols(error.extent))
            self._next_naming([extent for extent in names if needed & set(symbols(extent))])
            raise AnotherAttempt from None
        self._note_weak(results, closed.out_avals)
        return jax.tree_util.tree_unflatten(self.result, results)

    def _traced_by_jax(self, names: Mapping[Extent, str]) -> Any:
        """Returns the jaxpr of the function. names: of the extents that are dimensions of JAX."""
        import jax

        recorder, attempts = self.recorder, self.attempts
        try:
            closed = jax.make_jaxpr(self._flat)(*_types(recorder, self.arrays, self.weak, names))
        except TracefuseError:
            if len(attempts.captured) > self.known:
                raise AnotherAttempt from None
            raise
        except Exception as error:
            if len(attempts.captured) > self.known:
                raise AnotherAttempt from None
            if attempts.naming == LAST_NAMING or isinstance(error, jax.errors.TracerArrayConversionError):
                raise
            # JAX cannot compare two dimensions, or the function asks for a number.
            self._next_naming([extent for extent, name in names.items() if re.search(rf"\b{name}\b", str(error))])
            raise AnotherAttempt from None
        finally:
            recorder.represent = None
        if len(attempts.captured) > self.known:
            raise AnotherAttempt
        return closed

    def _require_elements(self) -> None:
        """Guards that each axis has elements, as a dimension of JAX has; an axis that has none is static."""
        for array in self.arrays:
            for extent in array.extents:
                if isinstance(extent, int):
                    continue
                if not self.recorder.decide(1, "<=", extent, "whether an axis has elements"):
                    self.recorder.pin(extent, "an axis without elements")

    def _note_weak(self, results: Sequence[Traced], types: Sequence[Any]) -> None:
        """Notes the results that promote as Python numbers; types: of all results, by JAX."""
        weak = [bool(getattr(aval, "weak_type", False)) for aval in types]
        numbers: dict[bool, set[int]] = {True: set(), False: set()}
        for one, is_weak in zip(results, weak, strict=True):
            numbers[is_weak].add(one.number)
        self.recorder.weak_results |= numbers[True] - numbers[False]

    def _next_naming(self, extents: Sequence[Extent]) -> None:
        """Chooses the naming of the next attempt. extents: those that were the reason why this one failed."""
        attempts, known = self.attempts, set(self.attempts.constant)
        if attempts.naming == BATCH_NAMING:
            attempts.constant |= {
                (k, axis)
                for k, array in enumerate(self.arrays)
                for axis, extent in enumerate(array.extents)
                if extent in extents
            }
        if attempts.constant == known:
            attempts.naming += 1

    def _flat(self, *values: Any) -> Any:
        """The function on JAX's tracers: of the arguments, then of captured arrays."""
        import jax

        recorder, leaves = self.recorder, list(self.leaves)
        for k, leaf in enumerate(leaves):
            if isinstance(leaf, SymbolicSize):
                leaves[k] = int(leaf) if self.attempts.naming >= BATCH_NAMING else leaf
            elif isinstance(leaf, Traced) and k not in self.positions:
                leaves[k] = traced_ops.as_number(leaf)
        for k, value in zip(self.positions, values, strict=False):
            leaves[k] = value
        captured = values[len(self.positions) :]
        known = {id(array): value for (array, _), value in zip(self.attempts.captured, captured, strict=True)}

        def represent(array: Any, place: Place) -> Any:
            if id(array) not in known:
                self.attempts.captured.append((array, place))
                known[id(array)] = jax.numpy.asarray(array)
            return known[id(array)]

        recorder.represent = represent
        function = self.function
        if recorder.overlays is not None:
            function, _ = recorder.overlays.of_inner(function, getattr(function, "__name__", "the function"), None)
        positional, keywords = with_shadows(recorder, jax.tree_util.tree_unflatten(self.structure, leaves))
        results = pytrees.with_words(function(*positional, **keywords))
        result_leaves, self.result = jax.tree_util.tree_flatten(results)
        return result_leaves


def _names(recorder: Recorder, arrays: Sequence[Traced], count: int, attempts: JaxAttempts) -> dict[Any, str]:
    """Returns a name for each symbolic extent; an extent without a name is a constant of the trace.

    count: how many of the arrays are arguments. The namings: 0: a name for each extent, 1: one for each size,
    BATCH_NAMING: one for each size that only first axes of arguments have, LAST_NAMING: no names.
    """
    unique = list(dict.fromkeys(e for array in arrays for e in array.extents if not isinstance(e, int)))
    if attempts.naming == 0:
        return {extent: f"d{k}" for k, extent in enumerate(unique)}
    if attempts.naming == LAST_NAMING:
        return {}
    if attempts.naming == BATCH_NAMING:
        places = [(k, axis) for k, array in enumerate(arrays) for axis in range(len(array.extents))]
        batches = {(k, axis) for k, axis in places if k < count and axis == 0} - attempts.constant
        constant = {recorder.known(arrays[k].extents[axis]) for k, axis in places if (k, axis) not in batches}
        first = {arrays[k].extents[0] for k, _ in batches}
        unique = [extent for extent in unique if extent in first and recorder.known(extent) not in constant]
    by_size: dict[int, str] = {}
    return {extent: by_size.setdefault(recorder.known(extent), f"d{len(by_size)}") for extent in unique}


def _types(recorder: Recorder, arrays: Sequence[Traced], weak: Sequence[bool], names: Mapping[Any, str]) -> list[Any]:
    import jax
    import jax.export

    scope = jax.export.SymbolicScope()
    dimensions = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in dict.fromkeys(names.values())}
    types = []
    for array, is_weak in zip(arrays, weak, strict=True):
        shape = tuple(
            e if isinstance(e, int) else dimensions[names[e]] if e in names else recorder.known(e)
            for e in array.extents
        )
        dtype = jax.dtypes.canonicalize_dtype(array.value.dtype.numpy)
        types.append(jax.ShapeDtypeStruct(shape, dtype, weak_type=is_weak))
    return types


def _sizes(recorder: Recorder, names: Mapping[Any, str]) -> dict[str, Extent]:
    """Guards what the names assume, and returns the size of each name."""
    first: dict[str, Extent] = {}
    for extent, name in names.items():
        known = first.setdefault(name, extent)
        if known is not extent:
            recorder.decide(known, "==", extent, "two dimensions of a JAX function that are taken as equal")
            recorder.equate(extent, known)
    return first


def _pin(recorder: Recorder, arrays: Sequence[Traced], names: Mapping[Any, str]) -> None:
    for array in arrays:
        for extent in array.extents:
            if extent not in names:
                recorder.pin(extent, "a size that JAX compares")
