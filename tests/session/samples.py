"""How many of a large set of cases a test takes: a part in the suite, all of them in a soak.

`TESTS_TIMES=N`, which `python -m tests.soaks.whole_suite` sets, multiplies the numbers of random cases; above 1 it
takes parameter grids whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

ENVIRONMENT = "TESTS_TIMES"
TIMES = int(os.environ.get(ENVIRONMENT, "1"))


def times(count: int) -> int:
    """The number of random cases of a test that draws `count` in the suite."""
    return count * TIMES


def in_suite(part: Iterable[T], whole: Iterable[T]) -> list[T]:
    """`part` in the suite, `whole` in a soak."""
    return list(part if TIMES == 1 else whole)


def pairs_of(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Points of a grid in which any two values of two axes meet; in a soak the whole grid."""
    return in_suite(covering(*axes), itertools.product(*axes))


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Points of a grid in which any two values of two axes meet, each chosen for the most pairs that are left."""
    grid = list(itertools.product(*(range(len(axis)) for axis in axes)))
    pairs = [{(a, b, point[a], point[b]) for a, b in itertools.combinations(range(len(axes)), 2)} for point in grid]
    left, chosen = set().union(*pairs), set[int]()
    while left:
        best = max(range(len(grid)), key=lambda number: len(pairs[number] & left))
        chosen.add(best)
        left -= pairs[best]
    return [tuple(axis[k] for axis, k in zip(axes, grid[number], strict=True)) for number in sorted(chosen)]
