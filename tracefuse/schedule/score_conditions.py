"""Conditions under which a score counts, as inequalities between its row and its column: causal masks.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tracefuse.ir.extents import Extent, symbol, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ops.roles import ADD, AT_LEAST, AT_MOST, BOTH, CAST, CHOICE, LESS, MORE, POSITIONS, SUBTRACT
from tracefuse.passes.attention_match import Attention

_COMPARISONS = {AT_LEAST: (0, 1, 0), MORE: (0, 1, -1), AT_MOST: (1, 0, 0), LESS: (1, 0, -1)}
"""The operand that must be larger, the other, and what to add to their difference so that it is at least 0."""


def visible_offset(fusion: Fusion, match: Attention) -> Extent | None:
    """Returns c if scores in columns above row + c are minus infinity, None without such a mask."""
    rank = len(fusion.shape_of(match.scores))
    row, column = symbol("row_of_score"), symbol("column_of_score")
    coordinates = (*(symbol(f"stack_of_score{k}") for k in range(rank - 2)), row, column)
    known = set(symbols(row)) | set(symbols(column)) | {s for c in coordinates[:-2] for s in symbols(c)}
    for _, slack in conditions(fusion, match, coordinates):
        offset = slack - (row - column)
        if known.isdisjoint(symbols(offset)):
            return offset
    return None


def conditions(fusion: Fusion, match: Attention, coordinates: Shape) -> Iterator[tuple[tuple[int, Shape], Extent]]:
    """Yields conditions of which each must hold, or the score is minus infinity.

    coordinates: of the score. Each condition comes as a value at coordinates, and an integer that is at least 0 where
    it holds.
    """
    producers = fusion.producers
    shape = fusion.shape_of(match.scores)
    inside = {number for number in match.steps if fusion.shape_of(number) == shape}
    for number in match.steps:
        node = producers[number]
        masked = node.operands[2] if node.op is CHOICE and number in inside else None
        if not isinstance(masked, Literal) or masked.value != -math.inf or node.operands[1] not in inside:
            continue
        condition, at = _operand(fusion, node, 0, coordinates)
        yield from _terms(fusion, condition, at)


def _operand(fusion: Fusion, node: Node, position: int, coordinates: Shape) -> tuple[Operand, Shape]:
    """Returns an operand of a pointwise node and the coordinates at which it is read."""
    source = sources(fusion, node, coordinates, _no_index)[position]
    return node.operands[source.operand], source.coordinates


def _no_index(operand: int, coordinates: Shape) -> Extent:
    raise LookupError("an index operand")


def _terms(fusion: Fusion, number: Operand, at: Shape) -> Iterator[tuple[tuple[int, Shape], Extent]]:
    """Yields the comparisons that a condition is the conjunction of, as far as they compare positions."""
    waiting = [(number, at)]
    while waiting:
        operand, coordinates = waiting.pop()
        node = fusion.producers.get(operand) if isinstance(operand, int) else None
        if node is None or not isinstance(operand, int):
            continue
        if node.op in _COMPARISONS:
            larger, smaller, more = _COMPARISONS[node.op]
            sides = [position_at(fusion, *_operand(fusion, node, k, coordinates)) for k in (larger, smaller)]
            if sides[0] is not None and sides[1] is not None:
                yield (operand, coordinates), sides[0] - sides[1] + more
        elif node.op is BOTH or (node.op is CHOICE and _is_false(node.operands[2])):
            waiting += [_operand(fusion, node, k, coordinates) for k in range(2)]
        elif (moved := _moved(fusion, node, coordinates)) is not None:
            waiting.append(moved)


def _is_false(operand: Operand) -> bool:
    return isinstance(operand, Literal) and not operand.value


def _moved(fusion: Fusion, node: Node, coordinates: Shape) -> tuple[Operand, Shape] | None:
    """Returns what a movement reads unconditionally for an element, None for anything else."""
    if not isinstance(node.op, Movement) or len(node.operands) != 1:
        return None
    read = sources(fusion, node, coordinates, _no_index)
    return (node.operands[0], read[0].coordinates) if len(read) == 1 and not read[0].conditions else None


def position_at(fusion: Fusion, operand: Operand, coordinates: Shape) -> Extent | None:
    """Returns an element of an integer tensor as an expression of its coordinates, None if it depends on data."""
    if isinstance(operand, Literal):
        return operand.value if isinstance(operand.value, int) and not isinstance(operand.value, bool) else None
    value, node = fusion.values[operand], fusion.producers.get(operand)
    if not value.is_tensor:
        return value.extent if value.dtype.is_integer else None
    if node is None or not value.dtype.is_integer:
        return None
    if node.op is POSITIONS:
        start, step = (position_at(fusion, o, ()) for o in node.operands[:2])
        return None if start is None or step is None else start + step * coordinates[0]
    if (moved := _moved(fusion, node, coordinates)) is not None:
        return position_at(fusion, *moved)
    if not isinstance(node.op, Pointwise) or node.op not in (ADD, SUBTRACT, CAST):
        return None
    read = [position_at(fusion, *_operand(fusion, node, k, coordinates)) for k in range(len(node.operands))]
    if any(one is None for one in read):
        return None
    first, *rest = (one for one in read if one is not None)
    if not rest:
        return first
    return first + rest[0] if node.op is ADD else first - rest[0]
