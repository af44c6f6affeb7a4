"""Long `for` loops over ranges: their bodies are recorded once, or they are unrolled; the values are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.loops.range_loops import check, is_recorded, recurrence
from tests.random_programs.random_loops import random_loops
from tests.session.samples import times
from tests.ways import recorded_again
from tracefuse import fuse, options

# -- loops that are recorded ------------------------------------------------------------------------------------------


def triangular(x: Any, a: Any) -> Any:
    for i in range(x.shape[0]):
        x[i] = (x[i] - a[i, :i] @ x[:i]) * 2
        for j in range(i + 1, x.shape[0]):
            a[i, j] += x[i] * a[j, i]


def sum_of_elements(x: Any) -> Any:
    total = 0
    for i in range(x.shape[0]):
        total += x[i] * i
    return total


def variables_after_the_loop(x: Any) -> Any:
    y, k = np.zeros_like(x), 3
    for i in range(0, x.shape[0], 2):
        last = x[i] * 2
        y[i] = last + k
        k += 2
    return y, last, k, i


def reversed_range(x: Any) -> Any:
    for i in range(x.shape[0] - 2, -1, -1):
        x[i] += x[i + 1]
    return i


def new_array_each_time(x: Any) -> Any:
    y = x
    for i in range(x.shape[0]):
        y = y - i
    return y


def write_through_a_view(x: Any) -> Any:
    inner = x[1:-1]
    for i in range(x.shape[0]):
        inner += x[:-2]
        x[0] += inner[i % 1]
    return inner * 1


def perhaps_no_iteration(x: Any) -> Any:
    last = -1
    for i in range(x.shape[0]):
        for j in range(i):
            last = x[j]
        x[i] += last


def inner_loop_over_the_size_of_no_array_in_it(x: Any) -> Any:
    last = -1
    for i in range(x.shape[0]):
        for _ in range(i + 1, x.shape[0]):
            last = i
        x[i] += 1
    x[0] = last


def an_array_that_no_iteration_reads(x: Any) -> Any:
    y = x - 1
    for i in range(x.shape[0] - 1, -1, -1):
        if x.shape[0] > 5:
            y = x * 2
            y[i:] -= 1
    return y


def integers_without_bound(x: Any) -> Any:
    a, b = 0, 1
    for _ in range(40):
        a, b = b, a + b
    x += a


def rows_that_are_written(x: Any, a: Any) -> Any:
    total = 0
    for row in a:
        total = total * 2 - row.sum()
        row[0] = total
    return total


def entries_with_positions(x: Any, a: Any) -> Any:
    for i, (value, row) in enumerate(zip(x, reversed(a), strict=True), start=1):
        x[i - 1] = value * i - row[i - 1]
    return i


def ranges_beside_rows(x: Any, a: Any) -> Any:
    for k, row in zip(range(1, x.shape[0]), a):  # noqa: B905
        x[k] += x[k - 1] - row[k]
    for j, i in enumerate(reversed(range(x.shape[0] - 1))):
        x[i] -= x[i + 1] - j
    return k, i


RECORDED: dict[Callable[..., Any], int] = {
    recurrence: 2, sum_of_elements: 1, variables_after_the_loop: 1, reversed_range: 1, new_array_each_time: 1,
    write_through_a_view: 1, perhaps_no_iteration: 1, inner_loop_over_the_size_of_no_array_in_it: 1,
    integers_without_bound: 1, an_array_that_no_iteration_reads: 1,
}  # fmt: skip
"""The functions with the number of their arrays."""


@pytest.mark.parametrize("function", RECORDED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_the_body_of_a_long_loop_is_recorded_once(function: Callable[..., Any], target: str) -> None:
    size = 40 if function is variables_after_the_loop else 21
    arrays = [np.arange(size) % 7 - k for k in range(RECORDED[function])]
    check(function, *arrays, recorded=True, target=target)


def test_sizes_in_the_body_depend_on_the_counter() -> None:
    check(triangular, np.arange(20) % 3, np.arange(400).reshape(20, 20) % 5 - 2, recorded=True)


def test_another_number_of_iterations_needs_no_new_trace_and_no_longer_one() -> None:
    fused = fuse(recurrence)
    texts = set()
    for size in (20, 30, 1000):
        ours, theirs = np.arange(size), np.arange(size)
        fused(ours, theirs + 1)
        recurrence(theirs, theirs + 1)
        assert np.array_equal(ours, theirs)
        texts.add(str(fused.definition(ours, theirs)).partition("\n")[2])
    assert len(texts) == 1
    assert fused.cache_info().traces == 1


def test_a_loop_of_a_nest_may_have_no_iteration() -> None:
    def triangle(x: Any) -> Any:
        for i in range(9):
            for j in range(i + 1, 9):
                for k in range(i + 1, j):
                    x[i, j] += x[i, k] * x[k + 1, j]
            x = x.copy() if i % 4 == 3 else x
        return x

    ours, theirs = (np.arange(81).reshape(9, 9) % 5 for _ in range(2))
    assert np.array_equal(fuse(triangle, target="reference")(ours), triangle(theirs))


def test_the_printed_definition_of_loops_rebuilds_them() -> None:
    def eliminated(A: Any, n: int) -> Any:
        for i in range(n):
            for j in range(i + 1, n):
                A[j, i:] -= A[i, i:] * (j - i)
        return A

    matrix = np.arange(400).reshape(20, 20) % 5
    definition = fuse(eliminated).definition(matrix, 20)
    assert "range_loop" in str(definition)
    updated = matrix.copy()
    recorded_again(definition).execute([updated, 20])
    assert np.array_equal(updated, eliminated(matrix, 20))


def test_a_nest_of_short_loops_with_many_iterations_is_recorded() -> None:
    def window_sums(x: Any) -> Any:
        sums = np.zeros((x.shape[0] - 2, x.shape[1] - 2), np.int64)
        for i in range(sums.shape[0]):
            for j in range(sums.shape[1]):
                sums[i, j] = x[i : i + 3, j : j + 3].sum()
        return sums

    check(window_sums, np.arange(144).reshape(12, 12), recorded=True, target="reference")


def test_a_loop_with_a_long_body_is_recorded() -> None:
    lines = ["def run(x):", "    for i in range(20):", *["        x[i] = x[i - 1] * 2 - x[0]"] * 40, "    return i"]
    scope: dict[str, Any] = {"__name__": "long_body"}
    exec("\n".join(lines).replace("i - 1", "i"), scope)
    check(scope["run"], np.arange(20), recorded=True, target="reference")


def test_a_short_loop_is_unrolled() -> None:
    check(recurrence, np.arange(9), np.arange(9), recorded=False)


def test_an_option_unrolls_all_loops() -> None:
    with options(loops="unroll"):
        check(reversed_range, np.arange(20), recorded=False)


def test_lists_have_what_every_iteration_appends() -> None:
    def history(x: Any) -> Any:
        steps, states, pairs, table = [], [x[0]], [], []
        for i in range(x.shape[0] - 1, -1, -1):
            row = []
            for j in range(70):
                row.append(x[i] - j)
            table.append(np.array(row))
            x = x * 3 - i
            steps.append(i)
            pairs.append((x[i], x))
            states.append(x[i])
        return steps, np.array(states), pairs[-2], len(pairs), np.stack(table), sum(states), np.max(states[3:9])

    fused = check(history, np.arange(20) % 7, recorded=True)
    check(history, np.arange(18) % 5, recorded=True, target="reference")
    np.testing.assert_equal(fused(np.arange(25)), history(np.arange(25)))


@pytest.mark.parametrize("function", [rows_that_are_written, entries_with_positions, ranges_beside_rows])
def test_a_loop_over_entries_is_recorded_as_one_over_their_positions(function: Callable[..., Any]) -> None:
    arrays = np.arange(20) % 7, np.arange(400).reshape(20, 20) % 5
    check(function, *arrays, recorded=True, target="reference")
    fused = check(function, *arrays, recorded=True)
    check(function, *(one[:9] for one in arrays), recorded=False, target="reference")
    longer = np.arange(30) % 7, np.arange(900).reshape(30, 30) % 5
    ours, theirs = ([one.copy() for one in longer] for _ in range(2))
    np.testing.assert_equal(fused(*ours), function(*theirs))
    np.testing.assert_equal(ours, theirs)
    assert fused.cache_info().traces == 1


# -- loops that are not -----------------------------------------------------------------------------------------------


def test_a_loop_that_leaves_at_an_iteration_is_recorded() -> None:
    def leaves_early(x: Any) -> Any:
        for i in range(20):
            if i == 18:
                break
            x[i] += 1

    check(leaves_early, np.arange(20.0), recorded=True)


# -- random loops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["reference", "cpu"])
@settings(max_examples=times(3))
@given(st.integers(0, 2**31))
def test_random_loops_give_what_numpy_gives(target: str, seed: int) -> None:
    function, text = random_loops(seed)
    ours, theirs = (np.random.default_rng(seed).integers(-4, 5, (18, 18)) for _ in range(2))
    try:
        with np.errstate(all="ignore"):
            expected = function(theirs, 3)
    except (IndexError, ValueError) as error:
        with pytest.raises((IndexError, ValueError)):
            fuse(function, target=target)(ours, 3)
        del error
        return
    result = fuse(function, target=target)(ours, 3)
    assert np.array_equal(ours, theirs), text
    for one, other in zip(result, expected, strict=True):
        assert np.array_equal(one, other), text


def test_a_question_after_a_loop_runs_no_op_of_the_body() -> None:
    def digits(x: Any) -> Any:
        found = np.zeros(20)
        for k in range(20):
            equal = x == k
            found[k] = equal.any()
        return np.flatnonzero(found)

    fused = fuse(digits)
    for x in (np.arange(5.0), np.array([7.0, 19.0, 30.0])):
        np.testing.assert_array_equal(fused(x), digits(x))


def test_a_loop_that_calls_a_local_function_is_recorded() -> None:
    def steps(y: Any) -> Any:
        def slope(y: Any) -> Any:
            return -y * y

        for _ in range(50):
            y = y + 0.01 * slope(y)
        return y

    y = np.random.default_rng(0).random((3, 4))
    assert is_recorded(fuse(steps), y)


def test_a_variable_that_begins_as_an_array_that_the_loop_writes() -> None:
    def f(y: Any) -> Any:
        w = y
        for _ in range(20):
            w[1] = 5
            y = y % 17
        return y, w

    x = np.arange(20, 25)
    ours, theirs = x.copy(), x.copy()
    for one, other in zip(fuse(f, target="reference")(ours), f(theirs), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(ours, theirs)


def rotated_in_place(u: Any, steps: Any) -> Any:
    new = u * 0
    for k in range(steps):
        new[1:-1] = u[:-2] + u[2:]
        new[0] = k
        u, new = new, u
    new[1] = 9
    return u, new


def rotated_triple(p: Any, steps: Any) -> Any:
    c, x = p * 2, p * 0
    for _ in range(steps):
        for j in range(1, len(p) - 1):
            x[j] = 2 * c[j] - p[j] + 0.1 * (c[j + 1] - c[j - 1])
        p, c, x = c, x, p
    return p, c, x


def rotated_and_read_by_another_name(u: Any, steps: Any) -> Any:
    a, b = u * 1, u * 2
    first = a
    for _ in range(steps):
        b[1:] = a[:-1] + first[0]
        a, b = b, a
    return a, b, first


@pytest.mark.parametrize("function", [rotated_in_place, rotated_triple, rotated_and_read_by_another_name])
def test_arrays_that_variables_exchange_and_iterations_write_are_pythons(function: Any) -> None:
    fused = fuse(function, target="reference")
    for steps in (18, 19, 24, 25):
        mine, theirs = np.linspace(0.0, 1.0, 6) ** 2, np.linspace(0.0, 1.0, 6) ** 2
        results, expected = fused(mine, steps), function(theirs, steps)
        for result, wanted in zip((*results, mine), (*expected, theirs), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-12)
        assert [one is mine for one in results] == [one is theirs for one in expected]
    assert fused.cache_info().traces == (4 if function is rotated_and_read_by_another_name else 2)


def test_counters_that_iterations_store_are_no_questions() -> None:
    def stored(x: Any) -> Any:
        y, z = x * 1, x * 0
        for i in range(len(x)):
            z[i], y[x > 3] = i, i
            y.flat[i] = i * 2
            y[i] += abs(i - 5)
        return y, z

    fused = fuse(stored, target="reference")
    for size in (20, 30):
        np.testing.assert_array_equal(fused(np.arange(size) * 1.0), stored(np.arange(size) * 1.0))
    assert fused.cache_info().traces == 1
