"""How many of a large set of cases a test takes: a part in the suite, all of them in a soak.

`TESTS_TIMES=N`, which `python -m tests.soaks.whole_suite` sets, multiplies the numbers of random cases; above 1 it
takes parameter grids whole. Without it the suite draws half the random cases, and CPU kernels, which most tests run
compiled, run in the interpreter as well in one of a few tests.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

ENVIRONMENT = "TESTS_TIMES"
TIMES = int(os.environ.get(ENVIRONMENT, "1"))


INTERPRETED_ONE_OF = 4
"""Of the tests that run on all backends, one in so many runs CPU kernels in the interpreter, too."""


def times(count: int) -> int:
    """The number of random cases of a test that a soak multiplies: half of it in the suite."""
    return count * TIMES if TIMES > 1 else -(-count // 2)


def in_suite(part: Iterable[T], whole: Iterable[T]) -> list[T]:
    """`part` in the suite, `whole` in a soak."""
    return list(part if TIMES == 1 else whole)


def is_interpreted(name: str) -> bool:
    """Whether the test of this pytest name interprets CPU kernels: the same at every run."""
    return TIMES > 1 or zlib.crc32(name.encode()) % INTERPRETED_ONE_OF == 0
