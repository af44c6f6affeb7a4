"""Lines of Python that are written to be run at every call: conditions, and arithmetic that is done once.

Knows: text. Must not know: what the lines are about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_MARK = re.compile("\0\\d+\0")


def with_shared(lines: Sequence[str], shared: Mapping[str, str]) -> list[str]:
    """The lines with arithmetic in the place of its marks; what several places need is a variable before the first."""
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
        result.append(_MARK.sub(lambda found: written[found.group()], line))
    return result


def unless(conditions: Iterable[str]) -> list[str]:
    """`return None` unless all hold; each condition once."""
    tests = list(dict.fromkeys(conditions))
    return [f"    if not ({' and '.join(tests)}):", "        return None"] if tests else []
