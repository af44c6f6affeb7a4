"""Finds out from the bytecode of a `for` loop how its body uses local variables, before it runs.

A loop that leaves its body by `break` or `return`, or that assigns variables of closures or globals in it, has no
`LoopCode`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import dis
import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import CodeType

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, register

BRANCH = "(branch "
"""What the names of variables begin with that iterate over branches, see `rewritten_loops.py`."""

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""The names of code that Python makes of comprehensions."""

_IN_PLACE = "="
"""The last character of the operators of augmented assignments, as `dis` prints them."""


@dataclass(frozen=True, slots=True)
class LoopCode:
    """The body of a `for` loop.

    counter: the variable that holds the entry of each iteration; None for several variables. assigned: the variables
    that a statement other than an augmented assignment binds. updated: those that augmented assignments alone bind.
    read: variables whose values at the start of an iteration may be read in it or after the loop. needed: those that
    may be read after the loop. steps: the number that each iteration adds to a variable which nothing else binds.
    loaded: variables that the body binds, or reads otherwise than to call their method `append`. line: of the loop.
    """

    counter: str | None
    assigned: frozenset[str]
    updated: frozenset[str]
    read: frozenset[str]
    needed: frozenset[str]
    steps: Mapping[str, int]
    loaded: frozenset[str]
    line: int


@dataclass(frozen=True, slots=True)
class _Iterables:
    """Positions in the expressions of what the `for` loops of some code iterate over.

    calls: the last instructions. iterators: what makes the iterators. kept: what computes the variables among them.
    of_comprehensions: the last instructions, and what makes the iterators, of comprehensions and generator expressions.
    """

    calls: set[int] = field(default_factory=set)
    iterators: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    of_comprehensions: set[int] = field(default_factory=set)


_iterated: weakref.WeakKeyDictionary[CodeType, _Iterables] = weakref.WeakKeyDictionary()
register(Cache(
    "frontend.tracer.python_code.loop_code._iterated", "the expressions over whose results a function loops", "code",
    "the functions that are alive", "the process", "with the functions",
))  # fmt: skip
_known: weakref.WeakKeyDictionary[CodeType, dict[int, LoopCode | None]] = weakref.WeakKeyDictionary()
register(Cache(
    "frontend.tracer.python_code.loop_code._known",
    "the variables of the loops of a function", "code and position of a loop",
    "the loops of functions that are alive", "the process", "with the functions",
))  # fmt: skip


def loop_code(code: CodeType, position: int) -> LoopCode | None:
    """Returns the loop whose `FOR_ITER` is at a position of some code; None if its body cannot be recorded once."""
    known = _known.setdefault(code, {})
    if position not in known:
        known[position] = _Analysis(code).loop(position)
    return known[position]


def begins_loop(code: CodeType, position: int) -> bool:
    """Whether a `for` loop iterates over the result of the call at a position of some code, and nothing else does."""
    return position in _iterables_of(code).calls


def makes_iterator(code: CodeType, position: int) -> bool:
    """Whether a `for` loop makes its iterator at a position of some code."""
    return position in _iterables_of(code).iterators


def is_kept_for_loop(code: CodeType, position: int) -> bool:
    """Whether the result of the call at a position of some code is bound to a variable over which a loop iterates."""
    return position in _iterables_of(code).kept


def is_iterated_by_comprehension(code: CodeType, position: int) -> bool:
    """Whether a comprehension iterates over the result of the call at a position of some code, or over an iterator."""
    is_inside = code.co_name in COMPREHENSIONS and (begins_loop(code, position) or makes_iterator(code, position))
    return is_inside or position in _iterables_of(code).of_comprehensions


def _iterables_of(code: CodeType) -> _Iterables:
    known = _iterated.get(code)
    if known is None:
        known = _iterated[code] = _find_iterables(code)
    return known


