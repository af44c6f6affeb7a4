"""The body of a kernel: emits requested elements at given coordinates into the open loops.

`Body.value(number, coordinates)` returns kernel expressions for one element of a value, or for `lanes` adjacent
elements, and emits the operands on demand. Each (value, coordinates) is computed once per scope, in the outermost open
loop that defines all of its coordinates. Templates open loops, declare accumulators and request values; this module
emits them. Values that wait for an operand are on an explicit stack of generators, since a program may be deeper than
Python's recursion limit.

Must not know: sizes, devices.
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
from tracefuse.ir.scan_kind import Scan, scans
from tracefuse.kernel import primitives
from tracefuse.kernel.kernel_ir import Accumulate, Comment, Constant, Expression, Variable, call
from tracefuse.kernel.scalar_code import Term, apply, constant, convert
from tracefuse.rounding import round_to_half
from tracefuse.schedule.accesses import Accesses
from tracefuse.schedule.operand_choice import Selection, open_options
from tracefuse.schedule.scopes import Emitter, Key, Lanes, LanesNotPossible, Level
from tracefuse.source import text_at

POSITION_ERROR = Variable("position_error", int64)
"""In a kernel that checks indices: the largest number of a node with an out-of-range index, or 0."""

_REQUESTED = symbol("requested")
"""Placeholder for a data-dependent coordinate until its index operand is emitted."""


class Body(Accesses):
    """Emits the values of a fusion, element by element, into the open scopes.

    Takes the parameters of `Accesses`, and
    checks_positions: record out-of-range indices in POSITION_ERROR. checked_nodes: the nodes that it checks, by number.
    position_dtype: of the positions in states of reductions.
    """

    def __init__(
        self, fusion: Fusion, strides: Mapping[int, Shape], index_dtype: DType, *, lanes: int = 1,
        aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
        shared: frozenset[int] = frozenset(), checks_positions: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            fusion, strides, index_dtype, lanes=lanes, aligned=aligned, misaligned=misaligned, shared=shared
        )
        self.outputs = frozenset(fusion.outputs)
        self.producers = fusion.producers
        self.checks_positions = checks_positions
        self.checked_nodes: dict[int, Node] = {}
        self.position_dtype = int64
        self._where: str | None = None

    def narrow(self) -> Body:
        """Returns a body with one lane that emits into the current scope and shares this body's parameters."""
        body = self.beside()
        body.levels = [Level(self.levels[-1].statements)]
        return body

    def beside(self) -> Body:
        """Returns a body with one lane for other elements, which emits into the open scopes and sees their values."""
        body = Body(self.fusion, self.strides, self.index.dtype, misaligned=self.misaligned, shared=self.shared)
        body.index, body.buffers, body.scalars, body.counter = self.index, self.buffers, self.scalars, self.counter
        body.position_dtype, body.levels = self.position_dtype, list(self.levels)
        return body

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, number: int, coordinates: Shape) -> Lanes:
        """Emits the element of value `number` at `coordinates`, in its arithmetic type.

        Returns one expression if all lanes share it, else one per lane.
        """
        key = (number, coordinates)
        pending: list[tuple[Key, Emitter, list[Level]]] = []
        lanes = self._find(key)
        if lanes is None:
            pending.append(self._begin(key))
        while pending:
            key, emitter, outside = pending[-1]
            try:
                operand = next(emitter) if lanes is None else emitter.send(lanes)
            except StopIteration as done:
                lanes = done.value
                self.levels[-1].memo[key] = done.value
                self.levels = outside
                pending.pop()
                continue
            lanes = self._find(operand)
            if lanes is None:
                pending.append(self._begin(operand))
        assert lanes is not None
        return lanes

    def _find(self, key: Key) -> Lanes | None:
        """Returns the emitted expressions of a value that the open scopes can see, or None."""
        for level in reversed(self.levels):
            if key in level.memo:
                return level.memo[key]
        for level in reversed(self.levels):
            known = self._known_reduction(key, level.memo)
            if known is not None:
                return level.memo[known]
        return None

    def _known_reduction(self, key: Key, table: Mapping[Key, object]) -> Key | None:
        """Returns the key in a table of the same result of a reduction, whose coordinates may have another form.

        A region reads such a result at one element, which `Probe` checks; but a reshape between the reduction and its
        reader merges indices and splits them again. A reduction of one element for each result is read at any.
        """
        node = self.producers.get(key[0])
        if node is None or not isinstance(node.op, Reduction) or not reduces(self.fusion, node):
            return None
        same_value = [other for other in table if other[0] == key[0]]
        return same_value[0] if len(same_value) == 1 else None

    def _begin(self, key: Key) -> tuple[Key, Emitter, list[Level]]:
        """Enters the scope that a value belongs to; returns its emitter and the scopes to restore."""
        outside = self.levels
        self.levels = outside[: self.home(key[1]) + 1]
        return key, self._emit(key), outside

    def _emit(self, key: Key) -> Emitter:
        number, coordinates = key
        cached = key if key in self.cached else self._known_reduction(key, self.cached)
        if cached is not None:
            return self.name(f"v{number}", self.recall(*self.cached[cached]))
        if 0 in self.fusion.shape_of(number):
            # The loops around it never run. Read at a coordinate of no loop, it would be read before them.
            return (constant(0, self._arithmetic(number)),)
        node = self.producers.get(number)
        if node is None:
            is_tensor = self.fusion.values[number].is_tensor
            return self.load(number, coordinates) if is_tensor else (self.scalar(number),)
        if isinstance(node.op, Pointwise):
            lanes = yield from self._pointwise(node, coordinates)
        elif isinstance(node.op, Reduction):
            lanes = yield from self._one_element(node, node.op, coordinates)
        elif isinstance(node.op, Scan):
            lanes = yield from self._first_element(node, coordinates)
        else:
            lanes = yield from self._movement(node, coordinates)
        lanes = self._bind(node, number, lanes)
        self.keep(key, lanes)
        return lanes

    def _bind(self, node: Node, number: int, lanes: Lanes) -> Lanes:
        """Binds a value to variables; consumers read the rounded value of a half that is a cast or an output."""
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

    def _pointwise(self, node: Node, coordinates: Shape) -> Emitter:
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
            if op.refused is not None and self.checks_positions:
                refused = apply(op.refused, terms, op.arithmetic(node.compute), self._step)
                self.report(node, refused, self.levels[-1])
            out = apply(op.code(node.compute), terms, op.arithmetic(node.compute), self._step)
            result.append(_to_arithmetic(out, self.fusion.values[node.outputs[0]].dtype))
        return tuple(result)

    def _step(self, name: str, expression: Expression) -> Expression:
        """Binds a named step of an op's scalar code."""
        return self.name("step", (expression,))[0]

    def _one_element(self, node: Node, op: Reduction, coordinates: Shape) -> Emitter:
        """Emits a reduction over axes of extent 1: the lift of its one element, then the final step."""
        if reduces(self.fusion, node):
            raise InternalError(f"{op.name} is read at {coordinates}, but no loop reduces it")
        (source,) = sources(self.fusion, node, coordinates, self._no_index)
        types = op.state(node.compute)
        result = []
        elements = yield from self._operand(node, 0, source.coordinates)
        for element in elements:
            names: dict[str, Term] = {"n": 1}
            for part, dtype in zip(op.state_parts, types, strict=True):
                lifted = convert(apply(part.lift, {"a": element, "index": 0}, element.dtype), dtype)
                # A sum starts at 0, so that of -0 is 0; a product of complex numbers at 1: that of inf is inf + nan j.
                start = {"add": "a + 0", "mul": "a * 1"}.get(op.combine, "")
                is_changed = bool(start) and (dtype.is_complex or (op.combine == "add" and not dtype.is_integer))
                names[part.name] = apply(start, {"a": lifted}, dtype) if is_changed else lifted
            result.append(convert(apply(op.final, names, types[0]), self._arithmetic(node.outputs[0])))
        return tuple(result)

    def _first_element(self, node: Node, coordinates: Shape) -> Emitter:
        """Emits a scan along an axis of extent 1: its one element. A template defines all other scans."""
        if scans(self.fusion, node):
            raise InternalError(f"{node.op.name} is read at {coordinates}, but no loop scans it")
        lanes = yield from self._operand(node, 0, coordinates)
        return tuple(convert(e, self._arithmetic(node.outputs[0])) for e in lanes)

    def _arithmetic(self, number: int) -> DType:
        return self.fusion.values[number].dtype.compute

    def _no_index(self, operand: int, coordinates: Shape) -> Extent:
        raise InternalError("a pointwise op has no index operand")

    def _operand(self, node: Node, position: int, coordinates: Shape) -> Emitter:
        """Emits an operand in the node's compute type."""
        operand, op = node.operands[position], node.op
        target = op.arithmetic(node.compute) if isinstance(op, Pointwise) else node.compute.compute
        if isinstance(op, Pointwise) and op.promotion == "where" and position == 0:
            target = bool_
        if isinstance(operand, Literal):
            return (constant(_fill_number(operand.value, node), target),)
        lanes = yield operand, coordinates
        if isinstance(op, Reduction) or (isinstance(op, Pointwise) and op.result == "dtype"):
            return lanes
        if isinstance(op, Movement):
            return tuple(_to_arithmetic(e, node.compute) for e in lanes)
        return tuple(convert(e, target) for e in lanes)

    # --- movement ---------------------------------------------------------------------------------------------------

    def _movement(self, node: Node, coordinates: Shape) -> Emitter:
        op = node.op
        if not isinstance(op, Movement):
            raise InternalError(f"{op.name} cannot be emitted in a kernel")
        options = open_options((yield from self._sources(node, coordinates)))
        if options and not options[0][1]:
            lanes = yield from self._operand(node, options[0][0].operand, options[0][0].coordinates)
            return lanes
        self._remark(node)
        operand = functools.partial(self._operand, node)
        lanes = yield from Selection(self, node, self._arithmetic(node.outputs[0]), operand).among(options)
        return lanes

    def _sources(self, node: Node, coordinates: Shape) -> Generator[Key, Lanes, tuple[Source, ...]]:
        """Returns the sources of an element. Emits index operands first, then evaluates the index map again."""
        indices: dict[Key, Extent] = {}
        while True:
            requested: list[Key] = []

            def index_of(position: int, at: Shape, requested: list[Key] = requested) -> Extent:
                if (position, at) not in indices:
                    requested.append((position, at))
                return indices.get((position, at), _REQUESTED)

            result = sources(self.fusion, node, coordinates, index_of)
            if not requested:
                return result
            for position, at in requested:
                indices[position, at] = yield from self._index(node, position, at)

    def _index(self, node: Node, position: int, coordinates: Shape) -> Generator[Key, Lanes, Extent]:
        """Emits an element of an index operand as a coordinate: a negative index wraps once, then it is clamped."""
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
        wrapped: Expression = call("select", call("lt", raw, zero), call("add", raw, limit), raw)
        last = call("sub", limit, Constant(1, int64))
        above = self.levels
        self.levels = above[: self.home(coordinates) + 1]
        if self.checks_positions:
            (wrapped,) = self.name("position", (wrapped,))
            inside: Expression = _at_most(wrapped, last)
        else:
            inside = call("minimum", call("maximum", wrapped, zero), last)
        index = symbol(self.fresh("taken"), extent=extent)
        self.bind(index, convert(inside, self.index.dtype))
        if self.checks_positions:
            self.report(node, call("ne", convert(self.index.code(index), int64), wrapped), self.levels[-1])
        self.levels = above
        return index

    def report(self, node: Node, condition: Expression, level: Level) -> None:
        """Sets POSITION_ERROR to the node's number if the condition holds."""
        number = number_of(node)
        self.checked_nodes[number] = node
        value = call("select", condition, Constant(number, int64), Constant(0, int64))
        level.statements.append(Accumulate(POSITION_ERROR, "maximum", value))


