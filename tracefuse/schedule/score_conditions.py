"""Conditions under which a score counts, as inequalities between its row and its column: causal masks.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, symbol, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ops.roles import (
    ADD,
    AT_LEAST,
    AT_MOST,
    BOTH,
    CAST,
    CHOICE,
    DIVIDE,
    LESS,
    MORE,
    MULTIPLY,
    POSITIONS,
    SUBTRACT,
)

_COMPARISONS = {AT_LEAST: (0, 1, 0), MORE: (0, 1, -1), AT_MOST: (1, 0, 0), LESS: (1, 0, -1)}
"""The operand that must be larger, the other, and what to add to their difference so that it is at least 0."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of positions without which a logit is minus infinity.

    value: a bool at coordinates. holds: what it is where the logit counts. slack: at least 0 there, and only there.
    """

    value: tuple[int, Shape]
    slack: Extent
    holds: bool = True

    @property
    def negated(self) -> Condition:
        """The condition of a mask that is true where the logit does not count."""
        return Condition(self.value, -self.slack - 1, not self.holds)


def visible_offset(fusion: Fusion, logits: int) -> Extent | None:
    """Returns c if logits in columns above row + c are minus infinity, None without such a mask."""
    rank = len(fusion.shape_of(logits))
    row, column = symbol("row_of_score"), symbol("column_of_score")
    coordinates = (*(symbol(f"stack_of_score{k}") for k in range(rank - 2)), row, column)
    known = {s for coordinate in coordinates for s in symbols(coordinate)}
    for condition in conditions(fusion, logits, coordinates):
        offset = condition.slack - (row - column)
        if known.isdisjoint(symbols(offset)):
            return offset
    return None


def conditions(fusion: Fusion, logits: int, coordinates: Shape) -> Iterator[Condition]:
    """Yields conditions of which each must hold, or the logit at `coordinates` is minus infinity."""
    producers, shape, number = fusion.producers, fusion.shape_of(logits), logits
    while (node := producers.get(number)) is not None and fusion.shape_of(number) == shape:
        score_operand = 0
        if node.op is CHOICE:
            score_operand = 1 if node.operands[2] == Literal(-math.inf) else 2
            if node.operands[3 - score_operand] != Literal(-math.inf):
                return
            terms = list(_terms(fusion, *_operand(fusion, node, 0, coordinates)))
            if score_operand == 1:
                yield from terms
            elif len(terms) == 1 and terms[0].value[0] == _compared(fusion, node.operands[0]):
                yield terms[0].negated
        elif node.op in (MULTIPLY, DIVIDE):
            factor = node.operands[1]
            if not isinstance(factor, Literal) or isinstance(factor.value, complex) or factor.value <= 0:
                return
        elif node.op not in (CAST, SUBTRACT, ADD):
            return
        operand = node.operands[score_operand]
        if node.op is ADD:
            operand, added = _chain(fusion, node)
            yield from _added_masks(fusion, node, added, coordinates)
        if not isinstance(operand, int):
            return
        number = operand


def _chain(fusion: Fusion, node: Node) -> tuple[Operand, int]:
    """Returns the operand of a sum that is computed for each score, and the position of the other one."""
    first = node.operands[0]
    shape = fusion.shape_of(node.outputs[0])
    is_first = isinstance(first, int) and fusion.shape_of(first) == shape and first in fusion.producers
    return node.operands[0 if is_first else 1], 1 if is_first else 0


def _added_masks(fusion: Fusion, node: Node, position: int, coordinates: Shape) -> Iterator[Condition]:
    """Yields the conditions under which an added mask is not minus infinity."""
    number, at = _operand(fusion, node, position, coordinates)
    mask = fusion.producers.get(number) if isinstance(number, int) else None
    while mask is not None and (moved := _moved(fusion, mask, at)) is not None:
        number, at = moved
        mask = fusion.producers.get(number) if isinstance(number, int) else None
    if mask is not None and mask.op is CHOICE and mask.operands[2] == Literal(-math.inf):
        yield from _terms(fusion, *_operand(fusion, mask, 0, at))


def _operand(fusion: Fusion, node: Node, position: int, coordinates: Shape) -> tuple[Operand, Shape]:
    """Returns an operand of a pointwise node and the coordinates at which it is read."""
    source = sources(fusion, node, coordinates, _no_index)[position]
    return node.operands[source.operand], source.coordinates


def _no_index(operand: int, coordinates: Shape) -> Extent:
    raise LookupError("an index operand")


def _terms(fusion: Fusion, number: Operand, at: Shape) -> Iterator[Condition]:
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
                yield Condition((operand, coordinates), sides[0] - sides[1] + more)
        elif node.op is BOTH or (node.op is CHOICE and _is_false(node.operands[2])):
            waiting += [_operand(fusion, node, k, coordinates) for k in range(2)]
        elif (moved := _moved(fusion, node, coordinates)) is not None:
            waiting.append(moved)


def _compared(fusion: Fusion, number: Operand) -> Operand:
    """Returns what a condition is before its axes are moved."""
    while isinstance(number, int) and (node := fusion.producers.get(number)) is not None:
        if not isinstance(node.op, Movement) or len(node.operands) != 1:
            break
        number = node.operands[0]
    return number


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
    if any(position is None for position in read):
        return None
    first, *rest = (position for position in read if position is not None)
    if not rest:
        return first
    return first + rest[0] if node.op is ADD else first - rest[0]
