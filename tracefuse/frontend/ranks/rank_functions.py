"""Functions of the ranks along a mesh axis, with the names and parameters of jax.lax.

Inside `shard_map` they exchange the parts of the ranks. In a fused function each is one exchange between fused
segments, in program order. `axis_name` is the name of a mesh axis, or a tuple of names, major first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, FusionError, ShapeError, shown
from tracefuse.frontend.ranks.current_mesh import coordinate, group_of, mesh_of
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ops import collectives
from tracefuse.runtime.communicators.rank_groups import RankGroup

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
]

AxisName = str | Sequence[str]


def _names(axis_name: AxisName) -> tuple[str, ...]:
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


def run_exchange(op: Any, x: Any, group: RankGroup, **parameters: Any) -> Any:
    """Records a collective on a traced array, or runs it on an array, and returns its result."""
    if not isinstance(x, Traced):
        array = x if hasattr(x, "__array_function__") else np.asarray(x)
        shape, _ = op.shapes([array.shape], {"group": group, **parameters}, _check_extents)
        return group.run(op.name, array, shape, parameters, source.user_line())
    traced = as_tensor(x)
    recorder = traced.recorder
    token = [] if recorder.last_exchange is None else [recorder.last_exchange[1]]
    result, after = record_whole(recorder, op, [traced, *token], group=group, **parameters)
    recorder.last_exchange = result, after
    return result


def _check_extents(left: int, relation: str, right: int, message: str, hint: str) -> None:
    if left != right:
        raise ShapeError(message.format(left=left, right=right), hint=hint, where=source.user_line())


def _over(axis_name: AxisName, x: Any, function: str, apply: Callable[[RankGroup, Any], Any]) -> Any:
    """Applies a function to each array of a pytree, for each mesh axis in order."""
    groups = [group_of(function, name) for name in _names(axis_name)]

    def over_leaf(leaf: Any) -> Any:
        for group in groups:
            leaf = apply(group, leaf)
        return leaf

    leaves, structure = pytrees.flatten(x)
    return pytrees.unflatten(structure, [over_leaf(leaf) for leaf in leaves])


def _reduced(function: str, combine: str, x: Any, axis_name: AxisName) -> Any:
    def apply(group: RankGroup, leaf: Any) -> Any:
        if isinstance(leaf, (bool, int, float, complex)):  # equal on all ranks
            return leaf * group.size if combine == "sum" else leaf
        _check_type(function, leaf, combine)
        return run_exchange(collectives.all_reduce, leaf, group, combine=combine)

    return _over(axis_name, x, function, apply)


def _check_type(function: str, leaf: Any, combine: str) -> None:
    dtype = leaf.value.dtype if isinstance(leaf, Traced) else dtype_of(np.asarray(leaf).dtype)
    if (combine == "sum" and dtype.kind == "bool") or (combine != "sum" and dtype.is_complex):
        raise DtypeError(
            f"{function} of {dtype} elements", hint="convert them, as in x.astype(np.int64)", where=source.user_line()
        )


def psum(x: Any, axis_name: AxisName) -> Any:
    """Returns the elementwise sum over the ranks, in the type of x, on every rank.

    x: an array, a number, or a pytree of them. On the CPU the sum adds in the order of the ranks. Raises DtypeError for
    boolean elements, TraceError outside of a function over a mesh.
    """
    return _reduced("psum", "sum", x, axis_name)


def pmax(x: Any, axis_name: AxisName) -> Any:
    """Returns the elementwise maximum over the ranks. x, and what is raised: see `psum`; NaN is the maximum."""
    return _reduced("pmax", "max", x, axis_name)


def pmin(x: Any, axis_name: AxisName) -> Any:
    """Returns the elementwise minimum over the ranks. x, and what is raised: see `psum`; NaN is the minimum."""
    return _reduced("pmin", "min", x, axis_name)


def pmean(x: Any, axis_name: AxisName) -> Any:
    """Returns the elementwise mean over the ranks. x, and what is raised: see `psum`."""
    size = axis_size(axis_name)
    leaves, structure = pytrees.flatten(psum(x, axis_name))
    return pytrees.unflatten(structure, [leaf / size for leaf in leaves])


def all_gather(x: Any, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Any:
    """Returns the parts of all ranks, on every rank.

    The parts lie along a new axis at `axis`, or with `tiled` one after the other along the existing `axis`.
    """

    def apply(group: RankGroup, leaf: Any) -> Any:
        stacked = run_exchange(collectives.all_gather, leaf, group)
        place = normalize_axis(operator.index(axis), stacked.ndim - int(tiled), "all_gather: axis")
        if not tiled:
            return stacked if place == 0 else np.moveaxis(stacked, 0, place)
        return _merged(stacked, place)

    names = _names(axis_name)
    return _over(names[::-1] if tiled else names, x, "all_gather", apply)


def _merged(stacked: Any, axis: int) -> Any:
    """Merges the leading axis into `axis` of the rest, as its major part."""
    moved = stacked if axis == 0 else np.moveaxis(stacked, 0, axis)
    shape = moved.shape
    return moved.reshape((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _split(x: Any, axis: int, size: int, function: str) -> Any:
    """Splits `axis` into `size` parts along a new leading axis. Raises ShapeError if it does not divide."""
    extent = x.shape[axis]
    if extent % size != 0:
        raise ShapeError(
            f"{function}: axis {axis} has {extent} elements, and there are {size} ranks",
            hint="pad the axis to a multiple of the ranks", where=source.user_line(),
        )  # fmt: skip
    parts = x.reshape((*x.shape[:axis], size, extent // size, *x.shape[axis + 1 :]))
    return parts if axis == 0 else np.moveaxis(parts, axis, 0)


def psum_scatter(x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """Returns this rank's part of the sum over the ranks.

    `scatter_dimension` has one entry for each rank, and is removed; with `tiled` it is split into equal parts. Raises
    ShapeError if it has another extent, or does not divide.
    """

    def apply(group: RankGroup, leaf: Any) -> Any:
        place = normalize_axis(operator.index(scatter_dimension), leaf.ndim, "psum_scatter: scatter_dimension")
        _check_type("psum_scatter", leaf, "sum")
        entries = _split(leaf, place, group.size, "psum_scatter") if tiled else np.moveaxis(leaf, place, 0)
        return run_exchange(collectives.reduce_scatter, entries, group, combine="sum")

    return _over(axis_name, x, "psum_scatter", apply)


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends x along pairs (sending rank, receiving rank); a rank that receives nothing gets zeros.

    Raises FusionError for a rank that does not exist, sends twice or receives twice.
    """
    size = axis_size(axis_name)
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    for ranks in ([a for a, _ in pairs], [b for _, b in pairs]):
        if len(set(ranks)) < len(ranks) or any(not 0 <= rank < size for rank in ranks):
            raise FusionError(
                f"ppermute: perm cannot be {shown(list(pairs))} among {size} ranks",
                hint="name each rank at most once as sender and once as receiver",
            )
    return _over(axis_name, x, "ppermute", lambda group, leaf: run_exchange(
        collectives.send_receive, leaf, group, pairs=pairs
    ))  # fmt: skip


