"""The attention template: one block for a tile of queries, a loop over tiles of keys and values, no scores in memory.

The products run on tensor cores by warps, halves with float32 sums. The softmax is computed online: each tile of scores
raises the maximum of a row or not, and the sums so far are scaled accordingly. Between the products, the region's own
nodes are emitted for each score, at its row and column; under a causal mask the loop ends at the last visible column,
and tiles of which every score is visible skip the test.

While the scores of a tile are computed, its values are copied to shared memory; while they are used, the next keys are.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from segments import Verdict, yes
from tracefuse.dtypes import DType, bool_, float32, int32, int64
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    as_symbol,
    ceildiv,
    maximum,
    minimum,
    product,
    substitute,
    symbol,
    symbol_of,
    terms_of,
)
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    Assign,
    AwaitCopies,
    Barrier,
    Combiner,
    Constant,
    Copy,
    Declare,
    EndBatch,
    Expression,
    GroupReduce,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.passes.attention_match import Attention, Factor
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import bind_loops, open_block, open_threads
from tracefuse.schedule.gpu.gpu_problem import NARROW_INDEX, GpuProblem, span_of
from tracefuse.schedule.gpu.gpu_tiles import (
    CHUNK,
    COLUMNS,
    MATRIX,
    WARP,
    Thread,
    Tile,
    WarpProducts,
    load,
    new_tile,
    registers,
    start_tile,
    zeros,
)
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.score_conditions import conditions, visible_offset
from tracefuse.schedule.template import Template

WARPS = 4
THREADS = WARPS * WARP
MOST_HELD = 64
"""The most features of queries that stay in registers; with more, they are loaded again for each tile of keys."""
WIDE_FEATURES = 128
"""With more features, a warp takes 16 queries and a tile 32 keys: sums of 32 rows would not fit in registers."""
LOG2_E = 1.4426950408889634
_MINUS_INFINITY = Constant(float("-inf"), float32)
_ZERO = Constant(0.0, float32)


class AttentionRefusal(ScheduleRefusal):
    """Refusals of the attention template."""

    FEATURES = "the number of features is not a multiple of 16 up to 256"
    ACCESSES = "an operand cannot be read in accesses of 16 bytes"


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The extents of an attention's tiles: features of query and value, matrices of 16 queries a warp, keys.

    fixed: the symbols of the features, with their values.
    """

    query_features: int
    value_features: int
    matrices: int
    keys: int
    fixed: Mapping[Symbol, Extent]

    @property
    def queries(self) -> int:
        return WARPS * self.matrices * MATRIX


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, AttentionFacts)
    match, fusion, sizes = problem.facts.match, problem.fusion, problem.sizes
    features = []
    fixed: dict[Symbol, Extent] = {}
    for factor in (match.query, match.value):
        extent = fusion.shape_of(factor.number)[factor.order[-1]]
        count = sizes.hint(extent)
        sizes.require(extent, "==", count, "the features of an attention fill its tiles")
        if (known := as_symbol(extent)) is not None:
            fixed[known] = count
        if count % MATRIX or not 0 < count <= 2 * WIDE_FEATURES:
            return AttentionRefusal.FEATURES(features=count)
        features.append(count)
    for factor in (match.query, match.key, match.value):
        strides = problem.memory.strides[factor.number]
        rows = [substitute(strides[axis], fixed) for axis in factor.order[:-1]]
        rows = [stride for stride in rows if any(coefficient % CHUNK for _, coefficient in terms_of(stride))]
        wide = all(sizes.is_multiple(stride, CHUNK, "rows are copied in accesses of 16 bytes") for stride in rows)
        if strides[factor.order[-1]] != 1 or not wide or factor.number not in problem.memory.aligned:
            return AttentionRefusal.ACCESSES(value=factor.number)
    queries = fusion.shape_of(match.scores)[-2]
    small = max(features) > WIDE_FEATURES
    few = sizes.at_most(queries, WARPS * MATRIX, "few queries take small tiles")
    tiles = AttentionTiles(features[0], features[1], 1 if small or few else 2, 32 if small else 64, fixed)
    return yes(tiles)


