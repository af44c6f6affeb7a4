"""The tiles of columns of a GPU: how the threads of a block share columns and rows, from sizes, and their places.

Must not know: CUDA C++.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, maximum, minimum, product, symbol
from tracefuse.kernel.kernel_ir import Expression, call
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import WIDE_BYTES, Positions, Setting, bind_loops, bind_position
from tracefuse.schedule.gpu.gpu_phase import cached_words
from tracefuse.schedule.nest import Loop, coefficient
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import read_offsets

THREADS = 256
WARP = 32
RESIDENT_THREADS = 1024
"""Resident threads per multiprocessor: below the maximum, so that each has registers for all its loads in flight."""

FEW_ROWS = 16
"""One thread accumulates up to this many rows alone, without a combination through shared memory."""

FEW_ROWS_OF_MANY, MANY_COLUMNS = 48, 1 << 18
"""The same of more than MANY_COLUMNS single columns, which fill a GPU by themselves. (H200)"""

MOST_TERMS = 8
"""The most rows that one thread loads all at once."""

MOST_NARROW = 64
"""The most groups of columns that a block takes together if their number is no power of two."""

MOST_NARROW_OF_LONG, LONG = 512, 128
"""The same for columns of more than LONG rows."""

ALIGNED_ROWS, MOST_ALIGNED = 8, 128
"""So many rows of any number of groups end where a sector of memory ends, so that no two warps write a part of one.
Of more than MOST_ALIGNED groups, a block takes fewer."""

MATRIX_GROUPS, MATRIX_COLUMNS, SUMMED_COLUMNS = 8, 12, 16
"""The most groups, and columns, of a matrix of which a block takes several, and the most columns if it only reduces:
longer rows fill the accesses of a warp. (H200)"""

LEAST_MATRIX_ROWS, MATRIX_ROWS = 4, ((2, 7), (4, 32), (8, 64), (16, 128), (32, 256), (64, 512), (128, 1024))
"""(rows of threads, the most rows of a matrix): each thread caches at most eight. The elements of fewer than
LEAST_MATRIX_ROWS rows are near each other. (H200)"""

LONG_COLUMNS, EASILY_HELD = 3, 4
"""The most columns of such a matrix of more than LONG rows if blocks of adjacent columns cache it well: elements of
EASILY_HELD bytes, or accesses of 16 bytes. (H200)"""

FINISH_ACROSS = 4
"""The least threads across the columns where chunks are combined: many threads share the chunks of a column."""

FINISH_UNROLL = 4
"""The chunks that a thread reads at a time where it combines them."""

SECTOR_BYTES = 32

FEW_TILES = 2
"""Fewer tiles for each multiprocessor do not fill the GPU."""

MOST_OF_HALVES = 4
"""The itemsize from which threads cache columns."""

MOST_WORDS = 32
MOST_STEPS = 16
"""A thread caches its part of a column between phases in at most this many registers and steps."""

HOLDING = {
    16: ((16, 256), (8, 256), (8, 512)),
    8: ((32, 512), (16, 512), (16, 1024)),
    4: ((32, 256), (32, 512), (32, 1024)),
}
"""(across, threads) of the blocks that cache longer columns, by the bytes of an access; those of 16 bytes are halved.
Read a second time from memory, a column takes half as long again. Blocks of few threads wait less at their barriers,
but rows that start anywhere in a sector need long runs. (H200)"""

READ_AGAIN = 32, 16, 8
"""The threads across of the blocks that read columns of halves again, which a thread cannot hold as floats."""

RESIDENT_BYTES, EVICTING_BYTES = 24 << 20, 100 << 20
"""The columns of all resident blocks are read again from the L2 cache if they have at most RESIDENT_BYTES, and from
memory if they have more than EVICTING_BYTES. (H200)"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of `down` rows of `across` adjacent threads; of narrow columns, `across` is an argument of the kernel.

    steps: positions that each thread caches, if it does. terms: an upper bound on the positions, if they are few.
    threads: of the block, some of which have no row. bound: of narrow columns, the power of two above `across`. shift:
    rows of threads begin up to so many columns earlier, where a sector of memory begins; 0 if they do not. matrices: an
    argument of the kernel, so many matrices of `across` columns, each with `down` rows of threads of its own.
    """

    across: Extent
    down: int
    steps: int | None = None
    terms: int | None = None
    threads: int = THREADS
    bound: int | None = None
    shift: int = 0
    matrices: Extent | None = None

    @property
    def is_row(self) -> bool:
        """Whether a thread takes its columns alone."""
        return self.down == 1

    @property
    def least_across(self) -> int:
        return int(self.across) if self.bound is None else self.bound // 2  # type: ignore[arg-type]

    @property
    def resident(self) -> int:
        """The blocks of a multiprocessor."""
        return -(-RESIDENT_THREADS // self.threads)


READ_ALONE = Tile(16, 64, threads=1024)
"""The block that reads single columns of EASILY_HELD bytes again, which it cannot cache: one for each multiprocessor,
so that fewer columns are in flight. (H200)"""


@dataclass(frozen=True, slots=True)
class Columns:
    """A thread's group of columns, whether that group exists, the thread, its place in its block, and its chunk."""

    group: Extent
    inside: Expression
    thread: Extent
    down: Extent
    across: Extent
    chunk: Extent


