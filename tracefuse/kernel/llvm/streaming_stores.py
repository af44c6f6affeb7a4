"""Non-temporal stores, which bypass the caches, for results too large to remain cached until they are read.

A cached store first reads its cache line from memory and evicts another line. A non-temporal store does neither, which
saves a third of the traffic of a kernel that reads as much as it writes. LLVM does not vectorize non-temporal stores of
elements that are not vector-aligned. So the emitter marks each such store with an extra access group, and this module
makes the marked vector stores non-temporal after LLVM's passes. Stores that stayed scalar go through the caches.
"""

from __future__ import annotations

import re

from tracefuse.kernel.kernel_ir import CACHE_LINE

MARK = "tracefuse.streaming"
"""The name of the metadata list of the access groups that mark stores."""

VERSION = f"{MARK} 1"
"""A version of this transformation, part of the cache key."""

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
    """Return whether a module has marked stores."""
    return f"!{MARK} = " in text


def past_caches(text: str) -> str:
    """Return the optimized module with its marked vector stores made non-temporal and aligned to their size."""
    marks_list = _MARKS.search(text)
    marks = set(marks_list.group(1).split(", ")) if marks_list else set()
    groups = {m.group(1) for m in _LIST.finditer(text) if marks.intersection(m.group(2).split(", "))}
    node = f"!{1 + max(int(m.group(1)[1:]) for m in _NODE.finditer(text))}"

    def make_nontemporal(match: re.Match[str]) -> str:
        element = match["element"]
        size = int(match["count"]) * (_BITS.get(element) or int(element[1:])) // 8
        if match["group"] not in groups or size % 16:
            return match.group(0)
        return f"{match['store']}, align {min(size & -size, CACHE_LINE)}{match['rest']}, !nontemporal {node}"

    return f"{_STORE.sub(make_nontemporal, text)}\n{node} = !{{i32 1}}\n"
