"""The statements of the kernel IR about tiles of matrices: products on the CPU, and in the registers of GPU warps."""

from __future__ import annotations

from typing import ClassVar

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_expressions import Buffer, Expression


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in a local buffer: element (i, j) is buffer[start + i * row_pitch + j * column_pitch]."""

    buffer: Buffer
    start: Expression
    row_pitch: int
    column_pitch: int = 1


@dataclass(frozen=True, slots=True)
class AddProducts:
    """sums = scales * sums + left @ right for `rows` rows and `terms` terms, of float32 or float64.

    On the CPU. The right matrix and the sums have adjacent columns, `vectors` vectors of `lanes` of them. Rows are
    computed in groups of `group`, and rows of the last one beyond `rows` are read and written too. The products of an
    element are added to zero in the order of the terms, and then to the element. scales: a local buffer of a number for
    each row; None: 1. replaces: the products replace the sums, which are not read.
    """

    sums: Matrix
    left: Matrix
    right: Matrix
    rows: Expression
    terms: Expression
    group: int
    vectors: int
    lanes: int
    scales: Buffer | None = None
    replaces: bool = False

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        return self.sums, self.left, self.right


@dataclass(frozen=True, slots=True)
class LoadMatrices:
    """Loads four matrices of 8 x 8 halves from shared memory into the registers of a warp.

    Thread t of a warp gives in source_index the first element of row t % 8 of matrix t // 8, aligned to 16 bytes.
    destination[destination_index + k], of a local buffer of uint32, receives two adjacent elements of matrix k: of row
    t // 4, columns t % 4 * 2 and the next; transposed: of column t // 4, rows t % 4 * 2 and the next. Every thread of a
    warp reaches the statement.
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class LoadPairs:
    """destination[destination_index + step * k] = the bits of source[source_index + 2 * k] and the next, for k below 4.

    One access of 16 bytes, aligned to it, of halves in global or shared memory to a local buffer of uint32; the first
    of a pair is in the low half. If not `aligned`, the pairs begin at any half, at accesses of 4 bytes that may read a
    half before the first and after the last, and the source is aligned to 4 bytes.
    """

    destination: Buffer
    destination_index: Expression
    source: Buffer
    source_index: Expression
    step: int = 1
    aligned: bool = True

    COUNT: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """sums += left @ right in a warp: 16 x 16 by 16 x 8 elements of dtype; products of halves are exact, others nearly.

    The matrices are in local buffers, from the given indices on. With g = t // 4 and p = t % 4 * 2, thread t holds of
    left columns p, p + 1 of rows g and g + 8, then p + 8, p + 9 of both (4 pairs); of right rows p, p + 1, then p + 8,
    p + 9, of column g (2 pairs); and of sums columns p, p + 1 of rows g and g + 8 (4 float32). A pair is a uint32, or
    two float32. Every thread of a warp reaches the statement.
    """

    sums: Buffer
    sums_index: Expression
    left: Buffer
    left_index: Expression
    right: Buffer
    right_index: Expression
    dtype: DType


@dataclass(frozen=True, slots=True)
class MultiplyTiles:
    """sums += left @ right in each group of 4 warps: 64 x terms by terms x columns halves, with float32 sums.

    A tile in shared memory is stored in parts of all rows and 64 adjacent elements of each, so that a row of a part is
    in all banks; 8 elements from 8 * c on of row r are stored in the place of those from 8 * (c ^ r % 8) on. It starts
    at a multiple of 1024 bytes. The right tile has `terms` rows of `columns` elements, or is transposed: `columns` rows
    of `terms` elements. The left one has 64 rows of `terms` elements, or is in registers: four words for each 16 terms,
    as MultiplyMatrices' left operand of the warp's 16 rows. Of the sums, each 8 columns are four elements as there, in
    the order of the columns. replaces: the products replace the sums, which are not read. Every thread of a group
    reaches the statement.

    Without `awaited` the product goes on until AwaitProducts: until then the sums and the registers on the left may not
    be accessed, the tiles may not be written, and there is no barrier.
    """

    sums: Buffer
    sums_index: Expression
    left: Buffer
    left_index: Expression
    right: Buffer
    right_index: Expression
    columns: int
    terms: int
    transposed: bool = False
    replaces: bool = False
    awaited: bool = True

    ROWS: ClassVar[int] = 64
    WIDTH: ClassVar[int] = 64
    ALIGNMENT: ClassVar[int] = 1024


@dataclass(frozen=True, slots=True)
class AwaitProducts:
    """Waits for the products of tiles of this group but the last `later`. sums: of the products that this completes."""

    sums: tuple[Buffer, ...]
    later: int = 0


@dataclass(frozen=True, slots=True)
class StorePair:
    """buffer[index] = the bits of two float32 rounded to a half type, `low` in the low half of a uint32."""

    buffer: Buffer
    index: Expression
    low: Expression
    high: Expression
    dtype: DType