def all_to_all(x: Any, axis_name: str, split_axis: int, concat_axis: int, *, tiled: bool = False) -> Any:
    """Sends part r along `split_axis` to rank r, and returns the parts that arrive, along `concat_axis`.

    Without `tiled`, `split_axis` has one entry for each rank and is removed, and the result has a new axis at
    `concat_axis`. With `tiled`, it is split into equal parts, which are concatenated. Raises ShapeError otherwise.
    """

    def apply(group: RankGroup, leaf: Any) -> Any:
        place = normalize_axis(operator.index(split_axis), leaf.ndim, "all_to_all: split_axis")
        target = normalize_axis(operator.index(concat_axis), leaf.ndim, "all_to_all: concat_axis")
        entries = _split(leaf, place, group.size, "all_to_all") if tiled else np.moveaxis(leaf, place, 0)
        arrived = run_exchange(collectives.all_to_all, entries, group)
        return _merged(arrived, target) if tiled else np.moveaxis(arrived, 0, target)

    return _over(axis_name, x, "all_to_all", apply)


def axis_index(axis_name: AxisName) -> Any:
    """Returns the place of this rank along the axis: an integer, symbolic in a fused function."""
    index: Any = 0
    for name in _names(axis_name):
        index = index * axis_size(name) + coordinate("axis_index", name)
    return index


def axis_size(axis_name: AxisName) -> int:
    """Returns the number of ranks along the axis."""
    size = 1
    for name in _names(axis_name):
        size *= mesh_of("axis_size").size(name)
    return size
