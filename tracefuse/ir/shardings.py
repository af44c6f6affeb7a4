"""Meshes of ranks, and the distribution of arrays over them.

A mesh arranges ranks in a grid with named axes. A sharding names, for each axis of an array, the mesh axes that split
it; each rank of the mesh holds one part. Parts have the extent ceil(n / parts), except that the last ones are shorter
or empty where n does not divide.

Must not know: fusions, devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse.errors import FusionError, ShapeError, shown

Entry: TypeAlias = str | tuple[str, ...] | None
"""The mesh axes that split an axis of an array."""

AXIS_NAMES = ("x", "y")
"""The names of the axes of a mesh that a definition gives by its devices alone."""


@dataclass(frozen=True, slots=True, init=False)
class DeviceMesh:
    """Ranks in a grid. ranks: all of them, in row-major order. shape: the grid. names: one for each axis of the grid.

    `DeviceMesh([[0, 1], [2, 3]], ("data", "model"))` takes the ranks as nested lists. Raises FusionError for ranks that
    are negative or named twice, and for names that are not one for each axis.
    """

    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(self, ranks: Any, names: Sequence[str] = AXIS_NAMES) -> None:
        grid = _grid(ranks)
        chosen = tuple(names[: grid.ndim]) if names is AXIS_NAMES else tuple(names)
        if len(chosen) != grid.ndim or len(set(chosen)) < len(chosen) or not all(isinstance(n, str) for n in chosen):
            raise FusionError(
                f"a mesh with {grid.ndim} axes has the names {shown(names)}", hint="give one name for each axis"
            )
        object.__setattr__(self, "ranks", tuple(grid.ravel().tolist()))
        object.__setattr__(self, "shape", grid.shape)
        object.__setattr__(self, "names", chosen)

    @property
    def nested(self) -> list[Any]:
        """The ranks as nested lists."""
        return np.array(self.ranks).reshape(self.shape).tolist()  # type: ignore[no-any-return]

    def size(self, name: str) -> int:
        """Returns the number of ranks along an axis. Raises FusionError for a name that the mesh does not have."""
        return self.shape[self.place(name)]

    def place(self, name: str) -> int:
        """Returns the position of an axis. Raises FusionError for a name that the mesh does not have."""
        if name not in self.names:
            raise FusionError(f"{self} has no axis {name!r}", hint=f"its axes are {', '.join(map(repr, self.names))}")
        return self.names.index(name)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Returns the place of a rank in the grid."""
        return tuple(int(c) for c in np.unravel_index(self.ranks.index(rank), self.shape))

    def groups(self, name: str) -> Iterator[tuple[int, ...]]:
        """Yields the groups of ranks that differ only along an axis, in row-major order of the other axes."""
        grid = np.moveaxis(np.array(self.ranks).reshape(self.shape), self.place(name), -1)
        yield from (tuple(row.tolist()) for row in grid.reshape(-1, grid.shape[-1]))

    def __str__(self) -> str:
        return f"mesh({', '.join(f'{name}={extent}' for name, extent in zip(self.names, self.shape, strict=True))})"


def _grid(ranks: Any) -> Any:
    try:
        grid = np.array(ranks)
    except ValueError:
        grid = np.array([], dtype=object)
    if grid.ndim == 0 or grid.size == 0 or grid.dtype.kind not in "iu":
        raise FusionError(f"the ranks of a mesh cannot be {shown(ranks)}", hint="give lists of integers, all as long")
    if grid.min() < 0 or len(np.unique(grid)) < grid.size:
        raise FusionError(
            f"the ranks of a mesh cannot be {grid.tolist()}", hint="name each rank once, by a number from 0"
        )
    return grid


@dataclass(frozen=True, slots=True, init=False)
class Sharding:
    """The distribution of an array over a mesh.

    spec: for each axis of the array the name of the mesh axis that splits it, a tuple of names, or None; axes after the
    last entry are not split. Ranks along a mesh axis that `spec` does not name hold the same part. Raises FusionError
    for a name that the mesh does not have or that splits two axes.
    """

    mesh: DeviceMesh
    spec: tuple[tuple[str, ...], ...]

    def __init__(self, mesh: DeviceMesh, spec: Sequence[Entry] = ()) -> None:
        if isinstance(spec, str) or not all(isinstance(e, (str, tuple, list, type(None))) for e in spec):
            raise FusionError(
                f"the specification of a sharding cannot be {shown(spec)}",
                hint='give a tuple with a name or None for each axis, such as ("data", None)',
            )
        entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
        while entries and not entries[-1]:
            entries.pop()
        used = [name for entry in entries for name in entry]
        for name in used:
            mesh.place(name)
            if used.count(name) > 1:
                raise FusionError(f"mesh axis {name!r} splits two axes of an array", hint="name each mesh axis once")
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "spec", tuple(entries))

    @classmethod
    def along(cls, mesh: DeviceMesh, axis: int | None, name: str | None = None) -> Sharding:
        """Returns the sharding that splits one axis over a mesh axis, by default the first; None splits no axis."""
        return cls(mesh, () if axis is None else (*(None,) * axis, name or mesh.names[0]))

    @property
    def devices(self) -> tuple[int, ...]:
        """The ranks of the mesh."""
        return self.mesh.ranks

    @property
    def axis(self) -> int | None:
        """The first axis that is split, None if every rank holds the whole array."""
        return next((axis for axis, names in enumerate(self.spec) if names), None)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole array."""
        return not self.spec

    def names(self, axis: int) -> tuple[str, ...]:
        """Returns the mesh axes that split an axis, major first."""
        return self.spec[axis] if axis < len(self.spec) else ()

    def parts(self, axis: int) -> int:
        """Returns the number of parts of an axis."""
        return math.prod(map(self.mesh.size, self.names(axis)))

    def check_axes(self, shape: Sequence[int]) -> None:
        """Raises ShapeError if an array of this shape has fewer axes than the sharding splits."""
        if len(self.spec) > len(shape):
            raise ShapeError(
                f"{self} splits axis {len(self.spec) - 1} of an array with {len(shape)} axes",
                hint="give one entry for each axis of the array",
            )

    def part_index(self, rank: int, axis: int) -> int:
        """Returns which part of an axis a rank holds."""
        place = self.mesh.coordinates(rank)
        index = 0
        for name in self.names(axis):
            index = index * self.mesh.size(name) + place[self.mesh.place(name)]
        return index

    def bounds(self, rank: int, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Returns the first and the end position of a rank's part, for each axis of an array of this shape."""
        self.check_axes(shape)
        bounds = []
        for axis, extent in enumerate(shape):
            length = -(-extent // self.parts(axis))
            start = min(self.part_index(rank, axis) * length, extent)
            bounds.append((start, min(start + length, extent)))
        return tuple(bounds)

    def local_shape(self, rank: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of a rank's part."""
        return tuple(end - start for start, end in self.bounds(rank, shape))

    def slices(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Returns the index of a rank's part in the whole array."""
        return tuple(itertools.starmap(slice, self.bounds(rank, shape)))

    def __str__(self) -> str:
        entries = (" * ".join(names) if names else "-" for names in self.spec)
        return f"[{', '.join(entries)}] on {self.mesh}" if self.spec else f"replicated on {self.mesh}"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """The ranks along one axis of a mesh, among which an exchange runs."""

    mesh: DeviceMesh
    name: str

    @property
    def size(self) -> int:
        """The number of ranks along the axis."""
        return self.mesh.size(self.name)

    def __str__(self) -> str:
        return self.name
