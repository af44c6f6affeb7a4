"""Assumptions of a trace about sizes: each answer that it gave to the function becomes a guard.

A question about sizes is proved if the answer holds for all sizes. Otherwise the sizes of the current call answer it,
and a guard records the outcome (`decide`) or the value (`pin`).

Must not know: ops.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import stride_name
from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.record.loop_counters import LoopCounters, NotInEveryIteration
from tracefuse.frontend.tracer.record.recorded_loops import RecordedLoops
from tracefuse.frontend.tracer.values.host_numbers import Facts, HostNumber, compiled
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent, Symbol, as_symbol, evaluate, is_nonnegative, substitute, symbol, symbols
from tracefuse.ir.fusion import Shape


@dataclass(frozen=True, slots=True)
class ScalarGuard:
    """A guard of a value that the function computed from scalar arguments and read: `read(facts)` was `expected`."""

    read: HostNumber
    expected: Any
    reason: str
    where: str | None

    def holds(self, facts: Facts) -> bool:
        current = self.read(facts)
        return bool(current == self.expected) or (current != current and self.expected != self.expected)

    def test_text(self, fact: Callable[[int], str], name: Callable[[str, Any], str]) -> str:
        """Returns the expression of `holds`. fact: text of a fact; name: adds a global and returns its name."""
        function, facts = compiled(self.read)
        current = f"{name('number', function)}({', '.join(map(fact, facts))})"
        if self.expected != self.expected:
            return f"{name('is_nan', _is_nan)}({current})"
        return current if self.expected is True else f"{current} == {name('expected', self.expected)}"

    def __str__(self) -> str:
        return f"a scalar is {self.expected!r}: {self.reason}" + (f" ({self.where})" if self.where else "")


def _is_nan(value: Any) -> bool:
    return bool(value != value)


class Assumptions(ABC):
    """The assumptions of one trace.

    hints: the sizes and scalars of the current call. stride_hints: the strides. counters, loops: of `for` loops whose
    bodies are recorded once. control_flow: what rewritten code calls, see `questions_in_loops.py`.
    calling_code: the code that calls the function, which gets the result of the trace. caught: the errors
    of NumPy that handlers of the function got, with tracefuse's and the extents of their operands. refusals: that the
    trace has created; caught_refusal: the first that a handler of the function caught.
    standard_output: what `print` writes to, unless the function redirects it.
    """

    builder: FusionBuilder

    def __init__(self) -> None:
        self.hints: dict[int, Any] = {}
        self.stride_hints: dict[Symbol, Extent] = {}
        self.guards: dict[Guard, None] = {}
        self._pinned: dict[Any, Extent] = {}
        self.counters, self.loops = LoopCounters(), RecordedLoops()
        self.control_flow: Any = None
        self.calling_code: CodeType | None = None
        self.caught: list[tuple[BaseException, BaseException, tuple[Shape, ...]]] = []
        self.refusals: list[TracefuseError] = []
        self.caught_refusal: TracefuseError | None = None
        self.standard_output = sys.stdout

    @property
    def pinned(self) -> Mapping[Any, Extent]:
        """What replaces the sizes that are constants of the trace, or equal to others."""
        return self._pinned

    def is_called_in(self, frame: FrameType) -> bool:
        """Whether what a frame calls returns the result of the trace."""
        return frame.f_code is self.calling_code

    @abstractmethod
    def check_alive(self) -> None:
        """Raises TraceError once the trace is over."""

    def counts_in(self, *extents: Extent) -> bool:
        """Whether extents depend on the counter of a loop that is being recorded."""
        return self.counters.occur_in(*extents)

    def add_strides(self, number: int, extents: Shape, strides: Sequence[int]) -> Shape:
        """Returns symbols for the strides of an array input, in elements; decisions that depend on them are guarded."""
        named = tuple(
            symbol(stride_name(number, axis), minimum=-(2**63)) if extent != 1 else 0
            for axis, extent in enumerate(extents)
        )
        names = [None if isinstance(name_or_stride, int) else as_symbol(name_or_stride) for name_or_stride in named]
        pairs = zip(names, strides, strict=True)
        self.stride_hints.update({name: stride for name, stride in pairs if name is not None})
        return named

    def simplify(self, extent: Extent) -> Extent:
        """Returns `extent` with every guarded size replaced by its value."""
        return substitute(extent, self._pinned) if self._pinned and not isinstance(extent, int) else extent

    def known(self, extent: Extent) -> int:
        """Returns the value in the current call, and records nothing."""
        return evaluate(substitute(extent, self.stride_hints), self.hints)

    def depends_on_layout(self, extent: Extent) -> bool:
        """Whether an extent contains the stride of an argument."""
        return any(symbol in self.stride_hints for symbol in symbols(extent))

    def decide(self, left: Extent, relation: str, right: Extent, reason: str) -> bool:
        """Decides left == right or left <= right: proved, or as in the current call and guarded."""
        self.check_alive()
        left, right = self.simplify(left), self.simplify(right)
        difference = right - left
        if difference != 0 and self.counters.occur_in(left, right):
            return self._decide_in_every_iteration(difference, relation, reason)
        if relation == "==":
            if difference == 0:
                return True
            if is_nonnegative(difference - 1) or is_nonnegative(-difference - 1) or self._never_one(left, right):
                return False
            outcome = self.known(left) == self.known(right)
            self._guard(left, "==" if outcome else "!=", right, reason)
            return outcome
        if is_nonnegative(difference):
            return True
        if is_nonnegative(-difference - 1):
            return False
        outcome = self.known(left) <= self.known(right)
        if outcome:
            self._guard(left, "<=", right, reason)
        else:
            self._guard(right, "<", left, reason)
        return outcome

    def _decide_in_every_iteration(self, difference: Extent, relation: str, reason: str) -> bool:
        """Decides difference == 0 or 0 <= difference for all values of the counters of recorded loops.

        Raises NotInEveryIteration if the outcome differs from iteration to iteration, as far as is known.
        """
        if relation != "==":
            if is_nonnegative(difference) or self.counters.follows(difference):
                return True
            if self.counters.follows(-difference - 1):
                return False
        for sides in (False, True):
            ends = [end for (end,) in self.counters.ends([difference], sides)]
            values = list(map(self.known, ends))
            if all(value == 0 for value in values) if relation == "==" else min(values) >= 0:
                return self._all_hold([(0, relation, end) for end in ends], reason)
            if max(values) < 0:
                return not self._all_hold([(end + 1, "<=", 0) for end in ends], reason)
            if relation == "==" and min(values) > 0:
                return not self._all_hold([(1, "<=", end) for end in ends], reason)
            if self.counters.are_linear(difference):
                break
        symbol = self.counters.innermost(difference)
        raise NotInEveryIteration(f"{reason} has another outcome in another iteration", symbol)

    def _all_hold(self, relations: Sequence[tuple[Extent, str, Extent]], reason: str) -> bool:
        """Decides every relation, so that each becomes a guard; whether all of them hold."""
        outcomes = [self.decide(left, relation, right, reason) for left, relation, right in relations]
        return all(outcomes)

    def always_holds(self, left: Extent, right: Extent, reason: str) -> bool:
        """Decides left <= right in every iteration of the loops around; False if it differs between them."""
        try:
            return self.decide(left, "<=", right, reason)
        except NotInEveryIteration:
            return False

    def _never_one(self, left: Extent, right: Extent) -> bool:
        """Whether a symbolic input axis is compared with 1, which the key of the trace excludes."""
        symbol = as_symbol(left) if right == 1 else as_symbol(right) if left == 1 else None
        return symbol is not None and symbol.id is not None and symbol.id < 0

    def _guard(self, left: Extent, relation: str, right: Extent, reason: str) -> None:
        self.guards[Guard(left, relation, right, reason, source.user_line())] = None

    def pin(self, extent: Extent, reason: str) -> int:
        """Returns the value of an extent and guards it; from then on it is a constant of the trace."""
        self.check_alive()
        extent = self.simplify(extent)
        if isinstance(extent, int):
            return extent
        if self.counters.occur_in(extent):
            reason = f"{reason}: the value of the counter of a loop was asked for"
            raise NotInEveryIteration(reason, self.counters.innermost(extent))
        value = self.known(extent)
        self._guard(extent, "==", value, reason)
        self.builder.require(extent, "==", value, f"{extent} is {{left}}", f"it was {value} while tracing")
        symbol = as_symbol(extent)
        if symbol is not None:
            self._simplify_pinned({symbol: value})
            self._pinned[symbol] = value
        return value

    def equate(self, extent: Extent, other: Extent) -> None:
        """Replaces the extent of an input by one that it equals in every call."""
        symbol, other = as_symbol(extent), self.simplify(other)
        if symbol is not None and other != extent:
            self._simplify_pinned({symbol: other})
            self._pinned[symbol] = other

    def _simplify_pinned(self, new: Mapping[Any, Extent]) -> None:
        """Replaces symbols in what replaces others."""
        pinned = self._pinned
        if any(not isinstance(extent, int) for extent in pinned.values()):
            self._pinned = {k: e if isinstance(e, int) else substitute(e, new) for k, e in pinned.items()}
