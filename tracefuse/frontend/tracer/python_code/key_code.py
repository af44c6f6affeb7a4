"""Finds out from bytecode whether the result of a call is a part of a key, as in `x[range(n), labels]`.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Sequence
from types import CodeType

from tracefuse.caches import Cache, register

_known: weakref.WeakKeyDictionary[CodeType, dict[int, bool]] = weakref.WeakKeyDictionary()
register(Cache(
    "frontend.tracer.python_code.key_code._known",
    "whether the result of a call is a part of a key", "code and position of a call",
    "the calls of functions that are alive", "the process", "with the functions",
))  # fmt: skip

_PREFIXES = ("EXTENDED_ARG", "CACHE", "NOP")
_PUSHES = ("LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "PUSH_NULL")
_SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR")


def is_part_of_key(code: CodeType, position: int) -> bool:
    """Whether the result of the call at a position of some code goes to a subscript, alone or in a tuple."""
    known = _known.setdefault(code, {})
    if position not in known:
        following = [instruction for instruction in dis.get_instructions(code) if instruction.offset >= position]
        known[position] = _goes_to_subscript(
            [instruction for instruction in following[1:] if instruction.opname not in _PREFIXES]
        )
    return known[position]


def _goes_to_subscript(following: Sequence[dis.Instruction]) -> bool:
    """Follows the result, the top of the stack before these instructions. above: how many values lie above it."""
    above = 0
    for instruction in following:
        name, argument = instruction.opname, instruction.arg
        if name == "BUILD_TUPLE" and argument is not None and argument > above:
            above = 0
        elif above == 0 and (name in _SUBSCRIPTS or (name == "BINARY_OP" and instruction.argrepr == "[]")):
            return True
        elif name == "COPY":
            above += 1
        elif name in ("SWAP", "RETURN_VALUE") or instruction.opcode in dis.hasjrel:
            return False
        elif name.startswith(_PUSHES) or above:
            above += dis.stack_effect(instruction.opcode, argument)
            if above < 0:
                return False
        else:
            return False
    return False
