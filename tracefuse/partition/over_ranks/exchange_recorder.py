"""Records exchanges that change the sharding of a value, in the fusion of one rank.

Exchanges have equal extents on all ranks: parts that are not equal are padded to the first, and results are cut off.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, bool_, int64
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.collective_kinds import GROUP
from tracefuse.ir.extents import Extent, evaluate, minimum, product
from tracefuse.ir.fusion import Literal, Op, Operand, Shape
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.part_extents import PartExtents
from tracefuse.partition.over_ranks.placements import Spec


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange of a fusion over ranks. value: its number. where: the user's line.

    bytes: of the whole value; of a SendRecv, of the rows that a rank receives.
    """

    kind: str
    axis: str
    value: int
    bytes: int
    where: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} over {self.axis!r} of T{self.value}, {self.bytes} B ({self.where}): {self.reason}"


class ExchangeRecorder:
    """Adds exchanges to the fusion of one rank. Extents that are arguments are of whole axes."""

    def __init__(self, builder: FusionBuilder, extents: PartExtents, group_of: Callable[[MeshAxis], Any]) -> None:
        self.builder, self.extents, self.group_of = builder, extents, group_of
        self.mesh: DeviceMesh = extents.mesh
        self._token: int | None = None
        self._last: int | None = None
        self.planned: list[PlannedExchange] = []

    def exchange(self, op: Op, name: str, number: int, where: str | None, **parameters: Any) -> int:
        """Adds a collective over a mesh axis after the last one and returns its result."""
        operands = (number, *(() if self._token is None else (self._token,)))
        dtype = self.builder.values[number].dtype
        attributes = {GROUP: self.group_of(MeshAxis(self.mesh, name)), **parameters}
        result, self._token = self.builder.node(op, operands, attributes, dtype, (dtype, bool_), where=where)
        self._last = result
        return result

    def record_after(self, record: Callable[[Sequence[int]], Sequence[int]]) -> Sequence[int]:
        """Records a node whose bodies exchange, between the last exchange and the next one, and returns its results.

        record: takes further operands. Bodies wait for values, which tokens are not: the node reads the last result.
        """
        results = record(() if self._last is None else (self._last,))
        self._token = self._last = results[0]
        return results

    def of_first_rank(self, number: int, where: str | None) -> int:
        """Returns the value that the first rank of the mesh has."""
        for name in self.mesh.names:
            if self.mesh.size(name) > 1:
                value = self.builder.values[number]
                size = evaluate(product(value.shape), {}) * value.dtype.itemsize
                number = self.exchange(roles.BROADCAST_FROM, name, number, where, root=0)
                self.planned.append(
                    PlannedExchange("Broadcast", name, number, size, where, "the first rank decides")
                )  # fmt: skip
        return number

    def combined(
        self, number: int, combine: str, name: str, scatter: int | None, extent: Extent, where: str | None
    ) -> int:
        """Combines parts of a sum: every rank gets all of it, or with `scatter` its part along that axis.

        extent: of that axis.
        """
        if scatter is None:
            return self.exchange(roles.ALL_REDUCE, name, number, where, combine=combine)
        entries = self._split(number, scatter, extent, name, where)
        result = self.exchange(roles.REDUCE_SCATTER, name, entries, where, combine=combine)
        return self._to_part(result, scatter, extent, (name,), where)

    def rounded(self, number: int, dtype: DType, where: str | None) -> int:
        """Rounds a sum to the type of the result."""
        return self.builder.node(roles.CAST, (number,), {"dtype": dtype}, dtype, (dtype,), where=where)[0]

    def divided(self, number: int, count: Extent, where: str | None) -> int:
        """Divides a value by a number of elements."""
        dtype = self.builder.values[number].dtype
        divisor: Operand = Literal(count) if isinstance(count, int) else self.scalar(count, where)
        return self.builder.node(roles.DIVIDE, (number, divisor), {}, dtype, (dtype,), where=where)[0]

    def scalar(self, extent: Extent, where: str | None) -> int:
        """Returns the host scalar that is an expression of extents."""
        return self.builder.node(roles.EXTENT, (), {"value": extent}, int64, (int64,), extents=(extent,), where=where)[
            0
        ]

    def change(self, number: int, shape: Shape, before: Spec, after: Spec, where: str | None) -> int:
        """Returns the value with another sharding: gathers or exchanges what differs, then takes this rank's parts."""
        current = list(before)
        for axis, names in enumerate(before):
            wanted, extent = after[axis], shape[axis]
            if names == wanted or not names:
                continue
            target = next((a for a, n in enumerate(after) if n == names and not current[a]), None)
            if len(names) == 1 and not wanted and target is not None:
                number = self._moved(number, axis, target, shape, names[0], where)
                current[axis], current[target] = (), names
                continue
            longer = max(names, wanted, key=len)
            common = shared(names, wanted) if self.extents.is_even(extent, longer) else ()
            number = self.gathered(number, axis, extent, names, len(common), where)
            current[axis] = common
        for axis, names in enumerate(after):
            if names != current[axis]:
                number = self._own_part(number, axis, shape[axis], current[axis], names, where)
        return number

    def gathered(
        self, number: int, axis: int, extent: Extent, names: tuple[str, ...], remaining: int, where: str | None
    ) -> int:
        """Gathers the parts of an axis along mesh axes, except the first `remaining` of them."""
        number = self.to_first(number, axis, extent, names, where)
        for name in reversed(names[remaining:]):
            number = self._merged(self.exchange(roles.ALL_GATHER, name, number, where), axis, where)
        return number if remaining else self._to_part(number, axis, extent, (), where)

    def _moved(self, number: int, axis: int, target: int, shape: Shape, name: str, where: str | None) -> int:
        """Splits `target` instead of `axis`: sends each rank its part of `target`, gathers `axis`."""
        number = self.to_first(number, axis, shape[axis], (name,), where)
        entries = self._split(number, target, shape[target], name, where)
        merged = self._merged(self.exchange(roles.ALL_TO_ALL, name, entries, where), axis, where)
        return self._to_part(self._to_part(merged, axis, shape[axis], (), where), target, shape[target], (name,), where)

    def _own_part(
        self, number: int, axis: int, extent: Extent, current: tuple[str, ...], names: tuple[str, ...],
        where: str | None,
    ) -> int:  # fmt: skip
        """Takes the part of this rank of a value that it has in full, or in larger parts; nothing is exchanged."""
        length = self.extents.length(extent, names)
        start = self.extents.place(names[len(current) :]) * self.extents.ceiling(extent, names)
        if not self.extents.is_even(extent, names):
            start = minimum(start, self.extents.of_whole(extent))
        return self.cut(number, axis, start, length, where)

    # -- parts that are not equal -------------------------------------------------------------------------------------

    def to_first(self, number: int, axis: int, extent: Extent, names: tuple[str, ...], where: str | None) -> int:
        """Pads this rank's part of an axis to the extent of the first part."""
        return self.padded(number, axis, 0, self.extents.ceiling(extent, names), where)

    def _to_part(self, number: int, axis: int, extent: Extent, names: tuple[str, ...], where: str | None) -> int:
        """Cuts an axis to the extent of this rank's part, or of the whole axis without names."""
        return self.cut(number, axis, 0, self.extents.length(extent, names), where)

    def padded(
        self, number: int, axis: int, before: Extent, total: Extent, where: str | None, value: Any = 0
    ) -> int:  # fmt: skip
        """Pads an axis to `total` elements, `before` of them before its own."""
        shape = self.builder.values[number].shape
        if shape[axis] == total and before == 0:
            return number
        widths: list[Extent] = [0] * (2 * len(shape))
        widths[2 * axis], widths[2 * axis + 1] = before, total - shape[axis] - before
        return self.node(roles.PAD, (number,), {"pad_widths": tuple(widths), "value": value}, where)

    def cut(self, number: int, axis: int, start: Extent, length: Extent, where: str | None, step: int = 1) -> int:
        """Returns `length` elements of an axis from `start` on, of every `step` one."""
        shape = self.builder.values[number].shape
        if start == 0 and length == shape[axis] and step == 1:
            return number
        starts: list[Extent] = [0] * len(shape)
        ends, steps = list(shape), [1] * len(shape)
        starts[axis], ends[axis], steps[axis] = start, start + length * step, step
        attributes = {"start_indices": tuple(starts), "end_indices": tuple(ends), "strides": tuple(steps)}
        return self.node(roles.SLICE, (number,), attributes, where)

    def _split(self, number: int, axis: int, extent: Extent, name: str, where: str | None) -> int:
        """Splits a whole axis into a leading axis with an entry for each rank, padded to equal parts, and the rest."""
        parts, length = self.mesh.size(name), self.extents.ceiling(extent, (name,))
        number = self.padded(number, axis, 0, length * parts, where)
        shape = self.builder.values[number].shape
        split = (*shape[:axis], parts, length, *shape[axis + 1 :])
        number = self.node(roles.RESHAPE, (number,), {"new_shape": split}, where)
        order = (axis, *(k for k in range(len(split)) if k != axis))
        return number if axis == 0 else self.node(roles.PERMUTE, (number,), {"dims": order}, where)

    def _merged(self, number: int, axis: int, where: str | None) -> int:
        """Merges the leading axis into `axis` of the rest, as its major part."""
        rank = len(self.builder.values[number].shape)
        if axis:
            order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
            number = self.node(roles.PERMUTE, (number,), {"dims": order}, where)
        shape = self.builder.values[number].shape
        merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        return self.node(roles.RESHAPE, (number,), {"new_shape": merged}, where)

    def node(self, op: Op, operands: Sequence[Operand], attributes: dict[str, Any], where: str | None) -> int:
        """Records a node whose result has the type of its last operand."""
        last = operands[-1]
        assert isinstance(last, int)
        dtype = self.builder.values[last].dtype
        return self.builder.node(op, operands, attributes, dtype, (dtype,), where=where)[0]


def shared(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the mesh axes that split an axis before and after a change: all that it had, or a common beginning."""
    count = 0
    while count < min(len(names), len(wanted)) and names[count] == wanted[count]:
        count += 1
    return names[:count]


COORDINATE_TYPE = int64
"""The type of the scalar with a rank's place along a mesh axis."""
