"""Branches that only raise: `if np.isnan(x).any(): raise ValueError("x has NaN")`, `assert (x > 0).all()`.

The outcome of such a condition is assumed, and checked with the results of a call before anything is written. A call
for which it is the other one runs again and asks, so that Python itself makes the exception.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType

from tracefuse.caches import memoized

_JUMPS = {
    "POP_JUMP_IF_FALSE": False, "POP_JUMP_IF_TRUE": True, "POP_JUMP_FORWARD_IF_FALSE": False,
    "POP_JUMP_FORWARD_IF_TRUE": True,
}  # fmt: skip
"""The truth value for which each conditional jump of Python 3.11 and later jumps."""

_ENDS = ("JUMP", "POP_JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND", "RERAISE", "BEFORE_WITH", "LOAD_BUILD_CLASS")


def raising_outcome(frame: FrameType) -> bool | None:
    """Returns the truth value for which the branch that a frame is about to take does nothing but raise.

    None if neither branch does, or if the frame takes none: the value has another use.
    """
    return _branches_of(frame.f_code).get(frame.f_lasti)


@memoized("the branches of a function that only raise", key="code object", most=1024)
def _branches_of(code: CodeType) -> Mapping[int, bool]:
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: k for k, instruction in enumerate(instructions)}
    branches: dict[int, bool] = {}
    for k, instruction in enumerate(instructions):
        jumps_for = _JUMPS.get(instruction.opname)
        if jumps_for is None:
            continue
        if _only_raises(instructions, places[instruction.argval]):
            outcome = jumps_for
        elif _only_raises(instructions, k + 1):
            outcome = not jumps_for
        else:
            continue
        branches[instruction.offset] = outcome
        if k and instructions[k - 1].opname == "TO_BOOL":
            branches[instructions[k - 1].offset] = outcome
    return branches


def _only_raises(instructions: Sequence[dis.Instruction], start: int) -> bool:
    """Whether the instructions from `start` on lead to a `raise` with no branch."""
    for instruction in instructions[start:]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if instruction.opname.startswith(_ENDS):
            return False
    return False
