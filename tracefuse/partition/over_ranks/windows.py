"""Ranges of positions that the ranks read of an axis whose parts other ranks hold.

Position x of the result reads position `step * x + start` of an operand. A rank with a part of the result then reads a
window of the operand, which lies in a few parts next to each other, at the same distance from each rank. The plan of a
window names these parts and cuts off the ends that no rank reads.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, as_symbol, substitute, symbol, symbols
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.op_kinds import Movement, Source
from tracefuse.ir.subfusion import map_extents


@dataclass(frozen=True, slots=True)
class Reads:
    """The position step * x + start of `axis` of an operand, which position x of the result reads.

    only: the ranges of x, from the first to before the last, outside of which the operand is not read.
    """

    operand: int
    axis: int
    step: int
    start: Extent
    only: tuple[tuple[Extent, Extent], ...]


def reads_along(fusion: Fusion, node: Node, axis: int) -> tuple[Reads, ...] | None:
    """Returns what a movement reads along an axis of its result, in the order of its sources; None for another map."""
    if not isinstance(node.op, Movement) or node.op.shifts is None:
        return None
    result = fusion.shape_of(node.outputs[0])
    # One row of a split axis is a window, too: its rank keeps it.
    coordinates: Shape = tuple(symbol(f"x{k}", extent=e) if e != 1 or k == axis else 0 for k, e in enumerate(result))
    index = coordinates[axis]
    attributes = {key: map_extents(value, fusion.canonical) for key, value in node.attributes.items()}
    shapes = [fusion.shape_of(operand) for operand in node.operands]
    pulled = node.op.pull(coordinates, shapes, result, attributes, lambda *_: 0)
    reads = [_reads(source, index) for source in pulled]
    return None if None in reads else tuple(read for read in reads if read is not None)


def _reads(source: Source, index: Extent) -> Reads | None:
    along = [k for k, coordinate in enumerate(source.coordinates) if _depends(coordinate, index)]
    if len(along) != 1:
        return None
    line = _line(source.coordinates[along[0]], index)
    if line is None or line[0] == 0:
        return None
    only = []
    for condition in source.conditions:
        if not any(_depends(e, index) for e in (condition.index, condition.low, condition.high)):
            continue
        place = _line(condition.index, index)
        if place is None or place[0] != 1 or _depends(condition.low, index) or _depends(condition.high, index):
            return None
        only.append((condition.low - place[1], condition.high - place[1]))
    return Reads(source.operand, along[0], *line, tuple(only))


def _depends(extent: Extent, index: Extent) -> bool:
    return cast("Symbol", as_symbol(index)) in symbols(extent)


def _line(coordinate: Extent, index: Extent) -> tuple[int, Extent] | None:
    """Returns (step, start) of a coordinate step * index + start that depends on no other index."""
    loop = cast("Symbol", as_symbol(index))
    start = substitute(coordinate, {loop: 0})
    step = substitute(coordinate, {loop: 1}) - start
    if not isinstance(step, int) or any(atom.extent is not None for atom in symbols(start)):
        return None
    return (step, start) if coordinate - step * index - start == 0 else None


# ---------------------------------------------------------------------------------------------------------------------
# plans


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a part: `parts` times the extent of a part, plus `rest`."""

    parts: int
    rest: int

    def of(self, length: Extent) -> Extent:
        """Returns the position for parts of this extent."""
        return self.parts * length + self.rest


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The parts that ranks read of an operand.

    sign: 1 or -1: rank r reads the parts sign * r + distance. distances: in order. begin: where the first part is read
    from. end: where the reading of the last one ends. before, after: how far windows reach beyond the parts that are
    read, where there is nothing. pairs: (sender, receiver) by distance; none where each rank reads its own part.
    """

    sign: int
    distances: tuple[int, ...]
    begin: Position
    end: Position
    before: Position
    after: Position
    pairs: tuple[tuple[tuple[int, int], ...], ...]


def plan_of_window(parts: int, step: int, start: int, extent: int, result: int) -> WindowPlan | None:
    """Plans the window of an axis of `extent` elements, for a result of `result` elements, both in `parts` parts.

    Returns None where a gather of all parts moves no more.
    """
    length, part = -(-extent // parts), -(-result // parts)
    sign = 1 if step > 0 else -1
    needed: dict[int, list[tuple[int, int, int]]] = {}
    lows = [_low(step, start, rank, part) for rank in range(parts)]
    span = abs(step) * part
    for rank in range(parts):
        count = min(part, result - rank * part)
        first, last = (step * (rank * part + k) + start for k in (0, count - 1))
        begin, end = max(min(first, last), 0), min(max(first, last) + 1, extent)
        if count <= 0 or begin >= end:
            continue
        for owner in range(begin // length, (end - 1) // length + 1):
            inside = max(begin, owner * length) - owner * length, min(end, (owner + 1) * length) - owner * length
            needed.setdefault(owner - sign * rank, []).append((rank, *inside))
    if not needed:
        needed[0] = []
    distances = tuple(range(min(needed), max(needed) + 1))
    begin = min((entry[1] for entry in needed[distances[0]]), default=0)
    end = max((entry[2] for entry in needed[distances[-1]]), default=length)
    if len(distances) == 1 and begin >= end:
        begin, end = 0, length
    origins = [(sign * rank + distances[0]) * length + begin for rank in range(parts)]
    total = (len(distances) - 1) * length + end - begin
    before = max(0, *(origin - low for origin, low in zip(origins, lows, strict=True)))
    after = max(0, *(low + span - origin - total for origin, low in zip(origins, lows, strict=True)))
    pairs = tuple(_pairs(sign, entry, [rank for rank, _, _ in needed.get(entry, ())]) for entry in distances)
    moved = sum(_slab(distances, k, begin, end, length) for k, some in enumerate(pairs) if some)
    if moved >= (parts - 1) * length and parts > 2:
        return None
    ends = _position(begin, length), _position(end, length)
    return WindowPlan(sign, distances, *ends, _position(before, length), _position(after, length), pairs)


def _pairs(sign: int, distance: int, receivers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns (sender, receiver) for the parts at a distance; none if every rank has its own."""
    pairs = tuple((sign * rank + distance, rank) for rank in receivers)
    return pairs if any(sender != receiver for sender, receiver in pairs) else ()


def _low(step: int, start: int, rank: int, part: int) -> int:
    """The first position of the window of a rank."""
    return step * (rank * part + (part - 1 if step < 0 else 0)) + start


def _slab(distances: Sequence[int], position: int, begin: int, end: int, length: int) -> int:
    first = begin if position == 0 else 0
    last = end if position == len(distances) - 1 else length
    return last - first


def _position(value: int, length: int) -> Position:
    parts = round(value / length) if length else 0
    return Position(parts, value - parts * length)
