"""Updates through views: of `x = a[k]; x[i] = v`, only `a[k, i]` is written.

Recorded, such an update makes the view with one element changed, and writes the whole view back to its array. In a loop
over the elements of a row, each step would write the row. Of `x = a.T; x[i] = v`, it makes the whole array again.

Must not know: segments, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tracefuse.ir.extents import Extent, ceildiv
from tracefuse.ir.fusion import Fusion, Node, Op
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.roles import BROADCAST, PERMUTE, SLICE, SQUEEZE
from tracefuse.passes.rewriter import Rewriter, canonical_attribute
from tracefuse.passes.slice_updates import MOST_SLICES, diagonal_axes

_BOUNDS = ("start_indices", "end_indices", "strides")
_Range: TypeAlias = tuple[Extent, Extent, Extent]
"""The start, the end and the step of a slice on an axis."""


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

    def add(self, node: Node) -> None:
        """Adds a node: in place of one that writes a view back, the writes of what changed in it."""
        before = len(self.rewriter.nodes)
        if not (_is_write(node) and self._narrowed(node)) and not (node.op is PERMUTE and self._permuted(node)):
            self.rewriter.keep(node)
        self.made_by.update((output, made) for made in self.rewriter.nodes[before:] for output in made.outputs)

    def _narrowed(self, node: Node) -> bool:
        """Adds the updates of a view as updates of its array; returns False if the node writes no view back."""
        array, written = node.operands
        if not isinstance(array, int) or not isinstance(written, int):
            return False
        value, back = self._way_back(written)
        writes, value = self._writes(value)
        axes = self._axes(back)
        if not writes or self._view(value, node) != axes or self.rewriter.values[value].dtype is not node.compute:
            return False
        outer = list(zip(*(node.attributes[name] for name in _BOUNDS), strict=True))
        return self._write_apart(node, array, writes, back, outer)

    def _permuted(self, node: Node) -> bool:
        """Adds the updates of a permuted array as updates of that array; returns False if the node is no such array."""
        value, back = self._way_back(node.inputs[0])
        back.append(node)
        writes, value = self._writes(value)
        moves, array = self._moves(value, (PERMUTE,))
        axes = self._axes(back)
        if not writes or any(moved.op is not PERMUTE for moved in back) or _inverse(moves, len(axes)) != axes:
            return False
        outer = [(0, extent, 1) for extent in self.rewriter.values[array].shape]
        return self._write_apart(node, array, writes, back, outer)

    def _write_apart(
        self, node: Node, array: int, writes: Sequence[Node], back: Sequence[Node], outer: Sequence[_Range]
    ) -> bool:
        """Adds the updates of a view as updates of an array, of which it is the slice `outer`; False if they cannot be.

        node: gives the array with all updates. back: the movements from the view to the slice.
        """
        axes = self._axes(back)
        bounds = [_composed(outer, write, axes) for write in writes]
        if None in bounds:
            return False
        for write, changed in zip(writes, bounds, strict=True):
            assert changed is not None
            value, rewriter = write.operands[1], self.rewriter
            for moved in back:
                assert isinstance(value, int)
                kind = rewriter.values[value].dtype
                (value,) = rewriter.node(moved.op, (value,), moved.attributes, kind, (kind,), where=write.where)
            (array,) = rewriter.node(
                write.op, (array, value), {**write.attributes, **changed}, write.compute,
                (rewriter.values[array].dtype,), where=write.where, numbers=node.outputs if write is writes[-1] else (),
            )  # fmt: skip
        self.rewriter.values[array] = self.fusion.values[array]  # with its name
        self.changes = True
        return True

    def _way_back(self, value: int) -> tuple[int, list[Node]]:
        """Returns the value of a view that is written back, and the movements to the shape of the slice, in order."""
        back: list[Node] = []
        while (moved := self.made_by.get(value)) is not None and moved.op in (BROADCAST, PERMUTE):
            back.insert(0, moved)
            (value,) = moved.inputs
        return value, back

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

    def _axes(self, back: Sequence[Node]) -> tuple[int | None, ...]:
        """Returns the axis of the view that each axis of the slice is; None for one that the view lacks."""
        if not back:
            return ()
        axes: list[int | None] = list(range(len(self.rewriter.values[back[0].inputs[0]].shape)))
        for node in back:
            if node.op is PERMUTE:
                axes = [axes[k] for k in node.attributes["dims"]]
            else:
                kept = iter(axes)
                axes = [None if is_new else next(kept) for is_new in node.attributes["is_broadcast_dim"]]
        return tuple(axes)

    def _view(self, value: int, node: Node) -> tuple[int | None, ...] | None:
        """Returns `_axes` of a view of the slice that a node writes, made from the array before; None for others."""
        moves, value = self._moves(value, (SQUEEZE, PERMUTE))
        read = self.made_by.get(value)
        if read is None or read.op is not SLICE or read.inputs[0] != node.operands[0]:
            return None
        bounds = [
            canonical_attribute(self.fusion, tuple(one.attributes[name] for name in _BOUNDS)) for one in (read, node)
        ]
        if bounds[0] != bounds[1]:
            return None
        return _inverse(moves, len(node.attributes["strides"]))

    def _moves(self, value: int, ops: Sequence[Op]) -> tuple[list[Node], int]:
        """Returns the movements by some ops that make a value, in order, and what they move."""
        moves: list[Node] = []
        while (moved := self.made_by.get(value)) is not None and moved.op in ops:
            moves.insert(0, moved)
            (value,) = moved.inputs
        return moves, value


def _inverse(moves: Sequence[Node], rank: int) -> tuple[int | None, ...]:
    """Returns the axis of a view that each axis of what was moved to it is; None for one that the view lacks."""
    axes = list(range(rank))
    for moved in moves:
        dims = moved.attributes["dims"]
        axes = [axes[k] for k in dims] if moved.op is PERMUTE else [a for k, a in enumerate(axes) if k not in dims]
    return tuple(axes.index(axis) if axis in axes else None for axis in range(rank)) if moves else ()


def _is_write(node: Node) -> bool:
    is_slice = isinstance(node.op, Movement) and node.op.slices == "written"
    return is_slice and not diagonal_axes(node) and all(name in node.attributes for name in _BOUNDS)


def _composed(
    outer: Sequence[_Range], write: Node, axes: Sequence[int | None]
) -> Mapping[str, tuple[Extent, ...]] | None:
    """Returns the bounds of what `write` changes in the array of which the view is the slice `outer`."""
    inner = list(zip(*(write.attributes[name] for name in _BOUNDS), strict=True))
    bounds: list[_Range] = []
    for axis, (start, end, step) in zip(axes or range(len(inner)), outer, strict=True):
        if axis is None:
            bounds.append((start, end, step))
            continue
        first, last, by = inner[axis]
        if not isinstance(step, int) or not isinstance(by, int) or step < 1 or by < 1:
            return None
        begin = start + step * first
        bounds.append((begin, begin + step * by * (ceildiv(last - first, by) - 1) + 1, step * by))
    return dict(zip(_BOUNDS, zip(*bounds, strict=True), strict=True))
