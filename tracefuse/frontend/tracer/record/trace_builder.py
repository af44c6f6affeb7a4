"""The builder of a trace: adds the names of operands to requirements on extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.errors import ShapeError, TracefuseError
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent, symbols
from tracefuse.ir.fusion import Node, Operand
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.subfusion import extents_in

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder

_RANGE = "the range of an index"


class TraceBuilder(FusionBuilder):
    """Adds operand names to requirements, and knows the node that computes each value.

    reading, named (to be set): the operands of the current op, and their traced values. makers: the node of each
    value. same_as: what placeholders of branches stand for. constants: arrays that are known, by their input.
    independent: values that depend on no argument. of_state: those among them that depend on captured state.
    may_be_caught (to be set): whether the code that runs stands in a `try` statement.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self.makers: dict[int, Node] = {}
        self.same_as: dict[int, int] = {}
        self.constants: dict[int, Any] = {}
        self.independent: set[int] = set()
        self.of_state: set[int] = set()
        self.reading: Sequence[Operand] = ()
        self.named: Sequence[Any] = ()
        self.may_be_caught: Callable[[], bool] = lambda: False

    def node(self, *arguments: Any, **keywords: Any) -> tuple[int, ...]:
        numbers = super().node(*arguments, **keywords)
        node = self.nodes[-1]
        self.makers.update(dict.fromkeys(numbers, node))
        is_random = node.op.effect or (isinstance(node.op, Pointwise) and node.op.varies)
        if not is_random and all(value in self.independent for value in node.inputs):
            self.independent.update(numbers)
            if self.of_state and self._reads_state(node):
                self.of_state.update(numbers)
        return numbers

    def _reads_state(self, node: Node) -> bool:
        """Whether a node depends on captured arrays, or on their sizes."""
        axes = self._recorder.contents.axes
        return not self.of_state.isdisjoint(node.inputs) or any(
            symbol.id in axes and axes[symbol.id][0] in self.of_state
            for extent in extents_in(node.attributes)
            for symbol in symbols(extent)
        )

    def depends_on(self, number: int) -> list[str]:
        """Returns the names of the arguments that a value depends on."""
        reached = {number}
        for node in reversed(self.nodes):
            if reached.intersection(node.outputs):
                reached.update(node.inputs)
        return [self.values[value].name or f"value {value}" for value in self.inputs if value in reached]

    def add_constant(self, number: int, array: Any, is_state: bool = False) -> None:
        """Records that an input is an array that is known: created during the trace, or of the captured state."""
        self.constants[number] = array
        self.independent.add(number)
        if is_state:
            self.of_state.add(number)

    def is_same_value(self, first: int, second: int, most: int = 8) -> bool:
        """Whether the same operations on the same values compute two values; compares at most `most` operations."""
        pairs = [(first, second)]
        while pairs:
            left, right = (self.same_as.get(number, number) for number in pairs.pop())
            if left == right:
                continue
            left_maker, right_maker = self.makers.get(left), self.makers.get(right)
            most -= 1
            if most < 0 or left_maker is None or right_maker is None or left_maker.op is not right_maker.op:
                return False
            if left_maker.outputs.index(left) != right_maker.outputs.index(right):
                return False
            if left_maker.attributes != right_maker.attributes or left_maker.compute != right_maker.compute:
                return False
            for a, b in zip(left_maker.operands, right_maker.operands, strict=True):
                if isinstance(a, int) and isinstance(b, int):
                    pairs.append((a, b))
                elif a != b:
                    return False
        return True

    def require(
        self, left: Extent, relation: str, right: Extent, message: str, hint: str, where: str | None = None,
        kind: type[TracefuseError] = ShapeError,
    ) -> None:  # fmt: skip
        left, right = self._recorder.simplify(left), self._recorder.simplify(right)
        counters = self._recorder.counters
        if right - left != 0 and counters.occur_in(left, right):
            if relation == "<=" and counters.follows(right - left):
                return
            if self._follows_for_sizes(left, relation, right):
                return
            if not counters.are_linear(left, right):
                if not self._recorder.decide(left, relation, right, _RANGE):
                    raise NotInEveryIteration("the range of an index is not known", counters.innermost(left, right))
                return
            for end, other in counters.ends([left, right]):
                self.require(end, relation, other, message, hint, where, kind)
            return
        if right - left != 0 and "{left}" in message and "{right}" in message:
            first = self._whose(left, 0)
            second = self._whose(right, first[0] + 1)
            message = message.replace("{left}", "{left}" + first[1]).replace("{right}", "{right}" + second[1])
        super().require(left, relation, right, message, hint, where, kind)

    def _follows_for_sizes(self, left: Extent, relation: str, right: Extent) -> bool:
        """Whether extents contain integers that iterations read, for all values of which the relation holds.

        Raises NotInEveryIteration if it does not hold for all: the values of a call may be others.
        """
        sizes = self._recorder.loops.sizes.intersection((*symbols(left), *symbols(right)))
        if sizes and not self._recorder.decide(left, relation, right, _RANGE):
            raise NotInEveryIteration(f"{_RANGE} is not known", min(sizes, key=lambda one: one.id or 0))
        return len(sizes) > 0

    def _whose(self, extent: Extent, start: int) -> tuple[int, str]:
        """Returns the first operand from `start` on that has this extent, and its description."""
        for position in range(start, len(self.reading)):
            operand = self.reading[position]
            if isinstance(operand, int) and extent in [self._recorder.simplify(e) for e in self.values[operand].shape]:
                return position, f" ({self._recorder.describe(operand, self.named[position])})"
        return start - 1, ""
