"""Loops whose bodies ask for the truth of values outside of conditions: `a or b`, `not a`, `a < b < c`, `a in (1, 2)`.

Each is recorded in one trace, and results are numbers of Python exactly where those of the function are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.loops.equal_results import are_equal
from tracefuse import fuse


def both_of_two(x: Any) -> Any:
    result = np.zeros(len(x), bool)
    for i in range(1, len(x)):
        result[i] = x[i] > 0 and x[i - 1] < 2
    return result


def within_bounds(x: Any) -> Any:
    result = np.zeros(len(x), bool)
    for i in range(len(x)):
        inside = 0 <= x[i] < 2
        result[i] = inside
    return result


def zeros_by_not(x: Any) -> Any:
    count = 0
    for i in range(len(x)):
        count += not x[i]
    return count


def members(x: Any) -> Any:
    count = 0
    for value in x:
        if value in (1, 2) and value not in [2, 5]:
            count += 1
    return count


def counters_among(x: Any) -> Any:
    total = 0
    for i in range(len(x)):
        late = i > 3
        if i in {2, 7} or late:
            total += x[i]
    return total


def seen_before(x: Any) -> Any:
    count, seen = 0, False
    for value in x:
        seen = seen or value == 2
        count += seen
    return count, seen


def all_positive(x: Any) -> Any:
    holds = True
    for value in x:
        holds = holds and value > -3
    return holds


def found_in_a_branch(x: Any) -> Any:
    found = False
    for value in x:
        if value > 0:
            found = value == 1
    return found


def defaults(x: Any) -> Any:
    result = []
    for value in x:
        result.append(value or 7)
    return np.array(result), np.array([value and 3 for value in x])


def neighbours(x: Any) -> Any:
    result = np.zeros_like(x)
    for i in range(len(x)):
        left = x[i - 1] if i > 0 else 0
        other = x[i - 2] if i > 1 else 0
        result[i] = left or other or 9
    return result


def _is_one(value: Any) -> Any:
    return value > 0 and value < 2


def ones_by_function(x: Any) -> Any:
    count = 0
    for value in x:
        if _is_one(value):
            count += 1
    return count


def two_ends(x: Any) -> Any:
    low, high = 0, len(x) - 1
    while low < high and x[low] + x[high] != 3:
        is_small = x[low] + x[high] < 3 or low > 5
        if is_small:
            low += 1
        else:
            high -= 1
    return low, high


def carried_into_a_comparison(x: Any) -> Any:
    holds, last = True, 0
    for i in range(len(x)):
        holds = len(x) > 3 and last >= 1
        last = x[i]
    return holds


def members_of_sets_and_ranges(x: Any) -> Any:
    halves, count = x / 2, 0
    for i in range(len(x)):
        count += (halves[i] in {1, 2}) + 10 * (x[i] in range(-1, 2)) + 100 * (i in {1, 2, 5})
    return count


def chosen_tuples(x: Any) -> Any:
    best, where = x[0], -1
    for i in range(len(x)):
        best, where = (x[i], i) if x[i] > best or where < 0 else (best, where)
    return best, where


PROGRAMS = (
    both_of_two, within_bounds, zeros_by_not, members, counters_among, seen_before, all_positive, found_in_a_branch,
    defaults, neighbours, ones_by_function, two_ends, carried_into_a_comparison, members_of_sets_and_ranges,
    chosen_tuples,
)  # fmt: skip

ARRAYS = ([0, 2, -1, 1, 0, 0, -2, 2, 1, 1, -1, 0, 2, 1, 0, -2, 1, 2, 0, 1], [-1] * 20, [2] + [0] * 19)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_truths_that_are_values_are_recorded(program: Any, target: str) -> None:
    fused = fuse(target=target)(program)
    for values in ARRAYS:
        x = np.array(values)
        assert are_equal(fused(x), program(x)), values
    # A second trace where the call decides whether a result is a number of Python; none if the function itself runs.
    assert fused.cache_info().traces in (1, 2)


def test_entries_of_a_list_are_numbers_of_python_where_those_of_the_function_are() -> None:
    def either(x: Any) -> Any:
        return [value if value > 0 else 3 for value in x]

    x = np.arange(-6, 6)
    assert [type(value) is int for value in fuse(either)(x)] == [type(value) is int for value in either(x)]


def test_a_set_holds_no_narrow_float_near_one_of_its_numbers() -> None:
    def counts(x: Any) -> Any:
        listed, hashed = 0, 0
        for value in x:
            listed += value in (0.1, 0.5)
            hashed += value in {0.1, 0.5}
        return listed, hashed

    x = np.float32([0.1, 0.5, 0.2] * 2)
    assert fuse(counts)(x) == counts(x) == (4, 2)


def test_explain_tells_why_calls_run_the_function_and_which_loops_are_unrolled() -> None:
    def repeated(x: Any) -> int:
        seen: list[Any] = []
        count = 0
        for value in x:
            if value in seen:
                count += 1
            else:
                seen.append(value)
        return count

    fused, x = fuse(repeated), np.arange(30) % 7
    with pytest.warns(UserWarning, match="every call runs the function"):
        assert fused(x) == 23
    closing, loop = str(fused.explain(x)).splitlines()
    assert "from there on, every call runs the function" in closing
    assert loop.startswith("unrolled loop: test_truths_in_loops.py:")
    assert loop.endswith(": an iteration appends to a list that it may read")
