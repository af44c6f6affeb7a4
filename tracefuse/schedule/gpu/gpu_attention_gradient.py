"""The gradients of attention: one kernel for the gradient of the query, one for those of key and value.

A block computes the sums of a tile of rows: queries, or keys if the sums are over the queries. It loops over tiles of
columns, of which the next is copied to shared memory while one is used. The scores are computed again, transposed where
the rows are keys, the region's own nodes are emitted for each of them, and the weights are multiplied with the columns.
Each element of a result is summed by one thread in a fixed order. With many features, the sums of several results would
not fit in registers: each result has a launch of its own.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import bool_, float32
from tracefuse.ir.extents import Extent, Symbol, ceildiv, maximum, minimum, product, symbol
from tracefuse.ir.fusion import Fusion
from tracefuse.kernel.kernel_ir import AwaitCopies, Barrier, Constant, EndBatch, Store, call
from tracefuse.kernel.scalar_code import convert
from tracefuse.ops.roles import CAST, DIVIDE, MULTIPLY
from tracefuse.passes.attention_match import Factor
from tracefuse.passes.gradient_match import AttentionGradient, WeightedSum
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.chip import BLOCK_BYTES
from tracefuse.schedule.gpu.gpu_attention_frame import (
    WARPS,
    AttentionFrame,
    TileRow,
    readable_features,
)
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_tiles import (
    COLUMNS,
    MATRIX,
    WarpProducts,
    load,
    pitch_of,
    registers,
    start_tile,
    zeros,
)
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.score_conditions import conditions, visible_offset
from tracefuse.schedule.template import Template

ROWS = WARPS * MATRIX
COLUMN_TILE, FLOAT32_TILE = 64, 32
WIDE_FEATURES = 128
"""With more features, each result has a launch of its own, whose tiles of columns have half as many."""
WIDE_BLOCKS = 2
"""The blocks of a multiprocessor whose tiles have to fit in shared memory with so many features."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """features: of each factor. fixed: the symbols of features, with values. width: the columns of a tile."""

    features: dict[Factor, int]
    fixed: dict[Symbol, Extent]
    width: int


def _accepts(problem: GpuProblem) -> Verdict:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    if not isinstance(match, AttentionGradient):
        return RegionRefusal.NO_GRADIENT()
    read = readable_features(problem, [factor for factor, *_ in match.factors])
    if isinstance(read, Verdict):
        return read
    features, fixed = read
    is_half = problem.fusion.values[match.factors[0][0].number].dtype.is_half
    tile = COLUMN_TILE if is_half else FLOAT32_TILE
    return yes(_Decision(features, fixed, COLUMN_TILE // 2 if _is_wide(features) else tile))


def _is_wide(features: Mapping[Factor, int]) -> bool:
    return max(features.values()) > WIDE_FEATURES


def _stages(problem: GpuProblem, match: AttentionGradient, decision: _Decision) -> int:
    """Returns how many tiles of columns are in shared memory at a time."""
    features, (rows, columns) = decision.features, _sides(match)
    dtype = problem.fusion.values[rows[0].number].dtype
    bytes_of = {f: dtype.itemsize * pitch_of(dtype, features[f], pairs=f in rows) for f in (*rows, *columns)}
    size = sum(bytes_of[f] * ROWS for f in rows)
    staged = sum(bytes_of[f] * decision.width * 2 for f in columns)
    blocks = WIDE_BLOCKS if _is_wide(features) else 1
    return 2 if blocks * (size + staged + BLOCK_BYTES) <= problem.chip.shared_bytes else 1


def _sides(match: AttentionGradient) -> tuple[list[Factor], list[Factor]]:
    """Returns the operands of which a block holds a tile of rows, and those of which it reads tiles of columns."""
    rows = [scores.key if match.transposed else scores.query for scores in match.products]
    columns = [scores.query if match.transposed else scores.key for scores in match.products]
    return list(dict.fromkeys(rows)), list(dict.fromkeys([*columns, *(scores.factor for scores in match.sums)]))


def _lower(problem: GpuProblem, decision: _Decision) -> Lowered:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    assert isinstance(match, AttentionGradient)
    parts = [match]
    if _is_wide(decision.features):
        parts = [_alone(problem.fusion, match, weighted_sum) for weighted_sum in match.sums]
    lowered = [
        _Gradient(problem, part, decision.fixed, decision, f"gradient_{k}" if len(parts) > 1 else "gradient").lower()
        for k, part in enumerate(parts)
    ]
    launches = tuple(launch for one in lowered for launch in one.launches)
    derived = {s: extent for one in lowered for s, extent in one.derived.items()}
    return replace(lowered[-1], launches=launches, derived=derived)


def _alone(fusion: Fusion, match: AttentionGradient, weighted_sum: WeightedSum) -> AttentionGradient:
    """Returns the match with one of its sums, and the products and exponentials that this one needs."""
    needed, waiting = {weighted_sum.weights}, [weighted_sum.weights]
    ends = {scores.number for scores in match.products}
    while waiting:
        node = fusion.producers.get(waiting.pop())
        if node is None or node.outputs[0] in ends:
            continue
        waiting += [number for number in node.inputs if number not in needed]
        needed.update(node.inputs)
    products = tuple(scores for scores in match.products if scores.number in needed)
    exponentials = tuple(number for number in match.exponentials if number in needed)
    return replace(
        match, products=products, sums=(weighted_sum,), exponentials=exponentials, outputs=(weighted_sum.result,)
    )  # fmt: skip


ATTENTION_GRADIENT: Template[GpuProblem] = Template("attention gradient", _accepts, _lower, takes=AttentionFacts)


@dataclass
class _Gradient(AttentionFrame):
    """The emission of one kernel."""

    decision: _Decision
    name: str
    rows: list[TileRow] = field(default_factory=list)

    @property
    def gradient(self) -> AttentionGradient:
        assert isinstance(self.match, AttentionGradient)
        return self.match

    def lower(self) -> Lowered:
        queries, keys = self.shape[-2:]
        self.extent, self.columns = (keys, queries) if self.gradient.transposed else (queries, keys)
        self.exponential = _vanishing(self.problem.fusion, self.gradient)
        self.offset_of_mask = None if self.exponential is None else visible_offset(self.problem.fusion, self._logits())
        last_first = self.offset_of_mask is not None and not self.gradient.transposed
        blocks, variable = self.open(self.extent, ROWS, last_first=last_first)
        self.products = WarpProducts(self.body, self.at, 1, self.dtype)
        self.rows = self.tile_rows(self.products, 1, self.extent)
        self._run()
        count = product(self.shape[:-2]) * ceildiv(self.extent, ROWS)
        return self.close(self.name, blocks, count, variable)

    def _logits(self) -> int:
        """Returns the operand of the exponential that the weights vanish with."""
        assert self.exponential is not None
        return self.problem.fusion.producers[self.exponential].inputs[0]

    def _run(self) -> None:
        body, decision, match = self.body, self.decision, self.gradient
        rows, columns = _sides(match)
        self.width, self.stages = decision.width, _stages(self.problem, match, decision)
        self.row_tiles = {f: self.tile("rows", f, ROWS, decision.features[f], pairs=True) for f in rows}
        self.column_tiles = {f: self.tile("columns", f, self.width, decision.features[f], self.stages) for f in columns}
        loops = self._loops()
        self.stop = loops[-1][1]
        for tile in self.row_tiles.values():
            start_tile(body, tile, self.first, self.extent, self.at.thread, self.threads)
        if self.stages > 1:
            self._start(loops[0][0])
        self.scores = [registers(body, "scores", self.width // 2, float32) for _ in match.products]
        self.weights = {
            number: registers(body, "weights", self.width // 2, float32)
            for number in dict.fromkeys(weighted_sum.weights for weighted_sum in match.sums)
        }
        self.sums = [
            registers(body, "sums", decision.features[weighted_sum.factor] // 2, float32) for weighted_sum in match.sums
        ]
        for sums in self.sums:
            zeros(body, sums)
        for first, stop, is_visible, is_inside in loops:
            self._loop(first, stop, is_visible=is_visible, is_inside=is_inside)
        body.append(AwaitCopies())
        for row in self.rows:
            with body.condition(body.index.compare("lt", row.position, self.extent)):
                for sums, weighted_sum in zip(self.sums, match.sums, strict=True):
                    features = decision.features[weighted_sum.factor]
                    self.store_sums(
                        row, sums, features, weighted_sum.result, weighted_sum.order, Constant(1.0, float32)
                    )

    def _loops(self) -> list[tuple[Extent, Extent, bool, bool]]:
        """Returns the loops over columns: (start, stop, whether no score is masked, whether all columns exist)."""
        offset, width = self.offset_of_mask, self.width
        if offset is None:
            complete = self.bound("complete", self.columns // width * width, None)
            return [(0, complete, False, True), (complete, self.columns, False, False)]
        last = minimum(self.first + ROWS, self.extent) - 1
        if self.gradient.transposed:  # query >= key - offset
            start = self.bound("start", maximum(self.first - offset, 0) // width * width, None)
            middle = self.bound("middle", ceildiv(maximum(last - offset, 0), width) * width, None)
            return [(start, minimum(middle, self.columns), False, False), (middle, self.columns, True, False)]
        visible = self.bound("visible", minimum(self.columns, maximum(last + 1 + offset, 0)), None)
        complete = minimum(self.columns, maximum(self.first + offset + 1, 0)) // width * width
        complete = self.bound("complete", complete, None)
        return [(0, complete, True, True), (complete, visible, False, False)]

    def _stage(self, start: Extent) -> Extent:
        """Returns the first row of the stage in which the columns from `start` on are."""
        return 0 if self.stages == 1 else start // self.width % 2 * self.width

    def _start(self, start: Extent) -> None:
        for tile in self.column_tiles.values():
            start_tile(self.body, tile, start, self.columns, self.at.thread, self.threads, self._stage(start))
        self.body.append(EndBatch())

    def _loop(self, first: Extent, stop: Extent, *, is_visible: bool, is_inside: bool) -> None:
        body, match = self.body, self.gradient
        start = symbol("start")
        with body.loop(start, stop, start=first, step=self.width):
            if self.stages > 1:
                following = start + self.width
                with body.condition(body.index.compare("lt", following, self.stop)):
                    for tile in self.column_tiles.values():
                        stage = self._stage(following)
                        start_tile(body, tile, following, self.columns, self.at.thread, self.threads, stage)
                body.append(EndBatch())
            else:
                self._start(start)
            body.append(AwaitCopies(1 if self.stages > 1 else 0))
            body.append(Barrier())
            stage = self._stage(start)
            for scores, score_product in zip(self.scores, match.products, strict=True):
                row, column = (
                    (score_product.key, score_product.query)
                    if match.transposed
                    else (score_product.query, score_product.key)
                )
                self.products.scores(scores, self.row_tiles[row], self.column_tiles[column], None, stage)
            self._weigh(start, is_visible=is_visible, is_inside=is_inside)
            for sums, summed in zip(self.sums, match.sums, strict=True):
                tile = self.column_tiles[summed.factor]
                self.products.accumulate(sums, self.weights[summed.weights], tile, stage)
            body.append(Barrier())

    def _weigh(self, start: Extent, *, is_visible: bool, is_inside: bool) -> None:
        """Computes the weights of a tile from its scores."""
        body = self.body
        first = self.bound("first_column", start + self.at.column, None)
        pairs = self.width // MATRIX
        hoists = 1 not in self.shape[-2:]
        with body.loop(n := symbol(body.fresh("n"), extent=pairs), pairs, "unroll"):
            for k in range(4):
                position = first + n * MATRIX + k // 2 * COLUMNS + k % 2
                inside = position if is_inside else minimum(position, self.columns - 1)
                column = self.bound("column", inside, self.columns)
                for row in self.rows:
                    place = n * 8 + k // 2 * 4 + row.half * 2 + k % 2
                    # An axis of extent 1 has no coordinate in the loop, but the scores differ from place to place.
                    with nullcontext() if hoists else body.kept_inside():
                        self._weigh_score(row, column, place, is_visible=is_visible)
                        if not is_inside:
                            self._clear(place, position)

    def _weigh_score(self, row: TileRow, column: Extent, place: Extent, *, is_visible: bool) -> None:
        body, match, fusion = self.body, self.gradient, self.problem.fusion
        pair = (column, row.row) if match.transposed else (row.row, column)
        coordinates = self.coordinates(*pair)
        memo = body.levels[-1].memo
        for scores, score_product in zip(self.scores, match.products, strict=True):
            memo[score_product.number, coordinates] = body.name("score", (load(body, scores, place),))
        if is_visible and self.exponential is not None:
            for condition in conditions(fusion, self._logits(), coordinates):
                memo[condition.value] = (Constant(condition.holds, bool_),)
        for number in match.exponentials:
            (operand,) = body.value(fusion.producers[number].inputs[0], coordinates)
            memo[number, coordinates] = body.name("power", (call("exp_term", convert(operand, float32)),))
        for number, weights in self.weights.items():
            (weight,) = body.value(number, coordinates)
            body.append(Store(weights, body.index.code(place), convert(weight, float32)))

    def _clear(self, place: Extent, position: Extent) -> None:
        """Sets the weights of a column beyond the end to 0."""
        body = self.body
        for weights in self.weights.values():
            inside = body.index.compare("lt", position, self.columns)
            masked = call("select", inside, load(body, weights, place), Constant(0.0, float32))
            body.append(Store(weights, body.index.code(place), masked))


def _vanishing(fusion: Fusion, match: AttentionGradient) -> int | None:
    """Returns an exponential with which every weight vanishes, as their product with something; None without one."""
    for number in match.exponentials:
        if all(_has_factor(fusion, weighted_sum.weights, number) for weighted_sum in match.sums):
            return number
    return None


def _has_factor(fusion: Fusion, value: int, factor: int) -> bool:
    waiting = [value]
    while waiting:
        number = waiting.pop()
        if number == factor:
            return True
        node = fusion.producers.get(number)
        if node is None or node.op not in (MULTIPLY, DIVIDE, CAST):
            continue
        waiting += node.inputs if node.op is MULTIPLY else [v for v in node.operands[:1] if isinstance(v, int)]
    return False
