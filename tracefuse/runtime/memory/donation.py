"""Donated arguments: which results and intermediates take their memory.

An argument that is donated may be overwritten by what is made after its last reader, or by a kernel that reads it only
where it writes. Results come first, then intermediates, in the order in which they are made; each donated argument goes
to the first value of as many bytes.

Knows: segmentations, when a kernel may overwrite what it reads. Must not know: arrays, plans, what donating means to a
caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, evaluate, product
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.overwriting import in_place
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.runtime.memory.given_buffers import FIRST_MEMORY, Given


@dataclass(frozen=True, slots=True)
class Donated:
    """An argument whose memory may be taken: contiguous, writable, shared with no other array of the call.

    number: its input. is_wide: it starts at a multiple of 16 bytes, where that matters.
    """

    number: int
    is_wide: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A value that takes the memory of a donated argument. given: that memory, as a plan knows it. guards: under
    which it fits."""

    donor: int
    given: Given
    guards: tuple[Guard, ...] = ()


def takers(
    segmentation: Segmentation, donated: Sequence[Donated], given: Sequence[Given], sizes: Mapping[Any, int]
) -> tuple[Taken, ...]:
    """What may take the donated memory. given: memory that some values have already."""
    if not donated:
        return ()
    fusion = segmentation.fusion
    left = [one for one in donated if one.number not in fusion.outputs]
    placed = {one.value for one in given}
    memory = max((one.memory for one in given), default=0)
    memory = max(memory + 1, FIRST_MEMORY)
    results = [number for number in fusion.outputs if number not in fusion.aliases]
    values = [(k, v) for k, part in enumerate(segmentation.segments) for v in _made_by_kernels(part)]
    values = [pair for pair in values if pair[1] not in placed]
    found: list[Taken] = []
    for position, value in sorted(values, key=lambda pair: pair[1] not in results):
        for one in left:
            guards = _guards(fusion, value, one.number, sizes)
            place = None if guards is None else _place(segmentation, position, value, one.number)
            if guards is not None and place is not None:
                made = Given(value, memory + len(found), None, one.is_wide, True, *place)
                found.append(Taken(one.number, made, guards))
                left.remove(one)
                break
    return tuple(found)


def _made_by_kernels(part: Part) -> Sequence[int]:
    return part.segment.original_outputs if part.library is None else ()


def _place(
    segmentation: Segmentation, position: int, value: int, number: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """None where a value may not take the memory of an argument; else which one it then is, or shares bytes with."""
    parts = segmentation.segments
    if any(number in part.segment.original_inputs for part in parts[position + 1 :]):
        return None
    if number not in parts[position].segment.original_inputs:
        return (), (number,)
    fusion = segmentation.fusion
    is_alike = fusion.values[value].dtype is fusion.values[number].dtype
    is_alike = is_alike and fusion.shape_of(value) == fusion.shape_of(number)
    own = {original: local for local, original in parts[position].segment.index_map.items()}
    if is_alike and in_place(parts[position], [(own[value], own[number])]):
        return (number,), ()
    return None


def _guards(fusion: Fusion, value: int, number: int, sizes: Mapping[Any, int]) -> tuple[Guard, ...] | None:
    """Under which both have equally many bytes; None where they have not."""
    own, other = _bytes(fusion, value), _bytes(fusion, number)
    if own == other:
        return ()
    if isinstance(own - other, int) or evaluate(own, sizes) != evaluate(other, sizes):
        return None
    return (Guard(own, "==", other, "a value takes the memory of a donated argument"),)


def _bytes(fusion: Fusion, number: int) -> Extent:
    return product(fusion.shape_of(number)) * fusion.values[number].dtype.itemsize


def taken_by(taken: Sequence[Taken], direct: Collection[int]) -> tuple[Taken, ...]:
    """Those whose kernel writes there indeed."""
    return tuple(one for one in taken if one.given.value in direct)
