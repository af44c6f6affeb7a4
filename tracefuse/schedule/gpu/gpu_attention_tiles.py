"""The tiles of an attention on a GPU: how many queries and keys a block takes at a time, by how many warps.

Every choice follows from the sizes and leaves guards behind. Tiles of many queries load keys and values less often;
registers limit them, and so do the rows of the last tile that have no query.

Must not know: kernel IR.
"""

from __future__ import annotations

from collections.abc import Mapping

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import float16
from tracefuse.ir.extents import Extent, Symbol, ceildiv
from tracefuse.passes.attention_match import Attention
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.chip import BLOCK_BYTES
from tracefuse.schedule.gpu.gpu_attention_frame import BLOCKS, WARPS, readable_features
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tiles import MATRIX, WARP, pitch_of
from tracefuse.schedule.refusal_codes import RegionRefusal

WIDE_FEATURES = 128
"""With more features, a warp takes 16 queries and a tile 32 keys: sums of 32 rows would not fit in registers."""
SMALL_KEYS = 32
"""The keys of a small tile; others have twice as many."""
FLOAT32_KEYS = {False: 32, True: 16}
"""The keys of a tile of float32, with up to ROOMY_FEATURES and with more, whose sums take half the registers. (H200)"""
ROOMY_FEATURES = 96
"""With more features, large tiles of keys take all registers. Small ones are faster where scores read a mask as well,
and where their odd number covers a short sequence with fewer places without a key. (H200)"""
SHORT_KEYS = {False: 96, True: 480}
"""The most keys of a short sequence, with up to ROOMY_FEATURES and with more."""
WHOLE = (80, 96)
"""The tiles that hold all queries, or all keys, of a sequence of more than 64: a warp takes 16 queries there. (H200)"""
RESIDENT_THREADS = 512
"""Threads of a multiprocessor to aim for where a block has all rows: some of them wait for memory. (H200)"""
MOST_WHOLE_FEATURES = 128
MOST_STAGED_FEATURES = 64
"""The most features with two tiles of keys in shared memory: with more, registers would not hold what is on its way."""
NARROW_BLOCKS = 3
"""The blocks of a multiprocessor with four warps of one matrix, if there are two tiles of keys; else BLOCKS. (H200)"""
NARROW_TILES = 3
"""An odd number of tiles of 64 queries, with up to so many, leaves fewer rows of the last block without a query than
tiles of 128 do; these are faster where they are full. (H200)"""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The extents of an attention's tiles: features of query and value, warps, matrices of 16 queries a warp, keys.

    single: one tile has all keys. stages: the tiles of keys and of values in shared memory at a time. fixed: the
    symbols of the features, with their values.
    """

    query_features: int
    value_features: int
    warps: int
    matrices: int
    keys: int
    single: bool
    stages: int
    fixed: Mapping[Symbol, Extent]

    @property
    def queries(self) -> int:
        return self.warps * self.matrices * MATRIX

    @property
    def resident(self) -> int:
        """The blocks of a multiprocessor, at least."""
        if self.warps > WARPS:
            return RESIDENT_THREADS // (self.warps * WARP)
        narrow = self.stages > 1 and self.matrices == 1
        return (NARROW_BLOCKS if narrow else BLOCKS) * WARPS // self.warps


def accepts(problem: GpuProblem) -> Verdict:
    """Judges whether a kernel computes an attention; guards the sizes. The facts of a yes are its AttentionTiles."""
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    if not isinstance(match, Attention):
        return RegionRefusal.NO_ATTENTION()
    read = readable_features(problem, (match.query, match.key, match.value))
    if isinstance(read, Verdict):
        return read
    features, fixed = read
    queries, keys = problem.fusion.shape_of(match.scores)[-2:]
    most = max(features.values())
    is_half = problem.fusion.values[match.query.number].dtype.is_half
    small = most > WIDE_FEATURES
    few = problem.sizes.at_most(queries, WARPS * MATRIX, "few queries take small tiles")
    if is_half and not few and most <= MOST_WHOLE_FEATURES:
        whole = [_whole(problem, extent) for extent in (queries, keys)]
        if all(whole):
            warps, of_tile = whole[0] // MATRIX, whole[1]
            return yes(AttentionTiles(features[match.query], features[match.value], warps, 1, of_tile, True, 1, fixed))
    is_crowded = most > ROOMY_FEATURES and _reads_masks(problem, match)
    if not is_half:
        of_tile = FLOAT32_KEYS[most > ROOMY_FEATURES]
    elif small or is_crowded or _fills_small_tiles(problem, keys, most):
        of_tile = SMALL_KEYS
    else:
        of_tile = 2 * SMALL_KEYS
    narrow = small or few or (is_half and most <= MOST_STAGED_FEATURES and _fills_narrow_tiles(problem, queries))
    matrices, warps = 1 if narrow else 2, WARPS
    while few and warps > 1 and problem.sizes.at_most(queries, warps // 2 * MATRIX, "every warp has queries"):
        warps //= 2
    single = problem.sizes.at_most(keys, of_tile, "a tile has all keys")
    extents = features[match.query], features[match.value], warps, matrices, of_tile, single
    staged = AttentionTiles(*extents, 2, fixed)
    is_staged = is_half and not single and most <= MOST_STAGED_FEATURES and _fits(problem, staged)
    return yes(staged if is_staged else AttentionTiles(*extents, 1, fixed))


def _fits(problem: GpuProblem, tiles: AttentionTiles) -> bool:
    """Whether the shared memory of a multiprocessor holds the tiles of halves of all its blocks."""
    pitches = [pitch_of(float16, features) for features in (tiles.query_features, tiles.value_features)]
    elements = tiles.queries * pitches[0] + tiles.stages * tiles.keys * sum(pitches)
    return tiles.resident * (elements * float16.itemsize + BLOCK_BYTES) <= problem.chip.shared_bytes


def _reads_masks(problem: GpuProblem, match: Attention) -> bool:
    """Whether the attention reads other arrays than queries, keys and values."""
    factors = {factor.number for factor in (match.query, match.key, match.value)}
    return not factors.issuperset(problem.fusion.tensor_inputs)


def _whole(problem: GpuProblem, extent: Extent) -> int:
    """Returns the queries or keys of a tile that holds them all, 0 if they are too many; guards their number."""
    small = (WARPS * MATRIX, *WHOLE)
    if not problem.sizes.at_most(extent, small[-1], "a short sequence"):
        return 0
    return next(tile for tile in small if problem.sizes.at_most(extent, tile, "a tile has the whole sequence"))


def _fills_narrow_tiles(problem: GpuProblem, queries: Extent) -> bool:
    """Whether tiles of one matrix a warp have fewer rows without a query than tiles of two; guards the queries."""
    rows, reason = WARPS * MATRIX, "narrow tiles have fewer rows without a query"
    if not problem.sizes.at_most(queries, NARROW_TILES * rows, reason):
        return False
    return not problem.sizes.at_most(queries, (NARROW_TILES - 1) * rows, reason)


def _fills_small_tiles(problem: GpuProblem, keys: Extent, features: int) -> bool:
    """Whether small tiles cover the keys of a short sequence with fewer unused ones; guards their number."""
    if not problem.sizes.at_most(keys, SHORT_KEYS[features > ROOMY_FEATURES], "a short sequence of keys"):
        return False
    return not problem.sizes.is_multiple(ceildiv(keys, SMALL_KEYS), 2, "an even number of small tiles has all keys")