def column_positions(region: Region, lanes: int) -> Positions:
    """Returns the positions of the columns: groups of lanes over all parallel loops."""
    return Positions(region.nest.parallel, lanes)


def threads_across(groups: Extent, sizes: Sizes, most: int) -> int:
    """Returns the number of threads across the columns, from a guarded bucket of the number of groups."""
    return sizes.bucket(groups, most, "the threads across the columns")


def choose_tile(region: Region, sizes: Sizes, setting: Setting) -> tuple[Tile, int]:
    """Chooses the threads across and down, from guarded buckets of the extents; returns the lanes as well."""
    rows, lanes = product(loop.extent for loop in region.nest.reduced), setting.lanes
    matrices = _choose_matrices(region, rows, sizes, setting)
    if matrices is not None:
        return matrices, lanes
    if sizes.at_most(rows, FEW_ROWS, "a thread takes few rows alone"):
        if sizes.at_most(rows, 0, "no rows to load") or not sizes.at_most(rows, MOST_TERMS, "a thread loads all rows"):
            return Tile(THREADS, 1), lanes
        terms = sizes.bucket(rows, MOST_TERMS, "the rows that a thread loads at once")
        return Tile(THREADS, 1, terms=terms), lanes
    groups = column_positions(region, lanes).total
    if (
        lanes == 1 and not region.probe.cached
        and sizes.at_most(rows, FEW_ROWS_OF_MANY, "a thread takes more rows alone")
        and not sizes.at_most(groups, MANY_COLUMNS, "too few columns to fill the GPU by themselves")
    ):  # fmt: skip
        return Tile(THREADS, 1), lanes
    tile = share_columns(groups, rows, sizes)
    if not region.probe.cached:
        return tile, lanes
    if sizes.at_most(rows, tile.down * min(MOST_STEPS, _steps_held(region, lanes)), HELD):
        return _with_steps(tile, rows, sizes), lanes
    return (tile, lanes) if tile.bound else _choose_long(tile, region, sizes, setting)


HELD = "a column fits in the registers of a block"
AGAIN = "columns in flight are read again from a cache"
NARROW = "rows of a matrix shorter than the accesses of a warp"


