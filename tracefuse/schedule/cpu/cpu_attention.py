"""The attention template for the CPU: a worker takes a chunk of queries and walks over tiles of keys.

Scores never leave the first cache. Keys and values of a tile are copied once for a chunk, the keys transposed, as
numbers of float32; a few rows of queries at a time meet them. Each row has its largest logit so far, the sum of its
weights and of the weighted values, which are scaled when a tile has a larger logit. Tiles that a causal mask hides
from a group of rows are skipped.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from segments import Verdict, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import float32, int32, int64
from tracefuse.ir.extents import Extent, Symbol, as_symbol, ceildiv, maximum, minimum, product, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    AddProducts,
    Allocate,
    Assign,
    Buffer,
    Constant,
    Declare,
    Expression,
    Load,
    Matrix,
    Store,
    Transpose,
    Variable,
    call,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.passes.attention_match import Attention, Factor
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, open_grid, store_at
from tracefuse.schedule.cpu.cpu_product_tiles import ROWS, VECTORS, vector_lanes
from tracefuse.schedule.launch_spec import Lowered, make_launch
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.score_conditions import visible_offset
from tracefuse.schedule.template import Template

QUERIES = 96
"""The queries of a chunk: copies of keys and values take a tenth of the time of the products."""
KEYS = 64
"""The keys of a tile: with up to 128 features, it stays in the first cache or beside it."""
BLOCK = 16
"""The sides of a tile that is transposed are multiples of this."""

_MINUS_INFINITY = Constant(float("-inf"), float32)
_ZERO = Constant(0.0, float32)


def _accepts(problem: CpuProblem) -> Verdict:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    return yes() if isinstance(match, Attention) else RegionRefusal.NO_ATTENTION()


def _lower(problem: CpuProblem, decision: object) -> Lowered:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    assert isinstance(match, Attention)
    return _ForwardKernel(problem, match).lower()


ATTENTION: Template[CpuProblem] = Template("attention", _accepts, _lower, takes=AttentionFacts)


@dataclass
class _ForwardKernel:
    """The emission of the kernel.

    shape: of the scores. stack: the indices of its outer axes. features: of the operands. lanes: of two vectors.
    group_rows: the rows that meet a tile at a time.
    first, rows: the first query of the chunk, and how many it has. padded, wide: the features of keys and of values,
    rounded up. query, key, value, sums, largest, total: of the chunk or of a tile; scores and scale: of a few rows.
    """

    problem: CpuProblem
    match: Attention
    body: Body = field(init=False)
    shape: Shape = field(init=False)
    stack: Shape = field(init=False)
    features: Mapping[Factor, int] = field(init=False)
    lanes: int = field(init=False)
    group_rows: int = field(init=False)
    first: Extent = field(init=False)
    rows: Extent = field(init=False)
    padded: int = field(init=False)
    wide: int = field(init=False)
    query: Buffer = field(init=False)
    key: Buffer = field(init=False)
    value: Buffer = field(init=False)
    sums: Buffer = field(init=False)
    largest: Buffer = field(init=False)
    total: Buffer = field(init=False)
    scores: Buffer = field(init=False)
    scale: Buffer = field(init=False)

    def lower(self) -> Lowered:
        self._open()
        body, queries = self.body, self.shape[-2]
        loops = [Loop(symbol(f"stack{k}", extent=e), e, False) for k, e in enumerate(self.shape[:-2])]
        self.stack = tuple(0 if loop.extent == 1 else loop.index for loop in loops)
        grid, chunk = open_grid(body, [loop for loop in loops if loop.extent != 1], ceildiv(queries, QUERIES))
        self.first = self._bound("first", chunk * QUERIES, queries)
        self.rows = self._bound("rows", minimum(queries - self.first, QUERIES), QUERIES + 1)
        self._allocate()
        self._pack_queries()
        self._run()
        self._finish()
        work = product((*self.shape, self.features[self.match.query]))
        name = f"{self.problem.name}_attention"
        return self.problem.finish([make_launch(body, name, "cpu", [grid], work=work, contract=self.problem.contract)])

    def _open(self) -> None:
        fusion, memory = self.problem.fusion, self.problem.memory
        self.body = Body(
            fusion, memory.strides, int64, misaligned=memory.misaligned, shared=memory.shared, checks_positions=True
        )
        self.shape, self.lanes = fusion.shape_of(self.match.scores), vector_lanes(float32)
        self.group_rows = ROWS
        fixed: dict[Symbol, Extent] = {}
        features = {}
        for factor in (self.match.query, self.match.key, self.match.value):
            extent = fusion.shape_of(factor.number)[factor.order[-1]]
            features[factor] = self.problem.sizes.hint(extent)
            self.problem.sizes.require(extent, "==", features[factor], "the features of an attention fill its tiles")
            if (known := as_symbol(extent)) is not None:
                fixed[known] = features[factor]
        self.features = features
        self.body.index.known.update(fixed)

    def _allocate(self) -> None:
        """Allocates a chunk's queries, sums and states, a tile's keys and values, and a group's scores."""
        features, wide = self.features[self.match.query], self.features[self.match.value]
        self.padded, self.wide = _rounded(features, BLOCK), _rounded(wide, self.lanes)
        self.query = self._local("queries", QUERIES * features)
        self.key = self._local("keys", self.padded * KEYS)
        self.value = self._local("values", KEYS * self.wide)
        self.sums = self._local("weighted", QUERIES * self.wide)
        self.largest, self.total = self._local("largest", QUERIES), self._local("totals", QUERIES)
        self.scores, self.scale = self._local("scores", self.group_rows * KEYS), self._local("scales", self.group_rows)

    def _local(self, name: str, size: int) -> Buffer:
        buffer = Buffer(self.body.fresh(name), float32, "local", size)
        self.body.append(Allocate(buffer))
        return buffer

    def _filled(self, name: str, value: Constant) -> Buffer:
        """Allocates a buffer of one vector, which becomes a register, and fills it with a value."""
        lanes = self.lanes // VECTORS
        buffer, lane = self._local(name, lanes), symbol("lane", extent=lanes)
        with self.body.loop(lane, lanes, "vector"):
            self.body.append(Store(buffer, self.body.index.code(lane), value))
        return buffer

    def _bound(self, name: str, value: Extent, extent: Extent | None) -> Extent:
        """Binds an integer to a new variable; returns its index."""
        index = symbol(self.body.fresh(name), extent=extent)
        self.body.bind(index, self.body.index.code(value))
        return index

    # --- operands -----------------------------------------------------------------------------------------------------

    def _element(self, factor: Factor, row: Extent, feature: Extent) -> Expression:
        """Emits an element of an operand in float32; stack axes of extent 1 are read at 0."""
        shape = self.problem.fusion.shape_of(factor.number)
        outer = factor.order[:-2]
        stack = self.stack[len(self.stack) - len(outer) :]
        at = [*(0 if shape[axis] == 1 else c for axis, c in zip(outer, stack, strict=True)), row, feature]
        place = dict(zip(factor.order, at, strict=True))
        (element,) = self.body.value(factor.number, tuple(place[axis] for axis in range(len(shape))))
        return convert(element, float32)

    def _copy(self, factor: Factor, first: Extent, rows: int, to: Buffer, pitch: int) -> None:
        """Copies `rows` rows of an operand from `first` on to rows of a local buffer."""
        body, count = self.body, self.features[factor]
        row, feature = symbol("copied", extent=rows), symbol("feature", extent=count)
        with body.loop(row, rows), body.loop(feature, count, "vector"):
            element = self._element(factor, first + row, feature)
            body.append(Store(to, body.index.code(row * pitch + feature), element))

    def _pack_queries(self) -> None:
        """Copies the queries of the chunk, the last one again to fill a group, and clears the states."""
        body, count = self.body, self.features[self.match.query]
        place, column = symbol("copied", extent=QUERIES), symbol("column", extent=self.wide)
        feature = symbol("feature", extent=count)
        with body.loop(place, ceildiv(self.rows, self.group_rows) * self.group_rows):
            row = self._bound("row", minimum(self.first + place, self.shape[-2] - 1), self.shape[-2])
            with body.loop(feature, count, "vector"):
                element = self._element(self.match.query, row, feature)
                body.append(Store(self.query, body.index.code(place * count + feature), element))
            with body.loop(column, self.wide, "vector"):
                body.append(Store(self.sums, body.index.code(place * self.wide + column), _ZERO))
            body.append(Store(self.largest, body.index.code(place), _MINUS_INFINITY))
            body.append(Store(self.total, body.index.code(place), _ZERO))

    def _pack_keys(self, start: Extent) -> None:
        """Copies the keys of a tile so that those of one feature are adjacent."""
        body, match, features = self.body, self.match, self.features[self.match.key]
        if self.problem.memory.strides[match.key.number][match.key.order[-1]] == 1:
            rows = self._local("rows", KEYS * self.padded)
            self._copy(match.key, start, KEYS, rows, self.padded)
            sides = body.index.code(KEYS), body.index.code(features)
            body.append(Transpose(self.key, KEYS, rows, self.padded, *sides))
            return
        feature, key = symbol("feature", extent=features), symbol("copied", extent=KEYS)
        with body.loop(feature, features), body.loop(key, KEYS, "vector"):
            element = self._element(match.key, start + key, feature)
            body.append(Store(self.key, body.index.code(feature * KEYS + key), element))

    # --- the loop over keys -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Walks over tiles of keys; the last one begins earlier if it is not full, and its first keys do not count."""
        body, keys, lanes = self.body, self.shape[-1], self.lanes
        offset = visible_offset(self.problem.fusion, self.match.logits)
        visible = keys if offset is None else minimum(keys, maximum(self.first + self.rows + offset, 0))
        visible = self._bound("visible", visible, None)
        tile, group = symbol("tile", extent=keys), symbol("group", extent=QUERIES)
        with body.loop(tile, visible, step=KEYS):
            start = self._bound("start", minimum(tile, keys - KEYS), keys)
            counted = self._bound("counted", tile - start, KEYS)
            self._pack_keys(start)
            self._copy(self.match.value, start, KEYS, self.value, self.wide)
            with body.loop(group, self.rows, step=self.group_rows):
                if offset is None:
                    self._meet(group, start, counted, KEYS)
                else:
                    seen = minimum(maximum(self.first + group + self.group_rows + offset - start, 0), KEYS)
                    self._meet(group, start, counted, self._bound("seen", ceildiv(seen, lanes) * lanes, KEYS + 1))

    def _meet(self, group: Extent, start: Extent, counted: Extent, count: Extent) -> None:
        """Computes the weights of a group of rows for `count` keys from `start` on, and adds the values.

        counted: so many keys counted in the tile before. A count is a multiple of the lanes, and may be 0.
        """
        body, code, lanes, features = self.body, self.body.index.code, self.lanes, self.features[self.match.query]
        first = symbol("first_key", extent=KEYS)
        with body.loop(first, count, step=lanes):
            self._multiply(
                Matrix(self.scores, code(first), KEYS), Matrix(self.query, code(group * features), features),
                Matrix(self.key, code(first), KEYS), features, replaces=True,
            )  # fmt: skip
        row = symbol("row_of_group", extent=self.group_rows)
        with body.loop(row, self.group_rows):
            self._weigh(group, row, start, counted, count)
        column = symbol("first_column", extent=self.wide)
        with body.loop(column, self.wide, step=lanes):
            self._add_values(group, count, column)

    def _add_values(self, group: Extent, count: Extent, column: Extent) -> None:
        """Adds the weighted values of a tile, from one column on, to the scaled sums of a group."""
        code = self.body.index.code
        self._multiply(
            Matrix(self.sums, code(group * self.wide + column), self.wide), Matrix(self.scores, code(0), KEYS),
            Matrix(self.value, code(column), self.wide), count, scales=self.scale,
        )  # fmt: skip

    def _multiply(
        self, sums: Matrix, left: Matrix, right: Matrix, terms: Extent, *, scales: Buffer | None = None,
        replaces: bool = False,
    ) -> None:  # fmt: skip
        """Computes the sums of a group of rows and one row of vectors."""
        code, tile = self.body.index.code, (self.group_rows, VECTORS, self.lanes // VECTORS)
        counts = code(self.group_rows), code(terms)
        self.body.append(AddProducts(sums, left, right, *counts, *tile, scales, replaces))

    def _load(self, buffer: Buffer, place: Extent) -> Expression:
        return Load(buffer, self.body.index.code(place))

    # --- the softmax --------------------------------------------------------------------------------------------------

    def _weigh(self, group: Extent, row: Extent, start: Extent, counted: Extent, count: Extent) -> None:
        """Turns the scores of one row into logits and these into weights, and updates the row's state."""
        body, lanes, place = self.body, self.lanes // VECTORS, group + row
        position = self._bound("row", minimum(self.first + place, self.shape[-2] - 1), self.shape[-2])
        highest = self._filled("highest", _MINUS_INFINITY)
        first, lane = symbol("first_key", extent=KEYS), symbol("lane", extent=lanes)
        with body.loop(first, count, step=lanes), body.loop(lane, lanes, "vector"):
            logit = self._logit(position, row, start, first + lane, counted)
            both = call("maximum", self._load(highest, lane), logit)
            body.append(Store(highest, body.index.code(lane), both))
        new = Variable(body.fresh("new_largest"), float32)
        (old,) = body.name("old_largest", (self._load(self.largest, place),))
        body.append(Declare(new, old))
        with body.loop(lane, lanes, "vector"):
            body.append(Accumulate(new, "maximum", self._load(highest, lane)))
        self._weights(row, place, old, new, count)

    def _logit(self, position: Extent, row: Extent, start: Extent, key: Extent, counted: Extent) -> Expression:
        """Emits the operand of the softmax for one score, and stores it in place of the score."""
        body, place = self.body, row * KEYS + key
        coordinates = self._coordinates(position, start + key)
        with body.kept_inside():
            (score,) = body.name("score", (self._load(self.scores, place),))
            body.levels[-1].memo[self.match.scores, coordinates] = (score,)
            (value,) = body.value(self.match.logits, coordinates)
            counts = call("le", convert(body.index.code(counted), int32), convert(body.index.code(key), int32))
            counted_logit = call("select", counts, convert(value, float32), _MINUS_INFINITY)
            (logit,) = body.name("logit", (counted_logit,))
            body.append(Store(self.scores, body.index.code(place), logit))
        return logit

    def _weights(self, row: Extent, place: Extent, old: Expression, new: Variable, count: Extent) -> None:
        """Turns the logits of a row into weights, rounded as values are, and scales its state to the new maximum."""
        body, lanes = self.body, self.lanes // VECTORS
        (shift,) = body.name("shift", (call("select", call("eq", new, _MINUS_INFINITY), _ZERO, new),))
        (scale,) = body.name("scale", (call("exp", call("sub", old, shift)),))
        dtype = self.problem.fusion.values[self.match.value.number].dtype
        totals = self._filled("sums", _ZERO)
        first, lane = symbol("first_key", extent=KEYS), symbol("lane", extent=lanes)
        with body.loop(first, count, step=lanes), body.loop(lane, lanes, "vector"):
            at = row * KEYS + first + lane
            (weight,) = body.name("weight", (call("exp", call("sub", self._load(self.scores, at), shift)),))
            both = call("add", self._load(totals, lane), weight)
            body.append(Store(totals, body.index.code(lane), both))
            rounded = convert(convert(weight, dtype), float32)
            body.append(Store(self.scores, body.index.code(at), rounded))
        total = Variable(body.fresh("total"), float32)
        body.append(Declare(total, _ZERO))
        with body.loop(lane, lanes, "vector"):
            body.append(Accumulate(total, "add", self._load(totals, lane)))
        at_row = body.index.code(place)
        body.append(Assign(total, call("add", call("mul", Load(self.total, at_row), scale), total)))
        for buffer, index, value in (
            (self.total, at_row, total), (self.largest, at_row, new), (self.scale, body.index.code(row), scale)
        ):  # fmt: skip
            body.append(Store(buffer, index, value))

    # --- results ------------------------------------------------------------------------------------------------------

    def _coordinates(self, row: Extent, *more: Extent) -> Shape:
        """Returns coordinates of the scores, or of a row of them, with 0 on axes of extent 1, where values are read."""
        at = (*self.stack, row, *more)
        return tuple(0 if extent == 1 else c for c, extent in zip(at, self.shape, strict=False))

    def _row_at(self, number: int, row: Extent) -> Shape:
        """Returns the coordinates of a value with one element a row."""
        keeps = len(self.problem.fusion.shape_of(number)) == len(self.shape)
        return (*self._coordinates(row), *((0,) if keeps else ()))

    def _finish(self) -> None:
        """Stores the results of the rows of the chunk."""
        body, match = self.body, self.match
        place = symbol("place", extent=QUERIES)
        with body.loop(place, self.rows):
            row = self._bound("row", self.first + place, self.shape[-2])
            scale = self._scale_of(row, place)
            column = symbol("column", extent=self.features[match.value])
            with body.loop(column, self.features[match.value], "vector"):
                value = call("mul", self._load(self.sums, place * self.wide + column), scale)
                at = (*self._coordinates(row), column)
                store_at(self.problem, body, match.result, tuple(at[axis] for axis in match.order), value)
            for number in match.outputs:
                if number != match.result:
                    (of_row,) = body.value(number, self._row_at(number, row))
                    store_at(self.problem, body, number, self._row_at(number, row), of_row)

    def _scale_of(self, row: Extent, place: Extent) -> Expression:
        """Emits the values with one element a row; returns what the weighted values of a row are multiplied by."""
        body, match = self.body, self.match
        memo = body.levels[-1].memo
        largest, total = (self._load(buffer, place) for buffer in (self.largest, self.total))
        largest, total = body.name("row_state", (largest,))[0], body.name("row_state", (total,))[0]
        (shift,) = body.name("shift", (call("select", call("eq", largest, _MINUS_INFINITY), _ZERO, largest),))
        if match.maximum is not None:
            memo[match.maximum, self._row_at(match.maximum, row)] = (largest,)
        shifted: Expression = shift
        if match.shift is not None:
            (subtracted,) = body.value(match.shift, self._row_at(match.shift, row))
            shifted = call("sub", shift, convert(subtracted, float32))
        (factor,) = body.name("factor", (call("exp", shifted),))
        (complete,) = body.name("sum", (call("mul", total, factor),))
        memo[match.total, self._row_at(match.total, row)] = (complete,)
        scale: Expression = factor
        if match.divisor == match.total and not match.inverted:
            scale = call("div", Constant(1.0, float32), total)
        elif match.divisor is not None:
            (divisor,) = body.value(match.divisor, self._row_at(match.divisor, row))
            scale = call("mul" if match.inverted else "div", factor, convert(divisor, float32))
        return body.name("scale", (scale,))[0]


def _rounded(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple
