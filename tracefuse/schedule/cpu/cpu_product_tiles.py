"""The sizes of the tiles of matrices whose products the CPU computes in vector registers (`AddProducts`).

A row of sums is VECTORS vectors. Each term multiplies one element of each row of the left tile with the vectors of the
right one, so a vector that is loaded once meets every row.

Must not know: ops, sizes.
"""

from __future__ import annotations

from tracefuse.dtypes import DType
from tracefuse.kernel.llvm.text_builder import host_processor

ROWS, VECTORS = 6, 2
"""Rows of sums of a group, and the vectors of each: with those that they meet, they fit 16 registers."""


def sum_rows() -> int:
    """Returns the rows of sums of a group that fit the vector registers of this processor with what they meet."""
    return 2 * ROWS if host_processor().vector_bits == 512 else ROWS


def vector_lanes(dtype: DType) -> int:
    """Returns the elements of a type in the vectors of a row of sums."""
    return VECTORS * host_processor().vector_bits // (8 * dtype.itemsize)
