"""Integers that an iteration of a recorded loop computes and then needs as sizes: `v[rows[i]:rows[i + 1]].sum()`.

While the iteration is recorded, such an integer is a symbol, as the counter of a loop is. When the recording ends,
everything that depends on the symbol becomes the body of an inner loop of one step. Before its step, the inner loop
reads the integers from what the iteration has computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import dataclass
from tracefuse import config, source
from tracefuse.dtypes import int64
from tracefuse.frontend.control_flow.carried_types import LeafType
from tracefuse.frontend.control_flow.iteration_conditions import in_place
from tracefuse.frontend.control_flow.sub_recording import operands_of, record_op
from tracefuse.frontend.tracer.record.cut_fusions import cut_fusion
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.control_flow import ControlFlow, RangeLoop
from tracefuse.ir.extents import Extent, Symbol, symbol, symbol_of, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape, Type, Value
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.subfusion import extents_in
from tracefuse.ops.loop_ops import range_loop
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.passes.small_products import product_sizes
from tracefuse.schedule.row_update_facts import row_update_of

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_carries import LoopBody

MOST_DEPTH = 4
"""The most integers of which each one depends on values whose sizes are the one before it."""


@dataclass(frozen=True, slots=True)
class ReadInteger:
    """An integer from `least` up to `most` less another one. value: the number of what holds it. before: the other."""

    symbol: Symbol
    value: int
    least: int
    most: Extent
    before: int | None


class ReadIntegers:
    """The integers that the body of a loop reads, by the numbers of their host scalars, in order.

    slices: at such integers: start, stop and extent of the axis, with the bounds.
    """

    def __init__(self, body: LoopBody) -> None:
        self.body = body
        self.known: dict[int, ReadInteger] = {}
        self.slices: list[tuple[tuple[Any, Any, Extent], tuple[Extent, Extent]]] = []

    @property
    def are_assumed(self) -> bool:
        """Whether slices are assumed not to be empty, nor clipped."""
        return self.body.iteration.key in self.body.recorder.loops.decisions.sized

    def assume(self, condition: Traced) -> None:
        """Adds a condition that is checked after the loop. A call for which it fails unrolls the loop."""
        assert self.body.conditions is not None
        self.body.conditions.setdefault(condition.number, source.user_line())

    def add(self, value: Traced, most: Extent, before: Extent | None = None, least: int = 0) -> Extent:
        """Returns the size that a computed int64 holds. most, before, least: see `ReadInteger`."""
        recorder, builder = self.body.recorder, self.body.builder
        number, where = builder.new_number(), source.user_line()
        extent = symbol(f"n{number}", number, minimum=least)
        builder.values[number] = Value(number, Type(int64, ()), "scalar", extent, None, None, where)
        self.body.placeholders.append(number)
        name = symbol_of(extent)
        other = None if before is None else symbol_of(before).id
        self.known[number] = ReadInteger(name, value.number, least, most, other)
        high = most if before is None else most - before
        recorder.hints[number] = recorder.known(high) // 2
        recorder.loops.symbols[name] = self.body.iteration.key
        recorder.loops.sizes.add(name)
        recorder.counters.open(name, least, high)
        return extent

    def close(self) -> None:
        """Removes the symbols from the counters around the current line."""
        for _ in self.known:
            self.body.recorder.counters.close()

    # -- the inner loops ----------------------------------------------------------------------------------------------

    def read_by(self, node: Node) -> Iterator[int]:
        """Yields the numbers of the integers on which the sizes of a node depend."""
        builder, simplify = self.body.builder, self.body.recorder.simplify
        extents = [*extents_in(node.attributes), *(e for n in node.outputs for e in builder.values[n].shape)]
        for extent in extents:
            yield from (one.id for one in symbols(simplify(extent)) if one.id in self.known and one.id is not None)

    def in_inner_loops(self, nodes: Sequence[Node], outputs: Sequence[int]) -> tuple[list[Node], list[int]]:
        """Returns the nodes of a body with inner loops, and its outputs. Raises NotInEveryIteration."""
        levels = self._levels(nodes)
        deepest = max((levels[node.outputs[0]] for node in nodes), default=0)
        if deepest > MOST_DEPTH:
            raise NotInEveryIteration("sizes depend on one another more than 4 times")
        remaining, results = list(nodes), list(outputs)
        for level in range(deepest, 0, -1):
            inside = [node for node in remaining if levels[node.outputs[0]] >= level]
            wanted = [number for number in results if levels.get(number, 0) >= level]
            read = {number for one in inside for number in (*one.inputs, *self.read_by(one))}
            node = self._inner_loop(inside, wanted, [k for k in self.known if k in read and levels[k] == level])
            levels |= dict.fromkeys(node.outputs, level - 1)
            replaced = dict(zip(self._in_order(inside, wanted)[0], node.outputs, strict=True))
            remaining = [one for one in remaining if levels[one.outputs[0]] < level] + [node]
            results = [replaced.get(number, number) for number in results]
        return remaining, results

    def _levels(self, nodes: Sequence[Node]) -> dict[int, int]:
        """Returns for each value and integer how many integers depend on one another up to it."""
        levels: dict[int, int] = {}
        for node in nodes:
            read = [*node.inputs, *self.read_by(node)]
            for number in read:
                if number in self.known and number not in levels:
                    levels[number] = levels.get(self.known[number].value, 0) + 1
            level = max((levels.get(number, 0) for number in read), default=0)
            if level and node.op.effect:
                raise NotInEveryIteration("random numbers are drawn after a computed size")
            levels |= dict.fromkeys(node.outputs, level)
        return levels

    def _in_order(self, nodes: Sequence[Node], outputs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the outputs, first those that update a value from outside, and these values."""
        makers = {number: node for node in nodes for number in node.outputs}
        updated: dict[int, int] = {}
        for number in outputs:
            before = _updated_by(makers, number)
            if before is not None and before not in updated.values() and self._is_alike(before, number):
                updated[number] = before
        return [*updated, *(number for number in outputs if number not in updated)], list(updated.values())

    def _is_alike(self, first: int, second: int) -> bool:
        left, right = self.body.builder.values[first], self.body.builder.values[second]
        simplify = self.body.recorder.simplify
        return left.dtype is right.dtype and tuple(map(simplify, left.shape)) == tuple(map(simplify, right.shape))

    def _inner_loop(self, nodes: Sequence[Node], outputs: Sequence[int], integers: Sequence[int]) -> Node:
        """Adds the loop of one step that computes outputs by nodes."""
        recorder, builder = self.body.recorder, self.body.builder
        if not outputs:
            raise NotInEveryIteration("what follows a computed size has no result")
        ordered, updated = self._in_order(nodes, outputs)
        types = [LeafType(builder.values[n].dtype, builder.values[n].shape, None) for n in ordered]
        for extent in (recorder.simplify(extent) for leaf in types for extent in leaf.shape):
            depending = [one for one in symbols(extent) if one.id in self.known]
            if depending:
                raise NotInEveryIteration("the shape of a result depends on a computed size", depending[0])
        cut = cut_fusion(builder.values, nodes, ordered, recorder.simplify)
        called = _library_call(cut.fusion)
        if called is not None:  # in a compiled loop, arrays of a library have one shape
            raise NotInEveryIteration(f"{called} of an array whose size an iteration computes")
        read = [self.known[number].value for number in integers]
        operands, parts = operands_of(
            recorder, [Literal(0), *read], {"body": cut}, updated, updated, None, integers
        )  # fmt: skip
        attributes = {
            "body": in_place(parts["body"], len(operands) - len(updated), len(updated)), "start": 0, "stop": 1,
            "reverse": False, "carried": len(updated), "shapes": tuple(leaf.shape for leaf in types),
            "integers": tuple(self._range(integers, number) for number in integers),
        }  # fmt: skip
        results = record_op(recorder, range_loop, operands, attributes, types, [None] * len(types))
        node: Node = builder.makers[results[0].number]
        return node

    def _range(self, integers: Sequence[int], number: int) -> tuple[int, Extent, int]:
        one = self.known[number]
        return one.least, one.most, integers.index(one.before) if one.before in integers else -1


