"""The attention template: one block for a tile of queries, a loop over tiles of keys and values, no scores in memory.

The products run on tensor cores by warps, with float32 sums; a float32 operand is the sum of two numbers there. The
softmax is computed online: each tile of scores raises the maximum of a row or not, and the sums so far are scaled
accordingly. Between the products, the region's own nodes are emitted for each score, at its row and column; under a
causal mask the loop ends at the last visible column, and tiles of which every score is visible skip the test.

While the scores of a tile are computed, its values are copied to shared memory; while they are used, the next keys are.
If there is one tile of keys, its values are on their way with it.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import bool_, float32
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, product, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    Assign,
    AwaitCopies,
    Barrier,
    Combiner,
    Constant,
    Declare,
    EndBatch,
    Expression,
    GroupReduce,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.passes.attention_match import Attention
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.gpu.gpu_attention_frame import WARPS, AttentionFrame, TileRow, readable_features
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tiles import MATRIX, WarpProducts, load, registers, start_tile, zeros
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.score_conditions import conditions, visible_offset
from tracefuse.schedule.template import Template

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
MOST_WHOLE_FEATURES = 128
MOST_KEPT_FEATURES = 64
"""The most features of queries that stay in registers; with more, they are loaded again for each tile of keys, and so
are queries in float32."""
LOG2_E = 1.4426950408889634
_MINUS_INFINITY = Constant(float("-inf"), float32)
_ZERO = Constant(0.0, float32)


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The extents of an attention's tiles: features of query and value, warps, matrices of 16 queries a warp, keys.

    single: one tile has all keys. fixed: the symbols of the features, with their values.
    """

    query_features: int
    value_features: int
    warps: int
    matrices: int
    keys: int
    single: bool
    fixed: Mapping[Symbol, Extent]

    @property
    def queries(self) -> int:
        return self.warps * self.matrices * MATRIX


