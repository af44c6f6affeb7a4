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

ROWS_OF_THREE = 8
"""Rows of three vectors, which fit 32 registers."""


def sum_rows() -> int:
    """Returns the rows of sums of a group that fit the vector registers of this processor with what they meet."""
    return 2 * ROWS if host_processor().vector_bits == 512 else ROWS


def vector_lanes(dtype: DType) -> int:
    """Returns the elements of a type in the vectors of a row of sums."""
    return VECTORS * host_processor().vector_bits // (8 * dtype.itemsize)


def shapes_of_columns(dtype: DType) -> list[tuple[int, int, int, int]]:
    """Returns shapes of the sums by the most columns, which ascend: columns, rows of a group, vectors, their lanes.

    Where a processor computes with halves of its vectors, few columns take as many halves as they fill.
    """
    lanes, rows = vector_lanes(dtype) // VECTORS, sum_rows()
    half = lanes // 2
    whole = [(lanes, rows, 1, lanes), (VECTORS * lanes, rows, VECTORS, lanes)]
    if not host_processor().halves_vectors:
        return whole
    return sorted([(half, rows, 1, half), (3 * half, ROWS_OF_THREE, 3, half), *whole])
