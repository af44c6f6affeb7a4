"""Code that may read a set past the methods of its class, as `set(s)`, `{*s}` and `other.update(s)` do in C.

The overlay of a set cannot see such a read. Where the code of a trace has none, an element that is added is no read of
the set.

Must not know: overlays of values.
"""

from __future__ import annotations

import dis
from types import CodeType

from tracefuse.caches import memoized

_NAMES = frozenset({
    "set", "frozenset", "update", "union", "intersection", "difference", "symmetric_difference", "issubset",
    "issuperset", "isdisjoint", "intersection_update", "difference_update", "symmetric_difference_update", "getattr",
})  # fmt: skip
_IN_PLACE = frozenset({"|=", "&=", "-=", "^="})


@memoized("whether code may read a set past its methods", key="code object", most=1024)
def may_read_sets(code: CodeType) -> bool:
    """Whether code, or code inside of it, names what reads sets past their methods."""
    waiting = [code]
    while waiting:
        current = waiting.pop()
        waiting += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        if not _NAMES.isdisjoint(current.co_names):
            return True
        for instruction in dis.get_instructions(current):
            if instruction.opname == "SET_UPDATE" or instruction.argrepr in _IN_PLACE:
                return True
    return False
