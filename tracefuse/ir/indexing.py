"""Consumer-pull index maps: where each use of a value reads it.

A kernel is built from its results backwards: an element of a node's result, at some coordinates, needs elements of the
operands at coordinates that follow from the node alone. The same value read by two uses has two index maps; that is
what makes `x + rotate(x)` right in one kernel. `AxisMap` is the coarse form of a map, one entry per axis, that the
merge rule works on.

Knows: the kinds of op and coordinates. Must not know: loops, kernels, segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from tracefuse.ir.extents import Expression, Extent, Symbol, as_symbol, symbol
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.op_kinds import IndexOf, Library, Movement, Pointwise, Reduction, Source
from tracefuse.ir.row_major import linearize

PULLED = -1
"""The entry of an axis that is read at other coordinates than those of the loops."""

AxisMap: TypeAlias = tuple[int | None, ...]
"""Per axis of a value: the loop that it is read along, None for an axis of extent 1, or PULLED."""


def operand_coordinates(shape: Shape, result: Shape, coordinates: Shape) -> Shape:
    """Where an operand of a broadcasting op is read for the result element at `coordinates`."""
    lead = len(result) - len(shape)
    return tuple(0 if extent == 1 else coordinates[lead + axis] for axis, extent in enumerate(shape))


def sources(fusion: Fusion, node: Node, coordinates: Shape, index_of: IndexOf) -> tuple[Source, ...]:
    """The operand elements that the result of a pointwise or movement node needs at `coordinates`.

    Pointwise: one source an operand, all of them needed. Movement: the first whose conditions hold is the element.
    A reduction over axes of extent 1 alone reads one element.
    """
    shapes = [fusion.shape_of(o) for o in node.operands]
    result = fusion.shape_of(node.outputs[0])
    if isinstance(node.op, Reduction):
        return (Source(0, reduced_coordinates(node, fusion, coordinates, (0,) * len(node.attributes["dims"]))),)
    if isinstance(node.op, Movement):
        attributes = {k: _canonical(fusion, v) for k, v in node.attributes.items()}
        pulled = node.op.pull(coordinates, shapes, result, attributes, index_of)
        return tuple(replace(source, coordinates=_inside(source, shapes[source.operand])) for source in pulled)
    return tuple(Source(k, operand_coordinates(shape, result, coordinates)) for k, shape in enumerate(shapes))


def position_of(fusion: Fusion, node: Node, coordinates: Shape) -> Extent | None:
    """For a row with a shape of its own, what its code calls `index`: the row-major position in that shape."""
    op = node.op
    if not isinstance(op, Pointwise) or op.extra_shape is None:
        return None
    shape = tuple(fusion.canonical(extent) for extent in op.extra_shape(node.attributes))
    return linearize(operand_coordinates(shape, fusion.shape_of(node.outputs[0]), coordinates), shape)


def _inside(source: Source, shape: Shape) -> Shape:
    """The coordinates of a source, 0 along axes of extent 1: where its conditions hold they are nothing else."""
    return tuple(0 if extent == 1 else c for c, extent in zip(source.coordinates, shape, strict=True))


def _canonical(fusion: Fusion, attribute: object) -> object:
    if isinstance(attribute, tuple):
        return tuple(_canonical(fusion, a) for a in attribute)
    return fusion.canonical(attribute) if isinstance(attribute, Expression) else attribute


def reduces(fusion: Fusion, node: Node) -> bool:
    """Whether the node is a reduction that needs a loop: one over axes of extent 1 alone works element by element."""
    if not isinstance(node.op, Reduction):
        return False
    shape = fusion.shape_of(node.operands[0])
    return any(shape[axis] != 1 for axis in node.attributes["dims"])


def loops_of(node: Node, fusion: Fusion) -> Shape:
    """The extents that a node's work runs over: the operand's for a reduction, else the result's."""
    if isinstance(node.op, Reduction):
        return fusion.shape_of(node.operands[0])
    return fusion.shape_of(node.outputs[0])


def reduced_coordinates(node: Node, fusion: Fusion, kept: Shape, reduced: Shape) -> Shape:
    """The operand coordinates of a reduction for its result at `kept` and the reduction indices `reduced`."""
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    rest, inner = iter(kept), iter(reduced)
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
    """How a single node reads and writes along its own loops.

    Returns the loops' extents (axes of extent 1 make none), the map of the result, and for each value operand its map.
    Library nodes have no loops: everything is pulled.
    """
    shape = loops_of(node, fusion)
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    place = {axis: loop for loop, axis in enumerate(wide)}
    coordinates = tuple(symbol(f"x{place[a]}", extent=e) if a in place else 0 for a, e in enumerate(shape))
    extents = [shape[a] for a in wide]

    def map_of(at: Shape, own: Shape) -> AxisMap:
        return tuple(_entry(c, e, extents) for c, e in zip(at, own, strict=True))

    result = fusion.shape_of(node.outputs[0])
    if isinstance(node.op, Library):
        return extents, map_of(coordinates, result), [(o, (PULLED,) * len(fusion.shape_of(o))) for o in node.inputs]
    if isinstance(node.op, Reduction):
        dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
        kept = tuple(0 if a in dims else c for a, c in enumerate(coordinates) if keepdim or a not in dims)
        operand = node.operands[0]
        operand_reads = [(operand, map_of(coordinates, shape))] if isinstance(operand, int) else []
        return extents, map_of(kept, result), operand_reads
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
    return extents, map_of(coordinates, result), reads


def _entry(coordinate: Extent, own: Extent, extents: Sequence[Extent]) -> int | None:
    """The loop that an axis of extent `own` is read along: only where that is all of the loop."""
    if coordinate == 0 and own == 1:
        return None
    found = as_symbol(coordinate)
    if isinstance(found, Symbol) and found.name[0] == "x":
        loop = int(found.name[1:])
        return loop if extents[loop] == own else PULLED
    return PULLED
