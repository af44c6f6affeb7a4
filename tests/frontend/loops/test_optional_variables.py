"""Loops over elements whose variables are `None`, strings, tuples or rows of an array, and `match` statements.

Each is recorded, and results are `None` and numbers of Python exactly where those of the function are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from tests.frontend.loops.equal_results import are_equal
from tracefuse import fuse


def largest(x: Any) -> Any:
    best, where = None, None
    for i, value in enumerate(x):
        if best is None or value > best:
            best, where = value, i
    return best, where


def first_above(x: Any) -> Any:
    found = None
    for i in range(len(x)):
        if x[i] > 1:
            found = i
            break
    return found


def smoothed(x: Any) -> Any:
    state, result = None, []
    for value in x:
        state = value if state is None else 0.5 * state + 0.5 * value
        result.append(state)
    return np.array(result)


def falls(x: Any) -> Any:
    before = now = None
    count = 0
    for value in x:
        if before is not None and now is not None and before < now > value:
            count += 1
        before = now
        now = value
    return count


def runs_of_positive(x: Any) -> Any:
    start, runs = None, []
    for i, value in enumerate(x):
        if value > 0 and start is None:
            start = i
        elif value <= 0 and start is not None:
            runs.append((start, i))
            start = None
    return runs


def gaps(x: Any) -> Any:
    last, result = None, []
    for i, value in enumerate(x):
        if value > 0:
            if last is not None:
                result.append(i - last)
            last = i
    return np.array(result, int)


def truth_of_last(x: Any) -> Any:
    last, count = None, 0
    for value in x:
        if last and last > value:
            count += 1
        if not last or value > 0:
            last = value
    return count


def number_or_element(x: Any) -> Any:
    best = None
    for value in x:
        if value > 1:
            best = 1
        elif value < 0:
            best = value
    return best


def where_or_none(x: Any) -> Any:
    total = 0
    for i, value in enumerate(x):
        where = i if value > 0 else None
        if where is not None:
            total += where
    return total


def optional_argument(x: Any, most: Any = None) -> Any:
    if most is None:
        most = 1
    for value in x:
        most = value if value > most else None
        if most is None:
            most = 1
    return most


def states(x: Any) -> Any:
    state, count = "low", 0
    for value in x:
        if state == "low" and value > 1:
            state = "high"
            count += 1
        elif state in ("high", "top") and value < 0:
            state = "low"
    return count, state


def turns(x: Any) -> Any:
    before, count = "up", 0
    for i in range(1, len(x)):
        now = "up" if x[i] > x[i - 1] else "down"
        if now != before:
            count += 1
        before = now
    return count


def cases(x: Any) -> Any:
    total = 0
    for value in x:
        match value:
            case 0:
                total += 1
            case other if other > 1:
                total += 3 * other
            case 1 | 2 if total > 10:
                total -= 5
            case -1 as minus:
                total += minus
            case other:
                total += 2 * other
    return total


def cases_of_states(x: Any) -> Any:
    state, total = "a", 0
    for value in x:
        match state:
            case "a":
                total += value
                if value > 0:
                    state = "b"
            case "b":
                state = "c"
            case _:
                total *= 2
                state = "a"
    return total


def largest_row(x: Any) -> Any:
    rows = x.reshape(-1, 4) + 1
    best = None
    for row in rows:
        if best is None or row.sum() > best.max() * 3:
            best = row
    return best


def changes_between_rows(x: Any) -> Any:
    rows, total = x.reshape(-1, 2), 0
    previous = rows[0]
    for i in range(1, len(rows)):
        total += np.abs(rows[i] - previous).sum()
        previous = rows[i]
    return total


def closest_pair(x: Any) -> Any:
    best = None
    pair = None
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            distance = abs(x[i] + 2 * x[j] - 3)
            if best is None or distance < best:
                best, pair = distance, (i, j)
    return best, pair


def longest_interval(x: Any) -> Any:
    best, start = (0, 0), None
    for i, value in enumerate(x):
        if value > 0 and start is None:
            start = i
        if value <= 0 and start is not None:
            if i - start > best[1] - best[0]:
                best = (start, i)
            start = None
    return best


def held_tuple(x: Any) -> Any:
    held, total = None, 0
    for i, value in enumerate(x):
        if held is not None and value < held[1]:
            total += i - held[0]
            held = None
        elif held is None and value > 0:
            held = (i, value)
    return total, held


def position(x: Any) -> Any:
    at = (0, 1)
    for value in x:
        across, up = (1, 0) if value > 0 else (0, 1)
        at = (at[1] + across, at[0] - up)
    first, second = at
    return first, second, at


PROGRAMS = (
    largest, first_above, smoothed, falls, runs_of_positive, gaps, truth_of_last, number_or_element, where_or_none,
    optional_argument, states, turns, cases, cases_of_states, largest_row, changes_between_rows,
    closest_pair, longest_interval, held_tuple, position,
)  # fmt: skip

ARRAYS = (
    [0, 2, -1, 1, 0, 0, -2, 2, 1, 1, -1, 0, 2, 1, 0, -2, 1, 2, 0, 1] * 2, [-1] * 40, [0] * 19 + [1] * 21,
    [2, 2, -1, -1] * 10,
)  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_such_loops_are_recorded(program: Any, target: str) -> None:
    fused = fuse(target=target)(program)
    for values in ARRAYS:
        x = np.array(values)
        assert are_equal(fused(x), program(x)), values
    # Another trace for each answer of whether a result is None, a number of Python or an empty list.
    assert 0 < fused.cache_info().traces <= 4


def none_plus_one(x: Any) -> Any:
    found = None
    for value in x:
        if value > 100:
            found = value
    return found + 1


def none_in_the_loop(x: Any) -> Any:
    found, total = None, 0
    for value in x:
        if value > 0:
            found = value
        if value < 0:
            total += found
    return total


def entry_of_none(x: Any) -> Any:
    found = None
    for i, value in enumerate(x):
        if value > 100:
            found = (value, i)
    return found[0] + 1


@pytest.mark.parametrize("program", [none_plus_one, none_in_the_loop, entry_of_none])
@pytest.mark.filterwarnings("ignore:.*every call runs the function")
def test_arithmetic_with_none_raises_what_python_raises(program: Any) -> None:
    fused = fuse(program)
    for x in (np.full(20, -1), np.full(20, 1), np.array([-1, 1] * 10)):
        is_error = x[0] < 0 or program is not none_in_the_loop
        if is_error:
            with pytest.raises(TypeError, match="'NoneType'"):
                fused(x)
        else:
            assert fused(x) == program(x)


def written_after(x: Any) -> Any:
    rows = x.reshape(-1, 2)
    kept = rows[0]
    for row in rows:
        if row.sum() > kept.sum():
            kept = row
    rows += 7
    return kept


def written_through_the_row(x: Any) -> Any:
    rows = x.reshape(-1, 2) * 1
    kept = rows[0]
    for row in rows:
        kept = row
    kept[:] = 7
    return rows


def written_in_the_loop(x: Any) -> Any:
    rows, total = x.reshape(-1, 2) * 1, 0
    kept = rows[0]
    for i in range(len(rows)):
        rows[i] += i
        total += kept.sum()
        kept = rows[i]
    return total, kept


def written_by_the_loop_around(x: Any) -> Any:
    rows, total = x.reshape(-1, 2) * 1, 0
    kept = rows[0]
    for k in range(3):
        rows[k] += 1
        total += kept.sum()
        for i in range(1, len(rows)):
            if rows[i, 0] > 0:
                kept = rows[i]
    return total, kept


def flags_of_the_array(x: Any) -> Any:
    rows = x.reshape(-1, 2) * 1
    kept = rows[0]
    for row in rows:
        kept = row
    return rows.flags.writeable, kept


def none_for_a_variable_of_a_closure(x: Any) -> Any:
    kept, given, count = None, 1, 0
    for value in x:
        if value > 0:
            kept, given = given, None
        else:
            given = value
        read = lambda: given  # noqa: B023, E731
        if given is None:
            count += 1 + (read() is None)
    return count, kept


def values_that_raise(x: Any) -> Any:
    kept = 7
    for value in x:
        if value > 1:
            kept += 1
    with contextlib.suppress(IndexError):
        kept, _ = 0, x[1000]
    try:
        kept, _ = 1, x[1000]
    except IndexError:
        kept += 10
    return kept


def types_of_numbers(x: Any) -> Any:
    chosen, kept, counts = 1, 0.0, np.zeros(5, int)
    for value in x:
        counts[0] += isinstance(chosen, int)
        counts[1] += type(kept) is float
        counts[2] += hasattr(kept, "dtype")
        counts[3] += isinstance(kept, float | np.number)
        match chosen:
            case int():
                counts[4] += 1
        chosen = value and 2
        if value > 0:
            kept = value / 2
        elif value < 0:
            kept = 1.0
    return counts


@pytest.mark.parametrize("program", [none_for_a_variable_of_a_closure, values_that_raise, types_of_numbers])
@pytest.mark.filterwarnings("ignore:.*every call runs the function")
def test_variables_that_a_loop_cannot_carry_are_those_of_python(program: Any) -> None:
    fused = fuse(program)
    for values in ARRAYS:
        assert are_equal(fused(np.array(values)), program(np.array(values))), values


@pytest.mark.parametrize(
    "program",
    [written_after, written_through_the_row, written_in_the_loop, written_by_the_loop_around, flags_of_the_array],
)
@pytest.mark.filterwarnings("ignore:.*every call runs the function")
def test_rows_that_variables_keep_are_views(program: Any) -> None:
    fused = fuse(program)
    for values in ARRAYS[:2]:
        assert are_equal(fused(np.array(values)), program(np.array(values)))


def counter_in_a_tuple(x: Any) -> Any:
    held = None
    for i in range(len(x)):
        held = (i, 5)
    return held


def counter_in_a_list(x: Any) -> Any:
    held = None
    for i in range(len(x)):
        held = [i, 5]
    return held


def counter_in_a_slice(x: Any) -> Any:
    part = None
    for i in range(len(x)):
        part = slice(i, i + 1)
    return x[part]


@pytest.mark.parametrize("program", [counter_in_a_tuple, counter_in_a_list, counter_in_a_slice])
def test_objects_that_hold_the_counter_are_those_of_the_last_iteration(program: Any) -> None:
    fused = fuse(program)
    for size in (20, 33):
        assert are_equal(fused(np.arange(size)), program(np.arange(size)))
