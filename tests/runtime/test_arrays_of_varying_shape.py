"""Inner loops and branches of compiled loops that take arrays whose shapes depend on the counter around them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options


def reflections(a: Any) -> Any:
    a = a.copy()
    rows, columns = a.shape
    q = np.eye(rows)
    for k in range(min(rows - 1, columns)):
        v = a[k:, k].copy()
        v[0] += np.copysign(np.linalg.norm(v), v[0])
        length = np.linalg.norm(v)
        if length == 0:
            continue
        v /= length
        a[k:, k:] -= 2 * np.outer(v, v @ a[k:, k:])
        q[:, k:] -= 2 * np.outer(q[:, k:] @ v, v)
    return q, a


def elimination(a: Any) -> Any:
    a = a.copy()
    for k in range(a.shape[1]):
        column = a[k + 1 :, k].copy()
        if abs(a[k, k]) > 1e-12:
            column /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(column, a[k, k + 1 :])
            a[k + 1 :, k] = column
    return a


def ends_that_grow(a: Any) -> Any:
    total = np.zeros(a.shape[1])
    for k in range(a.shape[1]):
        head = a[k, : k + 1] * 2
        if head[0] > 1.0:
            head = head[::-1] + 1
        for j in range(3):
            head = head * 0.5 + j
        total[: k + 1] += head
    return total


def updates_in_an_inner_loop(a: Any) -> Any:
    result = np.zeros(a.shape[0])
    for k in range(1, a.shape[1]):
        part = a[:k, k].copy()
        for j in range(k):
            if part[j] > 0:
                part[j] = part[j - 1] - part[j]
        result[k] = part[::2].sum()
    return result


def two_levels(a: Any) -> Any:
    a = a.copy()
    for k in range(a.shape[1] - 1):
        row = a[k, k:].copy()
        for i in range(k + 1, a.shape[1]):
            tail = a[i, i:] - row[i - k :]
            if tail[0] > 0:
                tail *= 0.5
                a[i, i:] = tail
    return a


def halves_of_a_tail(a: Any) -> Any:
    result = np.zeros(a.shape[0])
    for k in range(1, a.shape[1]):
        tail = a[k, k:] * 1.5
        for j in range(3):
            if tail[0] > 0:
                half = np.cumsum(tail)[::2] * 0.1
                tail[: half.shape[0]] += half * j
        result[k] = tail.sum()
    return result


def rows_of_two_axes(a: Any) -> Any:
    result = np.zeros(a.shape[0])
    for k in range(1, a.shape[1]):
        block = a[:k, k - 1 :] * 1.5
        if block[0, 0] > 0:
            block += block.mean()
        result[k] = (block**2).sum()
    return result


PROGRAMS = (
    reflections, elimination, ends_that_grow, updates_in_an_inner_loop, two_levels, halves_of_a_tail,
    rows_of_two_axes,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_compiled_function_runs_the_steps(program: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tracefuse")
    fused = fuse(program)
    with options(debug=1):
        for rows, columns in ((24, 23), (31, 31), (18, 17)):
            matrix = np.random.default_rng(rows).normal(size=(rows, columns))
            matrix[:, 2] = 0.0
            matrix[3] = 0.0
            before = matrix.copy()
            for result, expected in zip(fused(matrix), program(matrix), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)
            np.testing.assert_array_equal(matrix, before)
    assert any("one compiled function runs its steps" in record.getMessage() for record in caplog.records)
    assert not any("the host runs its steps" in record.getMessage() for record in caplog.records)
