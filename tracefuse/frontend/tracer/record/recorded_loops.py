"""Which `for` loops of a trace are recorded once, and which are unrolled, since one recording does not express them.

Must not know: ops, overlays of values.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from types import CodeType
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.python_code.code_replacements import rewritten_code
from tracefuse.frontend.tracer.record.appended_rows import Row
from tracefuse.frontend.tracer.record.entry_copies import EntryCopies
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.ir.extents import Extent, Symbol

LoopKey: TypeAlias = tuple[CodeType, int]
"""The code of a function, and the position of a loop in it."""

BranchKey: TypeAlias = tuple[LoopKey, bool]
"""The position of an `if` in the code of a function, and whether the branch is the one of a true condition."""

Limits: TypeAlias = tuple[tuple[Extent, ...], tuple[Extent, ...]]
"""What is at least 0 if a comparison is true, and if it is false."""


@dataclass(frozen=True, slots=True)
class RecordedLoop:
    """A loop whose body was recorded. first, end: the numbers of its values; first belongs to it, end does not."""

    key: LoopKey
    symbol: Symbol
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of a field of `LoopDecisions`. name: of the field."""

    name: str
    key: Any
    value: Any = None


@dataclass(slots=True)
class LoopDecisions:
    """What earlier attempts to trace a function showed about its loops.

    unrolled: the reason for each loop that is not recorded. nests: short loops that are recorded, as in nests with many
    iterations. types: of variables after an iteration, by loop, name, and type and kind before the loop, where they
    differ.
    kinds: of numbers of Python that variables hold after some iterations, by loop and name, if they are NumPy's before.
    slots: attributes and entries that iterations change, by loop and text. rotating: loops that write arrays which
    each iteration rebinds. sized: loops whose slices at computed bounds are assumed not to be empty, nor clipped if
    their size is known. counted: `while` loops that are recorded for the number of their iterations first.
    is_enabled: whether loops are recorded at all. codes: of the functions whose loops ask questions, which clones run
    rewritten. raising: branches that raise errors, and so are assumed not to be taken.
    """

    unrolled: dict[LoopKey, str] = field(default_factory=dict)
    nests: set[LoopKey] = field(default_factory=set)
    types: dict[tuple[LoopKey, str, DType, str | None], Any] = field(default_factory=dict)
    kinds: dict[tuple[LoopKey, str], str] = field(default_factory=dict)
    slots: set[tuple[LoopKey, str]] = field(default_factory=set)
    sized: set[LoopKey] = field(default_factory=set)
    rotating: set[LoopKey] = field(default_factory=set)
    counted: set[LoopKey] = field(default_factory=set)
    is_enabled: bool = True
    codes: set[CodeType] = field(default_factory=set)
    raising: set[BranchKey] = field(default_factory=set)

    @classmethod
    def of(cls, decided: Iterable[Any], is_enabled: bool) -> LoopDecisions:
        """Returns the decisions among others, as `decided` has returned them."""
        result = cls(is_enabled=is_enabled)
        for decision in decided:
            if isinstance(decision, Decision):
                entry: Any = getattr(result, decision.name)
                if decision.name == "is_enabled":
                    result.is_enabled = False
                elif isinstance(entry, dict):
                    entry[decision.key] = decision.value
                else:
                    entry.add(decision.key)
        return result

    def decided(self) -> frozenset[Any]:
        """Returns the decisions, on which the numbers of all values of a trace depend."""
        entries = [Decision("unrolled", key, reason) for key, reason in self.unrolled.items()]
        entries += [Decision("types", key, leaf) for key, leaf in self.types.items()]
        entries += [Decision("kinds", key, kind) for key, kind in self.kinds.items()]
        for name in ("slots", "sized", "rotating", "counted", "nests", "codes", "raising"):
            entries += [Decision(name, key) for key in getattr(self, name)]
        return frozenset(entries if self.is_enabled else [*entries, Decision("is_enabled", False)])

    def code_of(self, code: CodeType) -> CodeType:
        """Returns what a clone runs in place of some code, with the codes in it."""
        code = (self.is_enabled and code in self.codes and rewritten_code(code)) or code
        constants = tuple(
            self.code_of(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts
        )
        if all(new is old for new, old in zip(constants, code.co_consts, strict=True)):
            return code
        return code.replace(co_consts=constants)


@dataclass(slots=True)
class RecordedLoops:
    """The loops of one attempt.

    open: the keys of the loops whose bodies are being recorded, outermost first; a branch has the key of its loop.
    conditional: how many of them may end early or not run. branches: those that are being recorded, with the number of
    open loops at each. ended: the others. symbols: the counters of loops, by key, and the integers that iterations
    read, which are also among `sizes`. limits: the bounds that comparisons of counters imply, by the number of the
    result. iterations: of unrolled loops, by key. rows: entries of lists that recorded loops append to, by id. lists:
    those that only rewritten code reads, by id. returned: what is in the result in place of some of them, by id.
    copies: what the function got as entries of them.
    """

    decisions: LoopDecisions = field(default_factory=LoopDecisions)
    open: list[LoopKey] = field(default_factory=list)
    conditional: int = 0
    branches: list[tuple[int, BranchKey]] = field(default_factory=list)
    ended: list[RecordedLoop] = field(default_factory=list)
    symbols: dict[Symbol, LoopKey] = field(default_factory=dict)
    sizes: set[Symbol] = field(default_factory=set)
    limits: dict[int, Limits] = field(default_factory=dict)
    iterations: Counter[LoopKey] = field(default_factory=Counter)
    rows: dict[int, Row] = field(default_factory=dict)
    lists: dict[int, list[Any]] = field(default_factory=dict)
    returned: dict[int, Any] = field(default_factory=dict)
    copies: EntryCopies = field(default_factory=EntryCopies)
    _running: list[tuple[weakref.ref[Any], LoopKey]] = field(default_factory=list)

    def enter(self, iterator: Any, key: LoopKey, length: int) -> set[LoopKey]:
        """Notes that an iterator unrolls a loop; returns the keys of the unrolled loops around, and its own."""
        self._running = [(running, other) for running, other in self._running if running() is not None]
        self._running.append((weakref.ref(iterator), key))
        self.iterations[key] += length
        return {other for _, other in self._running}

    def around(self) -> set[LoopKey]:
        """Returns the keys of the loops that are being unrolled."""
        return {key for running, key in self._running if running() is not None}

    def leave(self, iterator: Any) -> None:
        """Notes that an unrolled loop has ended."""
        self._running = [(running, key) for running, key in self._running if running() not in (None, iterator)]

    def check(self, number: int) -> None:
        """Raises NotInEveryIteration for a value of the body of a recorded loop that has ended."""
        for loop in self.ended:
            if loop.first <= number < loop.end:
                raise NotInEveryIteration("a value of an iteration is read after the loop", loop.symbol)

    def unroll(self, error: BaseException | None) -> bool:
        """Notes that the next attempt unrolls a loop that is being recorded, because of an error that was raised in it.

        An exception in a branch is first taken for one that no call raises. The loop is the innermost one that no
        attempt has been told to unroll: one of computed length can only be unrolled with those around it. If there is
        no other, the next attempt unrolls all loops. Returns False if no loop is being recorded.

        error: None if the trace ended inside of a loop.
        """
        keys = self.open[::-1]
        if isinstance(error, NotInEveryIteration) and error.symbol is not None:
            if self.can_assume(error.symbol):
                self.decisions.sized.add(self.symbols[error.symbol])
                return True
            outermost = self.symbols[error.symbol]
            keys = [outermost, *keys[keys.index(outermost) + 1 :]] if outermost in keys else [outermost]
        if not keys and not isinstance(error, NotInEveryIteration):
            return False
        if isinstance(error, Exception) and self.branches and self.branches[-1][0] == len(self.open):
            branch = self.branches[-1][1]
            if branch not in self.decisions.raising:
                self.decisions.raising.add(branch)
                return True
        for key in keys:
            if key not in self.decisions.unrolled:
                self.decisions.unrolled[key] = "an exception leaves it" if error is None else _text_of(error)
                return True
        self.decisions.is_enabled = False
        return True

    def can_assume(self, symbol: Symbol | None) -> bool:
        """Whether another attempt can assume more of an integer that an iteration reads."""
        return symbol in self.sizes and self.symbols[symbol] not in self.decisions.sized

    def reasons(self) -> tuple[str, ...]:
        """Returns the line of each loop that is unrolled, and why it is."""
        return tuple(f"{_line_of(*key)}: {reason}" for key, reason in self.decisions.unrolled.items())


def _text_of(error: BaseException) -> str:
    if isinstance(error, TracefuseError):
        return error.message
    return str(error) if isinstance(error, NotInEveryIteration) else f"{type(error).__name__}: {error}"


def _line_of(code: CodeType, position: int) -> str:
    lines = (line for start, end, line in code.co_lines() if start <= position < end)
    return source.line_in(code, next(lines) or code.co_firstlineno)
