"""The attention template: one block for a tile of queries, a loop over tiles of keys and values, no scores in memory.

The products run on tensor cores by warps, with float32 sums; a float32 operand is the sum of two numbers there. The
softmax is computed online: each tile of scores raises the maximum of a row or not, and the sums so far are scaled
accordingly. Between the products, the region's own nodes are emitted for each score, at its row and column; under a
causal mask the loop ends at the last visible column, and tiles of which every score is visible skip the test.

While a tile of keys and values is used, the next one is copied to shared memory, if two fit; else its values are copied
while its scores are computed, and the next keys while the values are used. If there is one tile of keys, its values are
on their way with it.

Must not know: CUDA C++.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import bool_, float32
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, product, symbol
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
from tracefuse.schedule.gpu.gpu_attention_frame import AttentionFrame, TileRow
from tracefuse.schedule.gpu.gpu_attention_tiles import AttentionTiles
from tracefuse.schedule.gpu.gpu_tiles import (
    MATRIX,
    SharedTile,
    WarpProducts,
    load,
    registers,
    start_tile,
    zeros,
)
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.score_conditions import conditions, visible_offset

MOST_KEPT_FEATURES = 64
"""The most features of queries that stay in registers; with more, they are loaded again for each tile of keys, and so
are queries in float32."""
_MINUS_INFINITY = Constant(float("-inf"), float32)
_ZERO = Constant(0.0, float32)
_LOG2_E = Constant(1.4426950408889634, float32)


@dataclass(frozen=True, slots=True)
class ScoreRow(TileRow):
    """A row of scores of a thread and its state."""

    largest: Variable
    total: Variable


@dataclass
class AttentionForward(AttentionFrame):
    """The emission of the kernel."""

    tiles: AttentionTiles
    rows: list[ScoreRow] = field(default_factory=list)

    @property
    def warps(self) -> int:
        return self.tiles.warps

    @property
    def resident(self) -> int:
        return self.tiles.resident

    @property
    def attention(self) -> Attention:
        assert isinstance(self.match, Attention)
        return self.match

    def lower(self) -> Lowered:
        self.queries, self.keys = self.shape[-2:]
        self.visible_offset = visible_offset(self.problem.fusion, self.attention.logits)
        rows = self.tiles.queries
        blocks, variable = self.open(self.queries, rows, last_first=self.visible_offset is not None)
        self.products = self._products()
        self._rows()
        self._run()
        count = product(self.shape[:-2]) * ceildiv(self.queries, rows)
        return self.close("attention", blocks, count, variable)

    def _products(self) -> WarpProducts:
        return WarpProducts(self.body, self.at, self.tiles.matrices, self.dtype)

    def _rows(self) -> None:
        """Binds the rows of scores of a thread and declares their states."""
        for row in self.tile_rows(self.products, self.tiles.matrices, self.queries):
            largest, total = (Variable(self.body.fresh(name), float32) for name in ("largest", "total"))
            self.body.append(Declare(largest, _MINUS_INFINITY))
            self.body.append(Declare(total, _ZERO))
            self.rows.append(ScoreRow(row.matrix, row.half, row.row, row.position, largest, total))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        body, tiles, match = self.body, self.tiles, self.attention
        self.query = self.tile("queries", match.query, tiles.queries, tiles.query_features, pairs=True)
        self.key = self.tile("keys", match.key, tiles.keys, tiles.query_features, tiles.stages, pairs=True)
        self.value = self.tile("values", match.value, tiles.keys, tiles.value_features, tiles.stages)
        complete = self._bound_keys()
        start_tile(body, self.query, self.first, self.queries, self.at.thread, self.threads)
        self._start(self.key, 0)
        body.append(EndBatch())
        values_too = tiles.single or tiles.stages > 1
        if values_too:
            self._start(self.value, 0)
            body.append(EndBatch())
        self.query_rows = None
        if tiles.query_features <= MOST_KEPT_FEATURES and self.dtype.is_half:
            body.append(AwaitCopies(int(values_too)))
            body.append(Barrier())
            self.query_rows = self.products.load_rows(self.query)
        self.sums = registers(body, "sums", tiles.matrices * tiles.value_features // 2, float32)
        zeros(body, self.sums)
        self.scores = registers(body, "scores", tiles.matrices * tiles.keys // 2, float32)
        self._loop(0, complete, is_complete=True)
        self._loop(complete, self.visible, is_complete=False)
        body.append(AwaitCopies())
        self._finish()

    def _bound_keys(self) -> Extent:
        """Binds the end of the keys that a query of the block sees; returns that of the tiles that all of them see."""
        tiles = self.tiles
        visible: Extent = self.keys
        complete: Extent = self.keys
        if self.visible_offset is not None:
            last = minimum(self.first + tiles.queries, self.queries)
            visible = minimum(self.keys, maximum(last + self.visible_offset, 0))
            complete = minimum(self.keys, maximum(self.first + self.visible_offset + 1, 0))
        self.visible = self.bound("visible", visible, None)
        return self.bound("complete", complete // tiles.keys * tiles.keys, None)

    def _loop(self, first: Extent, stop: Extent, *, is_complete: bool) -> None:
        """Emits the loop over tiles of keys from `first` to `stop`. is_complete: every score of them is visible."""
        body, tiles = self.body, self.tiles
        start = symbol("start")
        with body.loop(start, stop, start=first, step=tiles.keys):
            if tiles.stages > 1:
                self._staged_step(start, is_complete=is_complete)
                return
            body.append(AwaitCopies(int(tiles.single)))
            body.append(Barrier())
            if not tiles.single:
                self._start(self.value, start)
            self.products.scores(self.scores, self.query, self.key, self.query_rows)
            body.append(AwaitCopies())
            body.append(Barrier())
            following = start + tiles.keys
            if not tiles.single:
                with body.condition(body.index.compare("lt", following, self.visible)):
                    self._start(self.key, following)
            self._weigh(start, is_complete=is_complete)
            self.products.accumulate(self.sums, self.scores, self.value)

    def _staged_step(self, start: Extent, *, is_complete: bool) -> None:
        """Emits the step over the keys from `start` on, while the following keys and values are on their way."""
        body, following = self.body, start + self.tiles.keys
        with body.condition(body.index.compare("lt", following, self.visible)):
            self._start(self.key, following)
            self._start(self.value, following)
        body.append(EndBatch())
        body.append(AwaitCopies(1))
        body.append(Barrier())
        stage = self._stage(start)
        self.products.scores(self.scores, self.query, self.key, self.query_rows, stage)
        self._weigh(start, is_complete=is_complete)
        self.products.accumulate(self.sums, self.scores, self.value, stage)
        body.append(Barrier())

    def _stage(self, start: Extent) -> Extent:
        """Returns the first row of the stage in which the keys from `start` on are."""
        return 0 if self.tiles.stages == 1 else start // self.tiles.keys % 2 * self.tiles.keys

    def _start(self, tile: SharedTile, start: Extent) -> None:
        """Starts the copy of the rows of a tile from `start` on."""
        start_tile(self.body, tile, start, self.keys, self.at.thread, self.threads, self._stage(start))

    def _weigh(self, start: Extent, *, is_complete: bool) -> None:
        """Turns scores into logits and these into weights; scales the sums so far to the new maxima."""
        for row, new in zip(self.rows, self._logits(start, is_complete=is_complete), strict=True):
            scale, shift = self._rescale(row, new)
            self._scale_sums(row, scale)
            self._weights(row, shift)

    def _logits(self, start: Extent, *, is_complete: bool) -> list[Variable]:
        """Turns scores into logits; returns the new maxima of the rows."""
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
        return news

    def _combine(self, operation: str, variable: Variable) -> None:
        """Combines a variable over the four threads that share a row."""
        left, right = (Variable(self.body.fresh(name), float32) for name in ("left", "right"))
        combiner = Combiner((left,), (right,), (call(operation, left, right),))
        self.body.append(GroupReduce((variable,), combiner, 4))

    def _logit(self, row: ScoreRow, place: Extent, column: Extent, *, is_complete: bool) -> Expression:
        """Emits the operand of the softmax for one score."""
        body = self.body
        key = self.bound("key", column if is_complete else minimum(column, self.keys - 1), self.keys)
        coordinates = self.coordinates(row.row, key)
        (score,) = body.name("score", (load(body, self.scores, place),))
        body.levels[-1].memo[self.attention.scores, coordinates] = (score,)
        self._recall_inputs(place, coordinates)
        if is_complete and self.visible_offset is not None:
            for condition in conditions(self.problem.fusion, self.attention.logits, coordinates):
                body.levels[-1].memo[condition.value] = (Constant(condition.holds, bool_),)
        (logit,) = body.value(self.attention.logits, coordinates)
        if not is_complete:
            inside = body.index.compare("lt", column, self.keys)
            logit = call("select", inside, convert(logit, float32), _MINUS_INFINITY)
        return body.name("logit", (convert(logit, float32),))[0]

    def _recall_inputs(self, place: Extent, coordinates: Shape) -> None:
        """Makes known the inputs at the coordinates of a score that are in registers already: none."""

    def _rescale(self, row: ScoreRow, new: Variable) -> tuple[Expression, Expression]:
        """Scales a row's total to its new maximum; returns the factor, and what is subtracted from logits."""
        body = self.body
        unseen = call("eq", new, _MINUS_INFINITY)
        (shift,) = body.name("shift", (call("mul", call("select", unseen, _ZERO, new), _LOG2_E),))
        old = call("sub", call("mul", row.largest, _LOG2_E), shift)
        (scale,) = body.name("scale", (call("exp2_term", old),))
        body.append(Assign(row.largest, new))
        body.append(Assign(row.total, call("mul", row.total, scale)))
        return scale, shift

    def _scale_sums(self, row: ScoreRow, scale: Expression) -> None:
        body, wide = self.body, self.tiles.value_features // MATRIX
        with body.loop(m := symbol(body.fresh("n"), extent=wide), wide, "unroll"):
            for place, _ in self.places(row, m, self.tiles.value_features):
                scaled = call("mul", load(body, self.sums, place), scale)
                body.append(Store(self.sums, body.index.code(place), scaled))

    def _weights(self, row: ScoreRow, shift: Expression) -> None:
        """Turns a row's logits into weights and adds them to its total."""
        body, pairs = self.body, self.tiles.keys // MATRIX
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            for place, _ in self.places(row, n, self.tiles.keys):
                power = call("sub", call("mul", load(body, self.scores, place), _LOG2_E), shift)
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

    def _store_row(self, row: ScoreRow) -> None:
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
