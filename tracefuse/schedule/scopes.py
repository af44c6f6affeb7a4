"""The open scopes of a kernel during emission: the insertion point of statements, and the variable of each index.

Templates open loops and conditions. A value is emitted into the outermost open scope that defines its coordinates. It
is one expression, or one for each of `lanes` adjacent elements that are emitted together.

Must not know: ops, arrays.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType, int64
from tracefuse.ir.extents import (
    Extent,
    Symbol,
    as_symbol,
    from_terms,
    substitute,
    symbol,
    symbol_of,
    symbols,
    terms_of,
)
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Buffer, Expression, For, If, Let, Statement, Variable
from tracefuse.kernel.scalar_code import convert, is_trivial
from tracefuse.schedule.index_code import IndexCode

Lanes: TypeAlias = tuple[Expression, ...]
Key: TypeAlias = tuple[int, Shape]
Emitter: TypeAlias = Generator[Key, Lanes, Lanes]
"""Emits one value: yields the key of each operand, is sent the operand's lanes, and returns the value's lanes."""


class LanesNotPossible(Exception):
    """This body cannot be emitted for several lanes at once; lowering is repeated with one lane."""


@dataclass(slots=True)
class Level:
    """One open scope: its statements, the symbols that it introduces, and the values computed in it.

    barrier: nothing is hoisted out of the scope. repeats: it is the body of a loop that is not unrolled. chosen: it is
    one of several branches, out of which values are hoisted only together with a loop that repeats them: elsewhere,
    the other branches would compute them, too. groups: what holds aligned groups of lanes of inputs, by input and
    offset. sums: the variables of hoisted sums.
    """

    statements: list[Statement] = field(default_factory=list)
    introduces: set[Symbol] = field(default_factory=set)
    memo: dict[Key, Lanes] = field(default_factory=dict)
    groups: dict[tuple[int, Extent], Buffer] = field(default_factory=dict)
    sums: dict[Extent, Extent] = field(default_factory=dict)
    barrier: bool = False
    repeats: bool = False
    chosen: bool = False


class Scopes:
    """Emits into a stack of levels; level 0 is one iteration of the grid.

    lanes: the number of adjacent elements emitted together; the symbol `lane` numbers them.
    """

    def __init__(self, index_dtype: DType, lanes: int) -> None:
        self.lanes = lanes
        self.lane = symbol("lane", extent=lanes)
        self.lane_symbol = as_symbol(self.lane)
        self.index = IndexCode(index_dtype)
        self.levels = [Level()]
        self.counter = itertools.count(1)

    def append(self, statement: Statement) -> None:
        self.levels[-1].statements.append(statement)

    def fresh(self, stem: str) -> str:
        return f"{stem}_{next(self.counter)}"

    @contextlib.contextmanager
    def loop(
        self, index: Extent, stop: Extent, kind: str = "serial", *, start: Extent = 0, step: Extent = 1
    ) -> Iterator[None]:
        """Opens `for index in range(start, stop, step)`; `index` is a symbol, and proofs use its extent.

        One symbol may be the index of several loops, one after the other; each loop gets a new variable.
        """
        loop_symbol = symbol_of(index)
        bounds = [self.index.code(e) for e in (start, stop, step)]
        variable = self.index.bind(loop_symbol, self.fresh(loop_symbol.name))
        level = Level(introduces={loop_symbol}, repeats=kind != "unroll")
        self.levels.append(level)
        yield
        self.levels.pop()
        self.append(For(variable, bounds[0], bounds[1], bounds[2], kind, tuple(level.statements)))

    @contextlib.contextmanager
    def condition(
        self, test: Expression, introduces: Collection[Symbol] = (), *, chosen: bool = False
    ) -> Iterator[None]:
        """Opens `if test`; nothing is hoisted out of it.

        introduces: the symbols that the test guards. If given, values that do not depend on them may be hoisted.
        chosen: see `Level`.
        """
        level = Level(introduces=set(introduces), barrier=not introduces, chosen=chosen)
        self.levels.append(level)
        yield
        self.levels.pop()
        self.append(If(test, tuple(level.statements)))

    @contextlib.contextmanager
    def kept_inside(self) -> Iterator[None]:
        """Opens a scope without a statement, out of which nothing is hoisted."""
        level = Level(barrier=True)
        self.levels.append(level)
        yield
        self.levels.pop()
        self.levels[-1].statements.extend(level.statements)

    @contextlib.contextmanager
    def otherwise(self, introduces: Collection[Symbol] = ()) -> Iterator[None]:
        """Opens the `else` branch of the condition that was closed last. introduces: as for a chosen `condition`."""
        tested = self.levels[-1].statements.pop()
        assert isinstance(tested, If)
        level = Level(introduces=set(introduces), barrier=not introduces, chosen=True)
        self.levels.append(level)
        yield
        self.levels.pop()
        self.append(replace(tested, orelse=tuple(level.statements)))

    def bind(self, index: Extent, value: Expression) -> None:
        """Binds an integer computed in the kernel to `index`, a symbol whose extent bounds it."""
        bound = symbol_of(index)
        self.append(Let(self.index.bind(bound, self.fresh(bound.name)), value))
        self.levels[-1].introduces.add(bound)

    def home(self, coordinates: Sequence[Extent]) -> int:
        """Returns the outermost level in which every symbol of the coordinates is defined, or a branch in its loop."""
        needed = {s for c in coordinates for s in symbols(c)}
        position = len(self.levels) - 1
        while position and not self.levels[position].barrier and needed.isdisjoint(self.levels[position].introduces):
            position -= 1
        for inner in range(position + 1, len(self.levels)):
            if self.levels[inner].repeats:
                break
            position = inner if self.levels[inner].chosen else position
        return position

    def hoisted(self, extent: Extent) -> Extent:
        """Returns an equal extent, with the terms that are the same throughout the innermost loop in one variable.

        A compiler factors a sum of products so that all of it changes with the loop.
        """
        levels = {term: self._level_of(from_terms(dict((term,)))) for term in terms_of(extent)}
        innermost = max(levels.values(), default=0)
        fixed = from_terms({monomial: n for (monomial, n), level in levels.items() if level < innermost})
        if len(terms_of(fixed)) < 2:
            return extent
        inside, self.levels = self.levels, self.levels[: self._level_of(fixed) + 1]
        base = self.levels[-1].sums.get(fixed)
        if base is None:
            base = self.levels[-1].sums[fixed] = symbol(self.fresh("base"))
            self.append(Let(self.index.bind(symbol_of(base), str(base)), self.index.code(fixed)))
            self.levels[-1].introduces.add(symbol_of(base))
        self.levels = inside
        return extent - fixed + base

    def _level_of(self, extent: Extent) -> int:
        """Returns the outermost level in which the symbols of an extent are bound."""
        needed = set(symbols(extent))
        return max((k for k, level in enumerate(self.levels) if not needed.isdisjoint(level.introduces)), default=0)

    # --- lanes ------------------------------------------------------------------------------------------------------

    def name(self, stem: str, lanes: Lanes) -> Lanes:
        """Binds the lanes to variables, so that each is computed once."""
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
        """Returns one expression per lane, repeating a shared one."""
        return lanes if len(lanes) == self.lanes else lanes * self.lanes

    def at_lane(self, extent: Extent, lane: int) -> Extent:
        """Returns the extent with the lane symbol replaced by `lane`."""
        return extent if self.lanes == 1 and lane else substitute(extent, {self.lane_symbol: lane})

    def integers(self, extent: Extent) -> Lanes:
        """Returns an integer as int64 data: one expression if all lanes share it, else one per lane."""
        return self.per_lane(extent, lambda at: convert(at, int64))

    def per_lane(self, extent: Extent, make: Callable[[Expression], Expression]) -> Lanes:
        """Applies `make` to an extent: once if all lanes share it, else once per lane."""
        if self.lane_symbol not in set(symbols(extent)):
            return (make(self.index.code(extent)),)
        return tuple(make(self.index.code(self.at_lane(extent, lane))) for lane in range(self.lanes))

    def is_multiple(self, extent: Extent) -> bool:
        """Returns whether `extent` is proved to be a multiple of the number of lanes: every coefficient is."""
        if isinstance(extent, int):
            return extent % self.lanes == 0
        return all(coefficient % self.lanes == 0 for _, coefficient in extent.terms)
