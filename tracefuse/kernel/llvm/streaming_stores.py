"""Stores that go past the caches to memory: results too large to be there still when somebody reads them.

A line of the cache that is written is read from memory first, and pushes out another one; a store past the caches does
neither, which moves a third less where a kernel reads as much as it writes. LLVM vectorises no such store of elements
that are not aligned to a vector. So a store is marked, by an access group of its own beside that of its loop, and made
what it is to be when the passes have made vectors of it. What they left as it was goes through the caches.

Knows: LLVM's metadata and its text. Must not know: kernels, when it pays.
"""

from __future__ import annotations

import re

from tracefuse.kernel.kernel_ir import CACHE_LINE

MARK = "tracefuse.streaming"
"""The name of the list of all access groups that mark a store."""

VERSION = f"{MARK} 1"
"""Part of the key of what is compiled."""

_MARKS = re.compile(rf"^!{re.escape(MARK)} = !\{{(.*)\}}$", re.MULTILINE)
_NODE = re.compile(r"^(![0-9]+) = ", re.MULTILINE)
_LIST = re.compile(r"^(![0-9]+) = !\{(![0-9]+(?:, ![0-9]+)+)\}$", re.MULTILINE)
_STORE = re.compile(
    r"^(?P<store> *store <(?P<count>[0-9]+) x (?P<element>float|double|i[0-9]+)> .*), align [0-9]+"
    r"(?P<rest>(?:, ![\w.]+ ![0-9]+)*, !llvm\.access\.group (?P<group>![0-9]+).*)$",
    re.MULTILINE,
)
_BITS = {"float": 32, "double": 64}


def is_marked(text: str) -> bool:
    """Whether a module has marked stores."""
    return f"!{MARK} = " in text


def past_caches(text: str) -> str:
    """The optimised module with the marked stores of whole vectors past the caches, each aligned to its size."""
    found = _MARKS.search(text)
    marks = set(found.group(1).split(", ")) if found else set()
    groups = {m.group(1) for m in _LIST.finditer(text) if marks.intersection(m.group(2).split(", "))}
    node = f"!{1 + max(int(m.group(1)[1:]) for m in _NODE.finditer(text))}"

    def moved(match: re.Match[str]) -> str:
        element = match["element"]
        size = int(match["count"]) * (_BITS.get(element) or int(element[1:])) // 8
        if match["group"] not in groups or size % 16:
            return match.group(0)
        return f"{match['store']}, align {min(size & -size, CACHE_LINE)}{match['rest']}, !nontemporal {node}"

    return f"{_STORE.sub(moved, text)}\n{node} = !{{i32 1}}\n"
