"""Assembles the lines of generated Python functions: combined checks, and shared subexpressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

_MARK = re.compile("\0\\d+\0")


def share_expressions(lines: Sequence[str], shared: Mapping[str, str]) -> list[str]:
    """Replaces each placeholder with its expression.

    An expression with several uses becomes a variable, assigned before the first use, outside of all blocks that are
    not around every use. shared: placeholders by expression.
    """
    texts = {mark: text for text, mark in shared.items()}
    uses: dict[str, list[tuple[int, ...]]] = {}
    for position, (line, blocks) in enumerate(zip(lines, _blocks(lines), strict=True)):
        for mark in _MARK.findall(line):
            uses.setdefault(mark, []).append((*blocks, position))
    written: dict[str, str] = {mark: texts[mark] for mark, places in uses.items() if len(places) == 1}
    assigned: dict[int, list[str]] = {}
    for mark, places in uses.items():
        if mark not in written:
            written[mark] = f"x{len(written)}"
            position = _around_all(places)
            indent = lines[position][: _depth(lines[position])]
            assigned.setdefault(position, []).append(f"{indent}{written[mark]} = {texts[mark]}")
    result: list[str] = []
    for position, line in enumerate(lines):
        result += [*assigned.get(position, ()), _MARK.sub(lambda match: written[match.group()], line)]
    return result


def _depth(line: str) -> int:
    """Returns the indentation of a line."""
    return len(line) - len(line.lstrip())


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yields for each line the positions of the lines that begin the blocks around it."""
    around: list[int] = []
    for position, line in enumerate(lines):
        while around and _depth(lines[around[-1]]) >= _depth(line):
            around.pop()
        yield tuple(around)
        if line.endswith(":"):
            around.append(position)


def _around_all(places: Sequence[tuple[int, ...]]) -> int:
    """Returns the last line before or at the first of these places that is in a block around all of them.

    places: of each line, the positions of the blocks around it and its own.
    """
    first = places[0]
    for k, position in enumerate(first):
        if any(place[k : k + 1] != (position,) for place in places):
            return position
    return first[-1]


def unless(conditions: Iterable[str]) -> list[str]:
    """Writes `return None` unless all conditions hold. A repeated condition is checked once."""
    tests = list(dict.fromkeys(conditions))
    return [f"    if not ({' and '.join(tests)}):", "        return None"] if tests else []


_SEGMENT = re.compile("  # segment (\\d+)$")


def tagged(lines: Iterable[str], step: int | None) -> list[str]:
    """Appends a comment with the number of the segment to the last line of a launch."""
    *before, last = lines
    return [*before, last if step is None else f"{last}  # segment {step}"]


def first_segment(lines: Iterable[str]) -> int | None:
    """Returns the number of the first segment that a comment of these lines names."""
    tags = (_SEGMENT.search(line) for line in lines)
    return next((int(tag[1]) for tag in tags if tag), None)
