"""Updates through views: of `x = a[k]; x[i] = v`, only `a[k, i]` is written.

Recorded, such an update makes the view with one element changed, and writes the whole view back to its array. In a loop
over the elements of a row, each step would write the row. Of `x = a.T; x[i] = v` or `x = a.reshape(-1); x[i] = v`, it
makes the whole array again.

Each movement that leads from a view back to its array is taken before the update, one after another: `flip` of what was
written into `flip(a)` is `a`, written elsewhere. Later reads of the view are reads of the array.

Must not know: segments, kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node, Op, Shape
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.roles import BROADCAST, FLIP, PERMUTE, RESHAPE, SLICE, SQUEEZE
from tracefuse.passes.rewriter import Rewriter, canonical_attribute, needed_for, renamed
from tracefuse.passes.slice_updates import MOST_SLICES, diagonal_axes
from tracefuse.passes.written_ranges import Range, count_of, flipped, is_complete, regrouped, within

_BOUNDS = ("start_indices", "end_indices", "strides")
_INVERSES: dict[Op, Op] = {BROADCAST: SQUEEZE, SQUEEZE: BROADCAST, PERMUTE: PERMUTE, FLIP: FLIP, RESHAPE: RESHAPE}
"""The movement that undoes each movement of a view."""

MOST_MOVEMENTS = 16
"""The movements of a view through which a read of it is followed to the array: the time for a read is bounded."""


def narrow_updates(fusion: Fusion) -> Fusion:
    """Writes only what changed in a view, in place of the whole view."""
    if not any(map(_is_write, fusion.nodes)):
        return fusion
    narrowing = _Narrowing(fusion)
    for node in fusion.nodes:
        narrowing.add(node)
    return narrowing.rewriter.build() if narrowing.changes else fusion


class _Narrowing:
    """A fusion that is rewritten node by node, so that a view of a view is narrowed after that view."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.rewriter = fusion, Rewriter(fusion)
        self.changes = False
        self.made_by: dict[int, Node] = {}
        self.live = {output for node in needed_for(fusion, fusion.outputs) for output in node.outputs}
        self.views: dict[int, tuple[Node, int]] = {}
        """Of each view that was updated: the movement that makes it, and the updated array."""
        self.made_again: dict[tuple[int, int], int] = {}

    def add(self, node: Node) -> None:
        """Adds a node: in place of one that leads from an updated view to its array, the updates of the array."""
        before = len(self.rewriter.nodes)
        if self.views:
            node = renamed(node, {operand: self._current(operand) for operand in node.inputs if operand in self.views})
        leads_back = (_is_write(node) or node.op in _INVERSES) and node.outputs[0] in self.live
        if not (leads_back and self._narrowed(node)) and not (node.op is SLICE and self._read(node)):
            self.rewriter.keep(node)
        self._remember(before)

    def _remember(self, before: int) -> None:
        self.made_by.update((output, made) for made in self.rewriter.nodes[before:] for output in made.outputs)

    def _current(self, view: int) -> int:
        """Returns an updated view as a movement of its array as it is now."""
        through = [view]
        while through[-1] in self.views:
            through.append(self.views[through[-1]][1])
        array = through.pop()
        for seen in reversed(through):
            if (seen, array) not in self.made_again:
                moved, before, kind = self.views[seen][0], len(self.rewriter.nodes), self.fusion.values[seen].dtype
                (number,) = self.rewriter.node(moved.op, (array,), moved.attributes, kind, (kind,), where=moved.where)
                self.rewriter.mark(number, seen)
                self.made_again[seen, array] = number
                self._remember(before)
            array = self.made_again[seen, array]
        return array

    def _narrowed(self, node: Node) -> bool:
        """Adds the updates of a view as updates of its array; returns False if the node leads back from no view."""
        written = node.operands[-1]
        if not isinstance(written, int):
            return False
        writes, view = self._writes(written)
        moved = self.made_by.get(view)
        if not writes or moved is None or not self._undoes(node, moved):
            return False
        changed = [self._ranges(moved, self._bounds(write)) for write in writes]
        if None in changed:
            return False
        array = moved.inputs[0]
        for write, ranges in zip(writes, changed, strict=True):
            assert ranges is not None
            array = self._write(node, write, array, ranges, is_last=write is writes[-1])
        self.rewriter.values[array] = self.fusion.values[array]  # with its name
        if written in self.fusion.values:
            self.views[written] = (moved, array)
        self.changes = True
        return True

    def _write(self, node: Node, write: Node, array: int, ranges: Sequence[Range], is_last: bool) -> int:
        """Adds an update of the array to which `node` leads; returns the updated array."""
        value, rewriter = write.operands[1], self.rewriter
        assert isinstance(value, int)
        kind = rewriter.values[value].dtype
        attributes = self._way_of_elements(node, ranges)
        if attributes is not None:
            (value,) = rewriter.node(node.op, (value,), attributes, kind, (kind,), where=write.where)
        attributes, dtype = {**write.attributes, **_attributes(ranges)}, rewriter.values[array].dtype
        (number,) = rewriter.node(
            write.op, (array, value), attributes, write.compute, (dtype,),
            where=write.where, numbers=node.outputs if is_last else (),
        )  # fmt: skip
        return number

    def _way_of_elements(self, node: Node, ranges: Sequence[Range]) -> dict[str, object] | None:
        """Returns the attributes with which a movement moves a part of what it moves; None if the part stays as it is.

        ranges: the part of its result.
        """
        if node.op is RESHAPE:
            return {**node.attributes, "new_shape": tuple(map(count_of, ranges))}
        if node.op is FLIP:
            several = tuple(axis for axis in node.attributes["dims"] if count_of(ranges[axis]) != 1)
            return {**node.attributes, "dims": several} if several else None
        return dict(node.attributes) if node.op in _INVERSES else None

    def _writes(self, value: int) -> tuple[list[Node], int]:
        """Returns the updates of a view in order, and the view before them."""
        writes: list[Node] = []
        while (write := self.made_by.get(value)) is not None and _is_write(write) and len(writes) < MOST_SLICES:
            before, new = write.operands
            values = self.rewriter.values
            if not isinstance(before, int) or not isinstance(new, int) or values[new].dtype is not values[value].dtype:
                return [], value
            writes.insert(0, write)
            value = before
        return writes, value

    def _undoes(self, node: Node, moved: Node) -> bool:
        """Whether a node leads from a view back to the array that a movement has made it of."""
        if _is_write(node):
            same = (
                moved.op is SLICE and moved.inputs[0] == node.operands[0] and self._bounds(moved) == self._bounds(node)
            )
            return same and self.rewriter.values[moved.outputs[0]].dtype is node.compute
        if _INVERSES.get(moved.op) is not node.op:
            return False
        of, back = moved.attributes, node.attributes
        if node.op is RESHAPE:
            return self._shape(moved.inputs[0]) == tuple(map(self.fusion.canonical, back["new_shape"]))
        if node.op is PERMUTE:
            return all(of["dims"][axis] == k for k, axis in enumerate(back["dims"]))
        if node.op is FLIP:
            return set(of["dims"]) == set(back["dims"])
        inserted, dropped = (of, back) if node.op is SQUEEZE else (back, of)
        return {k for k, is_new in enumerate(inserted["is_broadcast_dim"]) if is_new} == set(dropped["dims"])

    def _read(self, node: Node) -> bool:
        """Adds a read of a view as a read of the array that was written before; returns False if there is no such."""
        value, ranges, moves = node.inputs[0], self._bounds(node), list[tuple[Op, dict[str, object]]]()
        count = 0
        while (moved := self.made_by.get(value)) is not None and (moved.op is SLICE or moved.op in _INVERSES):
            count += 1
            if count > MOST_MOVEMENTS:
                return False
            attributes = self._way_of_elements(moved, ranges)
            if attributes is not None:
                moves.insert(0, (moved.op, attributes))
            inner = self._ranges(moved, ranges)
            if inner is None:
                return False
            (value,), ranges = moved.inputs, inner
        if value == node.inputs[0] or moved is None or not _is_write(moved):
            return False
        moves.insert(0, (SLICE, {**node.attributes, **_attributes(ranges)}))
        kind = self.rewriter.values[value].dtype
        for left, (op, attributes) in zip(reversed(range(len(moves))), moves, strict=True):
            numbers = () if left else node.outputs
            (value,) = self.rewriter.node(op, (value,), attributes, kind, (kind,), where=node.where, numbers=numbers)
        self.rewriter.values[value] = self.fusion.values[value]  # its extents may be equal, but written in other terms
        self.changes = True
        return True

    def _ranges(self, moved: Node, of_view: Sequence[Range]) -> list[Range] | None:
        """Returns ranges of a view as ranges of the array that a movement makes it of; None if they are not known."""
        ranges: list[Range | None] = list(of_view)
        of, array = moved.attributes, self._shape(moved.inputs[0])
        if moved.op is SLICE:
            ranges = [
                within(*pair, self.fusion.is_nonnegative) for pair in zip(self._bounds(moved), of_view, strict=True)
            ]
        elif moved.op is PERMUTE:
            ranges = [of_view[of["dims"].index(axis)] for axis in range(len(array))]
        elif moved.op is FLIP:
            for axis in of["dims"]:
                ranges[axis] = flipped(of_view[axis], array[axis], self.fusion.is_nonnegative)
        elif moved.op is SQUEEZE:
            kept = iter(of_view)
            ranges = [(0, 1, 1) if axis in of["dims"] else next(kept) for axis in range(len(array))]
        elif moved.op is BROADCAST:
            inserted = of["is_broadcast_dim"]
            if any(is_new and not is_complete(r, 1) for is_new, r in zip(inserted, of_view, strict=True)):
                return None
            ranges = [r for is_new, r in zip(inserted, of_view, strict=True) if not is_new]
        else:
            return regrouped(of_view, self._shape(moved.outputs[0]), array)
        known = [r for r in ranges if r is not None]
        if moved.op in (SLICE, FLIP) and [*map(count_of, known)] != [*map(count_of, of_view)]:
            return None  # equal, but in other terms: values would get other types
        return known if len(known) == len(ranges) else None

    def _bounds(self, node: Node) -> list[Range]:
        """Returns the range of each axis that a node reads or writes."""
        entries: tuple[tuple[Extent, ...], ...] = canonical_attribute(
            self.fusion, tuple(tuple(node.attributes[name]) for name in _BOUNDS)
        )
        return list(zip(*entries, strict=True))

    def _shape(self, value: int) -> Shape:
        return tuple(map(self.fusion.canonical, self.rewriter.values[value].shape))


def _attributes(ranges: Sequence[Range]) -> dict[str, object]:
    """Returns the attributes of a slice."""
    return dict(zip(_BOUNDS, zip(*ranges, strict=True), strict=True)) if ranges else dict.fromkeys(_BOUNDS, ())


def _is_write(node: Node) -> bool:
    is_slice = isinstance(node.op, Movement) and node.op.slices == "written"
    return is_slice and not diagonal_axes(node) and all(name in node.attributes for name in _BOUNDS)