def _choose_matrices(region: Region, rows: Extent, sizes: Sizes, setting: Setting) -> Tile | None:
    """Chooses the tile of a stack of narrow matrices that are reduced over their rows; None for others.

    The elements of a matrix follow each other in memory. Threads beside each other take adjacent ones, along its rows;
    with a column each, they would access addresses that are a matrix apart.
    """
    if not _is_stack(region) or not _is_narrow(region, rows, sizes, setting):
        return None
    cached, most = bool(region.probe.cached), _steps_held(region, setting.lanes)
    fitting = (down for down, longest in MATRIX_ROWS if sizes.at_most(rows, min(longest, down * most), HELD))
    down = next(fitting, 0 if cached else MATRIX_ROWS[-1][0])
    if down == 0:
        return None
    across = column_positions(region, setting.lanes).inner
    threads = max(THREADS, down * sizes.bucket(across, MATRIX_GROUPS, "the threads of a row of a matrix"))
    count, few = product(loop.extent for loop in region.nest.parallel[:-1]), FEW_TILES * setting.chip.multiprocessors
    if sizes.at_most(count, few * threads // down, "too few matrices to fill the GPU"):
        return None
    tile = Tile(across, down, threads=threads, matrices=symbol("matrices", minimum=1))
    return _with_steps(tile, rows, sizes) if cached else tile


def _is_narrow(region: Region, rows: Extent, sizes: Sizes, setting: Setting) -> bool:
    """Returns whether the matrices of a stack have so few columns that a block takes several matrices."""
    columns, lanes = region.nest.loops[-1].extent, setting.lanes
    if not sizes.at_most(columns // lanes, MATRIX_GROUPS, NARROW):
        return False
    if not region.probe.cached:
        few = lanes == 1 or sizes.at_most(rows, FEW_ROWS_OF_MANY, "a thread takes more rows alone")
        return not few and sizes.at_most(columns, SUMMED_COLUMNS, NARROW)
    if sizes.at_most(rows, LEAST_MATRIX_ROWS - 1, "few rows are near each other"):
        return False
    itemsize = min(region.fusion.values[number].dtype.itemsize for number, _ in region.probe.cached)
    is_held = itemsize == EASILY_HELD or lanes * itemsize >= WIDE_BYTES
    is_short = not is_held or sizes.at_most(rows, LONG, "short columns")
    return sizes.at_most(columns, MATRIX_COLUMNS if is_short else LONG_COLUMNS, NARROW)


def _is_stack(region: Region) -> bool:
    """Returns whether a region reduces over the rows of several matrices, which follow each other in an input."""
    nest = region.nest
    if len(nest.reduced) != 1 or len(nest.parallel) < 2 or nest.loops[-1].reduced:
        return False
    inner, (reduced,) = nest.loops[-1], nest.reduced
    return any(
        coefficient(offset, inner.symbol) == 1 and coefficient(offset, reduced.symbol) == inner.extent
        for _, offset in read_offsets(region)
    )


def _steps_held(region: Region, lanes: int) -> int:
    """Returns the most steps whose elements a thread caches in registers."""
    return max(1, MOST_WORDS // cached_words(region, lanes))


def _choose_long(tile: Tile, region: Region, sizes: Sizes, setting: Setting) -> tuple[Tile, int]:
    """Chooses the tile of columns that `tile` does not hold, and its lanes."""
    rows, lanes = product(loop.extent for loop in region.nest.reduced), setting.lanes
    itemsize = min(region.fusion.values[number].dtype.itemsize for number, _ in region.probe.cached)
    access = lanes * itemsize
    narrower = lanes // 2 if access >= WIDE_BYTES else lanes
    groups, least = column_positions(region, narrower).total, FEW_TILES * setting.chip.multiprocessors
    if itemsize >= MOST_OF_HALVES:
        for across, threads in HOLDING.get(access, ()):
            holding = Tile(across, threads // across, threads=threads)
            if sizes.at_most(rows, holding.down * _steps_held(region, narrower), HELD):
                few = sizes.at_most(groups, least * across, "too few columns to fill the GPU")
                return (tile, lanes) if few else (_with_steps(holding, rows, sizes), narrower)
        evicting, alone = (rows * access * resident_columns(t, setting) for t in (tile, READ_ALONE))
        is_evicted = access == EASILY_HELD and not sizes.at_most(evicting, EVICTING_BYTES, AGAIN)
        if is_evicted and sizes.at_most(alone, RESIDENT_BYTES, AGAIN):
            few = sizes.at_most(groups, least * READ_ALONE.least_across, "too few columns to fill the GPU")
            return (tile, lanes) if few else (READ_ALONE, narrower)
    elif access >= WIDE_BYTES:
        for across in READ_AGAIN:
            blocks = tile.resident * setting.chip.multiprocessors
            if sizes.at_most(rows * (blocks * across * narrower * itemsize), RESIDENT_BYTES, AGAIN):
                few = sizes.at_most(groups, least * across, "too few columns to fill the GPU")
                return (tile, lanes) if few else (Tile(across, THREADS // across), narrower)
    return tile, lanes


def resident_columns(tile: Tile, setting: Setting) -> int:
    """Returns how many groups of columns the blocks that run at the same time take."""
    return tile.resident * setting.chip.multiprocessors * tile.least_across


def _with_steps(tile: Tile, rows: Extent, sizes: Sizes) -> Tile:
    """Returns the tile whose threads cache their parts of columns of so many rows."""
    steps = 1
    while steps * tile.down < sizes.hint(rows):
        steps *= 2
    sizes.at_most(rows, steps * tile.down, "the steps of a column")
    return replace(tile, steps=steps)


def share_columns(groups: Extent, rows: Extent, sizes: Sizes) -> Tile:
    """Chooses the threads of a block: a block takes all groups of columns if they are few, and no power of two."""
    most = MOST_NARROW if sizes.at_most(rows, LONG, "short columns") else MOST_NARROW_OF_LONG
    if sizes.at_most(groups, most, "a block takes all columns"):
        bound, exact = sizes.power_of_two_above(groups, "every thread of a block has work", "the threads of a block")
        if not exact:
            few = sizes.at_most(groups, 3 * bound // 4, "the threads of a block")
            least = ALIGNED_ROWS if bound <= MOST_ALIGNED else 2
            down = max(least, 2 * THREADS // bound if few else THREADS // bound)
            threads = down * bound * 3 // 4 if few else down * bound
            return Tile(symbol("columns", minimum=bound // 2 + 1), down, threads=threads, bound=bound)
        across = min(bound, WARP)
        return Tile(across, THREADS // across)
    return Tile(WARP, THREADS // WARP)


def finish_tile(tiles: Extent, blocks: int, tile: Tile, sizes: Sizes) -> Tile:
    """Returns the threads that combine chunks: so many down that each reads FINISH_UNROLL chunks, if there are few."""
    bucket = sizes.bucket(tiles, 1 << (blocks.bit_length() - 1), "the threads that combine the chunks of a column")
    chunks = max(1, blocks // (bucket // 2 + 1))
    down, most = 1, THREADS // min(FINISH_ACROSS, tile.least_across)
    while down < most and down * FINISH_UNROLL < chunks:
        down *= 2
    return Tile(THREADS // down, down)


def place_columns(
    body: Body, region: Region, tile: Tile, block: Extent, thread: Extent, tiles: Extent, chunks: Extent
) -> Columns:
    """Binds the parallel loops of a thread; threads past the last column read the last column and store nothing."""
    positions = column_positions(region, body.lanes)
    if tile.matrices is not None:
        return _place_matrices(body, positions, tile, block, thread)
    across = thread if tile.is_row else bind_position(body, "across", thread % tile.across, tile.across)
    chunk = 0 if chunks == 1 else bind_position(body, "chunk", block // tiles, chunks)
    if tile.bound is not None:
        # Threads past the last row do the same as those of the last row, and store nothing.
        down = bind_position(body, "down", minimum(thread // tile.across, tile.down - 1), tile.down)
        positions.bind(body, across)
        inside = body.index.compare("lt", thread, tile.across * tile.down)
        return Columns(across, inside, thread, down, across, chunk)
    down = 0 if tile.is_row else bind_position(body, "down", thread // tile.across, tile.down)
    first = (block if chunks == 1 else block % tiles) * tile.across
    if tile.shift:
        # All rows of a thread have one remainder by the number of rows of threads, so they begin alike in a sector.
        earlier = bind_position(body, "earlier", down * positions.total % tile.shift, tile.shift)
        moved = first + across + (tile.shift - earlier)
        moved = bind_position(body, "column", moved, tiles * tile.across + tile.shift + 1)
        group = maximum(minimum(moved - tile.shift, positions.total - 1), 0)
        group = bind_position(body, "group", group, positions.total)
        positions.bind(body, group)
        last = body.index.compare("lt", moved, positions.total + tile.shift)
        inside = call("and", body.index.compare("le", tile.shift, moved), last)
        return Columns(group, inside, down * tile.across + across, down, across, chunk)
    column = bind_position(body, "column", first + across, tiles * tile.across)
    inside = body.index.compare("lt", column, positions.total)
    group = bind_position(body, "group", minimum(column, positions.total - 1), positions.total)
    positions.bind(body, group)
    return Columns(group, inside, down * tile.across + across, down, across, chunk)


def _place_matrices(body: Body, positions: Positions, tile: Tile, block: Extent, thread: Extent) -> Columns:
    """Binds the parallel loops of a thread of one of several matrices.

    Threads past the last row do the same as those of the last row, and store nothing.
    """
    assert tile.matrices is not None
    *outer, last = positions.loops
    inner = last if positions.lanes == 1 else Loop(positions.group, positions.inner, False)
    count = product(loop.extent for loop in outer)
    rows = tile.matrices * tile.down
    row = bind_position(body, "row", minimum(thread // positions.inner, rows - 1), rows)
    down = bind_position(body, "down", row % tile.down, tile.down)
    body.bind(inner.index, body.index.code(thread % positions.inner))
    matrix = bind_position(body, "matrix", block * tile.matrices + row // tile.down, count + tile.matrices)
    bind_loops(body, outer, bind_position(body, "present", minimum(matrix, count - 1), count))
    used = body.index.compare("lt", thread, rows * positions.inner)
    inside = call("and", used, body.index.compare("lt", matrix, count))
    return Columns(0, inside, thread, down, row // tile.down * tile.down * positions.inner + inner.index, 0)


def shifted_tile(lanes: int, groups: Extent, itemsize: int, sizes: Sizes) -> Tile | None:
    """Returns the tile in which warps store complete sectors of memory, of rows that begin anywhere; None for others.

    itemsize: of what they store.
    """
    if lanes > 1 or itemsize >= SECTOR_BYTES or sizes.at_most(groups, MOST_ALIGNED, "rows end with sectors"):
        return None
    down = THREADS // WARP
    return Tile(WARP, down, shift=min(SECTOR_BYTES // itemsize, down))
