"""Index maps: the coordinates at which each consumer reads its operands.

A kernel is built backwards from its results: the node alone determines the operand coordinates for an element of its
result. Each use of a value has its own index map; this makes `x + rotate(x)` correct in one kernel. `AxisMap` is a
coarse index map with one entry per axis, which the merge rule works on.

Must not know: kernels, segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Expression, Extent, Symbol, as_symbol, symbol
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.op_kinds import IndexOf, Movement, Pointwise, Reduction, Source
from tracefuse.ir.row_major import axis_groups, linearize
from tracefuse.ir.scan_kind import is_library_call

PULLED = -1
"""The entry of an axis that is not read along a loop, but at computed coordinates."""


@dataclass(frozen=True, slots=True)
class LoopFactor:
    """The entry of an axis that is one factor of a loop, whose extent is the row-major product of `extents`."""

    loop: int
    place: int
    extents: Shape


@dataclass(frozen=True, slots=True)
class Joined:
    """The entry of an axis that is the row-major product of `extents`, each of which has an entry, outermost first."""

    parts: tuple[int | LoopFactor, ...]
    extents: Shape


Entry: TypeAlias = "int | Joined | LoopFactor | None"
AxisMap: TypeAlias = tuple[Entry, ...]
"""For each axis of a value: the loop or loops along which it is read, None for an axis of extent 1, or PULLED."""


def is_along(entry: Entry) -> bool:
    """Whether an entry is a loop or None: neither computed coordinates nor several loops nor a factor of one."""
    return entry is None or (isinstance(entry, int) and entry != PULLED)


def flat(axis_map: AxisMap) -> Iterator[int]:
    """Yields the loops of an axis map in order; PULLED for an axis that is not read along loops."""
    for entry in axis_map:
        if entry is not None:
            yield from (part if isinstance(part, int) else PULLED for part in parts_of(entry))


def parts_of(entry: int | Joined | LoopFactor) -> tuple[int | LoopFactor, ...]:
    """Returns what runs over an axis, the outermost first."""
    return entry.parts if isinstance(entry, Joined) else (entry,)


def operand_coordinates(shape: Shape, result: Shape, coordinates: Shape) -> Shape:
    """Returns the operand coordinates of a broadcasting op for the result element at `coordinates`."""
    lead = len(result) - len(shape)
    return tuple(0 if extent == 1 else coordinates[lead + axis] for axis, extent in enumerate(shape))


def sources(fusion: Fusion, node: Node, coordinates: Shape, index_of: IndexOf) -> tuple[Source, ...]:
    """Returns the operand elements that a node reads for its result at `coordinates`.

    Pointwise: one source per operand; all are read. Movement: candidate sources; the first whose conditions hold is
    read. Reduction: one source; all reduced axes have extent 1. Scan: the element at the same
    coordinates, which the template combines with those before it.
    """
    shapes = [fusion.shape_of(o) for o in node.operands]
    result = fusion.shape_of(node.outputs[0])
    if isinstance(node.op, Reduction):
        return (Source(0, reduced_coordinates(node, fusion, coordinates, (0,) * len(node.attributes["dims"]))),)
    if isinstance(node.op, Movement):
        attributes = {k: _canonical(fusion, v) for k, v in node.attributes.items()}
        pulled = node.op.pull(coordinates, shapes, result, attributes, index_of)
        return tuple(replace(source, coordinates=_simplified(source, shapes[source.operand])) for source in pulled)
    return tuple(Source(k, operand_coordinates(shape, result, coordinates)) for k, shape in enumerate(shapes))


def position_of(fusion: Fusion, node: Node, coordinates: Shape) -> Extent | None:
    """Returns the variable `index` of an op with an extra shape: the row-major position in that shape, else None."""
    op = node.op
    if not isinstance(op, Pointwise) or op.extra_shape is None:
        return None
    shape = tuple(fusion.canonical(extent) for extent in op.extra_shape(node.attributes))
    return linearize(operand_coordinates(shape, fusion.shape_of(node.outputs[0]), coordinates), shape)


def _simplified(source: Source, shape: Shape) -> Shape:
    """Returns the coordinates of a source, with 0 on axes of extent 1: its conditions imply that value."""
    return tuple(0 if extent == 1 else c for c, extent in zip(source.coordinates, shape, strict=True))


def _canonical(fusion: Fusion, attribute: object) -> object:
    if isinstance(attribute, tuple):
        return tuple(_canonical(fusion, a) for a in attribute)
    return fusion.canonical(attribute) if isinstance(attribute, Expression) else attribute


def reduces(fusion: Fusion, node: Node) -> bool:
    """Returns whether a node is a reduction that needs a loop, that is, over an axis of an extent other than 1."""
    if not isinstance(node.op, Reduction):
        return False
    shape = fusion.shape_of(node.operands[0])
    return any(shape[axis] != 1 for axis in node.attributes["dims"])


def loops_of(node: Node, fusion: Fusion) -> Shape:
    """Returns the extents of a node's loops: the operand's shape for a reduction, else the result's."""
    if isinstance(node.op, Reduction):
        return fusion.shape_of(node.operands[0])
    return fusion.shape_of(node.outputs[0])


