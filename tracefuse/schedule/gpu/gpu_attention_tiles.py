"""The tiles of an attention on a GPU: how many queries and keys a block takes at a time, by how many warps.

Every choice follows from the sizes and leaves guards behind. Tiles of many queries load keys and values less often;
registers limit them, and so do the rows of the last tile that have no query.

Must not know: kernel IR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import float16
from tracefuse.ir.extents import Extent, Symbol, ceildiv
from tracefuse.passes.attention_match import Attention
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.chip import BLOCK_BYTES
from tracefuse.schedule.gpu.gpu_attention_frame import BLOCKS, WARPS, readable_features
from tracefuse.schedule.gpu.gpu_group_products import GROUP_WARPS
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tiles import MATRIX, WARP, pitch_of
from tracefuse.schedule.refusal_codes import RegionRefusal

NARROW_FEATURES, ROOMY_FEATURES, WIDE_FEATURES = 32, 96, 128
"""With at most the first, and with more than the second, tiles have SMALL_KEYS keys: the softmax of larger ones waits
longer than few products last, and their scores take all registers beside many sums. With more than the last, a warp
takes 16 queries. (H200)"""
SMALL_KEYS = 32
"""The keys of a small tile; others have twice as many."""
FLOAT32_KEYS = {False: 32, True: 16}
"""The keys of a tile of float32, with up to ROOMY_FEATURES and with more, whose sums take half the registers. (H200)"""
SHORT_KEYS = {False: 96, True: 160}
"""The most keys of a short sequence, for tiles of 128 and of 64 queries: an odd number of small tiles covers it with
fewer places without a key. (H200)"""
WHOLE = (80, 96)
"""The tiles that hold all queries, or all keys, of a sequence of more than 64: a warp takes 16 queries there. (H200)"""
RESIDENT_THREADS = 512
"""Threads of a multiprocessor to aim for where a block has all rows: some of them wait for memory. (H200)"""
MOST_WHOLE_FEATURES = 128
STAGED_FEATURES = 64
"""The most features with two large tiles of keys in shared memory; for small ones WIDE_FEATURES are. If blocks of 128
queries read masks, registers do not hold what is on its way. (H200)"""
FEW_BLOCKS, STAGED_BLOCKS = 4, 3
"""The blocks of a multiprocessor with 4 warps of 16 queries and up to STAGED_FEATURES features, and of those with two
tiles of keys in shared memory; else BLOCKS. (H200)"""
GROUP_KEYS = 64
"""The keys of a tile of products by groups of warps."""
GROUP_BLOCKS = {64: 4, 128: 2}
"""The features of such products, with the blocks of a multiprocessor, of one group each: blocks of several groups read
keys and values less often, but wait for each other. (H200)"""
MASKED_BLOCKS = 3
"""The most blocks of a multiprocessor if the registers hold elements of a mask. (H200)"""
NARROW_TILES = 3
"""So many tiles of 64 queries have fewer rows without a query than tiles of 128, which are faster if full. (H200)"""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The extents of an attention's tiles: features of query and value, warps, matrices of 16 queries a warp, keys.

    is_half: whether the operands are of a half type. fixed: the symbols of the features, with their values. single: one
    tile has all keys. stages: the tiles of keys and of values in shared memory at a time. blocks: those of a
    multiprocessor, at least; 0: by the warps. by_groups: whether groups of four warps multiply tiles in shared memory.
    """

    query_features: int
    value_features: int
    is_half: bool
    fixed: Mapping[Symbol, Extent]
    warps: int
    matrices: int
    keys: int
    single: bool
    stages: int = 1
    blocks: int = 0
    by_groups: bool = False

    @property
    def queries(self) -> int:
        return self.warps * self.matrices * MATRIX

    @property
    def resident(self) -> int:
        """The blocks of a multiprocessor, at least."""
        if self.blocks:
            return self.blocks
        if self.warps > WARPS:
            return RESIDENT_THREADS // (self.warps * WARP)
        blocks = BLOCKS
        if self.matrices == 1 and self.stages > 1:
            blocks = STAGED_BLOCKS
        elif self.matrices == 1 and self.is_half and max(self.query_features, self.value_features) <= STAGED_FEATURES:
            blocks = FEW_BLOCKS
        return blocks * WARPS // self.warps


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
    make = partial(AttentionTiles, features[match.query], features[match.value], is_half, fixed)
    few = problem.sizes.at_most(queries, WARPS * MATRIX, "few queries take small tiles")
    if is_half and not few and most <= MOST_WHOLE_FEATURES:
        whole = [_whole(problem, extent) for extent in (queries, keys)]
        if all(whole):
            return yes(make(warps=whole[0] // MATRIX, matrices=1, keys=whole[1], single=True))
    if is_half and not few and (tiles := _by_groups(problem, match, keys, most, make)) is not None:
        return yes(tiles)
    narrow = few or most > WIDE_FEATURES or (is_half and _fills_narrow_tiles(problem, queries))
    warps = WARPS
    while few and warps > 1 and problem.sizes.at_most(queries, warps // 2 * MATRIX, "every warp has queries"):
        warps //= 2
    make = partial(make, warps=warps, matrices=1 if narrow else 2)
    if is_half:
        return yes(_of_halves(problem, match, keys, make))
    of_tile = FLOAT32_KEYS[most > ROOMY_FEATURES]
    return yes(make(keys=of_tile, single=problem.sizes.at_most(keys, of_tile, "a tile has all keys")))


def _of_halves(
    problem: GpuProblem, match: Attention, keys: Extent, make: Callable[..., AttentionTiles]
) -> AttentionTiles:  # fmt: skip
    """Returns the tiles of an attention of halves; guards the number of keys. make: takes all about keys."""
    reads_masks = _reads_masks(problem, match)
    small = make(keys=SMALL_KEYS, single=problem.sizes.at_most(keys, SMALL_KEYS, "a tile has all keys"), stages=2)
    most, is_narrow = max(small.query_features, small.value_features), small.matrices == 1
    if small.single or _takes_small_tiles(problem, keys, most, is_narrow, reads_masks):
        tiles, most_staged = small, WIDE_FEATURES
    else:
        single = problem.sizes.at_most(keys, 2 * SMALL_KEYS, "a tile has all keys")
        tiles, most_staged = make(keys=2 * SMALL_KEYS, single=single, stages=2), STAGED_FEATURES
    is_staged = not tiles.single and most <= most_staged and (is_narrow or not reads_masks) and _fits(problem, tiles)
    return tiles if is_staged else replace(tiles, stages=1)


def _by_groups(
    problem: GpuProblem, match: Attention, keys: Extent, most: int, make: Callable[..., AttentionTiles]
) -> AttentionTiles | None:  # fmt: skip
    """Returns the tiles of products by groups of warps, if they have the features; guards the number of keys."""
    if not problem.chip.multiplies_tiles or most not in GROUP_BLOCKS:
        return None
    single = problem.sizes.at_most(keys, GROUP_KEYS, "a tile has all keys")
    blocks = min(GROUP_BLOCKS[most], MASKED_BLOCKS if _reads_masks(problem, match) else GROUP_BLOCKS[most])
    tiles = make(
        warps=GROUP_WARPS, matrices=1, keys=GROUP_KEYS, single=single, stages=1 if single else 2,
        blocks=blocks, by_groups=True,
    )  # fmt: skip
    return tiles if tiles.query_features in GROUP_BLOCKS and tiles.value_features in GROUP_BLOCKS else None


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


def _takes_small_tiles(problem: GpuProblem, keys: Extent, features: int, narrow: bool, reads_masks: bool) -> bool:
    """Whether tiles of halves have few keys; guards their number. narrow: blocks have at most 64 queries."""
    is_crowded = features > ROOMY_FEATURES
    if is_crowded and reads_masks:
        return True
    if problem.sizes.at_most(keys, 2 * SMALL_KEYS, "a tile has all keys"):
        return False
    if is_crowded or (features <= NARROW_FEATURES and not reads_masks):
        return True
    if not problem.sizes.at_most(keys, SHORT_KEYS[narrow], "a short sequence of keys"):
        return False
    return not problem.sizes.is_multiple(ceildiv(keys, SMALL_KEYS), 2, "an even number of small tiles has all keys")