def _to_arithmetic(expression: Expression, dtype: DType) -> Expression:
    """Converts a result of type `dtype` to its arithmetic type; rounds to a half type first if float32 is inexact."""
    if dtype.is_half and expression.dtype.itemsize >= 4 and expression.dtype is not dtype.compute:
        expression = convert(expression, dtype)
    return convert(expression, dtype.compute)


def _fill_number(value: bool | int | float | complex, node: Node) -> bool | int | float | complex:
    """Returns the fill value of a movement op; for a half type it is rounded once, from the exact number.

    A float that fills integers becomes one as in the casts of kernels: it saturates, and NaN is 0.
    """
    if isinstance(node.op, Movement) and node.compute.is_half:
        return float(round_to_half(value.real, node.compute))
    if isinstance(node.op, Movement) and node.compute.is_integer and isinstance(value, (float, complex)):
        return int(primitives.convert(value, node.compute))
    return value


def _at_most(position: Expression, last: Expression) -> Expression:
    """Returns a position if it is from 0 to `last`, else `last`; in one comparison, as negative ones are large.

    No position is outside of an empty axis, from which nothing is taken, but a pad may leave elements out.
    """
    return convert(call("minimum", convert(position, uint64), convert(last, uint64)), int64)


def _signed(position: Expression) -> Expression:
    """Converts an index to int64; unsigned values above its range become 2**63 - 1, out of range for every axis."""
    if position.dtype is uint64:
        position = call("minimum", position, Constant(2**63 - 1, uint64))
    return convert(position, int64)