def reduced_coordinates(node: Node, fusion: Fusion, coordinates: Shape, reduced: Shape) -> Shape:
    """Returns the operand coordinates of a reduction, from its result coordinates and its reduction indices."""
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    rest, inner = iter(coordinates), iter(reduced)
    result: list[Extent] = []
    for axis in range(len(fusion.shape_of(node.operands[0]))):
        if axis in dims:
            if keepdim:
                next(rest)
            result.append(next(inner))
        else:
            result.append(next(rest))
    return tuple(result)


def use_maps(fusion: Fusion, node: Node) -> tuple[list[Extent], AxisMap, list[tuple[int, AxisMap]]]:
    """Returns the axis maps of a single node over its own loops.

    Returns the extents of the loops (axes of extent 1 have no loop), the map of the result, and the map of each value
    operand. Library nodes have no loops: all their operands are pulled.
    """
    shape = loops_of(node, fusion)
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    place = {axis: loop for loop, axis in enumerate(wide)}
    coordinates = tuple(symbol(f"x{place[a]}", extent=e) if a in place else 0 for a, e in enumerate(shape))
    extents = [shape[a] for a in wide]

    def map_of(at: Shape, value_shape: Shape) -> AxisMap:
        return tuple(_entry(c, e, extents) for c, e in zip(at, value_shape, strict=True))

    result = fusion.shape_of(node.outputs[0])
    if is_library_call(node.op):
        return extents, map_of(coordinates, result), [(o, (PULLED,) * len(fusion.shape_of(o))) for o in node.inputs]
    if isinstance(node.op, Reduction):
        dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
        result_at = tuple(0 if a in dims else c for a, c in enumerate(coordinates) if keepdim or a not in dims)
        operand = node.operands[0]
        operand_reads = [(operand, map_of(coordinates, shape))] if isinstance(operand, int) else []
        return extents, map_of(result_at, result), operand_reads
    reads: list[tuple[int, AxisMap]] = []

    def index_of(position: int, at: Shape) -> Extent:
        operand = node.operands[position]
        if isinstance(operand, int):
            reads.append((operand, map_of(at, fusion.shape_of(operand))))
        return symbol(f"taken{len(reads)}", extent=None)

    for source in sources(fusion, node, coordinates, index_of):
        operand = node.operands[source.operand]
        if isinstance(operand, int):
            reads.append((operand, map_of(source.coordinates, fusion.shape_of(operand))))
    if isinstance(node.op, Movement) and node.op.regroups:
        reads = [(operand, _regrouped(fusion, node, read)) for operand, read in reads]
    return extents, map_of(coordinates, result), reads


def _regrouped(fusion: Fusion, node: Node, read: AxisMap) -> AxisMap:
    """Names the loops of the axes that a reshape splits, and the factors that it merges into one loop."""
    source, result = fusion.shape_of(node.inputs[0]), fusion.shape_of(node.outputs[0])
    wide = [axis for axis, extent in enumerate(result) if extent != 1]
    entries = list(read)
    for source_axes, result_axes in node.attributes["groups"] or axis_groups(source, result):
        source_axes, result_axes = (
            [k for k in source_axes if source[k] != 1],
            [k for k in result_axes if result[k] != 1],
        )
        if len(source_axes) == 1 and len(result_axes) > 1:
            extents_of_group = tuple(fusion.canonical(result[k]) for k in result_axes)
            entries[source_axes[0]] = Joined(tuple(wide.index(k) for k in result_axes), extents_of_group)
        elif len(result_axes) == 1 and len(source_axes) > 1:
            extents = tuple(fusion.canonical(source[k]) for k in source_axes)
            for place, axis in enumerate(source_axes):
                entries[axis] = LoopFactor(wide.index(result_axes[0]), place, extents)
    return tuple(entries)


def _entry(coordinate: Extent, extent: Extent, extents: Sequence[Extent]) -> int | None:
    """Returns the loop along which an axis of extent `extent` is read, if the loop has the same extent."""
    if coordinate == 0 and extent == 1:
        return None
    index = as_symbol(coordinate)
    if isinstance(index, Symbol) and index.name[0] == "x":
        loop = int(index.name[1:])
        return loop if extents[loop] == extent else PULLED
    return PULLED