def _lower(problem: GpuProblem, tiles: AttentionTiles) -> Lowered:
    assert isinstance(problem.facts, AttentionFacts)
    return _Forward(problem, problem.facts.match, tiles).lower()


ATTENTION: Template[GpuProblem] = Template("attention", _accepts, _lower, takes=AttentionFacts)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of scores of a thread: its matrix and half, its position, unclamped, and its state."""

    matrix: int
    half: int
    row: Extent
    position: Extent
    largest: Variable
    total: Variable


@dataclass
class _Forward:
    """The emission of one kernel."""

    problem: GpuProblem
    match: Attention
    tiles: AttentionTiles
    body: Body = field(init=False)
    rows: list[_Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        fusion, memory = self.problem.fusion, self.problem.memory
        self.body = Body(
            fusion, memory.strides, self._index_dtype(), aligned=memory.aligned, misaligned=memory.misaligned,
            shared=memory.shared,
        )  # fmt: skip
        self.body.index.known.update(self.tiles.fixed)
        self.shape = fusion.shape_of(self.match.scores)
        self.queries, self.keys = self.shape[-2:]
        self.offset = visible_offset(fusion, self.match)

    def _index_dtype(self) -> DType:
        fusion, memory, sizes = self.problem.fusion, self.problem.memory, self.problem.sizes
        spans = [span_of(fusion.shape_of(n), strides, sizes) for n, strides in memory.strides.items()]
        spans += [product(fusion.shape_of(n)) for n in fusion.outputs]
        fits = [sizes.at_most(span, NARROW_INDEX, "positions fit 32 bits") for span in dict.fromkeys(spans)]
        return int32 if all(fits) else int64

    # --- the frame ----------------------------------------------------------------------------------------------------

    def lower(self) -> Lowered:
        body, tiles = self.body, self.tiles
        count = ceildiv(self.queries, tiles.queries)
        blocks = symbol("blocks")
        block = open_block(body, blocks)
        thread, variable = open_threads(body, THREADS)
        self.at = self._thread(thread)
        tile = symbol("tile", extent=count)
        loops = [Loop(symbol(f"stack{k}", extent=e), e, False) for k, e in enumerate(self.shape[:-2])]
        self.stack: Shape = tuple(0 if loop.extent == 1 else loop.index for loop in loops)
        bind_loops(body, [*(loop for loop in loops if loop.extent != 1), Loop(tile, count, False)], block)
        if self.offset is not None:  # the tiles with the most visible columns first
            tile = count - 1 - tile
        self.first = self._bound("first", tile * tiles.queries, None)
        self.products = WarpProducts(body, self.at, tiles.matrices, self.problem.fusion.values[self.match.value.number].dtype)
        self._rows()
        self._run()
        launch = make_launch(
            body, f"{self.problem.name}_attention", "cuda", [(block, blocks)], contract=self.problem.contract,
            threads=THREADS, thread=variable, blocks_per_multiprocessor=2,
        )  # fmt: skip
        derived: dict[Symbol, Extent] = {symbol_of(blocks): product(self.shape[:-2]) * count}
        return Lowered("", (launch,), tuple(self.problem.sizes.guards), (), derived)

    def _thread(self, thread: Extent) -> Thread:
        lane = self._bound("lane_of_warp", thread % WARP, WARP)
        return Thread(
            thread, self._bound("warp", thread // WARP, WARPS), lane, self._bound("row", lane // 4, 8),
            self._bound("pair", lane % 4 * 2, 8),
        )  # fmt: skip

    def _bound(self, name: str, value: Extent, extent: Extent | None) -> Extent:
        index = symbol(self.body.fresh(name), extent=extent)
        self.body.bind(index, self.body.index.code(value))
        return index

    def _rows(self) -> None:
        """Binds the rows of scores of a thread and declares their states."""
        start = self._bound("first_row", self.first + self.products.first_row + self.at.row, None)
        for matrix in range(self.tiles.matrices):
            for half in range(2):
                position = start + (matrix * MATRIX + half * 8)
                row = self._bound("query", minimum(position, self.queries - 1), self.queries)
                names = (Variable(self.body.fresh(name), float32) for name in ("largest", "total"))
                state = _Row(matrix, half, row, position, *names)
                self.body.append(Declare(state.largest, _MINUS_INFINITY))
                self.body.append(Declare(state.total, _ZERO))
                self.rows.append(state)

    def _tile(self, name: str, factor: Factor, rows: int, features: int) -> Tile:
        """Allocates the tile of an operand; its stack axes of extent 1 are read at 0."""
        shape = self.problem.fusion.shape_of(factor.number)
        own = len(factor.order) - 2
        stack = self.stack[len(self.stack) - own :]
        at = tuple(0 if shape[axis] == 1 else c for axis, c in zip(factor.order[:-2], stack, strict=True))
        return new_tile(self.body, name, factor.number, at, factor.order, rows, features)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        body, tiles, match = self.body, self.tiles, self.match
        self.query = self._tile("queries", match.query, tiles.queries, tiles.query_features)
        self.key = self._tile("keys", match.key, tiles.keys, tiles.query_features)
        self.value = self._tile("values", match.value, tiles.keys, tiles.value_features)
        visible: Extent = self.keys
        complete: Extent = self.keys
        if self.offset is not None:
            last = minimum(self.first + tiles.queries, self.queries)
            visible = minimum(self.keys, maximum(last + self.offset, 0))
            complete = minimum(self.keys, maximum(self.first + self.offset + 1, 0))
        self.visible = self._bound("visible", visible, None)
        complete = self._bound("complete", complete // tiles.keys * tiles.keys, None)
        start_tile(body, self.query, self.first, self.queries, self.at.thread, THREADS)
        start_tile(body, self.key, 0, self.keys, self.at.thread, THREADS)
        body.append(EndBatch())
        self.held = None
        if tiles.query_features <= MOST_HELD:
            body.append(AwaitCopies())
            body.append(Barrier())
            self.held = self.products.held(self.query)
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
            body.append(AwaitCopies())
            body.append(Barrier())
            start_tile(body, self.value, start, self.keys, self.at.thread, THREADS)
            self.products.scores(self.scores, self.query, self.key, self.held)
            body.append(AwaitCopies())
            body.append(Barrier())
            following = start + tiles.keys
            with body.condition(body.index.compare("lt", following, self.visible)):
                start_tile(body, self.key, following, self.keys, self.at.thread, THREADS)
            self._weigh(start, is_complete=is_complete)
            self.products.accumulate(self.sums, self.scores, self.value)

    def _places(self, row: _Row, n: Extent, width: int) -> Iterator[tuple[Extent, Extent]]:
        """Yields the places of a row's sums in matrices 2n and 2n + 1, with their columns from the row's first."""
        for matrix in range(2):
            for column in range(2):
                place = (row.matrix * (width // MATRIX) + n) * 8 + matrix * 4 + row.half * 2 + column
                yield place, n * MATRIX + matrix * COLUMNS + column

    def _weigh(self, start: Extent, *, is_complete: bool) -> None:
        """Turns scores into logits and these into weights; scales the sums so far to the new maxima."""
        body, tiles = self.body, self.tiles
        pairs = tiles.keys // MATRIX
        news = [Variable(body.fresh("new_largest"), float32) for _ in self.rows]
        for row, new in zip(self.rows, news, strict=True):
            body.append(Declare(new, row.largest))
        column = self._bound("first_column", start + self.at.column, None)
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            for row, new in zip(self.rows, news, strict=True):
                for place, at in self._places(row, n, tiles.keys):
                    # With one key, scores have no coordinate of the loop, but differ from place to place.
                    with body.kept_inside() if self.keys == 1 else nullcontext():
                        logit = self._logit(row, place, column + at, is_complete=is_complete)
                        body.append(Store(self.scores, body.index.code(place), logit))
                        body.append(Accumulate(new, "maximum", logit))
        for row, new in zip(self.rows, news, strict=True):
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
        key = self._bound("key", column if is_complete else minimum(column, self.keys - 1), self.keys)
        coordinates = self._coordinates(row.row, key)
        (score,) = body.name("score", (load(body, self.scores, place),))
        body.levels[-1].memo[self.match.scores, coordinates] = (score,)
        if is_complete and self.offset is not None:
            for holds, _ in conditions(self.problem.fusion, self.match, coordinates):
                body.levels[-1].memo[holds] = (Constant(True, bool_),)
        (logit,) = body.value(self.match.logits, coordinates)
        if not is_complete:
            inside = body.index.compare("lt", column, self.keys)
            logit = call("select", inside, convert(logit, float32), _MINUS_INFINITY)
        return body.name("logit", (convert(logit, float32),))[0]

    def _coordinates(self, row: Extent, *more: Extent) -> Shape:
        """Returns coordinates of the scores, or of a row of them, with 0 on axes of extent 1, where values are read."""
        at = (*self.stack, row, *more)
        return tuple(0 if extent == 1 else c for c, extent in zip(at, self.shape, strict=False))

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
            for place, _ in self._places(row, m, self.tiles.value_features):
                body.append(
                    Store(self.sums, body.index.code(place), call("mul", load(body, self.sums, place), scale))
                )  # fmt: skip
        with body.loop(n, pairs, "unroll"):
            for place, _ in self._places(row, n, self.tiles.keys):
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
        return (*self._coordinates(row), *((0,) if keeps else ()))

    def _store_row(self, row: _Row) -> None:
        body, match = self.body, self.match
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
        self._store_sums(row, scale)
        for number in match.outputs:
            if number != match.result:
                (value,) = body.value(number, self._row_at(number, row.row))
                with body.condition(body.index.compare("eq", self.at.column, 0)):
                    self._store(number, self._row_at(number, row.row), value)

    def _store(self, number: int, coordinates: Shape, value: Expression) -> None:
        buffer = self.body.buffer_of(number, written=True)
        self.body.store(buffer, self._offset(number, coordinates), (value,))

    def _offset(self, number: int, coordinates: Shape) -> Extent:
        strides = self.problem.memory.output_strides(self.problem.fusion, number)
        total: Extent = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            total = total + coordinate * stride
        return total

    def _store_sums(self, row: _Row, scale: Expression) -> None:
        """Stores a row of the second product, in pairs of elements where the buffer allows."""
        body, number = self.body, self.match.result
        pairs = self.tiles.value_features // MATRIX
        buffer = body.buffer_of(number, written=True)
        wide = number not in self.problem.memory.placed and self.match.order[-1] == len(self.shape) - 1
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            places = list(self._places(row, n, self.tiles.value_features))
            for k in (0, 2):
                held = registers(body, "result", 2, float32)
                for part, (place, _) in enumerate(places[k : k + 2]):
                    scaled = call("mul", load(body, self.sums, place), scale)
                    body.append(Store(held, body.index.code(part), scaled))
                offsets = [self._result_offset(row, self.at.column + column) for _, column in places[k : k + 2]]
                if wide:
                    body.append(Copy(buffer, body.index.code(offsets[0]), held, body.index.code(0), 2))
                    continue
                for part, offset in enumerate(offsets):
                    body.store(buffer, offset, (load(body, held, part),))

    def _result_offset(self, row: _Row, column: Extent) -> Extent:
        coordinates = (*self.stack, row.row, column)
        return self._offset(self.match.result, tuple(coordinates[axis] for axis in self.match.order))


