"""Which operand an element of a movement op comes from, where that is known only as the kernel runs.

A padded, joined or sliced array has several sources for an element, each under conditions on the coordinates. What is
proved is left out; the rest becomes branches around the reads, so that nothing outside an array is read.

Knows: conditions on coordinates, branches, lanes. Must not know: which op has them, memory, templates.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, is_nonnegative, symbols
from tracefuse.ir.fusion import Node, Shape
from tracefuse.ir.op_kinds import Source, Within
from tracefuse.kernel.kernel_ir import Assign, Declare, Expression, Variable, call
from tracefuse.kernel.scalar_code import constant, convert
from tracefuse.schedule.scopes import Key, Lanes, Making, Scopes

Option: TypeAlias = tuple[Source, tuple[Within, ...]]
"""A source, and its conditions that are not proved."""

Emission: TypeAlias = Generator[Key, Lanes, None]

MOST_IN_A_ROW = 4
"""Options that are tried one after the other; of more that follow one another, halves are chosen."""


def open_options(candidates: Sequence[Source]) -> list[Option]:
    """The sources that are not proved impossible."""
    return [(source, tests) for source in candidates if (tests := _open_tests(source.conditions)) is not None]


@dataclass(frozen=True, slots=True)
class Known:
    """What an index is at least, and what it is less than, in the branch that is being emitted."""

    least: Mapping[Extent, Extent]
    limit: Mapping[Extent, Extent]

    def at_least(self, index: Extent, bound: Extent) -> Known:
        return Known({**self.least, index: bound}, self.limit)

    def less_than(self, index: Extent, bound: Extent) -> Known:
        return Known(self.least, {**self.limit, index: bound})

    def is_reached(self, test: Within) -> bool:
        """Whether the index is proved to be at least the lower bound."""
        least = self.least.get(test.index)
        return is_nonnegative(test.index - test.low) or (least is not None and is_nonnegative(least - test.low))

    def is_below(self, test: Within) -> bool:
        """Whether the index is proved to be less than the upper bound."""
        limit = self.limit.get(test.index)
        return is_nonnegative(test.high - 1 - test.index) or (limit is not None and is_nonnegative(test.high - limit))


@dataclass(frozen=True, slots=True)
class Selection:
    """The element of a movement node among several sources, emitted into open scopes.

    dtype: that it is computed in. operand: an element of an operand, by position and coordinates.
    """

    scopes: Scopes
    node: Node
    dtype: DType
    operand: Callable[[int, Shape], Making]

    def among(self, options: Sequence[Option]) -> Making:
        """The first option whose conditions hold, else the fill value: branches around the reads of each."""
        fill = constant(self.node.attributes.get("value", 0), self.dtype)
        uniform = all(self._whole(test) for _, tests in options for test in tests)
        reads_lanes = any(self.scopes.lane_symbol in set(symbols(c)) for s, _ in options for c in s.coordinates)
        width = self.scopes.lanes if reads_lanes or not uniform else 1
        variables = [Variable(self.scopes.fresh(f"v{self.node.outputs[0]}"), self.dtype) for _ in range(width)]
        for variable in variables:
            self.scopes.append(Declare(variable, fill))
        for lane, targets in [(None, variables)] if uniform else [(k, [v]) for k, v in enumerate(variables)]:
            yield from self._choose([self._source_at(s, tests, lane) for s, tests in options], targets, Known({}, {}))
        return tuple(variables)

    def _source_at(self, source: Source, tests: Sequence[Within], lane: int | None) -> Source:
        """A source with the conditions that are left to test; for one lane, which reads for itself alone."""
        if lane is None:
            return replace(source, conditions=tuple(self._test_at(t, 0) for t in tests))
        at = tuple(self.scopes.at_lane(c, lane) for c in source.coordinates)
        return Source(source.operand, at, tuple(self._test_at(t, lane) for t in tests))

    def _test_at(self, test: Within, lane: int) -> Within:
        return Within(*(self.scopes.at_lane(e, lane) for e in (test.index, test.low, test.high)))

    def _choose(self, options: Sequence[Source], targets: Sequence[Variable], known: Known) -> Emission:
        """Assigns the first option whose conditions hold, the rest in its `else`; many that follow one another in
        halves, so that the comparisons for an element grow with the logarithm of their number.

        known: what the branches taken so far say. The parts of a concatenation follow one another, so that each but the
        last needs one comparison.
        """
        if len(options) > MOST_IN_A_ROW and _follow_one_another(options):
            yield from self._choose_half(options, targets, known)
            return
        for position, source in enumerate(options):
            tests = _open_tests(source.conditions)
            if tests is None:
                continue
            parts = self._comparisons(tests, known)
            if not parts:
                yield from self._assign(source, targets)
                return
            with self.scopes.condition(functools.reduce(lambda a, b: call("and", a, b), parts)):
                yield from self._assign(source, targets)
            rest = options[position + 1 :]
            if rest:
                passed = len(tests) == 1 and known.is_reached(tests[0])
                beyond = known.at_least(tests[0].index, tests[0].high) if passed else known
                with self.scopes.otherwise():
                    yield from self._choose(rest, targets, beyond)
            return

    def _choose_half(self, options: Sequence[Source], targets: Sequence[Variable], known: Known) -> Emission:
        """One comparison decides in which half of options that follow one another the element is."""
        middle = len(options) // 2
        (test,) = options[middle].conditions
        with self.scopes.condition(self.scopes.index.compare("lt", test.index, test.low)):
            yield from self._choose(options[:middle], targets, known.less_than(test.index, test.low))
        with self.scopes.otherwise():
            yield from self._choose(options[middle:], targets, known.at_least(test.index, test.low))

    def _assign(self, source: Source, targets: Sequence[Variable]) -> Emission:
        lanes = yield from self.operand(source.operand, source.coordinates)
        for position, target in enumerate(targets):
            self.scopes.append(Assign(target, convert(lanes[position if len(lanes) > 1 else 0], self.dtype)))

    def _comparisons(self, tests: Sequence[Within], known: Known) -> list[Expression]:
        """What is left to compare of some conditions."""
        parts: list[Expression] = []
        for test in tests:
            if not known.is_reached(test):
                parts.append(self.scopes.index.compare("le", test.low, test.index))
            if not known.is_below(test):
                parts.append(self.scopes.index.compare("lt", test.index, test.high))
        return parts

    def _whole(self, test: Within) -> bool:
        """Whether the test has one answer for all lanes: it is about multiples of the number of lanes."""
        if self.scopes.lanes == 1:
            return True
        start = self.scopes.at_lane(test.index, 0)
        moves = test.index - start
        if moves == 0:
            return self.scopes.lane_symbol not in set(symbols(test.low)) | set(symbols(test.high))
        return moves == self.scopes.lane and all(self.scopes.is_multiple(e) for e in (start, test.low, test.high))


def _open_tests(conditions: Sequence[Within]) -> tuple[Within, ...] | None:
    """The conditions that are not proved; None where one is proved false."""
    unproved = []
    for test in conditions:
        if is_nonnegative(test.low - 1 - test.index) or is_nonnegative(test.index - test.high):
            return None
        if not (is_nonnegative(test.index - test.low) and is_nonnegative(test.high - 1 - test.index)):
            unproved.append(test)
    return tuple(unproved)


def _follow_one_another(options: Sequence[Source]) -> bool:
    """Whether each option has one condition, on the same index, and begins where the one before ends."""
    if any(len(source.conditions) != 1 for source in options):
        return False
    tests = [source.conditions[0] for source in options]
    return all(a.index == b.index and a.high == b.low for a, b in itertools.pairwise(tests))
