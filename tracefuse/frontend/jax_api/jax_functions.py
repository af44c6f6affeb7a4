"""Makes a function of jax.numpy one that the tracer can record: JAX traces it, and its jaxpr is recorded.

Sizes stay symbolic where JAX can compare them: first every symbolic extent is a dimension of its own, then extents that
are equal in this call share one, under a guard; at last every size is a constant of the trace, with a guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracefuse.dtypes import dtype_of
from tracefuse.errors import TracefuseError
from tracefuse.frontend.jax_api import (
    control_flow_primitives,
    movement_primitives,
    pointwise_primitives,
    window_primitives,
)
from tracefuse.frontend.jax_api.jaxpr_recording import record_jaxpr
from tracefuse.frontend.recorded_control_flow import as_ordinary
from tracefuse.frontend.tracer import traced_ops
from tracefuse.frontend.tracer.recorded_ops import converted
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ir.extents import Extent

RULES = (control_flow_primitives, movement_primitives, pointwise_primitives, window_primitives)
"""The modules that define the rules of primitives."""


def traced_by_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that records `function`, written with jax.numpy, in the trace in progress.

    Arrays that `function` captures are constants of the trace, as under jax.jit.
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = current.get()
        assert recorder is not None
        return _recorded(recorder, function, as_ordinary(recorder, args), as_ordinary(recorder, kwargs))

    return call


def _recorded(recorder: Recorder, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    import jax

    leaves, structure = jax.tree_util.tree_flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, (Traced, SymbolicSize))]
    arrays = [traced_ops.as_tensor(leaves[k]) for k in positions]
    weak = [isinstance(leaves[k], SymbolicSize) or leaves[k].weak is not None for k in positions]
    results: list[Any] = []

    def flat(*values: Any) -> Any:
        filled = list(leaves)
        for k, value in zip(positions, values, strict=True):
            filled[k] = value
        positional, keywords = jax.tree_util.tree_unflatten(structure, filled)
        found, tree = jax.tree_util.tree_flatten(function(*positional, **keywords))
        results[:] = [tree]
        return found

    closed, sizes = _jaxpr(recorder, flat, arrays, weak)
    inputs = [
        converted(recorder, array, dtype_of(variable.aval.dtype))
        for array, variable in zip(arrays, closed.jaxpr.invars, strict=True)
    ]
    values = record_jaxpr(recorder, closed, inputs, sizes)
    return jax.tree_util.tree_unflatten(results[0], values)


def _jaxpr(
    recorder: Recorder, flat: Callable[..., Any], arrays: Sequence[Traced], weak: Sequence[bool]
) -> tuple[Any, Mapping[str, Extent]]:
    """Returns the closed jaxpr, and the size of each of its symbolic dimensions by name."""
    import jax

    for array in arrays:
        for extent in array.extents:  # a dimension of JAX has at least one element
            if not isinstance(extent, int) and not recorder.decide(1, "<=", extent, "whether an axis has elements"):
                recorder.pin(extent, "an axis without elements")
    for names in _namings(recorder, arrays):
        types = _types(recorder, arrays, weak, names)
        try:
            closed = jax.make_jaxpr(flat)(*types)
            if not names:
                _pin(recorder, arrays)
            return closed, _sizes(recorder, names)
        except TracefuseError:
            raise
        except Exception:  # JAX cannot compare two dimensions, or the function asks for an integer
            if not names:
                raise
    raise AssertionError("the last naming has no symbolic dimension")


def _namings(recorder: Recorder, arrays: Sequence[Traced]) -> Iterator[dict[Any, str]]:
    """Yields names for symbolic extents: one for each, one for each size, none."""
    extents = [e for array in arrays for e in array.extents if not isinstance(e, int)]
    unique = list(dict.fromkeys(extents))
    if unique:
        yield {extent: f"d{k}" for k, extent in enumerate(unique)}
        by_size: dict[int, str] = {}
        shared = {e: by_size.setdefault(recorder.known(e), f"d{len(by_size)}") for e in unique}
        if len(by_size) < len(unique):
            yield shared
    yield {}


def _types(recorder: Recorder, arrays: Sequence[Traced], weak: Sequence[bool], names: Mapping[Any, str]) -> list[Any]:
    import jax
    import jax.export

    scope = jax.export.SymbolicScope()
    dimensions = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in dict.fromkeys(names.values())}
    types = []
    for array, is_weak in zip(arrays, weak, strict=True):
        shape = tuple(
            e if isinstance(e, int) else dimensions[names[e]] if names else recorder.known(e) for e in array.extents
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
    return first


def _pin(recorder: Recorder, arrays: Sequence[Traced]) -> None:
    for array in arrays:
        for extent in array.extents:
            recorder.pin(extent, "a size that JAX compares")
