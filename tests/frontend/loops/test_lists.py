"""Lists that loops fill: returned, read and iterated over, with a trace for any number of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def smoothed(x: Any) -> Any:
    out, total = [], 0.0
    for v in x:
        total = 0.5 * total + float(v)
        out.append(total)
    return out, tuple(v * 2 for v in x), {"last": [x[i : i + 3].sum() for i in range(len(x) - 3)]}


def pairs(x: Any) -> Any:
    found, states = [], []
    for i in range(len(x)):
        if x[i] > 0:
            found.append((i, x[i]))
        states.append({"position": i, "pair": (x[i], -x[i]), "window": x[:2] * x[i]})
    return np.array(found), len(found), found, states


def history(x: Any) -> Any:
    kept = {"error": [1.0], "step": []}
    for k in range(len(x)):
        kept["error"].append(kept["error"][-1] * 0.5 + k)
        kept["step"].append((k, x[k]))
    return kept, kept["step"][-1], np.array(kept["error"])


def run_lengths(x: Any) -> Any:
    runs, i = [], 0
    while i < len(x):
        j = i
        while j < len(x) and x[j] == x[i]:
            j += 1
        runs.append((x[i], j - i))
        i = j
    return runs


def backtracked(x: Any) -> Any:
    i, j = len(x) - 1, len(x) - 1
    path = []
    while i > 0 or j > 0:
        path.append((i, j))
        if i == 0 or (j > 0 and x[i] < x[j]):
            j -= 1
        else:
            i -= 1
    path.reverse()
    return path, path[::2]


def iterated(x: Any) -> Any:
    out = [(0, x[0])]
    for i in range(1, len(x)):
        out.append((i, x[i] + 1))
    total = 0.0
    for i, v in out:
        total = total + i * v
    values = [v * v for v in x]
    for k, v in enumerate(values):
        total = total + k * v
    for v, w in zip(values, reversed(values), strict=True):
        total = total + v * w
    for k in range(len(values) - 1):
        total = total + values[k] * values[k + 1]
    return total, min(values), max(values), values[0], values[-1], values[1:-1]


def chosen_positions(x: Any) -> Any:
    positions = [i for i in range(len(x)) if x[i] > 0]
    y = np.zeros(len(x))
    for k in range(len(positions)):
        y[positions[k]] = k * 2
    total = 0.0
    for p in positions:
        total = total + x[p]
    return y, total, not positions, positions


def lists_of_arrays(x: Any) -> Any:
    values, signs = x.astype(np.float32).tolist(), (x > 0).tolist()
    ordered = sorted(values)
    total = 0.0
    for v in (x * 2).tolist():
        total = total * 0.5 + v
    return (
        values,
        any(signs),
        ordered[:3],
        sorted(values, reverse=True)[len(values) // 2],
        total,
        x.reshape(2, -1).tolist(),
    )


def leaves_early(x: Any) -> Any:
    out, limit = [], 1000
    for i in range(len(x)):
        out.append([x[i], x[i] + 1])
        if i > limit:
            break
    return out, out[1]


def check_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted)
        assert len(got) == len(wanted)
        for pair in zip(got, wanted, strict=True):
            check_same(*pair)
    elif isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for key in wanted:
            check_same(got[key], wanted[key])
    else:
        if not isinstance(got, np.ndarray) or got.shape:
            assert type(got) is type(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "program",
    [
        smoothed, pairs, history, run_lengths, backtracked, iterated, chosen_positions, lists_of_arrays, leaves_early,
    ],
)  # fmt: skip
def test_lists_of_any_length_need_one_trace(program: Callable[..., Any]) -> None:
    fused = fuse(program, target="reference")
    for size in (60, 82, 100):
        x = np.round(np.random.default_rng(size).normal(size=size), 0 if program is run_lengths else 3)
        check_same(fused(x), program(x))
    assert fused.cache_info().traces == 1


def test_kernels_of_the_cpu_fill_lists() -> None:
    fused = fuse(run_lengths)
    for size in (60, 82):
        x = np.round(np.random.default_rng(size).normal(size=size))
        check_same(fused(x), run_lengths(x))


def test_lists_are_summed_as_python_sums_them() -> None:
    def summed(x: Any) -> Any:
        values, signs = [v * v for v in x], (x > 0).tolist()
        return sum(values), sum(signs), sum(x.tolist())

    x = np.random.default_rng(0).normal(size=20)
    check_same(fuse(summed, target="reference")(x), summed(x))


def test_numbers_that_are_nan_are_sorted_as_python_sorts_them() -> None:
    def ordered(x: Any) -> Any:
        return sorted(x.tolist())

    x = np.array([3.0, np.nan, 1.0, 2.0, np.nan, 0.0] * 4)
    fused = fuse(ordered, target="reference")
    assert fused(-x[::6].copy()) == [-3.0] * 4
    np.testing.assert_array_equal(fused(x), ordered(x))


def test_a_list_that_grows_while_a_loop_iterates_over_it_is_read_as_it_grows() -> None:
    def reached(x: Any) -> Any:
        queue = [0]
        for k in queue:
            if k < 40:
                queue.append(k + 1)
        return x * len(queue), queue

    x = np.ones(3)
    check_same(fuse(reached, target="reference")(x), reached(x))


def test_a_list_that_a_later_statement_changes_is_returned_with_the_change() -> None:
    def changed(x: Any) -> Any:
        out = []
        try:
            for v in x:
                out.append(v)
            return out, out
        finally:
            out.append(1.0)

    x = np.arange(20.0)
    check_same(fuse(changed, target="reference")(x), changed(x))


def test_a_function_named_as_a_reader_of_lists_gets_the_list() -> None:
    def shadowed(x: Any) -> Any:
        max = lambda values: [*values[:2], len(values)]  # noqa: E731
        out = []
        for v in x:
            out.append(v)
        return max(out)

    x = np.arange(20.0)
    check_same(fuse(shadowed, target="reference")(x), shadowed(x))


def test_a_loop_without_iterations_leaves_lists_and_variables_as_they_were() -> None:
    def stepped(x: Any) -> Any:
        out, total = [], 0.0
        while total < x.max():
            total = total + 0.25
            out.append(total)
        return out, total

    fused = fuse(stepped, target="reference")
    for top in (8.0, 5.0, 0.0, -1.0):
        x = np.array([top, -2.0])
        check_same(fused(x), stepped(x))


def test_a_range_up_to_a_computed_number_is_a_trace_for_all_long_ones() -> None:
    def counted(x: Any) -> Any:
        total = 0.0
        for k in range(int((x > 0).sum())):
            total = total + x[k] * k
        return total

    fused = fuse(counted, target="reference")
    for count in (20, 25, 30, 35, 40, 45):
        x = np.where(np.arange(50) < count, 1.0, -1.0)
        check_same(fused(x), counted(x))
    assert fused.cache_info().traces == 1


def test_lists_of_unsigned_integers_hold_integers_of_python() -> None:
    for kind in (np.uint8, np.uint16, np.uint32):
        x = np.array([7, 0, np.iinfo(kind).max], kind)
        actual = fuse(lambda a: np.transpose(a.tolist()) + 1)(x)
        assert actual.dtype == np.int64
        np.testing.assert_array_equal(actual, x.astype(np.int64) + 1)


def test_numpy_gets_empty_lists_as_its_own_type() -> None:
    def emptied(x: Any) -> Any:
        values = x.tolist()
        rows = [[v * 2 for v in row] for row in x.reshape(len(x), 1)[:, 1:]]
        table = x.reshape(len(x), 1)[:, 1:].tolist()
        return np.array(values[50:]), np.array(rows), np.array(x[:0].tolist()), np.array(table)

    fused = fuse(emptied, target="reference")
    for size in (40, 50, 60):
        x = np.arange(size, dtype=np.int32)
        for got, wanted in zip(fused(x), emptied(x), strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


def test_a_list_or_a_dict_at_two_places_of_a_result_is_one_object() -> None:
    @fuse(target="reference")
    def function(x: Any) -> Any:
        rows = [x * 2, 1]
        named = {"rows": rows}
        return rows, named, (named, rows), x.tolist()

    for size in (3, 4):
        rows, named, (again, once_more), numbers = function(np.arange(size))
        assert rows is named["rows"] is once_more
        assert named is again
        assert numbers == list(range(size))
        rows.append(3)
        assert len(once_more) == 3


def fills_two_names(x: Any) -> Any:
    out = []
    other = out
    for v in x:
        out.append(v * 2)
    return out, other, len(other), other[1]


def fills_what_others_hold(x: Any) -> Any:
    out, inner = [], []
    holder = (out, [inner])
    for v in x:
        out.append(v * 2)
        inner.append(-v)
    return out, holder[0], holder, holder[1][0][1]


def returned_twice(x: Any) -> Any:
    out = []
    for v in x:
        out.append(v * 2)
    return out, out, {"again": out, "sum": x.sum()}, tuple(out)


@pytest.mark.parametrize("function", [fills_two_names, fills_what_others_hold, returned_twice])
def test_a_list_that_a_loop_fills_is_one_object_under_all_its_names(function: Callable[[Any], Any]) -> None:
    fused = fuse(function, target="reference")
    for size in (20, 23, 31):
        result, expected = fused(np.arange(float(size))), function(np.arange(float(size)))
        np.testing.assert_equal(result, expected)
        assert result[0] is result[1]
    assert function is not returned_twice or fused.cache_info().traces == 1


def with_entries_on_both_sides(x: Any) -> Any:
    positive, counts, count = [0.5], [], 0
    for v in x:
        count += 1
        if v > 0:
            positive.append(v)
            counts.append(count)
            count = 0
    positive.append(x[0])
    counts.append(count)
    for v in x:
        positive.append(-v)
    return np.array(positive), np.array(counts), np.sum(counts)


def test_entries_after_those_of_a_loop_join_their_array_at_any_number_of_entries() -> None:
    fused = fuse(with_entries_on_both_sides, target="reference")
    random = np.random.default_rng(0)
    for size in (20, 20, 27, 40):
        x = random.standard_normal(size)
        for got, wanted in zip(fused(x), with_entries_on_both_sides(x), strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)
    assert fused.cache_info().traces == 1