def _library_call(fusion: Fusion) -> str | None:
    """Returns the name of an op that calls a library with arrays whose shapes depend on run-time scalars, if any."""
    fusion = run_passes(FUSION_PASSES, fusion, config.resolve())
    for node in fusion.nodes:
        if isinstance(node.op, ControlFlow):
            for _, part in node.op.sub_fusions(node.attributes):
                called = _library_call(part.fusion)
                if called is not None:
                    return called
            continue
        shapes = (fusion.shape_of(number) for number in (*node.inputs, *node.outputs))
        is_called = isinstance(node.op, Library) and not _has_kernel(fusion, node)
        if is_called and any(map(_depends_on_scalars, shapes)):
            return node.op.name
    return None


def _has_kernel(fusion: Fusion, node: Node) -> bool:
    """Whether a kernel computes a library op at all sizes: an update of rows, or the product of two vectors."""
    product = product_sizes(fusion, node)
    is_of_vectors = product is not None and product.rows == product.columns == 1 and not product.stacked
    return is_of_vectors or row_update_of(fusion, node) is not None


def _depends_on_scalars(shape: Shape) -> bool:
    return any(one.id is not None and one.id >= 0 for extent in shape for one in symbols(extent))


def _updated_by(makers: dict[int, Node], number: int) -> int | None:
    """Returns the value that nodes update step by step to compute another, if they do. makers: the nodes by result."""
    start = number
    while number in makers:
        node, before = makers[number], None
        if isinstance(node.op, RangeLoop):
            body, count = node.attributes["body"].fusion, node.attributes["carried"]
            place = node.outputs.index(number)
            if place < count and body.outputs[place] in body.aliases:
                before = node.operands[len(node.operands) - count + place]
        elif (isinstance(node.op, Movement) and node.op.slices == "written") or (
            isinstance(node.op, Library) and node.op.row_update is not None
        ):
            before = node.operands[0]
        if not isinstance(before, int):
            return None
        number = before
    return number if number != start else None
