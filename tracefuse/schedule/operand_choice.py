"""Selects the operand that an element of a movement op reads, if the choice depends on coordinates at run time.

An element of a padded, concatenated or sliced array has several candidate sources, each under conditions on the
coordinates. Conditions that are proved are dropped; the others become branches around the reads, so that a kernel never
reads out of bounds.

Must not know: single ops.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, is_nonnegative, symbols
from tracefuse.ir.fusion import Node, Shape
from tracefuse.ir.op_kinds import Source, Within
from tracefuse.kernel.kernel_ir import Assign, Declare, Expression, Variable, call
from tracefuse.kernel.scalar_code import constant, convert
from tracefuse.schedule.scopes import Emitter, Key, Lanes, Scopes

Option: TypeAlias = tuple[Source, tuple[Within, ...]]
"""A source and its unproved conditions."""

Emission: TypeAlias = Generator[Key, Lanes, None]

MOST_IN_A_ROW = 4
"""The most options that are tested in sequence; more contiguous options are selected by binary search."""


def open_options(candidates: Sequence[Source]) -> list[Option]:
    """Returns the sources whose conditions are not proved false."""
    return [(source, tests) for source in candidates if (tests := _open_tests(source.conditions)) is not None]


@dataclass(frozen=True, slots=True)
class Known:
    """The bounds of indices in the branch that is being emitted: lower (inclusive) and upper (exclusive)."""

    least: Mapping[Extent, Extent]
    limit: Mapping[Extent, Extent]

    def at_least(self, index: Extent, bound: Extent) -> Known:
        return Known({**self.least, index: bound}, self.limit)

    def less_than(self, index: Extent, bound: Extent) -> Known:
        return Known(self.least, {**self.limit, index: bound})

    def is_reached(self, test: Within) -> bool:
        """Returns whether the index is proved to be at least the lower bound."""
        least = self.least.get(test.index)
        return is_nonnegative(test.index - test.low) or (least is not None and is_nonnegative(least - test.low))

    def is_below(self, test: Within) -> bool:
        """Returns whether the index is proved to be less than the upper bound."""
        limit = self.limit.get(test.index)
        return is_nonnegative(test.high - 1 - test.index) or (limit is not None and is_nonnegative(test.high - limit))


@dataclass(frozen=True, slots=True)
class Selection:
    """Emits an element of a movement node that has several candidate sources, into the open scopes.

    dtype: the dtype of the result. operand: emits an element of an operand, by position and coordinates.
    """

    scopes: Scopes
    node: Node
    dtype: DType
    operand: Callable[[int, Shape], Emitter]

    def among(self, options: Sequence[Option]) -> Emitter:
        """Emits branches that read the first option whose conditions hold; otherwise the result is the fill value."""
        fill = constant(self.node.attributes.get("value", 0), self.dtype)
        uniform = all(self._is_uniform(test) for _, tests in options for test in tests)
        reads_lanes = any(self.scopes.lane_symbol in set(symbols(c)) for s, _ in options for c in s.coordinates)
        width = self.scopes.lanes if reads_lanes or not uniform else 1
        variables = [Variable(self.scopes.fresh(f"v{self.node.outputs[0]}"), self.dtype) for _ in range(width)]
        for variable in variables:
            self.scopes.append(Declare(variable, fill))
        for lane, targets in [(None, variables)] if uniform else [(k, [v]) for k, v in enumerate(variables)]:
            yield from self._choose([self._source_at(s, tests, lane) for s, tests in options], targets, Known({}, {}))
        return tuple(variables)

    def _source_at(self, source: Source, tests: Sequence[Within], lane: int | None) -> Source:
        """Returns a source with its unproved conditions, for one lane, or for all lanes if `lane` is None."""
        if lane is None:
            return replace(source, conditions=tuple(self._test_at(t, 0) for t in tests))
        at = tuple(self.scopes.at_lane(c, lane) for c in source.coordinates)
        return Source(source.operand, at, tuple(self._test_at(t, lane) for t in tests))

    def _test_at(self, test: Within, lane: int) -> Within:
        return Within(*(self.scopes.at_lane(e, lane) for e in (test.index, test.low, test.high)))

    def _choose(self, options: Sequence[Source], targets: Sequence[Variable], known: Known) -> Emission:
        """Assigns the first option whose conditions hold; the other options go in its `else` branch.

        Many contiguous options are selected by binary search, so the number of comparisons per element is logarithmic.

        known: the bounds that the enclosing branches establish. The parts of a concatenation are contiguous, so each
        part but the last needs one comparison.
        """
        if len(options) > MOST_IN_A_ROW and _are_contiguous(options):
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
            # What does not depend on the tested coordinates is in bounds, whatever the outcome.
            tested = {s for test in tests for e in (test.index, test.low, test.high) for s in symbols(e)}
            with self.scopes.condition(functools.reduce(lambda a, b: call("and", a, b), parts), tested, chosen=True):
                yield from self._assign(source, targets)
            rest = options[position + 1 :]
            if rest:
                passed = len(tests) == 1 and known.is_reached(tests[0])
                beyond = known.at_least(tests[0].index, tests[0].high) if passed else known
                with self.scopes.otherwise(tested):
                    yield from self._choose(rest, targets, beyond)
            return

    def _choose_half(self, options: Sequence[Source], targets: Sequence[Variable], known: Known) -> Emission:
        """Selects one half of contiguous options with one comparison."""
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
        """Returns the comparisons for the conditions that `known` does not prove."""
        parts: list[Expression] = []
        for test in tests:
            if not known.is_reached(test):
                parts.append(self.scopes.index.compare("le", test.low, test.index))
            if not known.is_below(test):
                parts.append(self.scopes.index.compare("lt", test.index, test.high))
        return parts

    def _is_uniform(self, test: Within) -> bool:
        """Returns whether all lanes get the same answer: the bounds are multiples of the number of lanes."""
        if self.scopes.lanes == 1:
            return True
        start = self.scopes.at_lane(test.index, 0)
        moves = test.index - start
        if moves == 0:
            return self.scopes.lane_symbol not in set(symbols(test.low)) | set(symbols(test.high))
        return moves == self.scopes.lane and all(self.scopes.is_multiple(e) for e in (start, test.low, test.high))


def _open_tests(conditions: Sequence[Within]) -> tuple[Within, ...] | None:
    """Returns the unproved conditions; None if one is proved false."""
    unproved = []
    for test in conditions:
        if is_nonnegative(test.low - 1 - test.index) or is_nonnegative(test.index - test.high):
            return None
        if not (is_nonnegative(test.index - test.low) and is_nonnegative(test.high - 1 - test.index)):
            unproved.append(test)
    return tuple(unproved)


def _are_contiguous(options: Sequence[Source]) -> bool:
    """Returns whether each option has one condition, on the same index, and starts where the previous one ends."""
    if any(len(source.conditions) != 1 for source in options):
        return False
    tests = [source.conditions[0] for source in options]
    return all(a.index == b.index and a.high == b.low for a, b in itertools.pairwise(tests))
