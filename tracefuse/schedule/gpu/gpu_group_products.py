"""Products of tiles of halves by groups of four warps, which read the right operand in shared memory.

They run at about twice the rate of products in the registers of warps. (H200)

Must not know: ops, sizes.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent, ceildiv, substitute, symbol
from tracefuse.kernel.kernel_ir import Buffer, MultiplyTiles, StartCopy
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import when
from tracefuse.schedule.gpu.gpu_tiles import MATRIX, WARP, SharedTile, WarpProducts, ordered, place_together, start_tile

GROUP_WARPS = 4
GROUP = GROUP_WARPS * WARP


def start_spread_tile(
    body: Body, tile: SharedTile, first: Extent, extent: Extent, thread: Extent, threads: int, stage: Extent = 0
) -> None:  # fmt: skip
    """Starts the copy of the rows from `first` on, zeros beyond `extent` rows, to a tile with `together`.

    Rows that are no constant number of elements apart are copied as by start_tile.
    """
    chunks = tile.features // tile.chunk
    total, copiers = tile.rows * chunks, threads
    while total % copiers:
        copiers -= GROUP
    step, row = copiers // chunks, first + thread // chunks
    column = thread % chunks * tile.chunk
    offsets = [body.offset(tile.number, ordered(tile.order, (*tile.stack, r, column))) for r in (row, row + step)]
    apart = substitute(offsets[1] - offsets[0], body.index.known)
    if not isinstance(apart, int):
        start_tile(body, tile, first, extent, thread, threads, stage)
        return
    code, count = body.index.code, total // copiers
    with when(body, [] if copiers == threads else [body.index.compare("lt", thread, copiers)]):
        place, valid = place_together(body, tile, stage, 0, thread), ceildiv(extent - row, step)
        steps = (step * MultiplyTiles.WIDTH, apart)
        sides = (tile.buffer, code(place), body.buffer_of(tile.number), code(offsets[0]))
        body.append(StartCopy(*sides, tile.chunk, count, steps, code(valid)))


@dataclass(frozen=True, slots=True)
class GroupProducts(WarpProducts):
    """Products of tiles in matrices, of which each group of warps computes 64 rows: `matrices` is 1."""

    def scores(
        self, sums: Buffer, left: SharedTile, right: SharedTile, loaded: Buffer | None, stage: Extent = 0, *,
        awaited: bool = True,
    ) -> None:  # fmt: skip
        """See WarpProducts.scores. awaited: see MultiplyTiles."""
        code, group = self.body.index.code, self.at.warp // GROUP_WARPS * (GROUP_WARPS * MATRIX)
        rows, at = (left.buffer, group * left.pitch) if loaded is None else (loaded, 0)
        sides = (right.rows, left.features)
        place = code(stage * right.pitch)
        self.body.append(
            MultiplyTiles(sums, code(0), rows, code(at), right.buffer, place, *sides, True, True, awaited)
        )  # fmt: skip

    def round(self, rows: Buffer, weights: Buffer, terms: int) -> None:
        """Rounds weights to left operands."""
        steps = terms // MATRIX
        with self.body.loop(k := symbol(self.body.fresh("k"), extent=steps), steps, "unroll"):
            for part in range(4):
                self.round_pair(rows, k * 4 + part, weights, k * 8 + part * 2)

    def add(self, sums: Buffer, weights: Buffer, right: SharedTile, stage: Extent = 0) -> None:
        """Starts sums += weights @ right, of left operands in registers. stage: see WarpProducts.accumulate."""
        code = self.body.index.code
        place = code(stage * right.pitch)
        sides = (right.features, right.rows)
        self.body.append(
            MultiplyTiles(sums, code(0), weights, code(0), right.buffer, place, *sides, awaited=False)
        )  # fmt: skip
