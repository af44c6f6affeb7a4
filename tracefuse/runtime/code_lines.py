"""Assembles the lines of generated Python functions: combined checks, and shared subexpressions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_MARK = re.compile("\0\\d+\0")


def share_expressions(lines: Sequence[str], shared: Mapping[str, str]) -> list[str]:
    """Replaces each placeholder with its expression.

    An expression with several uses becomes a variable, assigned before the first use. shared: placeholders by
    expression.
    """
    texts = {mark: text for text, mark in shared.items()}
    counts = Counter(mark for line in lines for mark in _MARK.findall(line))
    written: dict[str, str] = {mark: texts[mark] for mark, count in counts.items() if count == 1}
    result: list[str] = []
    for line in lines:
        for mark in dict.fromkeys(_MARK.findall(line)):
            if mark not in written:
                written[mark] = f"x{len(written)}"
                indent = line[: len(line) - len(line.lstrip())]
                result.append(f"{indent}{written[mark]} = {texts[mark]}")
        result.append(_MARK.sub(lambda match: written[match.group()], line))
    return result


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
