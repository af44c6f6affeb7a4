"""How many of a large set of cases a test takes: a part in the suite, all of them in a soak.

`TESTS_TIMES=N`, which `python -m tests.soaks.whole_suite` sets, multiplies the numbers of random cases; above 1 it
takes parameter grids whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

ENVIRONMENT = "TESTS_TIMES"
TIMES = int(os.environ.get(ENVIRONMENT, "1"))


def times(count: int) -> int:
    """The number of random cases of a test that draws `count` in the suite."""
    return count * TIMES


def in_suite(part: Iterable[T], whole: Iterable[T]) -> list[T]:
    """`part` in the suite, `whole` in a soak."""
    return list(part if TIMES == 1 else whole)
