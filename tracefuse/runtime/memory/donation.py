"""Assigns the buffers of donated arguments to results and intermediates.

A value can reuse the buffer of a donated argument if it is computed after the last reader of the argument, or by a
kernel that reads the argument only at the elements that it writes. Results come first, then intermediates, in program
order. Each donated buffer goes to the first value with the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Extent, evaluate, product
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.overwriting import in_place
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.runtime.memory.buffer_facts import FIRST_MEMORY, OutputBuffer


@dataclass(frozen=True, slots=True)
class Donated:
    """A donated argument whose buffer can be reused: contiguous, writable, and separate from all other arrays.

    number: the input. is_wide: it starts at a multiple of 16 bytes, or the device does not use alignment.
    """

    number: int
    is_wide: bool


@dataclass(frozen=True, slots=True)
class ReusedBuffer:
    """A donated buffer and the value that reuses it.

    donor: the donated argument. buffer: the buffer as a plan describes it. guards: the sizes under which it fits.
    """

    donor: int
    buffer: OutputBuffer
    guards: tuple[Guard, ...] = ()


def plan_reuse(
    segmentation: Segmentation, donated: Sequence[Donated], output_buffers: Sequence[OutputBuffer],
    sizes: Mapping[Any, int],
) -> tuple[ReusedBuffer, ...]:  # fmt: skip
    """Chooses the values that reuse donated buffers. output_buffers: the values in these keep their own buffers."""
    if not donated:
        return ()
    fusion = segmentation.fusion
    unused = [donor for donor in donated if donor.number not in fusion.outputs]
    placed = {buffer.value for buffer in output_buffers}
    memory = max((buffer.memory for buffer in output_buffers), default=0)
    memory = max(memory + 1, FIRST_MEMORY)
    results = [number for number in fusion.outputs if number not in fusion.aliases]
    values = [(k, v) for k, part in enumerate(segmentation.segments) for v in _kernel_outputs(part)]
    values = [pair for pair in values if pair[1] not in placed]
    reused: list[ReusedBuffer] = []
    for position, value in sorted(values, key=lambda pair: pair[1] not in results):
        for donor in unused:
            guards = _guards(fusion, value, donor.number, sizes)
            overlap = None if guards is None else _overlap(segmentation, position, value, donor.number)
            if guards is not None and overlap is not None:
                buffer = OutputBuffer(value, memory + len(reused), None, donor.is_wide, True, *overlap)
                reused.append(ReusedBuffer(donor.number, buffer, guards))
                unused.remove(donor)
                break
    return tuple(reused)


def _kernel_outputs(part: Part) -> Sequence[int]:
    return part.segment.original_outputs if part.library is None else ()


def _overlap(
    segmentation: Segmentation, position: int, value: int, number: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns `same` and `shares` of the value in the buffer of an argument, None if it must not reuse that buffer."""
    parts = segmentation.segments
    if any(number in part.segment.original_inputs for part in parts[position + 1 :]):
        return None
    if number not in parts[position].segment.original_inputs:
        return (), (number,)
    fusion = segmentation.fusion
    is_alike = fusion.values[value].dtype is fusion.values[number].dtype
    is_alike = is_alike and fusion.shape_of(value) == fusion.shape_of(number)
    local_of = {original: local for local, original in parts[position].segment.index_map.items()}
    if is_alike and in_place(parts[position], [(local_of[value], local_of[number])]):
        return (number,), ()
    return None


def _guards(fusion: Fusion, value: int, number: int, sizes: Mapping[Any, int]) -> tuple[Guard, ...] | None:
    """Returns the guards under which both have the same number of bytes, None if they differ at these sizes."""
    needed, available = _bytes(fusion, value), _bytes(fusion, number)
    if needed == available:
        return ()
    if isinstance(needed - available, int) or evaluate(needed, sizes) != evaluate(available, sizes):
        return None
    return (Guard(needed, "==", available, "a value reuses the buffer of a donated argument"),)


def _bytes(fusion: Fusion, number: int) -> Extent:
    return product(fusion.shape_of(number)) * fusion.values[number].dtype.itemsize


def keep_direct(reused: Sequence[ReusedBuffer], direct: Collection[int]) -> tuple[ReusedBuffer, ...]:
    """Keeps the values that their kernel writes straight into the donated buffer."""
    return tuple(reuse for reuse in reused if reuse.buffer.value in direct)
