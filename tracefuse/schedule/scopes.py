"""The open scopes of a kernel that is being emitted: where a statement goes, and what each index is called there.

Templates open loops and conditions; what is asked for inside goes to the outermost one that knows its coordinates. A
value is one expression, or one for each of `lanes` neighbouring elements that are emitted at once.

Knows: statements of the kernel IR, indices, lanes. Must not know: ops, arrays, how a template lays its loops out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tracefuse.dtypes import DType, int64
from tracefuse.ir.extents import Extent, Symbol, as_symbol, substitute, symbol, symbol_of, symbols
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import Expression, For, If, Let, Statement, Variable
from tracefuse.kernel.scalar_code import convert, is_trivial
from tracefuse.schedule.index_code import IndexCode

Lanes: TypeAlias = tuple[Expression, ...]
Key: TypeAlias = tuple[int, Shape]
Making: TypeAlias = Generator[Key, Lanes, Lanes]
"""Emits one value: yields what it needs, is sent the lanes of that, and returns its own."""


class LanesNotPossible(Exception):
    """This body cannot be emitted for several lanes at once; the template tries again with one."""


@dataclass(slots=True)
class Level:
    """One open scope: its statements, the symbols that it introduces, and what it has computed."""

    statements: list[Statement] = field(default_factory=list)
    introduces: set[Symbol] = field(default_factory=set)
    memo: dict[Key, Lanes] = field(default_factory=dict)
    barrier: bool = False


class Scopes:
    """Emission into a stack of levels; level 0 is one iteration of the grid.

    lanes: how many neighbouring elements are emitted at once; `lane` is the symbol that numbers them.
    """

    def __init__(self, index_dtype: DType, lanes: int) -> None:
        self.lanes = lanes
        self.lane = symbol("lane", extent=lanes)
        self.lane_symbol = as_symbol(self.lane)
        self.index = IndexCode(index_dtype)
        self.levels = [Level()]
        self.counter = 0

    def append(self, statement: Statement) -> None:
        self.levels[-1].statements.append(statement)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}_{self.counter}"

    @contextlib.contextmanager
    def loop(
        self, index: Extent, stop: Extent, kind: str = "serial", *, start: Extent = 0, step: Extent = 1
    ) -> Iterator[None]:
        """Opens `for index in range(start, stop, step)`; `index` is a symbol, whose own extent serves proofs.

        One symbol may be the index of several loops in turn; each gets a variable of its own.
        """
        found = symbol_of(index)
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
        found = symbol_of(index)
        self.append(Let(self.index.bind(found, self.fresh(found.name)), value))
        self.levels[-1].introduces.add(found)

    def home(self, coordinates: Sequence[Extent]) -> int:
        """The outermost level in which all that the coordinates depend on is known."""
        needed = {s for c in coordinates for s in symbols(c)}
        for position in range(len(self.levels) - 1, 0, -1):
            level = self.levels[position]
            if level.barrier or not needed.isdisjoint(level.introduces):
                return position
        return 0

    # --- lanes ------------------------------------------------------------------------------------------------------

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

    def at_lane(self, extent: Extent, lane: int) -> Extent:
        """An extent as one lane sees it."""
        return extent if self.lanes == 1 and lane else substitute(extent, {self.lane_symbol: lane})

    def integers(self, extent: Extent) -> Lanes:
        """An integer as data, for each lane where the lanes differ in it."""
        return self.per_lane(extent, lambda at: convert(at, int64))

    def per_lane(self, extent: Extent, make: Callable[[Expression], Expression]) -> Lanes:
        """What `make` gives for an extent, for each lane where the lanes differ in it."""
        if self.lane_symbol not in set(symbols(extent)):
            return (make(self.index.code(extent)),)
        return tuple(make(self.index.code(self.at_lane(extent, lane))) for lane in range(self.lanes))

    def is_multiple(self, extent: Extent) -> bool:
        """Whether `extent` is proved to be a multiple of the number of lanes: every coefficient is."""
        if isinstance(extent, int):
            return extent % self.lanes == 0
        return all(coefficient % self.lanes == 0 for _, coefficient in extent.terms)
