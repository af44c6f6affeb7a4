"""Calls of types and ufuncs by clones, whose code differs from the user's where it calls.

A twin stands for the type in such calls only. Everywhere else, as in `isinstance(x, float)` or `dtype=float`, the clone
sees the type itself. For a global, as in `float(x)`, the code looks up a further name. For any other callee, as in
`dtype(x)` with a local variable, it calls a function with the callee as first argument: CALL takes a method and its
instance from the two places of the stack that otherwise hold a callee and NULL.

Must not know: overlays of values.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

_SUFFIX = "()"
_LOAD, _EXTENDED = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
_LOAD_CONSTANT, _PUSH_NULL, _SWAP, _NOP = (dis.opmap[name] for name in ("LOAD_CONST", "PUSH_NULL", "SWAP", "NOP"))
_NULL_IS_FIRST = sys.version_info < (3, 13)
"""Whether NULL lies below the callee on the stack."""
_OF_VARIABLES = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_NAME"})
_OF_EXPRESSIONS = _OF_VARIABLES | {"LOAD_GLOBAL", "LOAD_CONST", "PUSH_NULL"}
"""Instructions with which an expression that is called begins."""
_CALLS = ("CALL", "CALL_KW")
_TYPE_OF_ELEMENTS = "type"
"""The attribute of a dtype that is called, as in `x.dtype.type(y)`. A dtype is an object in C, without an overlay."""
_IS_CALLED = 1
"""The bit of the argument of `LOAD_GLOBAL` that is set where the global is called."""


def called(name: str) -> str:
    """Returns the name under which calls look up a global."""
    return name + _SUFFIX


def name_of_called(name: str) -> str | None:
    """Returns the global that a name made by `called` stands for; None for any other name."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None


def loads_of_callees(code: CodeType) -> Mapping[int, bool]:
    """Returns the offsets of instructions that load an attribute that is called, as in `np.ndarray(3)`.

    With True for those that load the owner of another attribute, as `np.add` in `np.add.reduce(x)`.
    """
    instructions = list(dis.get_instructions(code))
    calls = {_start(instruction) for instruction in instructions if instruction.opname.startswith("CALL")} - {None}
    loads = {}
    for load, then in itertools.pairwise(instructions):
        if load.opname not in _LOADS:
            continue
        if then.opname in _LOADS:
            loads[load.offset] = True
        elif load.opname == "LOAD_METHOD" or _start(load) in calls:
            loads[load.offset] = False
    return loads


_LOADS = ("LOAD_ATTR", "LOAD_METHOD")


def _start(instruction: dis.Instruction) -> tuple[int | None, int | None] | None:
    """Returns the line and the column where the expression of an instruction begins."""
    at = instruction.positions
    return None if at is None else (at.lineno, at.col_offset)


def with_called_twins(
    code: CodeType, is_type: Callable[[str], bool], call: Callable[..., Any], call_type: Callable[..., Any],
    originals: dict[CodeType, CodeType],
) -> CodeType:  # fmt: skip
    """Returns code that calls twins of types and ufuncs, in functions inside it too.

    is_type: whether a global is a type or a ufunc whose calls have a twin: the code looks up `called(name)`. call: what
    the code calls with any other callee and its arguments; call_type: with the owner of an attribute `type` in place
    of the callee. Both are the same in every trace, so that code of one function is equal. originals: receives the code
    of each that is changed.
    """
    constants = tuple(
        with_called_twins(constant, is_type, call, call_type, originals) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    names, text = _replaced(code, [position for position, name in enumerate(code.co_names) if is_type(name)])
    same = all(new is old for new, old in zip(constants, code.co_consts, strict=True))
    replaced = _with_method(code, text, len(constants))
    if replaced != text:
        text, constants = replaced, (*constants, call, call_type)
    elif same and names is code.co_names:
        return code
    changed = code.replace(co_consts=constants, co_names=names, co_code=text)
    originals[changed] = code
    return changed


def _nulls_of_calls(code: CodeType) -> list[int]:
    """Returns the offsets of the NULLs that are pushed for calls of variables and of other expressions.

    Without calls with unpacked arguments, which take no method, and of functions that the code itself defines.
    """
    if _PUSH_NULL not in code.co_code[::2]:
        return []
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL")]
    defined = {
        store.argval for make, store in itertools.pairwise(instructions)
        if make.opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE") and store.opname.startswith("STORE_")
    }  # fmt: skip
    unpacking = {_start(call) for call in instructions if call.opname == "CALL_FUNCTION_EX"}
    offsets, following = [], dict[Any, dis.Instruction]()
    for position in reversed(range(len(instructions))):
        null = instructions[position]
        if null.opname.startswith("CALL"):
            following[_start(null)] = null
        if null.opcode != _PUSH_NULL:
            continue
        callee = instructions[position + 1 if _NULL_IS_FIRST else position - 1]
        start = _start(callee)
        if callee.opname in _OF_VARIABLES:
            is_replaced = callee.argval not in defined and (callee.arg or 0) <= 255
            is_replaced = is_replaced and start in following and following[start].opname in _CALLS
        else:
            is_replaced = _NULL_IS_FIRST and callee.opname in _OF_EXPRESSIONS and start not in unpacking
        if start is not None and is_replaced:
            offsets.append(null.offset)
    return offsets


def _with_method(code: CodeType, text: bytes, constant: int) -> bytes:
    """Returns instructions that call a constant with the callee, or the next one with the owner of a called `type`."""
    if constant >= 255:
        return text
    changed = bytearray(text)
    for offset in _nulls_of_calls(code):
        if not _NULL_IS_FIRST:
            changed[offset : offset + 2] = changed[offset - 2 : offset]
            offset -= 2
        changed[offset : offset + 2] = bytes((_LOAD_CONSTANT, constant))
    if _TYPE_OF_ELEMENTS in code.co_names:
        for load, following in itertools.pairwise(dis.get_instructions(code)):
            if load.argval == _TYPE_OF_ELEMENTS and _loads_method(load):
                length = following.offset - load.offset
                below = bytes((_LOAD_CONSTANT, constant + 1, _SWAP, 2)) + bytes((_NOP, 0)) * (length // 2 - 2)
                changed[load.offset : load.offset + length] = below
    return bytes(changed)


def _loads_method(load: dis.Instruction) -> bool:
    if load.opname not in _LOADS or (load.arg or 0) > 255:
        return False
    return load.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and bool((load.arg or 0) & _IS_CALLED))


def _replaced(code: CodeType, types: list[int]) -> tuple[tuple[str, ...], bytes]:
    """The names and the instructions of code, with a further name for the calls of each type.

    (An instruction keeps its length. With so many names that the position of a further one needs another
    instruction, calls keep the type, which asks for the number.)
    """
    if not types:
        return code.co_names, code.co_code
    further = {position: len(code.co_names) + k for k, position in enumerate(types)}
    text = bytearray(code.co_code)
    extended, is_changed = 0, False
    for start in range(0, len(text), 2):
        operation, argument = text[start], text[start + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation != _LOAD or not argument & _IS_CALLED or argument > 255:
            continue
        position = further.get(argument >> 1)
        if position is not None and position << 1 | _IS_CALLED <= 255:
            text[start + 1] = position << 1 | _IS_CALLED
            is_changed = True
    if not is_changed:
        return code.co_names, code.co_code
    return (*code.co_names, *(called(code.co_names[position]) for position in types)), bytes(text)
