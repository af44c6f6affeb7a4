"""Whether elements of an operand at successive values of an index are adjacent in memory.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from tracefuse.ir.extents import Extent, symbol_of
from tracefuse.ir.fusion import Shape
from tracefuse.ir.indexing import sources
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import coefficient


def are_adjacent(body: Body, number: int, at: Shape, index: Extent) -> bool:
    """Whether an operand is read at adjacent elements as `index`, a symbol of the coordinates, counts.

    Follows casts and movements to the array that is read.
    """
    fusion, producers = body.fusion, body.producers
    while (node := producers.get(number)) is not None:
        read = sources(fusion, node, at, lambda position, coordinates: 0)
        operand = node.operands[read[0].operand] if len(read) == 1 else None
        if not isinstance(operand, int):
            return False
        number, at = operand, read[0].coordinates
    return coefficient(body.offset(number, at), symbol_of(index)) == 1
