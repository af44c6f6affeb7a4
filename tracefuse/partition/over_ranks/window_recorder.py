"""Records work that needs the parts of neighbours: windows of positions, and scans.

A rank receives the parts that its window lies in, without what no rank reads, and takes its positions of them. What an
op takes from one of several operands by position is chosen by a mask over the positions of the part.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, bool_, int64
from tracefuse.ir.extents import Extent, is_nonnegative, maximum
from tracefuse.ir.fusion import Literal, Node, Operand
from tracefuse.ir.scan_kind import Scan
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.exchange_recorder import ExchangeRecorder
from tracefuse.partition.over_ranks.windows import Reads, WindowPlan, plan_of_window


@dataclass(frozen=True, slots=True)
class Window:
    """A window of an axis. extent, result: of the whole axis, of the operand and of the result. name: the mesh axis."""

    reads: Reads
    extent: Extent
    result: Extent
    name: str
    where: str | None


SlabKey: TypeAlias = tuple[int, int, Extent, Extent, str]
"""The local number, the axis, the first position and the length of what is sent, and the mesh axis."""


@dataclass(slots=True)
class Slabs:
    """What ranks send for the sources of one node. pairs: of sources that send the same. received: by what was sent."""

    pairs: dict[SlabKey, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    received: dict[tuple[SlabKey, tuple[tuple[int, int], ...]], int] = field(default_factory=dict)


class WindowRecorder:
    """Adds windows and scans to the fusion of one rank. Extents that are arguments are of whole axes."""

    def __init__(self, exchanges: ExchangeRecorder) -> None:
        self.exchanges, self.extents, self.builder = exchanges, exchanges.extents, exchanges.builder

    def plan(self, window: Window) -> WindowPlan | None:
        """Plans the exchanges of a window, None if it needs most parts."""
        parts, reads = self.extents.mesh.size(window.name), window.reads
        plan: WindowPlan | None = self.extents.facts.ask(
            plan_of_window, parts, reads.step, reads.start, window.extent, window.result
        )  # fmt: skip
        return plan

    def announce(self, window: Window, number: int, slabs: Slabs) -> None:
        """Notes what a window will receive, so that windows which receive the same on other ranks share an exchange."""
        plan = self.plan(window)
        for k, pairs in enumerate(plan.pairs if plan is not None else ()):
            if pairs:
                assert plan is not None
                key = self._slab(window, plan, k, number)
                known = slabs.pairs.get(key, ())
                if {receiver for _, receiver in known}.isdisjoint(receiver for _, receiver in pairs):
                    slabs.pairs[key] = (*known, *pairs)

    def _slab(self, window: Window, plan: WindowPlan, k: int, number: int) -> SlabKey:
        """Returns what is sent at the k-th distance."""
        length = self.extents.ceiling(window.extent, (window.name,))
        first = plan.begin.of(length) if k == 0 else 0
        end = plan.end.of(length) if k == len(plan.pairs) - 1 else length
        return number, window.reads.axis, first, end - first, window.name

    def of_parts(self, window: Window, plan: WindowPlan, number: int, slabs: Slabs) -> int:
        """Returns this rank's positions of a value of which it has a part."""
        name, where, axis = window.name, window.where, window.reads.axis
        length = self.extents.ceiling(window.extent, (name,))
        part = self.exchanges.to_first(number, axis, window.extent, (name,), where)
        slabs_read = []
        for k, pairs in enumerate(plan.pairs):
            key = self._slab(window, plan, k, number)
            known = slabs.pairs.get(key, ())
            sent = known if set(pairs) <= set(known) else pairs
            slab = slabs.received.get((key, sent)) if pairs else None
            if slab is None:
                slab = self.exchanges.cut(part, axis, key[2], key[3], where)
                if pairs:
                    slab = self.exchanges.exchange(roles.SEND_RECEIVE, name, slab, where, pairs=sent)
                    slabs.received[key, sent] = slab
            slabs_read.append(slab)
        joined = (
            slabs_read[0] if len(slabs_read) == 1 else self.exchanges.node(roles.JOIN, slabs_read, {"dim": axis}, where)
        )
        first = plan.begin.of(length)
        origin = (plan.sign * self.extents.place((name,)) + plan.distances[0]) * length + first
        return self._taken(joined, window, origin, plan.before.of(length), plan.after.of(length))

    def of_whole(self, window: Window, number: int) -> int:
        """Returns this rank's positions of a value that it has in full."""
        reads, name = window.reads, window.name
        lows = [self._low(window, place) for place in (0, self.extents.mesh.size(name) - 1)]
        lowest, highest = lows if reads.step > 0 else lows[::-1]
        span = abs(reads.step) * self.extents.ceiling(window.result, (name,))
        before = maximum(0, -lowest)
        after = maximum(0, highest + span - self.extents.of_whole(window.extent))
        return self._taken(number, window, 0, before, after)

    def _low(self, window: Window, place: Extent) -> Extent:
        """Returns the first position that a rank reads."""
        part, step = self.extents.ceiling(window.result, (window.name,)), window.reads.step
        first = place * part + (part - 1 if step < 0 else 0)
        return step * first + self.extents.of_whole(window.reads.start)

    def _taken(self, number: int, window: Window, origin: Extent, before: Extent, after: Extent) -> int:
        """Takes this rank's positions of a value that begins at position `origin`."""
        axis, step, name, where = window.reads.axis, window.reads.step, window.name, window.where
        length = self.builder.values[number].shape[axis]
        wide = self.exchanges.padded(number, axis, before, length + before + after, where)
        low = self._low(window, self.extents.place((name,)))
        part = self.extents.ceiling(window.result, (name,))
        window_part = self.exchanges.cut(wide, axis, low - origin + before, part, where, abs(step))
        if step < 0:
            window_part = self.exchanges.node(roles.FLIP, (window_part,), {"dims": (axis,)}, where)
        return self.exchanges.cut(window_part, axis, 0, self.extents.length(window.result, (name,)), where)

    # -- masks --------------------------------------------------------------------------------------------------------

    def chosen(self, window: Window, number: int, otherwise: Operand, axis: int) -> int:
        """Returns one value where `axis` of the result is at positions that the window reads, elsewhere the other."""
        mask = self._mask(window.reads.only, window.result, window.name, window.where)
        if mask is None:
            return number
        rank = len(self.builder.values[number].shape)
        return self._choice(self._along(mask, axis, rank, window.where), number, otherwise, window.where)

    def _choice(self, condition: int, number: int, otherwise: Operand, where: str | None) -> int:
        dtype = self.builder.values[number].dtype
        return self.builder.node(roles.CHOICE, (condition, number, otherwise), {}, dtype, (dtype,), where=where)[0]

    def _mask(
        self, ranges: Sequence[tuple[Extent, Extent]], result: Extent, name: str, where: str | None
    ) -> int | None:
        """Returns whether the positions of this rank's part are in all ranges, None if all are."""
        complete = self.extents.of_whole(result)
        start = self.extents.place((name,)) * self.extents.ceiling(result, (name,))
        positions = self._positions(start, self.extents.length(result, (name,)), where)
        conditions: list[int] = []
        for low, high in ((self.extents.of_whole(a), self.extents.of_whole(b)) for a, b in ranges):
            if not is_nonnegative(-low):
                conditions.append(self._compared(roles.AT_LEAST, positions, low, where))
            if not is_nonnegative(high - complete):
                conditions.append(self._compared(roles.LESS, positions, high, where))
        mask = None
        for condition in conditions:
            mask = condition if mask is None else self.builder.node(
                roles.BOTH, (mask, condition), {}, bool_, (bool_,), where=where
            )[0]  # fmt: skip
        return mask

    def _positions(self, start: Extent, length: Extent, where: str | None) -> int:
        first: Operand = Literal(start) if isinstance(start, int) else self.exchanges.scalar(start, where)
        attributes = {"length": length}
        return self.builder.node(
            roles.POSITIONS, (first, Literal(1)), attributes, int64, (int64,), where=where
        )[0]  # fmt: skip

    def _compared(self, op: Any, positions: int, bound: Extent, where: str | None) -> int:
        other: Operand = Literal(bound) if isinstance(bound, int) else self.exchanges.scalar(bound, where)
        return self.builder.node(op, (positions, other), {}, int64, (bool_,), where=where)[0]

    def _along(self, number: int, axis: int, rank: int, where: str | None) -> int:
        """Returns a vector as an array with `rank` axes, of which it is `axis`."""
        flags = tuple(k != axis for k in range(rank))
        return self.exchanges.node(roles.BROADCAST, (number,), {"is_broadcast_dim": flags}, where)

    # -- scans --------------------------------------------------------------------------------------------------------

    def scanned(self, node: Node, operand: int, extent: Extent, dtype: DType, name: str, where: str | None) -> int:
        """Scans this rank's part and joins it with the results of the ranks before it.

        extent: of the axis. dtype: of the result; halves are rounded once at the end.
        """
        op, axis = node.op, node.attributes["dim"]
        assert isinstance(op, Scan)
        kind = dtype.compute
        local = self.builder.node(op, (operand,), node.attributes, node.compute, (kind,), where=where)[0]
        neutral = op.reduction.neutral(op.reduction.state_parts[0], kind)
        if op.reduction.needs_elements:
            operand = self.exchanges.padded(
                operand, axis, 0, self.extents.ceiling(extent, (name,)), where, _of_type(neutral, self._type(operand))
            )  # fmt: skip
        total = self._reduced(op, operand, node.compute, kind, axis, True, where)
        totals = self.exchanges.exchange(roles.ALL_GATHER, name, total, where)
        earlier = self._compared(
            roles.LESS, self._positions(0, self.extents.mesh.size(name), where), self.extents.place((name,)), where
        )  # fmt: skip
        rank = len(self.builder.values[totals].shape)
        reached = self._choice(self._along(earlier, 0, rank, where), totals, Literal(neutral), where)
        before = self._reduced(op, reached, kind, kind, 0, False, where)
        combined = self.builder.node(
            roles.COMBINERS[op.reduction.combine], (before, local), {}, kind, (kind,), where=where
        )[0]  # fmt: skip
        is_later = self._compared(roles.AT_LEAST, self.exchanges.scalar(self.extents.place((name,)), where), 1, where)
        result = self._choice(is_later, combined, local, where)  # the first rank keeps its signs of zeros
        return result if kind == dtype else self.exchanges.rounded(result, dtype, where)

    def _type(self, number: int) -> DType:
        return self.builder.values[number].dtype

    def _reduced(
        self, op: Scan, number: int, compute: DType, dtype: DType, axis: int, keepdim: bool, where: str | None
    ) -> int:  # fmt: skip
        attributes = {"dims": (axis,), "keepdim": keepdim}
        return self.builder.node(op.reduction, (number,), attributes, compute, (dtype,), where=where)[0]


def _of_type(value: Any, dtype: DType) -> Any:
    return int(value) if dtype.is_integer else value
