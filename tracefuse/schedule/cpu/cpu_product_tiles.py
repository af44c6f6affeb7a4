"""Products of tiles of matrices in local memory: rows of sums that stay in vector registers.

`ROWS` rows of `lanes` sums are two vectors each. A step multiplies one element of each row of the left tile with two
vectors of the right one, so a vector that is loaded once meets every row.

Must not know: ops, sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, symbol
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Constant, Expression, Load, Store, call
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.schedule.body import Body

ROWS = 6
"""Rows of sums of a step: with two vectors each, and the two that they meet, they fit 16 registers."""


def vector_lanes(dtype: DType) -> int:
    """Returns the elements of a type in two vector registers of this processor."""
    return 2 * host_processor().vector_bits // (8 * dtype.itemsize)


def new_sums(body: Body, rows: int, lanes: int, dtype: DType, first: Constant | None = None) -> list[Buffer]:
    """Allocates `lanes` sums for each row; they begin with `first`, or zero."""
    sums = [Buffer(body.fresh("sums"), dtype, "local", lanes) for _ in range(rows)]
    for buffer in sums:
        body.append(Allocate(buffer))
    lane = symbol("lane", extent=lanes)
    with body.loop(lane, lanes, "vector"):
        for buffer in sums:
            body.append(Store(buffer, body.index.code(lane), first or Constant(0.0, dtype)))
    return sums


def add_products(
    body: Body, sums: Sequence[Buffer], terms: Extent, left: Callable[[int, Extent], Expression],
    right: Callable[[Extent, Extent], Expression],
) -> None:  # fmt: skip
    """Adds left(row, term) * right(term, lane) to the sums, for every term."""
    lanes = sums[0].size
    assert isinstance(lanes, int)
    term, lane = symbol("term", extent=terms), symbol("lane", extent=lanes)
    with body.loop(term, terms):
        factors = [body.name("factor", (left(row, term),))[0] for row in range(len(sums))]
        with body.loop(lane, lanes, "vector"):
            at = body.index.code(lane)
            (other,) = body.name("other", (right(term, lane),))
            for buffer, factor in zip(sums, factors, strict=True):
                body.append(Store(buffer, at, call("add", Load(buffer, at), call("mul", factor, other))))