def _find_iterables(code: CodeType) -> _Iterables:
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname != _PREFIX]
    iterables, names = _Iterables(), set[str]()
    for place, (first, second) in enumerate(itertools.pairwise(instructions[1:])):
        if first.opname != "GET_ITER":
            continue
        if second.opname != "FOR_ITER":
            iterables.of_comprehensions.update(range(instructions[place].offset, second.offset))
            continue
        # A running instruction may have the position of its cache.
        iterables.calls.update(range(instructions[place].offset, first.offset))
        iterables.iterators.update(range(first.offset, second.offset))
        while place > 0 and instructions[place].opname.startswith(_OF_EXPRESSIONS):
            names.update(_loaded(instructions[place]))
            place -= 1
    for first, second in itertools.pairwise(instructions):
        if not names.isdisjoint(_stored(second)):
            iterables.kept.update(range(first.offset, second.offset))
    return iterables


class _Analysis:
    """The instructions of some code, with their successors and the variables that are live before each."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        every = list(dis.get_instructions(code))
        self.instructions = [instruction for instruction in every if instruction.opname != _PREFIX]
        counts = itertools.accumulate((instruction.opname != _PREFIX for instruction in every), initial=0)
        # A prefix has the place of its instruction.
        self.places = {instruction.offset: count for instruction, count in zip(every, counts, strict=False)}
        self.successors = [self._successors(place, instruction) for place, instruction in enumerate(self.instructions)]

    def _successors(self, place: int, instruction: dis.Instruction) -> list[int]:
        result = []
        if instruction.opcode in (*dis.hasjrel, *dis.hasjabs):
            result.append(self.places[instruction.argval])
        if instruction.opname not in _ENDS and not instruction.opname.startswith(_ALWAYS_JUMPS):
            result.append(place + 1)
        return result

    def loop(self, position: int) -> LoopCode | None:
        start = self.places.get(position)
        if start is None or self.instructions[start].opname != "FOR_ITER":
            return None
        end = self.places[self.instructions[start].argval]
        body = range(start + 1, end)
        if any(self._leaves(place, range(start, end)) for place in body):
            return None
        assigned: set[str] = set()
        updated: set[str] = set()
        for place in body:
            names = _stored(self.instructions[place])
            (updated if self._is_augmented(place) else assigned).update(names)
        stored = assigned | updated
        live = self._live()
        everything = frozenset(self.code.co_cellvars)  # functions read them
        if self.code.co_exceptiontable:
            everything |= frozenset(self.code.co_varnames)
        names = _stored(self.instructions[start + 1])
        line = next(
            (instruction.starts_line for instruction in reversed(self.instructions[: start + 1]) if _line(instruction)),
            None,
        )
        return LoopCode(
            names[0] if len(names) == 1 else None, frozenset(assigned), frozenset(updated - assigned),
            frozenset(stored & (live[start + 1] | everything)), frozenset(stored & (live[end] | everything)),
            self._steps(body, stored), self._loaded(body) | stored, _line_number(line, self.code),
        )  # fmt: skip

    def _leaves(self, place: int, loop: range) -> bool:
        """Whether an instruction of the body leaves the loop, or binds a variable that other functions see."""
        instruction = self.instructions[place]
        if instruction.opname == "STORE_DEREF" and instruction.argval in self.code.co_cellvars:
            return False
        if instruction.opname in _ELSEWHERE or instruction.opname.startswith(("RETURN_", "YIELD_", "IMPORT_")):
            return True
        return any(after not in loop for after in self.successors[place])

    def _is_augmented(self, place: int) -> bool:
        before = self.instructions[place - 1]
        return before.opname == "BINARY_OP" and before.argrepr.endswith(_IN_PLACE)

    def _live(self) -> list[frozenset[str]]:
        """Returns the local variables that may be read before they are bound, from each instruction on."""
        count = len(self.instructions)
        effects = [
            (_loaded(instruction), _stored(instruction) + _deleted(instruction)) for instruction in self.instructions
        ]
        live: list[frozenset[str]] = [frozenset()] * (count + 1)
        changed = True
        while changed:
            changed = False
            for place in reversed(range(count)):
                after: frozenset[str] = frozenset().union(*(live[k] for k in self._following(place)))
                loads, stores = effects[place]
                stores_first = self.instructions[place].opname == "STORE_FAST_LOAD_FAST"
                before = (after | frozenset(loads)) - frozenset(stores) if stores_first else None
                live_before = (after - frozenset(stores)) | frozenset(loads) if before is None else before
                if live_before != live[place]:
                    live[place], changed = live_before, True
        return live

    def _following(self, place: int) -> list[int]:
        """Returns the successors, where a loop over branches has one iteration."""
        if self._chooses(place):
            return [place + 1]
        successors = self.successors[place]
        if len(successors) == 1 and successors[0] < place and self._chooses(successors[0]):
            return [self.places[self.instructions[successors[0]].argval]]
        return successors

    def _chooses(self, place: int) -> bool:
        """Whether an instruction iterates over the branches of rewritten code."""
        if self.instructions[place].opname != "FOR_ITER":
            return False
        return any(name.startswith(BRANCH) for name in _stored(self.instructions[place + 1]))

    def _steps(self, body: range, stored: Sequence[str] | set[str]) -> dict[str, int]:
        """Returns the variables that the body changes once, in every iteration, by an integer that it names."""
        jumps = {after for place in body for after in self.successors[place] if after != place + 1}
        straight = [place for place in body if not any(place in range(*pair) for pair in self._skipped(body, jumps))]
        stores = [name for place in body for name in _stored(self.instructions[place])]
        result = {}
        for place in straight:
            names = _stored(self.instructions[place])
            if len(names) != 1 or stores.count(names[0]) != 1 or not self._is_augmented(place):
                continue
            load, constant, operator = self.instructions[place - 3 : place]
            if names[0] in _loaded(load) and len(_loaded(load)) == 1 and type(constant.argval) is int:
                sign = {"+=": 1, "-=": -1}.get(operator.argrepr)
                if sign is not None and constant.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                    result[names[0]] = sign * constant.argval
        return result

    def _loaded(self, body: range) -> frozenset[str]:
        """Returns the variables that the body reads otherwise than to call their method `append`."""
        result = set[str]()
        for place in body:
            names, then = _loaded(self.instructions[place]), self.instructions[place + 1]
            is_append = then.opname in ("LOAD_METHOD", "LOAD_ATTR") and then.argval == "append"
            result.update(names[:-1] if is_append else names)
        return frozenset(result)

    def _skipped(self, body: range, jumps: set[int]) -> list[tuple[int, int]]:
        """Returns the ranges of the body that a jump may skip or repeat."""
        pairs = [
            (min(place, after), max(place, after))
            for place in body for after in self.successors[place] if after != place + 1 and after in body
        ]  # fmt: skip
        return [(low, high + 1) if low in jumps else (low, high) for low, high in pairs]


_PREFIX = "EXTENDED_ARG"
_OF_EXPRESSIONS = (
    "LOAD_", "CALL", "PRECALL", "KW_NAMES", "PUSH_NULL", "BINARY_", "UNARY_", "BUILD_", "CACHE", "COPY", "SWAP",
)  # fmt: skip
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD")
"""JUMP_IF_FALSE_OR_POP and JUMP_IF_TRUE_OR_POP of Python 3.11 may go on with the next instruction."""
_ELSEWHERE = (
    "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "DELETE_FAST", "DELETE_DEREF", "DELETE_GLOBAL", "DELETE_NAME",
    "SEND", "MAKE_CELL",
)  # fmt: skip


def _names(instruction: dis.Instruction) -> list[str]:
    return list(instruction.argval) if isinstance(instruction.argval, tuple) else [instruction.argval]


def _stored(instruction: dis.Instruction) -> list[str]:
    if instruction.opname == "STORE_FAST_LOAD_FAST":
        return _names(instruction)[:1]
    return _names(instruction) if instruction.opname.startswith(("STORE_FAST", "STORE_DEREF")) else []


def _loaded(instruction: dis.Instruction) -> list[str]:
    if instruction.opname == "STORE_FAST_LOAD_FAST":
        return _names(instruction)[1:]
    return _names(instruction) if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")) else []


def _deleted(instruction: dis.Instruction) -> list[str]:
    return _names(instruction) if instruction.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR") else []


def _line(instruction: dis.Instruction) -> bool:
    return bool(instruction.starts_line)


def _line_number(line: int | bool | None, code: CodeType) -> int:
    return line if type(line) is int else code.co_firstlineno
