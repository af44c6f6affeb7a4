"""The names that code reads, by kind: globals, attributes, imported modules; each with its line.

`co_names` stores all of them in one tuple. The instructions distinguish them, so that `x.shape` does not count as a
read of a global called `shape`.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping
from types import CodeType

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register

MOST_CODES = 1024
"""Code objects whose names are known; the oldest is evicted first."""

# Python 3.11 has LOAD_METHOD; 3.12 has LOAD_SUPER_ATTR and, in class bodies, LOAD_FROM_DICT_OR_GLOBALS.
_GLOBALS = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """The names that some code reads. lines: the first line of each, as `file.py:12`, by kind and name."""

    globals: frozenset[str]
    attributes: frozenset[str]
    modules: frozenset[str]
    lines: Mapping[tuple[str, str], str]

    def line(self, kind: str, name: str) -> str | None:
        """Returns the line of a name of a kind: "globals", "attributes", "modules" or "cells"."""
        return self.lines.get((kind, name))

    def without(self, attributes: frozenset[str]) -> Names:
        """Returns the names without some attributes."""
        return Names(self.globals, self.attributes - attributes, self.modules, self.lines)


NO_NAMES = Names(frozenset(), frozenset(), frozenset(), {})


_names: BoundedTable[int, tuple[CodeType, Names]] = BoundedTable(MOST_CODES)
"""By the id of the code, which the entry keeps alive: equal code objects may be of different files."""
register(Cache(
    "frontend.tracer.python_code.code_names._names", "the names that code reads, by kind", "code object",
    f"{MOST_CODES}, the oldest go", cleared_by=CLEAR_CACHES, clear=_names.clear,
))  # fmt: skip


def names_of(code: CodeType) -> Names:
    """Returns every name that the code, or a function inside it, reads as a global, an attribute or a module."""
    known = _names.get(id(code))
    if known is None:
        known = _names[id(code)] = code, _names_of(code)
    return known[1]


def _names_of(code: CodeType) -> Names:
    names: dict[str, set[str]] = {"globals": set(), "attributes": set(), "modules": set()}
    lines: dict[tuple[str, str], str] = {}
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        waiting += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
        for instruction in dis.get_instructions(inner):
            kind = _kind(instruction.opname)
            if kind is None:
                continue
            name = instruction.argval
            if kind in names:
                names[kind].add(name)
            position = instruction.positions
            if position is not None and position.lineno is not None:
                lines.setdefault((kind, name), source.line_in(inner, position.lineno))
    return Names(frozenset(names["globals"]), frozenset(names["attributes"]), frozenset(names["modules"]), lines)


class CodeNames:
    """The names of code objects, each computed once; one instance per trace."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, Names]] = {}

    def of(self, code: CodeType) -> Names:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, names_of(code)
        return known[1]

    def every_attribute(self) -> Names:
        """Returns the attributes that any code looked at so far reads, with their lines."""
        attributes: set[str] = set()
        lines: dict[tuple[str, str], str] = {}
        for _, names in self._known.values():
            attributes |= names.attributes
            for key, line in names.lines.items():
                lines.setdefault(key, line)
        return Names(frozenset(), frozenset(attributes), frozenset(), lines)


def _kind(opname: str) -> str | None:
    if opname in _GLOBALS:
        return "globals"
    if opname in _ATTRIBUTES:
        return "attributes"
    if opname in _CELLS:
        return "cells"
    return "modules" if opname == "IMPORT_NAME" else None
