"""The body of a kernel: emits the elements that are asked for, at the coordinates asked for, into open loops.

`Body.value(number, coordinates)` gives kernel expressions for one element of a value, or for `lanes` neighbouring ones,
pulling what it needs from its operands. Each (value, coordinates) is computed once in its scope, in the outermost open
loop that knows all of its coordinates. Templates open loops, declare accumulators and ask; this module emits.

Knows: ops by their kind, index maps, kernel IR. Must not know: how a template lays its loops out, sizes, devices.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tracefuse.dtypes import DType, bool_, int64, uint64
from tracefuse.errors import InternalError
from tracefuse.extents import Expression as IndexExpression
from tracefuse.extents import Extent, Symbol, as_symbol, is_nonnegative, substitute, symbol, symbols
from tracefuse.indexing import position_of, reduces, sources
from tracefuse.ir import Fusion, Literal, Node, Shape
from tracefuse.kernel.ir import (
    Accumulate,
    Allocate,
    Assign,
    Buffer,
    Comment,
    Constant,
    Copy,
    Declare,
    Expression,
    For,
    If,
    Let,
    Load,
    Statement,
    Store,
    Variable,
    call,
)
from tracefuse.ops.row import Movement, Pointwise, Reduction, Source, Within
from tracefuse.positions import number_of
from tracefuse.schedule.index_code import IndexCode
from tracefuse.schedule.scalar_code import Term, apply, constant, convert, is_trivial

WIDEST_ACCESS = 16
"""Bytes of the widest access of one thread, which is all that memory needs to be aligned to."""

NOTED = Variable("noted", int64)
"""In a kernel that notes positions outside their axis: the largest number of a node that has one, or 0."""

Lanes: TypeAlias = tuple[Expression, ...]
Key: TypeAlias = tuple[int, Shape]


class LanesNotPossible(Exception):
    """This body cannot be emitted for several lanes at once; the template tries again with one."""


@dataclass(slots=True)
class Level:
    """One open scope: its statements, the symbols that it introduces, and what it has computed."""

    statements: list[Statement] = field(default_factory=list)
    introduces: set[Symbol] = field(default_factory=set)
    memo: dict[Key, Lanes] = field(default_factory=dict)
    barrier: bool = False


class Body:
    """Emission into a stack of levels; level 0 is one iteration of the grid.

    strides: per tensor input, elements between neighbours along each axis. lanes: how many neighbouring elements are
    emitted at once; `lane` is the symbol that numbers them. aligned: inputs whose memory starts at a multiple of the
    wide access; misaligned: those whose elements are not at multiples of their size. shared: tensors that may be one
    array under two numbers.
    notes_positions: positions outside their axis are noted in the variable NOTED; noted: the nodes of which they are.
    streaming, streaming_stores (to be set): inputs of which nothing is read twice, and whether results give way in the
    caches to what is read.
    """

    def __init__(
        self, fusion: Fusion, strides: Mapping[int, Shape], index_dtype: DType, *, lanes: int = 1,
        aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
        shared: frozenset[int] = frozenset(), notes_positions: bool = False,
    ) -> None:  # fmt: skip
        self.fusion, self.strides, self.lanes = fusion, strides, lanes
        self.aligned, self.misaligned, self.shared = aligned, misaligned, shared
        self.lane = symbol("lane", extent=lanes)
        self._lane_symbol = as_symbol(self.lane)
        self.index = IndexCode(index_dtype)
        self.levels = [Level()]
        self.buffers: dict[int, Buffer] = {}
        self.scalars: dict[int, Variable] = {}
        self.outputs = frozenset(fusion.outputs)
        self.producers = fusion.producers
        self.notes_positions = notes_positions
        self.noted: dict[int, Node] = {}
        self.streaming: frozenset[int] = frozenset()
        self.streaming_stores = False
        self.cached: dict[Key, tuple[Buffer, Extent]] = {}
        self.to_cache: dict[Key, tuple[Buffer, Extent]] = {}
        self._counter = 0
        self._where: str | None = None

    # --- scopes -----------------------------------------------------------------------------------------------------

    def narrow(self) -> Body:
        """A body for one element at a time that emits into the current scope of this one and shares its parameters."""
        body = Body(self.fusion, self.strides, self.index.dtype, misaligned=self.misaligned, shared=self.shared)
        body.index, body.buffers, body.scalars, body._counter = self.index, self.buffers, self.scalars, self._counter
        body.levels = [Level(self.levels[-1].statements)]
        return body

    def append(self, statement: Statement) -> None:
        self.levels[-1].statements.append(statement)

    def fresh(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}_{self._counter}"

    @contextlib.contextmanager
    def loop(
        self, index: Extent, stop: Extent, kind: str = "serial", *, start: Extent = 0, step: Extent = 1
    ) -> Iterator[None]:
        """Opens `for index in range(start, stop, step)`; `index` is a symbol, whose own extent serves proofs.

        One symbol may be the index of several loops in turn; each gets a variable of its own.
        """
        found = as_symbol(index)
        assert found is not None
        bounds = [self.index.code(e) for e in (start, stop, step)]
        variable = self.index.bind(found, self.fresh(found.name))
        level = Level(introduces={found})
        self.levels.append(level)
        yield
        self.levels.pop()
        self.append(For(variable, bounds[0], bounds[1], bounds[2], kind, tuple(level.statements)))

    @contextlib.contextmanager
    def condition(self, test: Expression, introduces: Collection[Symbol] = ()) -> Iterator[None]:
        """Opens `if test`; nothing inside is moved out of it.

        introduces: the symbols that the test is about, where what does not depend on them is safe without it.
        """
        level = Level(introduces=set(introduces), barrier=not introduces)
        self.levels.append(level)
        yield
        self.levels.pop()
        self.append(If(test, tuple(level.statements)))

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """Opens the `else` of the condition that was closed last."""
        level = Level(barrier=True)
        self.levels.append(level)
        yield
        self.levels.pop()
        tested = self.levels[-1].statements.pop()
        assert isinstance(tested, If)
        self.append(replace(tested, orelse=tuple(level.statements)))

    def bind(self, index: Extent, value: Expression) -> None:
        """Names an integer computed in the kernel as `index`, a symbol that says what it stays below."""
        found = as_symbol(index)
        assert found is not None
        self.append(Let(self.index.bind(found, self.fresh(found.name)), value))
        self.levels[-1].introduces.add(found)

    def _home(self, coordinates: Sequence[Extent]) -> int:
        needed = {s for c in coordinates for s in symbols(c)}
        for position in range(len(self.levels) - 1, 0, -1):
            level = self.levels[position]
            if level.barrier or not needed.isdisjoint(level.introduces):
                return position
        return 0

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, number: int, coordinates: Shape) -> Lanes:
        """The element of value `number` at `coordinates`, in its arithmetic type: one expression, or one per lane."""
        key = (number, coordinates)
        for level in reversed(self.levels):
            found = level.memo.get(key)
            if found is not None:
                return found
        home = self._home(coordinates)
        above = self.levels
        self.levels = above[: home + 1]
        lanes = self._make(key)
        self.levels[-1].memo[key] = lanes
        self.levels = above
        return lanes

    def _make(self, key: Key) -> Lanes:
        number, coordinates = key
        if key in self.cached:
            buffer, index = self.cached[key]
            loaded = self._per_lane(index, lambda at: Load(buffer, at))
            return self.name(f"v{number}", tuple(convert(e, e.dtype.compute) for e in loaded))
        node = self.producers.get(number)
        if node is None:
            is_tensor = self.fusion.values[number].is_tensor
            return self._load_input(number, coordinates) if is_tensor else (self.scalar(number),)
        if isinstance(node.op, Pointwise):
            lanes = self._pointwise(node, coordinates)
        elif isinstance(node.op, Reduction):
            lanes = self._one_element(node, node.op, coordinates)
        else:
            lanes = self._moved(node, coordinates)
        lanes = self.name(f"v{number}", self._rounded(node, number, lanes))
        self.keep(key, lanes)
        return lanes

    def keep(self, key: Key, lanes: Lanes) -> None:
        """Stores a value that a later phase reads, where one was asked for."""
        target = self.to_cache.get(key)
        if target is not None:
            buffer, index = target
            for lane, expression in enumerate(self.spread(lanes)):
                at = self.index.code(self._at_lane(index, lane))
                self.append(Store(buffer, at, convert(expression, buffer.dtype)))

    def _rounded(self, node: Node, number: int, lanes: Lanes) -> Lanes:
        """A half that the user cast to, or that is stored as an output, is read on in its rounded form."""
        dtype = self.fusion.values[number].dtype
        cast = isinstance(node.op, Pointwise) and node.op.result == "dtype"
        if dtype.is_half and (cast or number in self.outputs):
            return tuple(convert(convert(e, dtype), dtype.compute) for e in lanes)
        return lanes

    def name(self, stem: str, lanes: Lanes) -> Lanes:
        """The lanes as named variables, so that each is computed once."""
        named: list[Expression] = []
        for expression in lanes:
            if is_trivial(expression):
                named.append(expression)
                continue
            variable = Variable(self.fresh(stem), expression.dtype)
            self.append(Let(variable, expression))
            named.append(variable)
        return tuple(named)

    def spread(self, lanes: Lanes) -> Lanes:
        """One expression per lane, also where all are the same."""
        return lanes if len(lanes) == self.lanes else lanes * self.lanes

    def scalar(self, number: int) -> Expression:
        """The kernel parameter of a host scalar, in its arithmetic type."""
        found = self.scalars.get(number)
        if found is None:
            found = self.scalars[number] = Variable(f"S{number}", self.fusion.values[number].dtype.compute)
        return found

    def _remark(self, node: Node) -> None:
        if node.where is not None and node.where != self._where:
            self._where = node.where
            self.append(Comment(node.where))

    # --- pointwise --------------------------------------------------------------------------------------------------

    def _pointwise(self, node: Node, coordinates: Shape) -> Lanes:
        op = node.op
        assert isinstance(op, Pointwise)
        operands = [
            self._operand(node, source.operand, source.coordinates)
            for source in sources(self.fusion, node, coordinates, self._no_index)
        ]
        self._remark(node)
        width = max((len(o) for o in operands), default=1)
        names: dict[str, Lanes] = {"abcdefgh"[k]: o for k, o in enumerate(operands)}
        names |= {k: (self.index.code(v),) for k, v in node.attributes.items() if isinstance(v, int | IndexExpression)}
        position = position_of(self.fusion, node, coordinates)
        if position is not None:
            index = self._per_lane(position, lambda at: convert(at, node.compute.compute))
            names["index"], width = index, max(width, len(index))
        result = []
        for lane in range(width):
            terms = {k: v[lane if len(v) > 1 else 0] for k, v in names.items()}
            out = apply(op.code(node.compute), terms, op.arithmetic(node.compute), self._step)
            result.append(convert(out, self._arithmetic(node.outputs[0])))
        return tuple(result)

    def _step(self, name: str, expression: Expression) -> Expression:
        """A named step of a row's code."""
        return self.name("step", (expression,))[0]

    def _one_element(self, node: Node, op: Reduction, coordinates: Shape) -> Lanes:
        """A reduction over axes of extent 1 alone: the element itself, lifted and finished."""
        if reduces(self.fusion, node):
            raise InternalError(f"{op.name} is read at {coordinates}, which no loop has reduced")
        (source,) = sources(self.fusion, node, coordinates, self._no_index)
        types = op.state(node.compute)
        result = []
        for element in self._operand(node, 0, source.coordinates):
            names: dict[str, Term] = {"n": 1}
            for part, dtype in zip(op.state_parts, types, strict=True):
                lifted = apply(part.lift, {"a": element, "index": 0}, element.dtype)
                names[part.name] = convert(lifted, dtype)
            result.append(convert(apply(op.final, names, types[0]), self._arithmetic(node.outputs[0])))
        return tuple(result)

    def _arithmetic(self, number: int) -> DType:
        return self.fusion.values[number].dtype.compute

    def _no_index(self, operand: int, coordinates: Shape) -> Extent:
        raise InternalError("a pointwise op has no index operand")

    def _operand(self, node: Node, position: int, coordinates: Shape) -> Lanes:
        """An operand in the type that the node computes in."""
        operand, op = node.operands[position], node.op
        target = op.arithmetic(node.compute) if isinstance(op, Pointwise) else node.compute.compute
        if isinstance(op, Pointwise) and op.promotion == "where" and position == 0:
            target = bool_
        if isinstance(operand, Literal):
            return (constant(operand.value, target),)
        lanes = self.value(operand, coordinates)
        if isinstance(op, Reduction) or (isinstance(op, Pointwise) and op.result == "dtype"):
            return lanes
        return tuple(convert(e, target) for e in lanes)

    # --- movement ---------------------------------------------------------------------------------------------------

    def _moved(self, node: Node, coordinates: Shape) -> Lanes:
        op = node.op
        if not isinstance(op, Movement):
            raise InternalError(f"{op.name} has no place in a kernel")

        def index_of(position: int, at: Shape) -> Extent:
            return self._taken(node, position, at)

        options = sources(self.fusion, node, coordinates, index_of)
        live = [(s, tests) for s in options if (tests := self._open_tests(s.conditions)) is not None]
        if live and not live[0][1]:
            return self._operand(node, live[0][0].operand, live[0][0].coordinates)
        self._remark(node)
        return self._selected(node, live)

    def _open_tests(self, conditions: Sequence[Within]) -> tuple[Within, ...] | None:
        """The conditions that are not proved; None where one is proved false."""
        unproved = []
        for test in conditions:
            if is_nonnegative(test.low - 1 - test.index) or is_nonnegative(test.index - test.high):
                return None
            if not (is_nonnegative(test.index - test.low) and is_nonnegative(test.high - 1 - test.index)):
                unproved.append(test)
        return tuple(unproved)

    def _selected(self, node: Node, options: list[tuple[Source, tuple[Within, ...]]]) -> Lanes:
        """The first option whose conditions hold, else the fill value: branches around the reads of each."""
        dtype = self._arithmetic(node.outputs[0])
        fill = constant(node.attributes.get("value", 0), dtype)
        uniform = all(self._whole(test) for _, tests in options for test in tests)
        reads_lanes = any(self._lane_symbol in set(symbols(c)) for s, _ in options for c in s.coordinates)
        width = self.lanes if reads_lanes or not uniform else 1
        variables = [Variable(self.fresh(f"v{node.outputs[0]}"), dtype) for _ in range(width)]
        for variable in variables:
            self.append(Declare(variable, fill))
        for lane, targets in [(None, variables)] if uniform else [(k, [v]) for k, v in enumerate(variables)]:
            self._choose(node, [self._source_at(s, tests, lane) for s, tests in options], targets, dtype, {})
        return tuple(variables)

    def _source_at(self, source: Source, tests: Sequence[Within], lane: int | None) -> Source:
        """A source with the conditions that are left to test; for one lane, which reads for itself alone."""
        if lane is None:
            return replace(source, conditions=tuple(self._test_at(t, 0) for t in tests))
        at = tuple(self._at_lane(c, lane) for c in source.coordinates)
        return Source(source.operand, at, tuple(self._test_at(t, lane) for t in tests))

    def _test_at(self, test: Within, lane: int) -> Within:
        return Within(*(self._at_lane(e, lane) for e in (test.index, test.low, test.high)))

    def _choose(
        self, node: Node, options: Sequence[Source], targets: Sequence[Variable], dtype: DType,
        reached: Mapping[Extent, Extent],
    ) -> None:  # fmt: skip
        """Assigns the first option whose conditions hold, the rest in its `else`.

        reached: what an index is at least, since the options before were not taken: the parts of a concatenation
        follow one another, so that each but the last needs one comparison.
        """
        for position, source in enumerate(options):
            tests = self._open_tests(source.conditions)
            if tests is None:
                continue
            parts = self._comparisons(tests, reached)
            if not parts:
                self._assign(node, source, targets, dtype)
                return
            with self.condition(functools.reduce(lambda a, b: call("and", a, b), parts)):
                self._assign(node, source, targets, dtype)
            rest = options[position + 1 :]
            if rest:
                passed = len(tests) == 1 and _is_reached(tests[0], reached)
                beyond = {tests[0].index: tests[0].high} if passed else {}
                with self.otherwise():
                    self._choose(node, rest, targets, dtype, {**reached, **beyond})
            return

    def _assign(self, node: Node, source: Source, targets: Sequence[Variable], dtype: DType) -> None:
        lanes = self._operand(node, source.operand, source.coordinates)
        for position, target in enumerate(targets):
            self.append(Assign(target, convert(lanes[position if len(lanes) > 1 else 0], dtype)))

    def _comparisons(self, tests: Sequence[Within], reached: Mapping[Extent, Extent]) -> list[Expression]:
        """What is left to compare of some conditions."""
        parts: list[Expression] = []
        for test in tests:
            if not _is_reached(test, reached):
                parts.append(self.index.compare("le", test.low, test.index))
            if not is_nonnegative(test.high - 1 - test.index):
                parts.append(self.index.compare("lt", test.index, test.high))
        return parts

    def _whole(self, test: Within) -> bool:
        """Whether the test has one answer for all lanes: it is about multiples of the number of lanes."""
        if self.lanes == 1:
            return True
        start = self._at_lane(test.index, 0)
        moves = test.index - start
        if moves == 0:
            return self._lane_symbol not in set(symbols(test.low)) | set(symbols(test.high))
        return moves == self.lane and all(self.is_multiple(e) for e in (start, test.low, test.high))

    def _taken(self, node: Node, position: int, coordinates: Shape) -> Extent:
        """An index operand's element as a coordinate: wrapped once where negative, and kept inside the axis."""
        operand = node.operands[position]
        lanes = (constant(operand.value, int64),) if isinstance(operand, Literal) else self.value(operand, coordinates)
        if len(lanes) > 1:
            raise LanesNotPossible
        extent = self.fusion.shape_of(node.operands[0])[node.attributes["dim"]]
        limit = convert(self.index.code(extent), int64)
        raw = _signed(lanes[0])
        zero = Constant(0, int64)
        if self.notes_positions:
            self._note(node, raw, limit, coordinates)
        wrapped = call("select", call("lt", raw, zero), call("add", raw, limit), raw)
        inside = call("minimum", call("maximum", wrapped, zero), call("sub", limit, Constant(1, int64)))
        above = self.levels
        self.levels = above[: self._home(coordinates) + 1]
        index = symbol(self.fresh("taken"), extent=extent)
        self.bind(index, convert(inside, self.index.dtype))
        self.levels = above
        return index

    def _note(self, node: Node, raw: Expression, limit: Expression, coordinates: Shape) -> None:
        """Notes the node where a position of it is outside."""
        number = number_of(node)
        self.noted[number] = node
        outside = call("or", call("lt", raw, call("neg", limit)), call("ge", raw, limit))
        value = call("select", outside, Constant(number, int64), Constant(0, int64))
        self.levels[self._home(coordinates)].statements.append(Accumulate(NOTED, "maximum", value))

    # --- memory -----------------------------------------------------------------------------------------------------

    def offset(self, number: int, coordinates: Shape) -> Extent:
        """The position in memory, in elements from the first, of an input's element."""
        total: Extent = 0
        for coordinate, stride in zip(coordinates, self.strides[number], strict=True):
            total = total + coordinate * stride
        return total

    def buffer_of(self, number: int, *, written: bool = False) -> Buffer:
        """The parameter for a tensor that crosses the kernel's border."""
        found = self.buffers.get(number)
        if found is None:
            dtype = self.fusion.values[number].dtype
            wide = max(min(self.lanes * dtype.itemsize, WIDEST_ACCESS), dtype.itemsize)
            alignment = wide if number in self.aligned else dtype.itemsize
            packed = number in self.misaligned
            found = self.buffers[number] = Buffer(
                f"T{number}",
                dtype,
                written=written,
                alignment=1 if packed else alignment,
                packed=packed,
                exclusive=number not in self.shared,
            )
        return found

    def _load_input(self, number: int, coordinates: Shape) -> Lanes:
        buffer, offset = self.buffer_of(number), self.offset(number, coordinates)
        cache = "streaming" if number in self.streaming else "default"
        target = self.to_cache.get((number, coordinates))
        start = self._at_lane(offset, 0)
        if self.lanes > 1 and offset - start == self.lane and self.is_multiple(start) and number in self.aligned:
            if target is None:
                held = Buffer(self.fresh(f"x{number}"), buffer.dtype, "local", self.lanes)
                self.append(Allocate(held))
                at: Extent = self.lane
            else:
                held, at = target
            first = self.index.code(self._at_lane(at, 0))
            self.append(Copy(held, first, buffer, self.index.code(start), self.lanes, cache))
            lanes = self._per_lane(at, lambda index: Load(held, index))
        else:
            lanes = self._per_lane(offset, lambda index: Load(buffer, index, cache))
            if target is not None:
                lanes = self.name(f"x{number}", lanes)
                self.keep((number, coordinates), lanes)
        return self.name(f"v{number}", tuple(convert(e, e.dtype.compute) for e in lanes))

    def store(self, buffer: Buffer, offset: Extent, lanes: Lanes, *, aligned: bool = False) -> None:
        """Writes the lanes at `offset` and what follows, as one wide access where memory allows."""
        start = self._at_lane(offset, 0)
        cache = "streaming" if self.streaming_stores else "default"
        shared = self.lanes > 1 and start == offset  # all lanes are about one element
        spread = tuple(convert(e, buffer.dtype) for e in (lanes[:1] if shared else self.spread(lanes)))
        if self.lanes > 1 and aligned and offset - start == self.lane and self.is_multiple(start):
            held = Buffer(self.fresh("y"), buffer.dtype, "local", self.lanes)
            self.append(Allocate(held))
            for lane, expression in enumerate(spread):
                self.append(Store(held, self.index.code(lane), expression))
            self.append(Copy(buffer, self.index.code(start), held, self.index.code(0), self.lanes, cache))
            return
        for lane, expression in enumerate(spread):
            self.append(Store(buffer, self.index.code(self._at_lane(offset, lane)), expression, cache))

    # --- lanes ------------------------------------------------------------------------------------------------------

    def _at_lane(self, extent: Extent, lane: int) -> Extent:
        return extent if self.lanes == 1 and lane else substitute(extent, {self._lane_symbol: lane})

    def integers(self, extent: Extent) -> Lanes:
        """An integer as data, for each lane where the lanes differ in it."""
        return self._per_lane(extent, lambda at: convert(at, int64))

    def _per_lane(self, extent: Extent, make: Callable[[Expression], Expression]) -> Lanes:
        if self._lane_symbol not in set(symbols(extent)):
            return (make(self.index.code(extent)),)
        return tuple(make(self.index.code(self._at_lane(extent, lane))) for lane in range(self.lanes))

    def is_multiple(self, extent: Extent) -> bool:
        """Whether `extent` is proved to be a multiple of the number of lanes: every coefficient is."""
        if isinstance(extent, int):
            return extent % self.lanes == 0
        return all(coefficient % self.lanes == 0 for _, coefficient in extent.terms)


def _signed(position: Expression) -> Expression:
    """A position as int64; unsigned ones that it does not hold stay beyond every axis."""
    if position.dtype is uint64:
        position = call("minimum", position, Constant(2**63 - 1, uint64))
    return convert(position, int64)


def _is_reached(test: Within, reached: Mapping[Extent, Extent]) -> bool:
    """Whether the index is proved to be at least the lower bound."""
    least = reached.get(test.index)
    return is_nonnegative(test.index - test.low) or (least is not None and is_nonnegative(least - test.low))
