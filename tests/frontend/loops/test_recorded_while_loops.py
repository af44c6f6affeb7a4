"""A while loop on computed values is recorded once, with the integers of Python exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontend.loops.asking_loops import copies
from tracefuse import fuse


def newton(a: Any, tolerance: float) -> Any:
    x, error, steps = a * 0.5, 1.0, 0
    while error > tolerance and steps < 100:
        following = 0.5 * (x + a / x)
        error = np.abs(following - x).max()
        x = following
        steps += 1
    return x.sum(), steps


def conjugate_gradient(matrix: Any, b: Any) -> Any:
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), r @ r
    while np.sqrt(rr) > 1e-8:
        q = matrix @ p
        alpha = rr / (p @ q)
        x = x + alpha * p
        r = r - alpha * q
        following = r @ r
        p = r + following / rr * p
        rr = following
    return x


def power_iteration(matrix: Any) -> Any:
    v, last = np.ones(matrix.shape[0]), 0.0
    while True:
        w = matrix @ v
        length = np.sqrt(w @ w)
        v = w / length
        if abs(length - last) < 1e-10:
            break
        last = length
    return length


def bisection(bounds: Any) -> Any:
    low, high = bounds[0], bounds[1]
    while high - low > 1e-9:
        middle = (low + high) / 2
        if middle * middle * middle > 2:
            high = middle
        else:
            low = middle
    return low


def collatz(x: Any) -> Any:
    for i in range(x.shape[0]):
        n, steps = x[i], 0
        while n > 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        x[i] = steps
    return x


MATRIX = np.diag([3.0, 1.0, 2.0]) + 0.1
CONVERGENT: dict[Callable[..., Any], tuple[Any, ...]] = {
    newton: (np.linspace(1, 5, 7), 1e-12), conjugate_gradient: (MATRIX, np.arange(3.0)), power_iteration: (MATRIX,),
    bisection: (np.array([0.0, 2.0]),), collatz: (np.arange(1, 30),),
}  # fmt: skip


@pytest.mark.parametrize("program", CONVERGENT, ids=lambda program: program.__name__)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_while_loop_is_recorded_once(program: Any, target: str) -> None:
    fused = fuse(program, target=target)
    for _ in range(2):
        ours, theirs = copies(CONVERGENT[program]), copies(CONVERGENT[program])
        result, expected = fused(*ours), program(*theirs)
        np.testing.assert_allclose(result, expected)
        np.testing.assert_allclose(ours[0], theirs[0])
    assert "range_loop" in str(fuse(program).definition(*copies(CONVERGENT[program])))
    assert fused.cache_info().traces == 1


def test_a_while_loop_without_steps_returns_the_argument_itself() -> None:
    def halved(x: Any) -> Any:
        while np.abs(x).max() > 2:
            x = x / 2
        return x

    fused = fuse(halved)
    for scale in (1, 40, 1, 1e30, 40):
        x = np.linspace(-1, 1, 5) * scale
        assert np.array_equal(fused(x), halved(x))
        assert (fused(x) is x) == (halved(x) is x)
    assert fused.cache_info().traces <= 3


def test_integers_of_python_that_leave_64_bits_are_exact() -> None:
    def fibonacci(x: Any, n: int) -> Any:
        a, b = 0, 1
        for i in range(n):
            if i % 2 == 0:
                a, b = b, a + b
        return a + x[0]

    fused = fuse(fibonacci, target="reference")
    for size in (40, 240):
        assert fused(np.zeros(1), size) == fibonacci(np.zeros(1), size)
