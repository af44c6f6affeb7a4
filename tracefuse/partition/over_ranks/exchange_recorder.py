"""Records exchanges that change the sharding of a value, in the fusion of one rank.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tracefuse.dtypes import DType, bool_, int64
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.collective_kinds import GROUP
from tracefuse.ir.extents import Extent, divide_exactly, floordiv, mod
from tracefuse.ir.fusion import Literal, Op
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.propagation import Spec


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange of a fusion over ranks. value: its number. bytes: of the whole value. where: the user's line."""

    kind: str
    axis: str
    value: int
    bytes: int
    where: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} over {self.axis!r} of T{self.value}, {self.bytes} B ({self.where}): {self.reason}"


class ExchangeRecorder:
    """Adds exchanges to the fusion of one rank. coordinates: the scalar with the rank's place, by mesh axis."""

    def __init__(
        self, builder: FusionBuilder, mesh: DeviceMesh, coordinates: Mapping[str, int],
        group_of: Callable[[MeshAxis], Any],
    ) -> None:  # fmt: skip
        self.builder, self.mesh, self._coordinates, self._group_of = builder, mesh, coordinates, group_of
        self._token: int | None = None
        self.planned: list[PlannedExchange] = []

    def exchange(self, op: Op, name: str, number: int, where: str | None, **parameters: Any) -> int:
        """Adds a collective over a mesh axis after the last one and returns its result."""
        operands = (number, *(() if self._token is None else (self._token,)))
        dtype = self.builder.values[number].dtype
        attributes = {GROUP: self._group_of(MeshAxis(self.mesh, name)), **parameters}
        result, self._token = self.builder.node(op, operands, attributes, dtype, (dtype, bool_), where=where)
        return result

    def combined(self, number: int, combine: str, name: str, scatter: int | None, where: str | None) -> int:
        """Combines parts of a sum: every rank gets all of it, or with `scatter` its part along that axis."""
        kind = "sum" if combine == "mean" else combine
        dtype = self.builder.values[number].dtype
        if scatter is None:
            result = self.exchange(roles.ALL_REDUCE, name, number, where, combine=kind)
        else:
            entries = self._split(number, scatter, self.mesh.size(name), where)
            result = self.exchange(roles.REDUCE_SCATTER, name, entries, where, combine=kind)
        if combine == "mean":
            size = Literal(self.mesh.size(name))
            (result,) = self.builder.node(roles.DIVIDE, (result, size), {}, dtype, (dtype,), where=where)
        return result

    def rounded(self, number: int, dtype: DType, where: str | None) -> tuple[int, ...]:
        """Rounds a sum to the type of the result."""
        return self.builder.node(roles.CAST, (number,), {"dtype": dtype}, dtype, (dtype,), where=where)

    def change(self, number: int, before: Spec, after: Spec, where: str | None) -> int:
        """Returns the value with another sharding: gathers or exchanges what differs, then takes this rank's parts."""
        current = list(before)
        for axis, names in enumerate(before):
            wanted = after[axis]
            if names == wanted or not names:
                continue
            target = next((a for a, n in enumerate(after) if n == names and not current[a]), None)
            if len(names) == 1 and not wanted and target is not None:
                number = self._moved(number, axis, target, names[0], where)
                current[axis], current[target] = (), names
                continue
            kept = shared(names, wanted)
            for name in reversed(names[len(kept) :]):
                number = self._gathered(number, axis, name, where)
            current[axis] = kept
        for axis, names in enumerate(after):
            for name in names[len(current[axis]) :]:
                number = self._own_part(number, axis, name, where)
        return number

    def _gathered(self, number: int, axis: int, name: str, where: str | None) -> int:
        return self._merged(self.exchange(roles.ALL_GATHER, name, number, where), axis, where)

    def _moved(self, number: int, axis: int, target: int, name: str, where: str | None) -> int:
        """Splits `target` instead of `axis`: sends each rank its part of `target`, gathers `axis`."""
        entries = self._split(number, target, self.mesh.size(name), where)
        return self._merged(self.exchange(roles.ALL_TO_ALL, name, entries, where), axis, where)

    def _own_part(self, number: int, axis: int, name: str, where: str | None) -> int:
        """Takes the part of this rank of a value that it has in full; nothing is exchanged."""
        shape = self.builder.values[number].shape
        length = self.part_of(shape[axis], self.mesh.size(name))
        place = self.builder.values[self._coordinates[name]].extent
        assert place is not None
        starts: list[Extent] = [0] * len(shape)
        ends = list(shape)
        starts[axis], ends[axis] = place * length, place * length + length
        attributes = {"start_indices": tuple(starts), "end_indices": tuple(ends), "strides": (1,) * len(shape)}
        return self._node(roles.SLICE, number, attributes, where)

    def part_of(self, extent: Extent, parts: int) -> Extent:
        """Returns the extent of a part; calls require that the parts are equal."""
        length = divide_exactly(extent, parts)
        if length is not None:
            return length
        message = "an axis leaves {left} elements over in equal parts"
        self.builder.require(mod(extent, parts), "==", 0, message, "pad it to a multiple of its parts")
        return floordiv(extent, parts)

    def _split(self, number: int, axis: int, parts: int, where: str | None) -> int:
        """Splits an axis into a leading axis with an entry for each rank and the rest."""
        shape = self.builder.values[number].shape
        split = (*shape[:axis], parts, self.part_of(shape[axis], parts), *shape[axis + 1 :])
        number = self._node(roles.RESHAPE, number, {"new_shape": split}, where)
        order = (axis, *(k for k in range(len(split)) if k != axis))
        return number if axis == 0 else self._node(roles.PERMUTE, number, {"dims": order}, where)

    def _merged(self, number: int, axis: int, where: str | None) -> int:
        """Merges the leading axis into `axis` of the rest, as its major part."""
        rank = len(self.builder.values[number].shape)
        if axis:
            order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
            number = self._node(roles.PERMUTE, number, {"dims": order}, where)
        shape = self.builder.values[number].shape
        merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        return self._node(roles.RESHAPE, number, {"new_shape": merged}, where)

    def _node(self, op: Op, number: int, attributes: dict[str, Any], where: str | None) -> int:
        dtype = self.builder.values[number].dtype
        return self.builder.node(op, (number,), attributes, dtype, (dtype,), where=where)[0]


def shared(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the mesh axes that split an axis before and after a change: all that it had, or a common beginning."""
    count = 0
    while count < min(len(names), len(wanted)) and names[count] == wanted[count]:
        count += 1
    return names[:count]


COORDINATE_TYPE = int64
"""The type of the scalar with a rank's place along a mesh axis."""
