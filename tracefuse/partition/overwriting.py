"""Whether a kernel may write memory that it also reads.

Knows: the facts of a segment from indexing. Must not know: plans, what the memory is.
"""

from __future__ import annotations

from collections.abc import Collection

from tracefuse.ir.indexing import PULLED
from tracefuse.partition.segmentation import Part
from tracefuse.schedule.merge_rule import facts_of
from tracefuse.schedule.row_column_rule import RowColumnFacts


def in_place(part: Part, pairs: Collection[tuple[int, int]]) -> frozenset[int]:
    """The tensors of `pairs` (output, input: one array) if a pointwise kernel may write the input where it reads it.

    It may where every read, for whichever output, is at the coordinates of the store: the thread that stores has read
    all that it needs there before it stores the first output.
    """
    if not pairs:
        return frozenset()
    facts = facts_of(part.rule)
    if isinstance(facts, RowColumnFacts) or facts.reduced is not None:
        return frozenset()
    for output, argument in pairs:
        if PULLED in facts.outputs[output] or facts.uses.get(argument) != frozenset((facts.outputs[output],)):
            return frozenset()
    return frozenset(number for pair in pairs for number in pair)
