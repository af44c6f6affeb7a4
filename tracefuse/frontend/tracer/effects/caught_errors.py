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
from typing import Any, NamedTuple, TypeVar

from tracefuse import source
from tracefuse.caches import memoized
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.ir.fusion import Requirement

Function = TypeVar("Function", bound=Any)


class _Handler(NamedTuple):
    """A handler: the places that it is around, its kind, and whether it binds the error to a name."""

    places: range
    kind: str
    binds: bool


_KINDS = {"CHECK_EXC_MATCH": "try", "POP_EXCEPT": "try", "WITH_EXCEPT_START": "with", "RERAISE": None}
"""The kind of a handler by the first of these instructions in it; `finally` raises again."""
_outermost: set[CodeType] = set()


def outermost(function: Function) -> Function:
    """Marks the caller of the traced function: handlers around it are not the traced function's."""
    _outermost.add(function.__code__)
    return function


def decide_in_handlers(recorder: Recorder) -> None:
    """Lets a trace decide requirements that it records inside of `try` statements and `with` blocks.

    Elsewhere one that the sizes of the call do not meet ends the trace: a loop that waits for it might never end.
    """

    def settle(requirement: Requirement) -> bool:
        left, right = requirement.left, requirement.right
        if handler_around() is None:
            if recorder.body is None and is_unmet(requirement, recorder):
                raise requirement.error(recorder.known(left), recorder.known(right))
            return False
        if not recorder.decide(
            left, requirement.relation, right, "whether an operation raises in a try statement or a with block"
        ):
            raise requirement.error(recorder.known(left), recorder.known(right))
        return True

    recorder.builder.settles = settle
    recorder.builder.may_be_caught = lambda: handler_around() == "try"


def is_unmet(requirement: Requirement, recorder: Recorder) -> bool:
    """Whether the sizes of the call do not meet a requirement. Those that depend on elements are not known yet."""
    try:
        return not requirement.holds(recorder.known(requirement.left), recorder.known(requirement.right))
    except LookupError:
        return False


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


def handler_binds_error() -> bool:
    """Whether a handler around the running code of the user binds the error to a name, or may read it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _outermost:
        code = frame.f_code
        if code.co_exceptiontable and not source.is_internal(code.co_filename):
            around = [one for one in _handlers_of(code) if frame.f_lasti in one.places]
            if any(one.kind == "with" or one.binds for one in around):
                return True
        frame = frame.f_back
    return False


def _handler_at(code: CodeType, position: int) -> str | None:
    return next((one.kind for one in _handlers_of(code) if position in one.places), None)


@memoized("the handlers of exceptions of a function", key="code object", most=1024)
def _handlers_of(code: CodeType) -> Sequence[_Handler]:
    """Returns the handlers of some code, inner ones first."""
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
            binds = _binds_error(instructions[start:])
            handlers.append(_Handler(range(entry.start, entry.end), kind, binds))
    return sorted(handlers, key=lambda handler: len(handler.places))


def _binds_error(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether one of the clauses of a handler, which begins with these instructions, binds the error to a name."""
    for match, jump, then in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if match.opname == "CHECK_EXC_MATCH" and jump.opname.startswith("POP_JUMP") and then.opname.startswith("STORE"):
            return True
        if match.opname == "COPY" and jump.opname == "POP_EXCEPT" and then.opname == "RERAISE":
            return False  # the end of the handler
    return False
