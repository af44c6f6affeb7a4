"""Products of tiles of matrices in local memory: rows of sums that stay in vector registers.

A row of sums is VECTORS vectors. A step multiplies one element of each row of the left tile with the vectors of the
right one, so a vector that is loaded once meets every row. Each vector is a local array of its own, and the loops over
them run once as vectors, so that LLVM keeps the arrays in registers.

Must not know: ops, sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, symbol
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Constant, Expression, Load, Store, call
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.schedule.body import Body

ROWS, VECTORS = 6, 2
"""Rows of sums of a step, and the vectors of each: with those that they meet, they fit 16 registers."""


def sum_rows() -> int:
    """Returns the rows of sums of a step that fit the vector registers of this processor with what they meet."""
    return 2 * ROWS if host_processor().vector_bits == 512 else ROWS


def vector_lanes(dtype: DType) -> int:
    """Returns the elements of a type in the vectors of a row of sums."""
    return VECTORS * host_processor().vector_bits // (8 * dtype.itemsize)


@dataclass(frozen=True, slots=True)
class SumTile:
    """Rows of sums in registers. sums: the vectors of each row, of `lanes` elements."""

    body: Body
    sums: tuple[tuple[Buffer, ...], ...]
    lanes: int

    @classmethod
    def zero(cls, body: Body, rows: int, dtype: DType) -> SumTile:
        """Allocates and clears the sums."""
        lanes = vector_lanes(dtype) // VECTORS
        sums = tuple(
            tuple(Buffer(body.fresh("sums"), dtype, "local", lanes) for _ in range(VECTORS)) for _ in range(rows)
        )
        lane = symbol("lane", extent=lanes)
        for buffer in (buffer for row in sums for buffer in row):
            body.append(Allocate(buffer))
        with body.loop(lane, lanes, "vector"):
            for buffer in (buffer for row in sums for buffer in row):
                body.append(Store(buffer, body.index.code(lane), Constant(0.0, dtype)))
        return cls(body, sums, lanes)

    def add(
        self, terms: Extent, left: Callable[[int, Extent], Expression], right: Callable[[Extent, Extent], Expression]
    ) -> None:
        """Adds left(row, term) * right(term, column) to the sums, for every term."""
        body, term, lane = self.body, symbol("term", extent=terms), symbol("lane", extent=self.lanes)
        with body.loop(term, terms):
            factors = [body.name("factor", (left(row, term),))[0] for row in range(len(self.sums))]
            with body.loop(lane, self.lanes, "vector"):
                at = body.index.code(lane)
                others = [body.name("other", (right(term, lane + k * self.lanes),))[0] for k in range(VECTORS)]
                for row, factor in zip(self.sums, factors, strict=True):
                    for buffer, other in zip(row, others, strict=True):
                        body.append(Store(buffer, at, call("add", Load(buffer, at), call("mul", factor, other))))

    def store(self, place: Callable[[int, Extent], tuple[Buffer, Extent]], value: Callable[..., Expression]) -> None:
        """Stores value(row, column, sum) for each sum at place(row, column): a local buffer and an index."""
        body, lane = self.body, symbol("lane", extent=self.lanes)
        with body.loop(lane, self.lanes, "vector"):
            for row, buffers in enumerate(self.sums):
                for k, buffer in enumerate(buffers):
                    column = lane + k * self.lanes
                    to, index = place(row, column)
                    total = value(row, column, Load(buffer, body.index.code(lane)))
                    body.append(Store(to, body.index.code(index), total))
