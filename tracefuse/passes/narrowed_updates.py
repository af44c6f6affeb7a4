"""Updates through views: of `x = a[k]; x[i] = v`, only `a[k, i]` is written.

Recorded, such an update makes the view with one element changed, and writes the whole view back to its array. In a loop
over the elements of a row, each step would write the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracefuse.ir.extents import Extent, ceildiv
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.roles import BROADCAST, PERMUTE, SLICE, SQUEEZE
from tracefuse.passes.rewriter import Rewriter, canonical_attribute
from tracefuse.passes.slice_updates import MOST_SLICES, diagonal_axes

_BOUNDS = ("start_indices", "end_indices", "strides")


def narrow_updates(fusion: Fusion) -> Fusion:
    """Writes only what changed in a view, in place of the whole view."""
    if sum(map(_is_write, fusion.nodes)) < 2:
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
        if not _is_write(node) or not self._narrowed(node):
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
        bounds = [_composed(node, write, axes) for write in writes]
        if None in bounds:
            return False
        for write, changed in zip(writes, bounds, strict=True):
            assert changed is not None
            array = self._write(node, array, write, back, changed, is_last=write is writes[-1])
        self.changes = True
        return True

    def _write(
        self, node: Node, array: int, write: Node, back: Sequence[Node], changed: Mapping[str, tuple[Extent, ...]], *,
        is_last: bool,
    ) -> int:  # fmt: skip
        """Adds one update. back: the movements from the view to the slice. changed: the bounds of the update."""
        value, rewriter = write.operands[1], self.rewriter
        for moved in back:
            assert isinstance(value, int)
            kind = rewriter.values[value].dtype
            (value,) = rewriter.node(moved.op, (value,), moved.attributes, kind, (kind,), where=write.where)
        (number,) = rewriter.node(
            node.op, (array, value), {**node.attributes, **changed}, node.compute, (rewriter.values[array].dtype,),
            where=write.where, numbers=node.outputs if is_last else (),
        )  # fmt: skip
        if is_last:
            rewriter.values[number] = self.fusion.values[number]  # with its name
        return number

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
        moves: list[Node] = []
        while (moved := self.made_by.get(value)) is not None and moved.op in (SQUEEZE, PERMUTE):
            moves.insert(0, moved)
            (value,) = moved.inputs
        read = self.made_by.get(value)
        if read is None or read.op is not SLICE or read.inputs[0] != node.operands[0]:
            return None
        bounds = [
            canonical_attribute(self.fusion, tuple(one.attributes[name] for name in _BOUNDS)) for one in (read, node)
        ]
        if bounds[0] != bounds[1]:
            return None
        rank = len(node.attributes["strides"])
        axes = list(range(rank))
        for moved in moves:
            dims = moved.attributes["dims"]
            axes = [axes[k] for k in dims] if moved.op is PERMUTE else [a for k, a in enumerate(axes) if k not in dims]
        return tuple(axes.index(axis) if axis in axes else None for axis in range(rank)) if moves else ()


def _is_write(node: Node) -> bool:
    is_slice = isinstance(node.op, Movement) and node.op.slices == "written"
    return is_slice and not diagonal_axes(node) and all(name in node.attributes for name in _BOUNDS)


def _composed(node: Node, write: Node, axes: Sequence[int | None]) -> Mapping[str, tuple[Extent, ...]] | None:
    """Returns the bounds of what `write` changes in the array of the view that `node` writes back."""
    outer = zip(*(node.attributes[name] for name in _BOUNDS), strict=True)
    inner = list(zip(*(write.attributes[name] for name in _BOUNDS), strict=True))
    bounds: list[tuple[Extent, Extent, Extent]] = []
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
