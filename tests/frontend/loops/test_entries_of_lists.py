"""Entries of lists that loops fill are objects: a change of one shows at every other place that has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def two_lists(x: Any) -> Any:
    first, second = [], []
    for v in x:
        row = np.full(3, v)
        first.append(row)
        second.append(row)
    first[0][0] = 99
    return first, second


def one_list_twice(x: Any) -> Any:
    rows = []
    for v in x:
        row = np.full(3, v)
        rows.append((row, row))
    rows[1][0][:] += 5
    return [b for _, b in rows]


def list_and_variable(x: Any) -> Any:
    rows, row = [], None
    for v in x:
        row = np.full(3, v)
        rows.append(row)
    rows[-1][:] = 5
    return row, np.array(rows)


def views_of_one_array(x: Any) -> Any:
    rows, heads = [], []
    for v in x:
        table = np.full((2, 3), v)
        rows.append(table)
        heads.append(table[0])
    heads[2] *= 3
    return rows, heads


def list_in_two_lists(x: Any) -> Any:
    first, second = [], []
    for v in x:
        inner = []
        for w in x[:18]:
            inner.append(np.full(2, v * w))
        first.append(inner)
        second.append(inner)
    first[0][0] += 1
    return np.array(first), np.array(second)


def after_initial_entries(x: Any) -> Any:
    rows = [np.full(3, 0.5)]
    for v in x:
        rows.append(np.full(3, v))
    for row in rows:
        row *= 2
    rows[len(x) // 2][1] = 7
    return np.array(rows)


def list_at_a_computed_position(x: Any) -> Any:
    rows = [[v, 2 * v] for v in x]
    rows[len(x) // 2].append(3.0)
    rows[len(x) // 3][0] = 4.0
    part = rows[1:]
    part[0].append(5.0)
    return rows, rows[len(x) // 2] is rows[len(x) // 2]


def dicts_in_a_loop(x: Any) -> Any:
    rows = []
    for v in x:
        rows.append({"value": v, "count": 0})
    for row in rows:
        row["count"] += 1
    return [row["count"] for row in rows]


def lists_in_tuples(x: Any) -> Any:
    rows = [(v, [v]) for v in x]
    for v, inner in rows:
        inner.append(v)
    return rows


def until_an_entry_is_long(x: Any) -> Any:
    rows, steps = [[v] for v in x], 0
    while len(rows[len(x) // 2]) < 3:
        rows[len(x) // 2].append(steps)
        steps += 1
    return rows, steps


def one_entry_at_two_positions(x: Any) -> Any:
    rows, lists = [], []
    for k, v in enumerate(x):
        rows.append({"value": v})
        lists.append([k])
    rows[1] = rows[2]
    rows[2].update(weight=1)
    lists[0] = lists[3]
    lists[3].append(5)
    return rows, lists


PROGRAMS = (
    one_entry_at_two_positions,
    two_lists, one_list_twice, list_and_variable, views_of_one_array, list_in_two_lists, after_initial_entries,
    list_at_a_computed_position, dicts_in_a_loop, lists_in_tuples, until_an_entry_is_long,
)  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS)
def test_a_change_of_an_entry_shows_at_every_place_that_has_it(function: Callable[[Any], Any]) -> None:
    fused = fuse(function, target="reference")
    for size in (20, 23):
        x = np.linspace(0.1, 1.0, size)
        result, expected = fused(x), function(x)
        np.testing.assert_equal(result, expected)


def views_that_iterations_rebind(x: Any) -> Any:
    state, columns = np.zeros(4), []
    for v in x:
        table = np.outer(state[:2], state[2:]) * 0.1 + v
        state = table.ravel()
        columns.append(table[1])
    return state, np.array(columns)


def written_after_the_loop(x: Any) -> Any:
    state, table = np.zeros(4), np.zeros((2, 2))
    for v in x:
        table = np.outer(state[:2], state[2:]) * 0.1 + v
        state = table.ravel()
    state += 1
    return state, table


def test_a_loop_binds_variables_to_views_of_arrays_that_it_makes() -> None:
    for function, is_recorded in ((views_that_iterations_rebind, True), (written_after_the_loop, False)):
        fused = fuse(function, target="reference")
        for size in (20, 23, 31):
            np.testing.assert_equal(fused(np.linspace(0.1, 1.0, size)), function(np.linspace(0.1, 1.0, size)))
        assert (fused.cache_info().traces == 1) is is_recorded


def read_alone(x: Any) -> Any:
    rows = [{"value": v, "pair": (v, 2 * v)} for v in x]
    total = 0.0
    for row in rows:
        total += row["value"] * row["pair"][1]
    return total, rows[len(x) // 2]["value"], [row["pair"][0] for row in rows]


def test_lists_of_dicts_that_are_read_alone_take_one_trace() -> None:
    fused = fuse(read_alone, target="reference")
    for size in (20, 23, 31):
        np.testing.assert_equal(fused(np.linspace(0.1, 1.0, size)), read_alone(np.linspace(0.1, 1.0, size)))
    assert fused.cache_info().traces == 1
