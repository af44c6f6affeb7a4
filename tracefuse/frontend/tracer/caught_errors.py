"""Operations in `try` statements and in `with` blocks, whose handlers may catch what they raise.

Elsewhere a trace requires that the sizes of a call fit, and a call for which they do not raises. In a `try` statement
whether they fit is decided while the function is traced, and guarded, so that a handler runs where it does in Python.

Must not know: overlays of values.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from tracefuse import source
from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.ir.fusion import Requirement

Function = TypeVar("Function", bound=Any)

MOST_CODES = 1024
"""Code objects whose handlers are known; the oldest is evicted first."""
_handlers: BoundedTable[CodeType, Sequence[tuple[range, str]]] = BoundedTable(MOST_CODES)
register(Cache(
    "frontend.tracer.caught_errors._handlers", "the handlers of exceptions of a function", "code object",
    f"{MOST_CODES}, the oldest go", cleared_by=CLEAR_CACHES, clear=_handlers.clear,
))  # fmt: skip

_KINDS = {"CHECK_EXC_MATCH": "try", "POP_EXCEPT": "try", "WITH_EXCEPT_START": "with", "RERAISE": None}
"""The kind of a handler by the first of these instructions in it; `finally` raises again."""
_outermost: set[CodeType] = set()


def outermost(function: Function) -> Function:
    """Marks the function that calls what is traced: handlers around it are not the traced function's."""
    _outermost.add(function.__code__)
    return function


def decide_in_handlers(recorder: Recorder) -> None:
    """Lets a trace decide requirements that it records inside of `try` statements and `with` blocks."""

    def settle(requirement: Requirement) -> bool:
        if handler_around() is None:
            return False
        left, right = requirement.left, requirement.right
        if not recorder.decide(
            left, requirement.relation, right, "whether an operation raises in a try statement or a with block"
        ):
            raise requirement.error(recorder.known(left), recorder.known(right))
        return True

    recorder.builder.settles = settle


def handler_around() -> str | None:
    """Returns the kind of the nearest handler around the running code of the user, "try" or "with"; None for none.

    None also where no traced function runs, as after its end: handlers around the call are not its own.
    """
    frame: FrameType | None = sys._getframe(1)
    nearest: str | None = None
    while frame is not None and frame.f_code not in _outermost:
        code = frame.f_code
        if nearest is None and code.co_exceptiontable and not source.is_internal(code.co_filename):
            nearest = _handler_at(code, frame.f_lasti)
        frame = frame.f_back
    return None if frame is None else nearest


def _handler_at(code: CodeType, position: int) -> str | None:
    known = _handlers.get(code)
    if known is None:
        known = _handlers[code] = _handlers_of(code)
    return next((kind for places, kind in known if position in places), None)


def _handlers_of(code: CodeType) -> Sequence[tuple[range, str]]:
    """Returns the places that the handlers of some code are around, with their kinds; inner ones first."""
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: k for k, instruction in enumerate(instructions)}
    handlers = []
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        start = places[entry.target]
        if instructions[start].opname != "PUSH_EXC_INFO":
            continue  # it ends another handler
        names = (instruction.opname for instruction in instructions[start:])
        kind = next((_KINDS[name] for name in names if name in _KINDS), None)
        if kind is not None:
            handlers.append((range(entry.start, entry.end), kind))
    return sorted(handlers, key=lambda instruction: len(instruction[0]))
