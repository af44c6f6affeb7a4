"""The mesh of the function that runs or is traced, and the place of the rank in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracefuse import source
from tracefuse.errors import TraceError
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.runtime.communicators.rank_groups import RankGroup


class _Current(threading.local):
    mesh: DeviceMesh | None = None
    coordinates: Sequence[Any] = ()


_current = _Current()


@contextmanager
def on_mesh(mesh: DeviceMesh, coordinates: Sequence[Any]) -> Iterator[None]:
    """Makes names of mesh axes refer to `mesh` for a block. coordinates: this rank's, which may be traced."""
    before = _current.mesh, _current.coordinates
    _current.mesh, _current.coordinates = mesh, coordinates
    try:
        yield
    finally:
        _current.mesh, _current.coordinates = before


def mesh_of(function: str) -> DeviceMesh:
    """Returns the current mesh. Raises TraceError outside of a function over a mesh."""
    if _current.mesh is None:
        raise TraceError(
            f"{function}: no mesh, so that the axis has no ranks",
            hint="call it in a function that shard_map runs", where=source.user_line(),
        )  # fmt: skip
    return _current.mesh


def group_of(function: str, name: str) -> RankGroup:
    """Returns the ranks along an axis of the current mesh. Raises FusionError if it has no such axis."""
    mesh = mesh_of(function)
    mesh.place(name)
    return RankGroup(MeshAxis(mesh, name))


def coordinate(function: str, name: str) -> Any:
    """Returns the place of this rank along an axis of the current mesh."""
    return _current.coordinates[mesh_of(function).place(name)]
