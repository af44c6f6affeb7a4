"""Decides whether a kernel may write to a buffer that it also reads."""

from __future__ import annotations

from collections.abc import Collection

from tracefuse.ir.indexing import PULLED
from tracefuse.partition.segmentation import Part
from tracefuse.schedule.merge_rule import facts_of
from tracefuse.schedule.row_column_rule import RowColumnFacts


def in_place(part: Part, pairs: Collection[tuple[int, int]]) -> frozenset[int]:
    """Returns the tensors of `pairs` if a pointwise kernel may update them in place, otherwise an empty set.

    pairs: an output and an input that are the same array. An update in place is safe if every read of the input, for
    every output, is at the coordinates of the store. The thread that stores has then read everything that it needs from
    those coordinates before it stores the first output.
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
