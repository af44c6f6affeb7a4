"""Whether elements of an operand at successive values of an index are adjacent in memory.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from tracefuse.ir.extents import Extent, symbol_of
from tracefuse.ir.fusion import Shape
from tracefuse.ir.indexing import sources
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import coefficient


def array_read(body: Body, number: int, at: Shape) -> tuple[int, Shape] | None:
    """Returns the array whose element an operand is at coordinates, and where, through casts and movements, or None."""
    fusion, producers = body.fusion, body.producers
    while (node := producers.get(number)) is not None:
        read = sources(fusion, node, at, lambda position, coordinates: 0)
        operand = node.operands[read[0].operand] if len(read) == 1 else None
        if not isinstance(operand, int):
            return None
        number, at = operand, read[0].coordinates
    return number, at


def are_adjacent(body: Body, number: int, at: Shape, index: Extent) -> bool:
    """Whether an operand is read at adjacent elements as `index`, a symbol of the coordinates, counts."""
    read = array_read(body, number, at)
    return read is not None and coefficient(body.offset(*read), symbol_of(index)) == 1
