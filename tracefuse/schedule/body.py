"""The body of a kernel: emits the elements that are asked for, at the coordinates asked for, into open loops.

`Body.value(number, coordinates)` gives kernel expressions for one element of a value, or for `lanes` neighbouring ones,
pulling what it needs from its operands. Each (value, coordinates) is computed once in its scope, in the outermost open
loop that knows all of its coordinates. Templates open loops, declare accumulators and ask; this module emits. What is
begun and waits for an operand is on a stack of generators, since programs are deeper than Python's calls may be.

Knows: ops by their kind, index maps, kernel IR. Must not know: how a template lays its loops out, sizes, devices.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping

from tracefuse.dtypes import DType, bool_, int64, uint64
from tracefuse.errors import InternalError
from tracefuse.ir.data_positions import number_of
from tracefuse.ir.extents import Expression as IndexExpression
from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import position_of, reduces, sources
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction, Source
from tracefuse.kernel.kernel_ir import Accumulate, Comment, Constant, Expression, Variable, call
from tracefuse.kernel.scalar_code import Term, apply, constant, convert
from tracefuse.rounding import round_to_half
from tracefuse.schedule.accesses import Accesses
from tracefuse.schedule.operand_choice import Selection, open_options
from tracefuse.schedule.scopes import Key, Lanes, LanesNotPossible, Level, Making
from tracefuse.source import text_at

NOTED = Variable("noted", int64)
"""In a kernel that notes positions outside their axis: the largest number of a node that has one, or 0."""

_ASKED = symbol("asked")
"""Stands for a coordinate that data decides, until what decides it is emitted."""


class Body(Accesses):
    """The values of a fusion, element by element, emitted into the open scopes.

    The parameters are those of `Accesses`, and
    notes_positions: positions outside their axis are noted in the variable NOTED; noted: the nodes of which they are.
    """

    def __init__(
        self, fusion: Fusion, strides: Mapping[int, Shape], index_dtype: DType, *, lanes: int = 1,
        aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
        shared: frozenset[int] = frozenset(), notes_positions: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            fusion, strides, index_dtype, lanes=lanes, aligned=aligned, misaligned=misaligned, shared=shared
        )
        self.outputs = frozenset(fusion.outputs)
        self.producers = fusion.producers
        self.notes_positions = notes_positions
        self.noted: dict[int, Node] = {}
        self._where: str | None = None

    def narrow(self) -> Body:
        """A body for one element at a time that emits into the current scope of this one and shares its parameters."""
        body = Body(self.fusion, self.strides, self.index.dtype, misaligned=self.misaligned, shared=self.shared)
        body.index, body.buffers, body.scalars, body.counter = self.index, self.buffers, self.scalars, self.counter
        body.levels = [Level(self.levels[-1].statements)]
        return body

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, number: int, coordinates: Shape) -> Lanes:
        """The element of value `number` at `coordinates`, in its arithmetic type: one expression, or one per lane."""
        key = (number, coordinates)
        begun: list[tuple[Key, Making, list[Level]]] = []
        lanes = self._found(key)
        if lanes is None:
            begun.append(self._begin(key))
        while begun:
            key, making, outside = begun[-1]
            try:
                wanted = next(making) if lanes is None else making.send(lanes)
            except StopIteration as done:
                lanes = done.value
                self.levels[-1].memo[key] = done.value
                self.levels = outside
                begun.pop()
                continue
            lanes = self._found(wanted)
            if lanes is None:
                begun.append(self._begin(wanted))
        assert lanes is not None
        return lanes

    def _found(self, key: Key) -> Lanes | None:
        """What was emitted for a value where the open scopes see it."""
        return next((level.memo[key] for level in reversed(self.levels) if key in level.memo), None)

    def _begin(self, key: Key) -> tuple[Key, Making, list[Level]]:
        """Goes to the scope where a value belongs, and returns how it is made with the scopes to go back to."""
        outside = self.levels
        self.levels = outside[: self.home(key[1]) + 1]
        return key, self._make(key), outside

    def _make(self, key: Key) -> Making:
        number, coordinates = key
        if key in self.cached:
            return self.name(f"v{number}", self.recall(*self.cached[key]))
        node = self.producers.get(number)
        if node is None:
            is_tensor = self.fusion.values[number].is_tensor
            return self.load(number, coordinates) if is_tensor else (self.scalar(number),)
        if isinstance(node.op, Pointwise):
            lanes = yield from self._pointwise(node, coordinates)
        elif isinstance(node.op, Reduction):
            lanes = yield from self._one_element(node, node.op, coordinates)
        else:
            lanes = yield from self._moved(node, coordinates)
        lanes = self._named(node, number, lanes)
        self.keep(key, lanes)
        return lanes

    def _named(self, node: Node, number: int, lanes: Lanes) -> Lanes:
        """A half that the user cast to, or that is stored as an output, is read on in its rounded form."""
        dtype = self.fusion.values[number].dtype
        cast = isinstance(node.op, Pointwise) and node.op.result == "dtype"
        if dtype.is_half and (cast or number in self.outputs):
            return self.rounded(f"v{number}", lanes, dtype)
        return self.name(f"v{number}", lanes)

    def _remark(self, node: Node) -> None:
        if node.where is not None and node.where != self._where:
            self._where = node.where
            self.append(Comment(f"{node.where}  {text_at(node.where)}".rstrip()))

    # --- pointwise --------------------------------------------------------------------------------------------------

    def _pointwise(self, node: Node, coordinates: Shape) -> Making:
        op = node.op
        assert isinstance(op, Pointwise)
        operands: list[Lanes] = []
        for source in sources(self.fusion, node, coordinates, self._no_index):
            operand = yield from self._operand(node, source.operand, source.coordinates)
            operands.append(operand)
        self._remark(node)
        width = max((len(o) for o in operands), default=1)
        names: dict[str, Lanes] = {"abcdefgh"[k]: o for k, o in enumerate(operands)}
        names |= {k: (self.index.code(v),) for k, v in node.attributes.items() if isinstance(v, int | IndexExpression)}
        position = position_of(self.fusion, node, coordinates)
        if position is not None:
            index = self.per_lane(position, lambda at: convert(at, node.compute.compute))
            names["index"], width = index, max(width, len(index))
        result = []
        for lane in range(width):
            terms = {k: v[lane if len(v) > 1 else 0] for k, v in names.items()}
            out = apply(op.code(node.compute), terms, op.arithmetic(node.compute), self._step)
            result.append(_read_on(out, self.fusion.values[node.outputs[0]].dtype))
        return tuple(result)

    def _step(self, name: str, expression: Expression) -> Expression:
        """A named step of a row's code."""
        return self.name("step", (expression,))[0]

    def _one_element(self, node: Node, op: Reduction, coordinates: Shape) -> Making:
        """A reduction over axes of extent 1 alone: the element itself, lifted and finished."""
        if reduces(self.fusion, node):
            raise InternalError(f"{op.name} is read at {coordinates}, which no loop has reduced")
        (source,) = sources(self.fusion, node, coordinates, self._no_index)
        types = op.state(node.compute)
        result = []
        elements = yield from self._operand(node, 0, source.coordinates)
        for element in elements:
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

    def _operand(self, node: Node, position: int, coordinates: Shape) -> Making:
        """An operand in the type that the node computes in."""
        operand, op = node.operands[position], node.op
        target = op.arithmetic(node.compute) if isinstance(op, Pointwise) else node.compute.compute
        if isinstance(op, Pointwise) and op.promotion == "where" and position == 0:
            target = bool_
        if isinstance(operand, Literal):
            return (constant(_moved_number(operand.value, node), target),)
        lanes = yield operand, coordinates
        if isinstance(op, Reduction) or (isinstance(op, Pointwise) and op.result == "dtype"):
            return lanes
        if isinstance(op, Movement):
            return tuple(_read_on(e, node.compute) for e in lanes)
        return tuple(convert(e, target) for e in lanes)

    # --- movement ---------------------------------------------------------------------------------------------------

    def _moved(self, node: Node, coordinates: Shape) -> Making:
        op = node.op
        if not isinstance(op, Movement):
            raise InternalError(f"{op.name} has no place in a kernel")
        pulled = yield from self._sources(node, coordinates)
        options = open_options(pulled)
        if options and not options[0][1]:
            lanes = yield from self._operand(node, options[0][0].operand, options[0][0].coordinates)
            return lanes
        self._remark(node)
        operand = functools.partial(self._operand, node)
        lanes = yield from Selection(self, node, self._arithmetic(node.outputs[0]), operand).among(options)
        return lanes

    def _sources(self, node: Node, coordinates: Shape) -> Generator[Key, Lanes, tuple[Source, ...]]:
        """The sources of an element; what decides a coordinate is emitted first, so the op is asked once more then."""
        taken: dict[Key, Extent] = {}
        while True:
            asked: list[Key] = []

            def index_of(position: int, at: Shape, asked: list[Key] = asked) -> Extent:
                if (position, at) not in taken:
                    asked.append((position, at))
                return taken.get((position, at), _ASKED)

            found = sources(self.fusion, node, coordinates, index_of)
            if not asked:
                return found
            for position, at in asked:
                taken[position, at] = yield from self._taken(node, position, at)

    def _taken(self, node: Node, position: int, coordinates: Shape) -> Generator[Key, Lanes, Extent]:
        """An index operand's element as a coordinate: wrapped once where negative, and kept inside the axis."""
        operand = node.operands[position]
        lanes: Lanes
        if isinstance(operand, Literal):
            lanes = (constant(operand.value, int64),)
        else:
            lanes = yield operand, coordinates
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
        self.levels = above[: self.home(coordinates) + 1]
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
        self.levels[self.home(coordinates)].statements.append(Accumulate(NOTED, "maximum", value))


def _read_on(expression: Expression, dtype: DType) -> Expression:
    """A result of type `dtype` in its arithmetic type: what float32 may not hold is rounded to a half type at once."""
    if dtype.is_half and expression.dtype.itemsize >= 4 and expression.dtype is not dtype.compute:
        expression = convert(expression, dtype)
    return convert(expression, dtype.compute)


def _moved_number(value: bool | int | float | complex, node: Node) -> bool | int | float | complex:
    """A number that a movement op fills in; in a half type it is rounded once, from the number itself."""
    if isinstance(node.op, Movement) and node.compute.is_half:
        return float(round_to_half(value.real, node.compute))
    return value


def _signed(position: Expression) -> Expression:
    """A position as int64; unsigned ones that it does not hold stay beyond every axis."""
    if position.dtype is uint64:
        position = call("minimum", position, Constant(2**63 - 1, uint64))
    return convert(position, int64)
