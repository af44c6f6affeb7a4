"""Many slices written one after another along an axis, as by `for k in range(300): x[k] = f(x[k + 1])`.

As a chain of writes, each step makes an array of which only a slice is new, and a kernel decides for every element
which of the writes is the last one. Instead, a read of what was written is a read of the value that it was written
with, and slices that adjoin one another are written at once, as their concatenation. The work then grows with the
number of slices, not with its square.

`WrittenSlices` finds what a range of positions holds after any number of writes, in logarithmic time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import field

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.fusion import Attributes, Fusion, Node, Op
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.roles import JOIN, SLICE
from tracefuse.passes.rewriter import Rewriter, renamed
from tracefuse.passes.slice_updates import MOST_SLICES, diagonal_axes

_BOUNDS = ("start_indices", "end_indices", "strides")


@dataclass(frozen=True, slots=True)
class Piece:
    """The positions from `first` to `last` (exclusive) of a value, along the axis of the writes."""

    value: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Range:
    """The slice that a node reads or writes: positions of one axis, known numbers, and all of the other axes."""

    axis: int
    first: int
    last: int


@dataclass(slots=True)
class WrittenSlices:
    """The writes that turn the value `root` into its versions. No two ranges overlap, but one may be written again.

    versions: the values after each write, from `root` on. times: the version that a value is. firsts: where the ranges
    begin, sorted. lasts: where each ends. history: the times at which each range was written, and the values.
    """

    root: int
    axis: int
    versions: list[int]
    times: dict[int, int]
    firsts: list[int] = field(default_factory=list)
    lasts: dict[int, int] = field(default_factory=dict)
    history: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def write(self, where: Range, value: int, result: int) -> bool:
        """Adds a write to the latest version; returns False if it overlaps another range without being equal to it."""
        known = self.lasts.get(where.first)
        if known is None:
            place = bisect.bisect_left(self.firsts, where.first)
            if place and self.lasts[self.firsts[place - 1]] > where.first:
                return False
            if place < len(self.firsts) and self.firsts[place] < where.last:
                return False
            self.firsts.insert(place, where.first)
            self.lasts[where.first] = where.last
            self.history[where.first] = [], []
        elif known != where.last:
            return False
        times, values = self.history[where.first]
        times.append(len(self.versions))
        values.append(value)
        self.times[result] = len(self.versions)
        self.versions.append(result)
        self.order.append(where.first)
        return True

    def written(self, first: int, time: int) -> int | None:
        """Returns the last value that was written to the range that begins at `first`, up to a version."""
        times, values = self.history[first]
        place = bisect.bisect_right(times, time)
        return values[place - 1] if place else None

    def pieces(self, first: int, last: int, time: int) -> Iterator[Piece]:
        """Yields what the positions of a version hold, in order."""
        place = max(bisect.bisect_right(self.firsts, first) - 1, 0)
        while first < last:
            while place < len(self.firsts) and self._is_before(place, first, time):
                place += 1
            start = self.firsts[place] if place < len(self.firsts) else last
            if start > first:
                yield Piece(self.root, first, min(start, last))
                first = start
                continue
            value = self.written(start, time)
            assert value is not None
            end = min(self.lasts[start], last)
            yield Piece(value, first - start, end - start)
            first = end

    def _is_before(self, place: int, first: int, time: int) -> bool:
        """Whether the range at a place ends before a position, or was not written up to a version."""
        start = self.firsts[place]
        return self.lasts[start] <= first or self.written(start, time) is None


def join_slices(fusion: Fusion) -> Fusion:
    """Writes many slices that adjoin one another at once, and reads what they were written with."""
    if sum(_writes(node) for node in fusion.nodes) <= MOST_SLICES or _is_distributed(fusion):
        return fusion
    joining = _Joining(fusion)
    joining.read_written()
    if not any(len(chain.order) > MOST_SLICES for chain in joining.chains.values()):
        return fusion
    return joining.joined()


def _is_distributed(fusion: Fusion) -> bool:
    return any(value.stream or value.sharding for value in fusion.values.values())


def _writes(node: Node) -> bool:
    return isinstance(node.op, Movement) and node.op.slices == "written"


def _range(fusion: Fusion, node: Node) -> Range | None:
    """Returns the slice of a node if it has known bounds on one axis and all of the others."""
    if diagonal_axes(node):
        return None
    found: Range | None = None
    bounds = zip(*(node.attributes[name] for name in _BOUNDS), strict=True)
    for axis, (extent, (start, end, step)) in enumerate(zip(fusion.shape_of(node.operands[0]), bounds, strict=True)):
        start, end = fusion.canonical(start), fusion.canonical(end)
        if fusion.canonical(step) != 1:
            return None
        if start == 0 and end == extent:
            continue
        if found is not None or not isinstance(start, int) or not isinstance(end, int) or start >= end:
            return None
        found = Range(axis, start, end)
    return found


class _Joining:
    """Rewrites one fusion. chains: the writes that each version of an array is part of, by its value."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.rewriter = fusion, Rewriter(fusion)
        self.chains: dict[int, WrittenSlices] = {}

    def read_written(self) -> None:
        """Keeps all nodes, and lets reads of slices read what was written to them."""
        same: dict[int, int] = {}
        for original in self.fusion.nodes:
            node = renamed(original, same)
            if _writes(node):
                self._follow(node)
            pieces = self._pieces(node)
            value = None if pieces is None else self._whole_value(node, pieces)
            if value is not None:
                same[node.outputs[0]] = value
            elif pieces is None or not self._read(node, pieces):
                self.rewriter.keep(node)

    def _follow(self, node: Node) -> None:
        """Adds a write to the chain that it continues, or begins a chain with it."""
        base, value = node.operands
        where = _range(self.fusion, node)
        if where is None or not isinstance(base, int) or not isinstance(value, int):
            return
        values, result = self.fusion.values, node.outputs[0]
        if values[value].dtype is not values[result].dtype or values[base].dtype is not values[result].dtype:
            return
        chain = self.chains.get(base)
        if chain is None or chain.axis != where.axis or chain.versions[-1] != base:
            chain = WrittenSlices(base, where.axis, [base], {base: 0})
        if not chain.write(where, value, result):
            chain = WrittenSlices(base, where.axis, [base], {base: 0})
            chain.write(where, value, result)
        self.chains[result] = chain

    def _pieces(self, node: Node) -> list[Piece] | None:
        """Returns what a slice of a version of an array holds; None if that is not known, or too much."""
        if not (isinstance(node.op, Movement) and node.op.slices == "read") or node.inputs[0] not in self.chains:
            return None
        chain, where = self.chains[node.inputs[0]], _range(self.fusion, node)
        if where is None or where.axis != chain.axis:
            return None
        pieces: list[Piece] = []
        for piece in chain.pieces(where.first, where.last, chain.times[node.inputs[0]]):
            pieces.append(piece)
            if len(pieces) > MOST_SLICES:
                return None
        return pieces

    def _whole_value(self, node: Node, pieces: Sequence[Piece]) -> int | None:
        """Returns the value that a slice was written with, if a node reads all of it."""
        if len(pieces) != 1 or node.outputs[0] in self.fusion.outputs:
            return None
        return pieces[0].value if self._is_all(pieces[0], self._axis(node)) else None

    def _is_all(self, piece: Piece, axis: int) -> bool:
        extent = self.fusion.canonical(self.rewriter.values[piece.value].shape[axis])
        return piece.first == 0 and piece.last == extent

    def _axis(self, node: Node) -> int:
        return self.chains[node.inputs[0]].axis

    def _read(self, node: Node, pieces: Sequence[Piece]) -> bool:
        """Reads the pieces of a slice in place of an array; returns False if few slices were written to it."""
        axis = self._axis(node)
        if len(pieces) == 1:
            self.rewriter.keep(_sliced(node, pieces[0], axis))
            return True
        if len(self.chains[node.inputs[0]].order) <= MOST_SLICES:
            return False
        self._concatenate(node, [self._slice(node, piece, axis) for piece in pieces], axis, node.outputs)
        return True

    def _slice(self, node: Node, piece: Piece, axis: int) -> int:
        """Returns the value of a piece, with the other axes in full."""
        shape = self.rewriter.values[piece.value].shape
        if self._is_all(piece, axis):
            return piece.value
        starts, ends = [0] * len(shape), list(shape)
        starts[axis], ends[axis] = piece.first, piece.last
        attributes = {"start_indices": tuple(starts), "end_indices": tuple(ends), "strides": (1,) * len(shape)}
        return self._node(node, SLICE, (piece.value,), attributes, ())

    def _concatenate(self, node: Node, parts: Sequence[int], axis: int, numbers: Sequence[int] = ()) -> int:
        """Returns the concatenation of values. numbers: of the result, if it is that of a node."""
        if len(parts) == 1 and not numbers:
            return parts[0]
        return self._node(node, JOIN, parts, {"dim": axis}, numbers)

    def _node(
        self, node: Node, op: Op, operands: Sequence[int], attributes: Attributes, numbers: Sequence[int]
    ) -> int:  # fmt: skip
        """Adds a node of a movement op that is derived from another one."""
        dtype = self.fusion.values[node.outputs[0]].dtype
        (result,) = self.rewriter.node(
            op, operands, attributes, node.compute, (dtype,), where=node.where, numbers=numbers
        )  # fmt: skip
        if numbers:
            self.rewriter.values[result] = self.fusion.values[result]  # with its name
        return result

    def joined(self) -> Fusion:
        """Returns the fusion in which the versions that something else reads are written at once."""
        nodes, self.rewriter.nodes = self.rewriter.nodes, []
        needed = self._needed(nodes)
        last: dict[int, int] = {}
        for node in nodes:
            chain = self.chains.get(node.outputs[0]) if _writes(node) else None
            if chain is None or node.outputs[0] not in needed:
                self.rewriter.keep(node)
                continue
            time = chain.times[node.outputs[0]]
            before = last.get(id(chain), 0)
            last[id(chain)] = time
            self._write(node, chain, before, time)
        return self.rewriter.build()

    def _needed(self, nodes: Sequence[Node]) -> set[int]:
        """Returns the values that something reads in whole, other than the next write of their chain."""
        live = set(self.fusion.outputs)
        live.update(v for node in self.fusion.slice_updates.values() for v in node.inputs)
        needed = set(live)
        for node in reversed(nodes):
            if not node.op.effect and live.isdisjoint(node.outputs):
                continue
            live.update(node.inputs)
            chain = self.chains.get(node.outputs[0]) if _writes(node) else None
            continues = chain is not None and node.operands[0] != chain.root
            needed.update(o for o in node.operands[continues:] if isinstance(o, int))
        return needed

    def _write(self, node: Node, chain: WrittenSlices, before: int, time: int) -> None:
        """Computes a version of an array from an earlier one; each run of adjoining ranges is one write."""
        firsts = sorted(set(chain.order[before:time]))
        if time - before <= MOST_SLICES or len(runs := list(_runs(chain, firsts))) == len(firsts):
            self.rewriter.keep(node)
            return
        number = chain.versions[before]
        for run in runs:
            parts = [self._slice(node, piece, chain.axis) for piece in _of_run(chain, run, before, time)]
            first, last = run[0], chain.lasts[run[-1]]
            numbers = node.outputs if run is runs[-1] else ()
            if first == 0 and last == self.fusion.shape_of(chain.root)[chain.axis]:
                self._concatenate(node, parts, chain.axis, node.outputs)
                return
            values = self._concatenate(node, parts, chain.axis)
            number = self._node(node, node.op, (number, values), _bounds(node, chain.axis, first, last), numbers)


