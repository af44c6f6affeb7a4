"""Chunks of the outermost reduction loop: parallel work for regions with too few rows or too few column tiles.

The number of chunks depends on sizes only, so the bits of a sum do not depend on the number of workers.

Must not know: sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Buffer
from tracefuse.schedule.reduction_states import Accumulator


@dataclass(frozen=True, slots=True)
class LoopChunks:
    """`count` chunks of `length` iterations of a loop. derived: the definitions of the symbols in them."""

    extent: Extent
    length: Extent
    count: Extent
    derived: Mapping[Symbol, Extent]

    @classmethod
    def equal(cls, extent: Extent, length: int) -> LoopChunks:
        """Makes chunks of `length` iterations of a loop of at least one."""
        count = symbol("chunks", minimum=1)
        return cls(extent, length, count, {symbol_of(count): ceildiv(extent, length)})

    @classmethod
    def of(cls, extent: Extent, width: Extent, least: int, most: int) -> LoopChunks:
        """Makes at most `most` chunks of at least `least` elements each; an iteration has `width` elements."""
        length, count = symbol("chunk_length", minimum=1), symbol("chunks", minimum=1)
        lengths = maximum(ceildiv(least, maximum(width, 1)), ceildiv(extent, most))
        counts = maximum(ceildiv(extent, maximum(lengths, 1)), 1)
        return cls(extent, length, count, {symbol_of(length): lengths, symbol_of(count): counts})

    def bounds(self, chunk: Extent) -> tuple[Extent, Extent]:
        """Returns the first iteration of a chunk, and the one after its last."""
        start = chunk * self.length
        return start, minimum(start + self.length, self.extent)


def partial_buffers(accumulator: Accumulator, first: int, *, written: bool) -> tuple[Buffer, ...]:
    """Makes the scratch parameters of a reduction's state, one for each of its parts, numbered from `first` on."""
    return tuple(
        Buffer(f"partial{first + part}", v.dtype, written=written, alignment=v.dtype.itemsize)
        for part, v in enumerate(accumulator.variables)
    )
