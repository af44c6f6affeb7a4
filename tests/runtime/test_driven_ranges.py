"""Drivers of range loops, whose sizes and positions depend on counters: values as NumPy, bits as steps on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options
from tracefuse.runtime.driven_loops import DrivenLoop

MATRIX = np.random.default_rng(0).random((33, 33)) / 20 + np.eye(33)


def recurrence(a: Any) -> Any:
    x = a[0]
    for i in range(1, x.shape[0]):
        x[i] = 0.5 * x[i - 1] + a[1, i]
    return a


def cholesky(a: Any) -> Any:
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, a.shape[0]):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return a


def seidel(a: Any) -> Any:
    for i in range(1, a.shape[0] - 1):
        a[i, 1:-1] += a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:]
        for j in range(1, a.shape[0] - 1):
            a[i, j] += a[i, j - 1]
            a[i, j] /= 9.0
    return a


def back_substitution(a: Any) -> Any:
    n = a.shape[0]
    x = np.zeros(n)
    for i in range(n - 1, -1, -1):
        x[i] = (a[0, i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


def triangular_rows(a: Any) -> Any:
    for i in range(1, a.shape[0]):
        a[i, :i] -= 0.1 * a[i - 1, :i]
        a[:i, i] += a[i, :i] * 0.5
        a[i, i] += np.sum(a[i, :i] * a[i - 1, :i])
    return a


def three_deep(a: Any) -> Any:
    for i in range(a.shape[0]):
        for j in range(i):
            for k in range(j, i):
                a[i, j] += a[k, j] * 0.01
    return a


def overlapping(a: Any) -> Any:
    for i in range(1, a.shape[0]):
        a[i, 1:] = a[i, :-1] + a[i - 1, 1:]
        a[i, : i + 1] = a[i, i::-1]
    return a


def carries_of_equal_constants(a: Any) -> Any:
    for i in range(a.shape[0]):
        for j in range(a.shape[0]):
            x, y, shift = 0.0, 0.0, 0.0
            for _ in range(20):
                if x * x + y * y > 4:
                    break
                x, y = x * x - y * y + a[i, j] + shift, 2 * x * y + 0.1
            a[i, j] = x + y
    return a


def elements_of_earlier_steps(a: Any) -> Any:
    """Each store is read up to four steps later, forwards and backwards, in steps of two and out of order."""
    for i in range(5):
        for j in range(4, a.shape[1]):
            a[i, j] = 0.4 * a[i, j] - 0.2 * a[i, j - 1] - 0.1 * a[i, j - 2] + 0.05 * a[i, j - 4]
        for j in range(a.shape[1] - 4, 3, -1):
            a[i, j] = 0.3 * a[i, j + 1] + 0.2 * a[i, j + 3] + 0.1 * a[i, j - 1]
        for j in range(6, a.shape[1] - 1, 2):
            a[i, j + 1] = 0.5 * a[i, j - 1] + 0.25 * a[i, j] + 0.125 * a[i, j + 1]
    return a


def elements_of_rows(a: Any) -> Any:
    """Gauss-Seidel, columns that are filled upwards, and two arrays whose elements meet."""
    for i in range(1, a.shape[0] - 1):
        for j in range(1, a.shape[1] - 1):
            a[i, j] = 0.25 * (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
    for j in range(a.shape[1]):
        for i in range(a.shape[0] - 2, -1, -1):
            a[i, j] = a[i, j] - 0.5 * a[i + 1, j]
    b = a.copy()
    for i in range(1, a.shape[0]):
        for j in range(1, a.shape[1]):
            a[i, j] = 0.5 * a[i, j - 1] + 0.25 * b[i, j - 1]
            b[i, j] = 0.5 * b[i, j - 1] - 0.25 * a[i, j - 1]
    return a + b


PROGRAMS = (
    *(recurrence, elements_of_earlier_steps, elements_of_rows, cholesky, seidel, back_substitution, triangular_rows),
    *(three_deep, overlapping, carries_of_equal_constants),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_as_numpy_and_bits_as_on_the_host(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    refusals: list[str] = []
    run = DrivenLoop.run

    def watched(self: DrivenLoop, *arguments: Any) -> Any:
        results = run(self, *arguments)
        refusals.append("" if results is not None else self.refusal)
        return results

    monkeypatch.setattr(DrivenLoop, "run", watched)
    fused = fuse(program)
    for size in (33, 20):
        a = MATRIX[:size, :size]
        expected = program(a.copy())
        driven = fused(a.copy())
        assert set(refusals) == {""}, refusals
        np.testing.assert_allclose(driven, expected, rtol=1e-12, atol=1e-13)
        with options(disable="loop_drivers"):
            assert fused(a.copy()).tobytes() == driven.tobytes()
        refusals.clear()


def test_a_trip_count_that_differs_from_call_to_call() -> None:
    @fuse
    def f(x: Any, n: Any) -> Any:
        for i in range(1, n):
            x[i] = x[i - 1] * 0.5 + i
        return x

    for n in (40, 64, 17, 2, 64):
        x, expected = np.ones(64), np.ones(64)
        for i in range(1, n):
            expected[i] = expected[i - 1] * 0.5 + i
        assert np.array_equal(f(x, n), expected)


def first_element_then_all(v: Any, m: int) -> None:
    for i in range(m, len(v)):
        for _ in range(i, len(v)):
            v[0] = v[2] - v[1]
        v[1:-1] = v[2:] - v[:-2]


def all_then_all(v: Any, m: int) -> None:
    for i in range(m, len(v)):
        for _ in range(i, len(v)):
            v[1:-1] = v[2:] - v[:-2]
        v[1:-1] = v[2:] - v[:-2]


@pytest.mark.parametrize("function", [first_element_then_all, all_then_all])
def test_what_an_inner_loop_has_made_is_read_before_the_array_is_written_again(function: Any) -> None:
    ours, theirs = np.arange(19) % 7, np.arange(19) % 7
    fuse(function)(ours, 3)
    function(theirs, 3)
    np.testing.assert_array_equal(ours, theirs)


def test_what_an_inner_loop_has_made_stays_while_later_kernels_compute() -> None:
    def stepped(a: Any) -> Any:
        x, y = a[0] * 2, a[:, 1].copy()
        for i in range(a.shape[0] - 1):
            y[0] = y[i]
            for j in range(1, a.shape[0] - 1):
                y[j] += x[j]
            x[i:] += i
        return x, y

    a = np.arange(19 * 19.0).reshape(19, 19)
    for result, expected in zip(fuse(stepped)(a), stepped(a), strict=True):
        np.testing.assert_array_equal(result, expected)