def _of_run(chain: WrittenSlices, run: Sequence[int], before: int, time: int) -> Iterator[Piece]:
    """Yields the values of a run of ranges; short gaps between them are filled from the array before."""
    end = run[0]
    for first in run:
        if first > end:
            yield Piece(chain.versions[before], end, first)
        value = chain.written(first, time)
        assert value is not None
        end = chain.lasts[first]
        yield Piece(value, 0, end - first)


def _runs(chain: WrittenSlices, firsts: Sequence[int]) -> Iterator[list[int]]:
    """Yields runs of ranges between which no gap is longer than the range before it."""
    run: list[int] = []
    for first in firsts:
        if run and first - chain.lasts[run[-1]] > chain.lasts[run[-1]] - run[-1]:
            yield run
            run = []
        run.append(first)
    if run:
        yield run


def _bounds(node: Node, axis: int, first: int, last: int) -> Attributes:
    """Returns the bounds of the slice of a node, with others on one axis."""
    starts, ends = ((*old[:axis], bound, *old[axis + 1 :]) for old, bound in (
        (node.attributes["start_indices"], first), (node.attributes["end_indices"], last)
    ))  # fmt: skip
    return {**node.attributes, "start_indices": starts, "end_indices": ends}


def _sliced(node: Node, piece: Piece, axis: int) -> Node:
    """Returns a node that reads its slice from a piece."""
    attributes = _bounds(node, axis, piece.first, piece.last)
    return replace(renamed(node, {node.inputs[0]: piece.value}), attributes=attributes)
