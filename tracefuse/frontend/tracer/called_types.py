"""Calls of types and ufuncs, as in `float(x)`, by clones: their code looks up a name of its own for what is called.

A twin stands for the type in such calls only. Everywhere else, as in `isinstance(x, float)` or `dtype=float`, the clone
sees the type itself.

Must not know: overlays of values.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Callable, Mapping
from types import CodeType

_SUFFIX = "()"
_LOAD, _EXTENDED = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
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


def with_called_names(
    code: CodeType, is_type: Callable[[str], bool], originals: dict[CodeType, CodeType]
) -> CodeType:  # fmt: skip
    """Returns code whose calls of some globals look up `called(name)`, in functions inside it too.

    is_type: whether a global is a type or a ufunc whose calls have a twin. originals: receives the code of each that is
    changed.
    """
    constants = tuple(
        with_called_names(constant, is_type, originals) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    names, text = _replaced(code, [position for position, name in enumerate(code.co_names) if is_type(name)])
    same = all(new is old for new, old in zip(constants, code.co_consts, strict=True))
    if same and names is code.co_names:
        return code
    changed = code.replace(co_consts=constants, co_names=names, co_code=text)
    originals[changed] = code
    return changed


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