def _accepts(problem: GpuProblem) -> Verdict:
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
            return yes(AttentionTiles(features[match.query], features[match.value], warps, 1, of_tile, True, fixed))
    is_crowded = most > ROOMY_FEATURES and _reads_masks(problem, match)
    if not is_half:
        of_tile = FLOAT32_KEYS[most > ROOMY_FEATURES]
    elif small or is_crowded or _fills_small_tiles(problem, keys, most):
        of_tile = SMALL_KEYS
    else:
        of_tile = 2 * SMALL_KEYS
    matrices, warps = 1 if small or few else 2, WARPS
    while few and warps > 1 and problem.sizes.at_most(queries, warps // 2 * MATRIX, "every warp has queries"):
        warps //= 2
    single = problem.sizes.at_most(keys, of_tile, "a tile has all keys")
    return yes(AttentionTiles(features[match.query], features[match.value], warps, matrices, of_tile, single, fixed))


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


def _fills_small_tiles(problem: GpuProblem, keys: Extent, features: int) -> bool:
    """Whether small tiles cover the keys of a short sequence with fewer unused ones; guards their number."""
    if not problem.sizes.at_most(keys, SHORT_KEYS[features > ROOMY_FEATURES], "a short sequence of keys"):
        return False
    return not problem.sizes.is_multiple(ceildiv(keys, SMALL_KEYS), 2, "an even number of small tiles has all keys")


def _lower(problem: GpuProblem, tiles: AttentionTiles) -> Lowered:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    assert isinstance(match, Attention)
    return _Forward(problem, match, tiles.fixed, tiles).lower()


ATTENTION: Template[GpuProblem] = Template("attention", _accepts, _lower, takes=AttentionFacts)


@dataclass(frozen=True, slots=True)
class _Row(TileRow):
    """A row of scores of a thread and its state."""

    largest: Variable
    total: Variable


@dataclass
class _Forward(AttentionFrame):
    """The emission of the kernel."""

    tiles: AttentionTiles
    rows: list[_Row] = field(default_factory=list)

    @property
    def warps(self) -> int:
        return self.tiles.warps

    @property
    def attention(self) -> Attention:
        assert isinstance(self.match, Attention)
        return self.match

    def lower(self) -> Lowered:
        self.queries, self.keys = self.shape[-2:]
        self.visible_offset = visible_offset(self.problem.fusion, self.attention.logits)
        rows = self.tiles.queries
        blocks, variable = self.open(self.queries, rows, last_first=self.visible_offset is not None)
        self.products = WarpProducts(self.body, self.at, self.tiles.matrices, self.dtype)
        self._rows()
        self._run()
        count = product(self.shape[:-2]) * ceildiv(self.queries, rows)
        return self.close("attention", blocks, count, variable)

    def _rows(self) -> None:
        """Binds the rows of scores of a thread and declares their states."""
        for row in self.tile_rows(self.products, self.tiles.matrices, self.queries):
            largest, total = (Variable(self.body.fresh(name), float32) for name in ("largest", "total"))
            self.body.append(Declare(largest, _MINUS_INFINITY))
            self.body.append(Declare(total, _ZERO))
            self.rows.append(_Row(row.matrix, row.half, row.row, row.position, largest, total))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        body, tiles, match = self.body, self.tiles, self.attention
        self.query = self.tile("queries", match.query, tiles.queries, tiles.query_features, pairs=True)
        self.key = self.tile("keys", match.key, tiles.keys, tiles.query_features, pairs=True)
        self.value = self.tile("values", match.value, tiles.keys, tiles.value_features)
        visible: Extent = self.keys
        complete: Extent = self.keys
        if self.visible_offset is not None:
            last = minimum(self.first + tiles.queries, self.queries)
            visible = minimum(self.keys, maximum(last + self.visible_offset, 0))
            complete = minimum(self.keys, maximum(self.first + self.visible_offset + 1, 0))
        self.visible = self.bound("visible", visible, None)
        complete = self.bound("complete", complete // tiles.keys * tiles.keys, None)
        start_tile(body, self.query, self.first, self.queries, self.at.thread, self.threads)
        start_tile(body, self.key, 0, self.keys, self.at.thread, self.threads)
        body.append(EndBatch())
        if tiles.single:
            start_tile(body, self.value, 0, self.keys, self.at.thread, self.threads)
            body.append(EndBatch())
        self.query_rows = None
        if tiles.query_features <= MOST_KEPT_FEATURES and self.dtype.is_half:
            body.append(AwaitCopies(int(tiles.single)))
            body.append(Barrier())
            self.query_rows = self.products.load_rows(self.query)
        self.sums = registers(body, "sums", tiles.matrices * tiles.value_features // 2, float32)
        zeros(body, self.sums)
        self.scores = registers(body, "scores", tiles.matrices * tiles.keys // 2, float32)
        self._loop(0, complete, is_complete=True)
        self._loop(complete, self.visible, is_complete=False)
        body.append(AwaitCopies())
        self._finish()

    def _loop(self, first: Extent, stop: Extent, *, is_complete: bool) -> None:
        """Emits the loop over tiles of keys from `first` to `stop`. is_complete: every score of them is visible."""
        body, tiles = self.body, self.tiles
        start = symbol("start")
        with body.loop(start, stop, start=first, step=tiles.keys):
            body.append(AwaitCopies(int(tiles.single)))
            body.append(Barrier())
            if not tiles.single:
                start_tile(body, self.value, start, self.keys, self.at.thread, self.threads)
            self.products.scores(self.scores, self.query, self.key, self.query_rows)
            body.append(AwaitCopies())
            body.append(Barrier())
            following = start + tiles.keys
            if not tiles.single:
                with body.condition(body.index.compare("lt", following, self.visible)):
                    start_tile(body, self.key, following, self.keys, self.at.thread, self.threads)
            self._weigh(start, is_complete=is_complete)
            self.products.accumulate(self.sums, self.scores, self.value)

    def _weigh(self, start: Extent, *, is_complete: bool) -> None:
        """Turns scores into logits and these into weights; scales the sums so far to the new maxima."""
        body, tiles = self.body, self.tiles
        pairs = tiles.keys // MATRIX
        news = [Variable(body.fresh("new_largest"), float32) for _ in self.rows]
        for row, new in zip(self.rows, news, strict=True):
            body.append(Declare(new, row.largest))
        column = self.bound("first_column", start + self.at.column, None)
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            for row, new in zip(self.rows, news, strict=True):
                for place, at in self.places(row, n, tiles.keys):
                    # With one key, scores have no coordinate of the loop, but differ from place to place.
                    with body.kept_inside() if self.keys == 1 else nullcontext():
                        logit = self._logit(row, place, column + at, is_complete=is_complete)
                        body.append(Store(self.scores, body.index.code(place), logit))
                        body.append(Accumulate(new, "maximum", logit))
        for new in news:
            self._combine("maximum", new)
        for row, new in zip(self.rows, news, strict=True):
            self._rescale(row, new, n, pairs)

    def _combine(self, operation: str, variable: Variable) -> None:
        """Combines a variable over the four threads that share a row."""
        left, right = (Variable(self.body.fresh(name), float32) for name in ("left", "right"))
        combiner = Combiner((left,), (right,), (call(operation, left, right),))
        self.body.append(GroupReduce((variable,), combiner, 4))

    def _logit(self, row: _Row, place: Extent, column: Extent, *, is_complete: bool) -> Expression:
        """Emits the operand of the softmax for one score."""
        body = self.body
        key = self.bound("key", column if is_complete else minimum(column, self.keys - 1), self.keys)
        coordinates = self.coordinates(row.row, key)
        (score,) = body.name("score", (load(body, self.scores, place),))
        body.levels[-1].memo[self.attention.scores, coordinates] = (score,)
        if is_complete and self.visible_offset is not None:
            for condition in conditions(self.problem.fusion, self.attention.logits, coordinates):
                body.levels[-1].memo[condition.value] = (Constant(condition.holds, bool_),)
        (logit,) = body.value(self.attention.logits, coordinates)
        if not is_complete:
            inside = body.index.compare("lt", column, self.keys)
            logit = call("select", inside, convert(logit, float32), _MINUS_INFINITY)
        return body.name("logit", (convert(logit, float32),))[0]

    def _rescale(self, row: _Row, new: Variable, n: Extent, pairs: int) -> None:
        """Scales a row's sums to its new maximum and turns its logits into weights."""
        body, log2_e = self.body, Constant(LOG2_E, float32)
        unseen = call("eq", new, _MINUS_INFINITY)
        (shift,) = body.name("shift", (call("mul", call("select", unseen, _ZERO, new), log2_e),))
        old = call("sub", call("mul", row.largest, log2_e), shift)
        (scale,) = body.name("scale", (call("exp2_term", old),))
        body.append(Assign(row.largest, new))
        body.append(Assign(row.total, call("mul", row.total, scale)))
        wide = self.tiles.value_features // MATRIX
        with body.loop(m := symbol(body.fresh("n"), extent=wide), wide, "unroll"):
            for place, _ in self.places(row, m, self.tiles.value_features):
                body.append(
                    Store(self.sums, body.index.code(place), call("mul", load(body, self.sums, place), scale))
                )  # fmt: skip
        with body.loop(n, pairs, "unroll"):
            for place, _ in self.places(row, n, self.tiles.keys):
                power = call("sub", call("mul", load(body, self.scores, place), log2_e), shift)
                (weight,) = body.name("weight", (call("exp2_term", power),))
                body.append(Store(self.scores, body.index.code(place), weight))
                body.append(Accumulate(row.total, "add", weight))

    # --- results ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stores the results of the rows of this block."""
        for row in self.rows:
            self._combine("add", row.total)
        for row in self.rows:
            with self.body.condition(self.body.index.compare("lt", row.position, self.queries)):
                self._store_row(row)

    def _row_at(self, number: int, row: Extent) -> Shape:
        """Returns the coordinates of a value with one element a row."""
        keeps = len(self.problem.fusion.shape_of(number)) == len(self.shape)
        return (*self.coordinates(row), *((0,) if keeps else ()))

    def _store_row(self, row: _Row) -> None:
        body, match = self.body, self.attention
        memo = body.levels[-1].memo
        unseen = call("eq", row.largest, _MINUS_INFINITY)
        (safe,) = body.name("shift", (call("select", unseen, _ZERO, row.largest),))
        if match.maximum is not None:
            memo[match.maximum, self._row_at(match.maximum, row.row)] = (row.largest,)
        shifted: Expression = safe
        if match.shift is not None:
            (subtracted,) = body.value(match.shift, self._row_at(match.shift, row.row))
            shifted = call("sub", safe, convert(subtracted, float32))
        (factor,) = body.name("factor", (call("exp", shifted),))
        is_plain = match.divisor == match.total and not match.inverted
        (total,) = body.name("sum", (call("mul", row.total, factor),))
        memo[match.total, self._row_at(match.total, row.row)] = (total,)
        scale: Expression = factor
        if is_plain:
            scale = call("div", Constant(1.0, float32), row.total)
        elif match.divisor is not None:
            (divisor,) = body.value(match.divisor, self._row_at(match.divisor, row.row))
            scale = call("mul" if match.inverted else "div", factor, convert(divisor, float32))
        (scale,) = body.name("scale", (scale,))
        self.store_sums(row, self.sums, self.tiles.value_features, match.result, match.order, scale)
        for number in match.outputs:
            if number != match.result:
                (value,) = body.value(number, self._row_at(number, row.row))
                with body.condition(body.index.compare("eq", self.at.column, 0)):
                    self.store(number, self._row_at(number, row.row), value)
