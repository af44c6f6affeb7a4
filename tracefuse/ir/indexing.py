"""Index maps: the coordinates at which each consumer reads its operands.

A kernel is built backwards from its results: the node alone determines the operand coordinates for an element of its
result. Each use of a value has its own index map; this makes `x + rotate(x)` correct in one kernel. `AxisMap` is a
coarse index map with one entry per axis, which the merge rule works on.

Must not know: kernels, segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.caches import memoized
from tracefuse.ir.extents import (
    Binary,
    Expression,
    Extent,
    Symbol,
    as_symbol,
    is_positive_divisor,
    symbol,
    symbols,
)  # fmt: skip
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.op_kinds import IndexOf, Movement, Pointwise, Reduction, Source, Within
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
        return tuple(
            replace(
                source, coordinates=_simplified(source, shapes[source.operand]),
                conditions=tuple(map(undivided, source.conditions)),
            ) for source in pulled
        )  # fmt: skip
    return tuple(Source(k, operand_coordinates(shape, result, coordinates)) for k, shape in enumerate(shapes))


def undivided(test: Within) -> Within:
    """Returns a condition on a quotient as one on its dividend: x // d is at least 3 where x is at least 3 * d."""
    if not isinstance(test.index, Expression):
        return test
    for monomial, factor in test.index.terms:
        atom = monomial[0] if len(monomial) == 1 and factor == 1 else None
        if isinstance(atom, Binary) and atom.operation == "//" and is_positive_divisor(atom.right):
            rest = test.index - Expression(((monomial, 1),))
            if not any(s.extent is not None for s in symbols(rest)):
                low, high = ((bound - rest) * atom.right for bound in (test.low, test.high))
                return Within(atom.left, low, high)
    return test


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


@dataclass(frozen=True, slots=True)
class ElementReads:
    """What an element of a movement's result, at the coordinates x0, x1, ... of its axes, reads.

    sources: the candidate sources. deciding: (operand, coordinates) of each index that decides between them.
    """

    sources: tuple[Source, ...]
    deciding: tuple[tuple[int, Shape], ...]


def own_coordinates(shape: Shape) -> Shape:
    """Returns symbolic coordinates of an element: x0, x1, ... for its axes, and 0 on axes of extent 1."""
    return tuple([0 if extent == 1 else symbol(f"x{axis}", extent=extent) for axis, extent in enumerate(shape)])


def movement_reads(fusion: Fusion, node: Node) -> ElementReads:
    """Returns what a movement node reads at its own coordinates."""
    op, attributes, shapes, result = _structure(fusion, node)
    assert op is not None
    return _reads(op, attributes, shapes, result)


def use_maps(fusion: Fusion, node: Node) -> tuple[list[Extent], AxisMap, list[tuple[int, AxisMap]]]:
    """Returns the axis maps of a single node over its own loops.

    Returns the extents of the loops (axes of extent 1 have no loop), the map of the result, and the map of each value
    operand. Library nodes have no loops: all their operands are pulled.
    """
    if isinstance(node.op, Reduction):
        return _reduction_maps(fusion, node)
    if is_library_call(node.op):
        extents, own = _loops(fusion.shape_of(node.outputs[0]))
        return list(extents), own, [(o, (PULLED,) * len(fusion.shape_of(o))) for o in node.inputs]
    extents, own, reads = _maps(*_structure(fusion, node))
    operands = node.operands
    return list(extents), own, [(value, read) for k, read in reads if isinstance(value := operands[k], int)]


