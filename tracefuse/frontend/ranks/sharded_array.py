"""Arrays that are distributed over the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tracefuse.errors import FusionError, ShapeError, TraceError, shown
from tracefuse.ir.shardings import DeviceMesh, MeshAxis, Sharding
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.rank_groups import RankGroup


class ShardedArray:
    """One rank's part of an array, with the shape of the whole array.

    local: the part, an array of NumPy or CuPy. sharding: the distribution. shape: of the whole array. Raises ShapeError
    for a part of another shape than the sharding gives this rank.
    """

    __slots__ = ("local", "shape", "sharding")

    def __init__(self, local: Any, sharding: Sharding, shape: Sequence[int]) -> None:
        self.local, self.sharding, self.shape = local, sharding, tuple(shape)
        expected = sharding.local_shape(current_world().rank, self.shape)
        if tuple(local.shape) != expected:
            raise ShapeError(
                f"rank {current_world().rank} has a part of shape {list(local.shape)} of an array of shape "
                f"{list(self.shape)}, {sharding}",
                hint=f"its part has shape {list(expected)}",
            )

    @classmethod
    def known(cls, local: Any, sharding: Sharding, shape: tuple[int, ...]) -> ShardedArray:
        """Returns the array whose part is known to have the shape that the sharding gives this rank."""
        array = cls.__new__(cls)
        array.local, array.sharding, array.shape = local, sharding, shape
        return array

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.local.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TraceError(
            "a sharded array has only a part of its elements on this rank",
            hint="call tracefuse.unshard(x) on every rank, or read x.local",
        )

    def __repr__(self) -> str:
        return f"ShardedArray({self.dtype}{list(self.shape)}, {self.sharding})"


def make_mesh(axis_shapes: Sequence[int], axis_names: Sequence[str]) -> DeviceMesh:
    """Returns the mesh of ranks 0, 1, ... in row-major order, and connects its ranks.

    axis_shapes: the number of ranks along each axis. axis_names: the name of each axis. Every rank of the job calls it,
    in the same order. Raises FusionError for a shape that is not made of positive integers, and DeviceError if the job
    has fewer ranks.
    """
    shape = tuple(axis_shapes)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise FusionError(f"a mesh cannot have the shape {shown(axis_shapes)}", hint="give positive integers")
    mesh = DeviceMesh(np.arange(int(np.prod(shape))).reshape(shape), tuple(axis_names))
    current_world().connect(mesh)
    return mesh


def shard(x: Any, sharding: Sharding) -> ShardedArray:
    """Returns this rank's part of an array that every rank has in full. Nothing is exchanged.

    Raises ShapeError if x has fewer axes than the sharding splits.
    """
    array = x if hasattr(x, "__array_function__") else np.asarray(x)
    return ShardedArray(array[sharding.slices(current_world().rank, array.shape)].copy(), sharding, array.shape)


def from_local(part: Any, sharding: Sharding, global_shape: Sequence[int]) -> ShardedArray:
    """Returns the array of this shape whose part on this rank is `part`. Raises ShapeError if the shape differs."""
    array = part if hasattr(part, "__array_function__") else np.asarray(part)
    return ShardedArray(array, sharding, global_shape)


def unshard(x: Any) -> Any:
    """Returns the whole array, on every rank; every rank of the mesh calls it. An array that is not sharded is itself.

    Parts are padded to equal extents for the exchange, which gathers along one mesh axis after the other. Raises
    CommunicationError if a rank does not take part.
    """
    if not isinstance(x, ShardedArray):
        return x
    sharding, shape = x.sharding, x.shape
    lengths = [-(-extent // sharding.parts(axis)) for axis, extent in enumerate(shape)]
    part = _padded(x.local, lengths)
    for axis in range(len(shape)):
        for name in reversed(sharding.names(axis)):
            part = _gathered(part, RankGroup(MeshAxis(sharding.mesh, name)), axis)
    return part[tuple(map(slice, shape))]


def _padded(part: Any, lengths: Sequence[int]) -> Any:
    """Returns `part` with zeros up to `lengths`."""
    if tuple(part.shape) == tuple(lengths):
        return part
    padded = np.zeros_like(part, shape=tuple(lengths))
    padded[tuple(map(slice, part.shape))] = part
    return padded


def _gathered(part: Any, group: RankGroup, axis: int) -> Any:
    """Returns the parts along one mesh axis, one after the other along `axis`."""
    stacked = group.run("all_gather", part, (group.size, *part.shape), {})
    moved = np.moveaxis(stacked, 0, axis)
    return moved.reshape((*part.shape[:axis], group.size * part.shape[axis], *part.shape[axis + 1 :]))


def reshard(x: ShardedArray, sharding: Sharding) -> ShardedArray:
    """Returns the same array with another distribution; every rank of both meshes calls it.

    The parts are gathered as by `unshard`, and each rank keeps its new part. Raises ShapeError if the array has fewer
    axes than the sharding splits, and CommunicationError if a rank does not take part.
    """
    return x if x.sharding == sharding else shard(unshard(x), sharding)
