"""Compiled loops update arrays in place, also where a step reads what it has written or an inner loop writes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options

VALUES = np.random.default_rng(0).random(300)
STEPS = np.random.default_rng(1).integers(0, 100, 60)


def branch_before_writes(d: Any, steps: Any) -> Any:
    d = d.copy()
    for i in range(steps.shape[0]):
        if d[i] > 0.5:
            d[i] = d[i] * 2 + 1
        for j in range(4):
            d[i + j] = d[i + j + 1] + d[i]
    return d


def branch_after_writes(d: Any, steps: Any) -> Any:
    d = d.copy()
    for i in range(steps.shape[0]):
        for j in range(4):
            d[i + j] = d[i + j + 1] + d[i]
        if d[i] > 0.5:
            d[i] = d[i] * 2 + 1
    return d


def loop_before_write(d: Any, steps: Any) -> Any:
    d = d.copy()
    for i in range(steps.shape[0]):
        j = i
        while d[j] > 0.3 and j < i + 10:
            d[j] *= 0.5
            j += 1
        d[i] = d[j]
    return d


def exchanges(d: Any, steps: Any) -> Any:
    d = d.copy()
    for i in range(steps.shape[0]):
        j = i
        while j > 0 and d[j] < d[j - 1]:
            d[j], d[j - 1] = d[j - 1], d[j]
            j -= 1
    return d


def many_writes(d: Any, steps: Any) -> Any:
    d = d.copy()
    for i in range(steps.shape[0]):
        d[i] += 1
        for j in range(3):
            d[i + j] *= 0.5
            for k in range(3):
                d[i + j + k] += d[k]
    return d


def two_arrays(d: Any, steps: Any) -> Any:
    d, e = d.copy(), np.zeros_like(d)
    for i in range(steps.shape[0]):
        e[i] = d[i]
        for j in range(4):
            d[i + j] = e[i + j] + d[i]
            e[i + j] = d[i + j] * 2
        if e[i] > 1:
            d[i], e[i] = e[i], d[i]
    return d, e


def positions_that_are_data(d: Any, steps: Any) -> Any:
    parent, rank = np.arange(d.shape[0]), np.zeros(d.shape[0], dtype=np.int64)
    for i in range(1, steps.shape[0]):
        x, y = steps[i], steps[i - 1]
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        if x != y:
            parent[x] = y
            rank[y] += 1
    return parent, rank


def old_contents(d: Any, steps: Any) -> Any:
    d, kept = d.copy(), np.zeros(d.shape[0])
    for i in range(steps.shape[0]):
        before = d.copy()
        d[steps[i]] = 0.0
        d[i] = d[steps[i]] + before[steps[i]]
        kept[i] = before[i]
    return d, kept


IN_PLACE = (
    branch_before_writes, branch_after_writes, loop_before_write, exchanges, many_writes, two_arrays,
    positions_that_are_data,
)  # fmt: skip


def drivers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in (record.getMessage() for record in caplog.records) if text.startswith("driver range_loop")]


@pytest.mark.parametrize("program", IN_PLACE)
def test_no_step_copies_an_array_that_it_updates(program: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tracefuse")
    with options(debug=3):
        results = fuse(program)(VALUES, STEPS)
    np.testing.assert_equal(results, program(VALUES, STEPS))
    (driver,) = drivers(caplog)
    _, _, steps = driver.partition("  for ")
    flags = set(re.findall(r"(t\d+): bool\*", driver))
    assert not set(re.findall(r"copy n\d+ bytes of (t\d+) to t\d+", steps)) - flags
    assert "_table_pointwise" not in steps


def test_a_step_that_reads_the_old_contents_later_keeps_them() -> None:
    np.testing.assert_equal(fuse(old_contents)(VALUES, STEPS), old_contents(VALUES, STEPS))


@pytest.mark.parametrize("program", [*IN_PLACE, old_contents])
def test_the_host_computes_the_same_steps(program: Callable[..., Any]) -> None:
    results = fuse(program, disable="loop_drivers")(VALUES, STEPS[:20])
    np.testing.assert_equal(results, program(VALUES, STEPS[:20]))


def test_draws_between_updates_stay_in_order() -> None:
    def walk(d: Any, generator: Any) -> Any:
        d = d.copy()
        for i in range(60):
            d[i] += generator.standard_normal()
            if d[i] > 0.5:
                d[i] = generator.random()
            for j in range(3):
                d[i + j] = d[i + j + 1] * generator.uniform(0, 2)
        return d

    ours, theirs = np.random.default_rng(0), np.random.default_rng(0)
    np.testing.assert_allclose(fuse(walk)(VALUES, ours), walk(VALUES, theirs), rtol=1e-12)
    assert ours.random() == theirs.random()
