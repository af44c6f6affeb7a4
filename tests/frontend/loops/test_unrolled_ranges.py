"""Loops of which one recording does not express every iteration are unrolled, and explain names the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.loops.range_loops import check, recurrence
from tracefuse import fuse


def reads_what_it_appends_to(x: Any) -> Any:
    sums = [x[0]]
    for i in range(20):
        sums.append(sums[i // 2] + x[i])
    return np.stack(sums)


def appends_an_array_that_it_writes(x: Any) -> Any:
    y, rows = x * 1, []
    for i in range(20):
        y += i
        rows.append(y)
    return np.stack(rows)


def writes_what_it_has_appended(x: Any) -> Any:
    rows = []
    for i in range(20):
        y = x + i
        rows.append(y)
    y[0] = 7
    return rows[-1]


def appends_what_others_read(x: Any) -> Any:
    holder = {"rows": []}
    rows = holder["rows"]
    for i in range(20):
        rows.append(x[i])
        x[i] += len(holder["rows"])
    return x


def prints_by_the_counter(x: Any) -> Any:
    for i in range(20):
        if i > 30:
            print(x)
        if i > 3:
            raised_to(x, i)


def raised_to(x: Any, i: int) -> None:
    x[i] = x[i] ** i


def swaps_in_some_iterations(x: Any) -> Any:
    y = x * 2
    for k in range(20):
        x[1:] += y[:-1]
        if k % 3:
            x, y = y, x
    return x


def calls_a_closure(x: Any) -> Any:
    total = 0

    def add(value: Any) -> None:
        nonlocal total
        total = total + value

    for i in range(20):
        add(x[i])
    return total


def catches_what_it_raises(x: Any) -> Any:
    try:
        for i in range(20):
            x[i] += 1
            if i > 5:
                raise LookupError
    except LookupError:
        x[0] = 9


def writes_what_it_rebinds(x: Any) -> Any:
    y = x
    for _ in range(20):
        y += 1
        y = y * 2
    return y


def asks_about_an_element(x: Any) -> Any:
    for i in range(20):
        if x[i] > 3:
            x[i] = 3


UNROLLED = (
    reads_what_it_appends_to, appends_an_array_that_it_writes, writes_what_it_has_appended,
    appends_what_others_read, prints_by_the_counter, swaps_in_some_iterations, calls_a_closure, catches_what_it_raises,
    writes_what_it_rebinds,
)  # fmt: skip


@pytest.mark.parametrize("function", UNROLLED, ids=lambda function: function.__name__)
def test_a_loop_of_which_one_recording_does_not_express_every_iteration_is_unrolled(function: Any) -> None:
    check(function, np.arange(20) % 5, recorded=False, target="reference")


def test_a_loop_that_asks_about_an_element_has_a_stage_for_each_answer() -> None:
    ours, theirs = np.arange(20) % 5, np.arange(20) % 5
    fuse(asks_about_an_element, target="reference")(ours)
    asks_about_an_element(theirs)
    assert np.array_equal(ours, theirs)


def test_explain_names_the_loop_and_the_reason_why_one_is_unrolled() -> None:
    line = prints_by_the_counter.__code__.co_firstlineno + 1
    explained = fuse(prints_by_the_counter).explain(np.arange(20))
    (reason,) = explained.unrolled
    assert reason.startswith(f"test_unrolled_ranges.py:{line}: the value of a size was asked for")
    assert explained.unrolled[0] in str(explained)
    line = recurrence.__code__.co_firstlineno + 1
    recorded = fuse(recurrence).explain(np.arange(20), np.arange(20))
    assert recorded.unrolled == ()
    assert f"range_loop (range_loops.py:{line})" in str(recorded)
