"""Updates of slices of arguments: `u[1:-1] += ...` writes the elements of the slice, and leaves the others alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracefuse.ir.extents import Extent, ceildiv, is_nonnegative, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.subfusion import extents_in
from tracefuse.ops.roles import COPY
from tracefuse.passes.rewriter import Rewriter

Bounds: TypeAlias = tuple[Extent, Extent, Extent]
"""The first position of a slice on an axis, the last (exclusive) and the step."""

MOST_SLICES = 8
"""The number of slices written one after another from which adjoining ones are joined."""

MOST_UPDATES = 32
"""The number of slices of one argument that are updated one by one: each pair is compared."""

THIN = 16
"""A slice of at most so many positions on some axis may be written twice, where another slice may overlap it."""


def update_slices(fusion: Fusion) -> Fusion:
    """Writes only the changed slices of an updated argument, not all of it."""
    updates = {
        value: slices
        for value, owner in fusion.aliases.items()
        if value not in fusion.slice_updates and (slices := _slices_written(fusion, value, owner))
    }
    if not updates:
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        rewriter.keep(node)
    outputs: list[int] = []
    for number in fusion.outputs:
        if number not in updates:
            outputs.append(number)
            continue
        owner = rewriter.aliases.pop(number)
        for node in updates[number]:
            written = node.operands[1]
            assert isinstance(written, int)
            if written in fusion.inputs or written in fusion.outputs or written in outputs:
                dtype = fusion.values[written].dtype
                (written,) = rewriter.node(COPY, (written,), {}, dtype, (dtype,))
            outputs.append(written)
            rewriter.aliases[written] = owner
            rewriter.slice_updates[written] = node
    rewriter.outputs = outputs
    return rewriter.build()


def _slices_written(fusion: Fusion, value: int, owner: int) -> Sequence[Node]:
    """Returns the nodes that write slices of an input, one after another, up to a value; none if there are others."""
    producers = fusion.producers
    nodes: list[Node] = []
    while value != owner:
        node = producers.get(value)
        is_slice = node is not None and isinstance(node.op, Movement) and node.op.slices == "written"
        if node is None or not is_slice or len(nodes) == MOST_UPDATES or fusion.outputs.count(value) > (not nodes):
            return ()
        first, second = node.operands
        if not isinstance(first, int) or not isinstance(second, int) or not has_known_bounds(fusion, node):
            return ()
        nodes.append(node)
        value = first
    return nodes[::-1] if all(are_written_apart(fusion, *pair) for pair in itertools.combinations(nodes, 2)) else ()


def has_known_bounds(fusion: Fusion, node: Node) -> bool:
    """Whether the arguments of a call determine the bounds of a slice."""
    scalars = fusion.scalar_inputs
    bounds = [s.id for extent in extents_in(node.attributes) for s in symbols(fusion.canonical(extent))]
    return all(id is not None and (id < 0 or id in scalars) for id in bounds)


def are_written_apart(fusion: Fusion, first: Node, second: Node) -> bool:
    """Whether two slices share no element, or one is thin, so that writing it twice costs little."""
    bounds = [*_bounds(fusion, first), *_bounds(fusion, second)]
    extents = [ceildiv(high - low, step) for low, high, step in bounds]
    is_thin = any(isinstance(extent, int) and extent <= THIN for extent in extents)
    is_thin = is_thin or bool(diagonal_axes(first) or diagonal_axes(second))
    return is_thin or are_separate(fusion, first, second)


def diagonal_axes(node: Node) -> tuple[int, ...]:
    """Returns the axes of the slice that a node reads or writes on which the coordinates of its elements are equal."""
    return tuple(node.attributes.get("dims", ()))


def are_separate(fusion: Fusion, left: Node, right: Node) -> bool:
    """Whether it is proved that the slices that two nodes read or write share no element.

    On some axis, one ends before the other begins, or both step over each other's positions, or they are two diagonals.
    """
    bounds = list(zip(_bounds(fusion, left), _bounds(fusion, right), strict=True))
    if any(are_bounds_apart(*pair, fusion.is_nonnegative) for pair in bounds):
        return True
    return _are_parallel(left, right, bounds)


def are_bounds_apart(
    first: Bounds, second: Bounds, is_nonnegative: Callable[[Extent], bool] = is_nonnegative
) -> bool:  # fmt: skip
    """Whether it is proved that two slices of one axis share no position. is_nonnegative: proves it of an extent."""
    return is_nonnegative(second[0] - first[1]) or is_nonnegative(first[0] - second[1]) or _interleave(first, second)


def _are_parallel(left: Node, right: Node, bounds: Sequence[tuple[Bounds, Bounds]]) -> bool:
    """Whether two nodes read or write different diagonals of the same axes."""
    axes = diagonal_axes(left)
    if not axes or axes != diagonal_axes(right) or any(b[2] != 1 for axis in axes for b in bounds[axis]):
        return False
    shifts = [second[0] - first[0] for first, second in (bounds[axis] for axis in axes)]
    return any(isinstance(shift - shifts[0], int) and shift != shifts[0] for shift in shifts)


def _interleave(first: Bounds, second: Bounds) -> bool:
    """Whether no position of two slices of one axis is equal, because their steps reach different remainders."""
    step, other_step, offset = first[2], second[2], second[0] - first[0]
    if not (isinstance(step, int) and isinstance(other_step, int) and isinstance(offset, int)):
        return False
    return offset % math.gcd(step, other_step) != 0


def _bounds(fusion: Fusion, node: Node) -> list[Bounds]:
    """Returns the first position of a slice, the last (exclusive) and the step, on each axis."""
    entries = (node.attributes[name] for name in ("start_indices", "end_indices", "strides"))
    return [(fusion.canonical(a), fusion.canonical(b), fusion.canonical(c)) for a, b, c in zip(*entries, strict=True)]
