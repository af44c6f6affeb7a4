"""Code that compares with `True` or `False` by identity: `flag is True`, `case True:`.

A traced truth value is neither object, and Python asks nothing in such a comparison. While a trace runs such code, its
truth values of Python are the answers of the call.
"""

from __future__ import annotations

import dis
import itertools
from types import CodeType

_IS = dis.opmap["IS_OP"]


def compares_by_identity(code: CodeType) -> bool:
    """Whether code, or that of a function inside it, compares with `True` or `False` by identity."""
    waiting = [code]
    while waiting:
        current = waiting.pop()
        waiting += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        if _IS in current.co_code[::2] and any(constant is True or constant is False for constant in current.co_consts):
            instructions = list(dis.get_instructions(current))
            for before, instruction in itertools.pairwise(instructions):
                if instruction.opname == "IS_OP" and isinstance(before.argval, bool):
                    return True
    return False
