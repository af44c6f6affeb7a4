"""Chunks of the outermost R loop: what the workers share where there are too few rows, or too few tiles of columns.

How many chunks there are depends on sizes alone, so the bits of a sum do not depend on the number of workers.

Knows: extents, scratch parameters. Must not know: how a template lays its loops out, sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, symbol, symbol_of
from tracefuse.kernel.kernel_ir import Buffer
from tracefuse.schedule.phases import Accumulator


@dataclass(frozen=True, slots=True)
class LoopChunks:
    """`count` chunks of `length` iterations of a loop. derived: the extents that the two symbols stand for."""

    extent: Extent
    length: Extent
    count: Extent
    derived: Mapping[Symbol, Extent]

    @classmethod
    def of(cls, extent: Extent, width: Extent, least: int, most: int) -> LoopChunks:
        """Chunks of at least `least` elements, `width` an iteration, and at most `most` chunks."""
        length, count = symbol("chunk_length", minimum=1), symbol("chunks", minimum=1)
        lengths = maximum(ceildiv(least, maximum(width, 1)), ceildiv(extent, most))
        counts = maximum(ceildiv(extent, maximum(lengths, 1)), 1)
        return cls(extent, length, count, {symbol_of(length): lengths, symbol_of(count): counts})

    def bounds(self, chunk: Extent) -> tuple[Extent, Extent]:
        """The first iteration of a chunk, and the one after its last."""
        start = chunk * self.length
        return start, minimum(start + self.length, self.extent)


def partial_buffers(accumulator: Accumulator, first: int, *, written: bool) -> tuple[Buffer, ...]:
    """The scratch parameters of a reduction's state, one for each of its parts; `first` numbers the first one."""
    return tuple(
        Buffer(f"partial{first + part}", v.dtype, written=written, alignment=v.dtype.itemsize)
        for part, v in enumerate(accumulator.variables)
    )