Groups: TypeAlias = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Axes of the operand of a reshape, and the axes of its result that they become."""

_Structure: TypeAlias = tuple[Movement | None, tuple[tuple[str, Any], ...], tuple[Shape, ...], Shape]


def _structure(fusion: Fusion, node: Node) -> _Structure:
    """Returns what decides where a node reads: the op of a movement, attributes, shapes of operands and result."""
    shapes = tuple([fusion.shape_of(operand) for operand in node.operands])
    result = fusion.shape_of(node.outputs[0])
    if not isinstance(node.op, Movement):
        return None, (), shapes, result
    attributes = tuple(node.attributes.items())
    if fusion.representatives:
        attributes = tuple([(name, _canonical(fusion, value)) for name, value in attributes])
    return node.op, attributes, shapes, result


@memoized("what elements of movements read", key="op, attributes, shapes", most=4096)
def _reads(
    op: Movement, attributes: tuple[tuple[str, Any], ...], shapes: tuple[Shape, ...], result: Shape
) -> ElementReads:
    deciding: list[tuple[int, Shape]] = []

    def index_of(position: int, at: Shape) -> Extent:
        deciding.append((position, at))
        return symbol(f"taken{len(deciding)}")

    pulled = op.pull(own_coordinates(result), shapes, result, dict(attributes), index_of)
    simplified = [replace(s, coordinates=_simplified(s, shapes[s.operand])) for s in pulled]
    return ElementReads(tuple(simplified), tuple(deciding))


@memoized("axis maps of nodes", key="op, attributes, shapes", most=4096)
def _maps(
    op: Movement | None, attributes: tuple[tuple[str, Any], ...], shapes: tuple[Shape, ...], result: Shape
) -> tuple[Shape, AxisMap, tuple[tuple[int, AxisMap], ...]]:  # fmt: skip
    """Returns the extents of the loops of a node, the map of its result, and those of operands, by their positions.

    op: None for one that reads its operands at the coordinates of its result.
    """
    extents, own = _loops(result)
    if op is None:
        at = [operand_coordinates(shape, result, own_coordinates(result)) for shape in shapes]
        reads = [(k, _axis_map(c, shape, own, extents)) for k, (c, shape) in enumerate(zip(at, shapes, strict=True))]
        return extents, own, tuple(reads)
    read = _reads(op, attributes, shapes, result)
    places = [*read.deciding, *((source.operand, source.coordinates) for source in read.sources)]
    reads = [(k, _axis_map(at, shapes[k], own, extents)) for k, at in places]
    if op.regroups:
        groups = dict(attributes)["groups"]
        reads = [(k, _regrouped(shapes[0], result, groups, axis_map)) for k, axis_map in reads]
    return extents, own, tuple(reads)


def _loops(shape: Shape) -> tuple[Shape, AxisMap]:
    """Returns the extents of the loops over a shape, and the loop of each axis; None for one of extent 1."""
    counter = itertools.count()
    own = tuple([None if extent == 1 else next(counter) for extent in shape])
    return tuple([extent for extent in shape if extent != 1]), own


def _reduction_maps(fusion: Fusion, node: Node) -> tuple[list[Extent], AxisMap, list[tuple[int, AxisMap]]]:
    operand = node.operands[0]
    extents, own = _loops(fusion.shape_of(operand))
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    result = tuple(None if axis in dims else loop for axis, loop in enumerate(own) if keepdim or axis not in dims)
    return list(extents), result, [(operand, own)] if isinstance(operand, int) else []


def _regrouped(source: Shape, result: Shape, groups: Groups, read: AxisMap) -> AxisMap:
    """Names the loops of the axes that a reshape splits, and the factors that it merges into one loop."""
    wide = [axis for axis, extent in enumerate(result) if extent != 1]
    entries = list(read)
    for source_axes, result_axes in groups or axis_groups(source, result):
        source_axes, result_axes = (
            [k for k in source_axes if source[k] != 1],
            [k for k in result_axes if result[k] != 1],
        )
        if 0 in (source[k] for k in source_axes):
            continue  # no element is read: `delinearize` names no loops either
        if len(source_axes) == 1 and len(result_axes) > 1:
            extents_of_group = tuple(result[k] for k in result_axes)
            entries[source_axes[0]] = Joined(tuple(wide.index(k) for k in result_axes), extents_of_group)
        elif len(result_axes) == 1 and len(source_axes) > 1:
            extents = tuple(source[k] for k in source_axes)
            for place, axis in enumerate(source_axes):
                entries[axis] = LoopFactor(wide.index(result_axes[0]), place, extents)
    return tuple(entries)


def _axis_map(at: Shape, shape: Shape, own: AxisMap, extents: Sequence[Extent]) -> AxisMap:
    """Returns the loops along which the axes of an operand are read at these coordinates."""
    return tuple([_entry(coordinate, extent, own, extents) for coordinate, extent in zip(at, shape, strict=True)])


def _entry(coordinate: Extent, extent: Extent, own: AxisMap, extents: Sequence[Extent]) -> int | None:
    """Returns the loop along which an axis of extent `extent` is read, if the loop has the same extent."""
    if coordinate == 0 and extent == 1:
        return None
    index = as_symbol(coordinate)
    if isinstance(index, Symbol) and index.name[0] == "x":
        loop = own[int(index.name[1:])]
        return loop if isinstance(loop, int) and extents[loop] == extent else PULLED
    return PULLED
