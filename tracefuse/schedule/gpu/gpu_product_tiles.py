"""The tiles of products whose terms a block sums: their sizes, and what holds the tile of an operand.

Must not know: ops, sizes, CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Buffer

THREADS = 256
ROWS = 16
"""The rows of a block's tile."""
THREAD_ROWS, THREAD_COLUMNS = 2, 4
"""The sums of a thread: it reads the factors of a term in one access each."""


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """The columns of a block's tile, and the terms that it loads at once: a power of two. single: these are all.

    rows: of the tile.
    """

    columns: int
    terms: int
    single: bool
    rows: int = ROWS

    @property
    def groups(self) -> int:
        """The groups of threads that divide the terms."""
        return THREADS * THREAD_ROWS * THREAD_COLUMNS // (self.rows * self.columns)


@dataclass(frozen=True, slots=True)
class OperandTile:
    """The tile of an operand: `length` rows or columns by `terms` terms, in registers and in shared memory.

    number: the operand. at: its coordinates, by a row or column of the result and a term. first, extent: the first row
    or column of the tile and their number in the result. along_terms: successive terms are adjacent in memory. pitch:
    the elements of shared memory from a term to the next, or from a row to the next if `by_rows`. width: the adjacent
    elements of an access. plain: the operand is an input of the type that is multiplied.
    """

    number: int
    at: Callable[[Extent, Extent], Shape]
    length: int
    first: Extent
    extent: Extent
    pitch: int
    along_terms: bool
    loaded: Buffer
    shared: Buffer
    by_rows: bool = False
    width: int = 1
    plain: bool = False

    def place(self, across: Extent, term: Extent) -> Extent:
        """Returns the place of an element in shared memory."""
        return across * self.pitch + term if self.by_rows else term * self.pitch + across
