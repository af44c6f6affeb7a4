"""Compiled drivers of loops: equal bits to steps on the host, errors, interrupts, memory, caches."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_programs.random_carries import random_carry
from tests.session.samples import times
from tracefuse import fori_loop, fuse, options, pytrees, scan, while_loop
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.runtime.driven_loops import STEPS_OF_CALLS, BoundDriver

GENERATOR = np.random.default_rng(0)
ROWS, TABLE = GENERATOR.normal(size=33), GENERATOR.normal(size=(33, 6))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[BoundDriver]:
    """The drivers that ran, one entry for each run."""
    ran: list[BoundDriver] = []
    run = BoundDriver.run

    def counted(self: BoundDriver, *arguments: Any) -> Any:
        ran.append(self)
        return run(self, *arguments)

    monkeypatch.setattr(BoundDriver, "run", counted)
    return ran


def on_host(function: Any, *arguments: Any) -> Any:
    with options(disable="loop_drivers"):
        return function(*arguments)


def same_bits(one: Any, other: Any) -> None:
    for a, b in zip(pytrees.flatten(one)[0], pytrees.flatten(other)[0], strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@settings(max_examples=times(4), deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_loops_give_the_bits_of_steps_on_the_host(seed: int) -> None:
    function, text = random_carry(seed)
    fused = fuse(function)
    with np.errstate(all="ignore"):
        arguments = (np.linspace(-1, 1, 6), 0.5, np.linspace(0.1, 0.9, 6), ROWS, TABLE)
        for _ in range(2):
            same_bits(fused(*arguments), on_host(fused, *arguments))
    assert text


def test_a_step_that_another_follows_is_not_contracted_with_it(runs: list[BoundDriver]) -> None:
    """x * a ends one step, and + b begins the next: a fused multiply-add would round once."""

    @fuse
    def f(x: Any, a: Any, b: Any) -> Any:
        return fori_loop(0, 50, lambda i, x: (x + b) * a, x)

    x = np.float64(1.1)
    for _ in range(50):
        x = (x + np.float64(0.3)) * np.float64(0.7)
    assert f(np.float64(1.1), 0.7, 0.3) == x
    assert len(runs) == 1


def test_a_driver_serves_other_values_and_trip_counts(runs: list[BoundDriver]) -> None:
    f = fuse(lambda x, a, n: fori_loop(0, n, lambda i, x: x * a + i, x))
    for n, a in ((20, 0.5), (21, 0.25), (1000, 0.125)):
        x = np.full((3, 5), 2.0)
        expected = x
        for i in range(n):
            expected = expected * a + i
        assert np.array_equal(f(x, a, n), expected)
    assert len(runs) == 3
    assert len(set(map(id, runs))) == 1


def test_few_steps_run_on_the_host(runs: list[BoundDriver]) -> None:
    f = fuse(lambda x, n: fori_loop(0, n, lambda i, x: x + i, x))
    assert [f(np.float64(0), n) for n in range(4)] == [0, 0, 1, 3]
    assert not runs


def test_calls_of_few_steps_get_a_driver_after_many(runs: list[BoundDriver]) -> None:
    """Products of small matrices, with work before them that several kernels read, are kernels of a step."""

    @fuse
    def counted(x: Any, w: Any) -> Any:
        def step(k: Any, x: Any) -> Any:
            hidden = np.tanh(x @ w)
            return hidden @ w.T + (hidden.T @ x).sum() + (hidden * x).sum(0)

        return fori_loop(0, 5, step, x)

    halved = fuse(lambda x: while_loop(lambda x: x > 1, lambda x: x * 0.5, x))
    x, w = ROWS[:24].reshape(6, 4), ROWS[:16].reshape(4, 4) * 0.1
    expected = counted(x, w), halved(20.0)
    assert not runs
    for _ in range(STEPS_OF_CALLS // 4):
        np.testing.assert_allclose(counted(x, w), expected[0])
        assert halved(20.0) == expected[1] == 20 / 32
    assert len(set(map(id, runs))) == 2


def test_scratch_memory_of_a_step_has_the_size_of_the_call(runs: list[BoundDriver]) -> None:
    @fuse
    def descend(x: Any, y: Any) -> Any:
        return fori_loop(0, 60, lambda i, w: w - 0.01 * (x.T @ (x @ w - y)) / len(y), np.zeros(x.shape[1]))

    for rows, columns in ((1700, 10), (2000, 12)):
        x, y = GENERATOR.normal(size=(rows, columns)), GENERATOR.normal(size=rows)
        same_bits(descend(x, y), on_host(descend, x, y))
    assert len(runs) == 2


def test_a_condition_is_read_by_the_driver(runs: list[BoundDriver]) -> None:
    f = fuse(lambda x, limit: while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, s[1] * 0.5), (x, np.ones(4))))
    for limit in (5.0, 100.0, 3.0, 101.0):  # short, with a new driver, and then with it
        count, halves = f(np.float64(0), limit)
        assert count == limit
        assert np.array_equal(halves, np.full(4, 0.5**limit))
    assert len(runs) == 3


def test_loops_in_loops_are_one_driver(runs: list[BoundDriver]) -> None:
    def triangle(n: Any) -> Any:
        return fori_loop(0, n, lambda i, total: fori_loop(0, n, lambda j, t: t + (j <= i), total), np.int64(0))

    f = fuse(triangle)
    assert f(100) == 5050
    assert [driver.driver.name for driver in runs] == ["counted_loop"]
    assert len(re.findall(r"for k\d+ in range", str(runs[0].driver))) == 2


def test_strided_and_empty_operands(runs: list[BoundDriver]) -> None:
    f = fuse(lambda h, xs: scan(lambda h, x: (h * 0.5 + x, h.sum()), h, xs))
    table = np.arange(400.0).reshape(20, 20)
    for h, xs in ((table[0, ::2], table[:, ::2]), (table[::2, 1], table[::-1, :10]), (table[0, :0], table[:, :0])):
        same_bits(f(h, xs), on_host(f, h, xs))
    assert len(runs) == 2


def test_large_steps_run_on_the_worker_pool() -> None:
    f = fuse(lambda x: fori_loop(0, 20, lambda i, x: np.roll(x, 1) * 0.5 + x * 0.3 + x.max(), x))
    x = np.random.default_rng(1).normal(size=300_000)
    same_bits(f(x), on_host(f, x))


def test_an_index_out_of_range_raises_the_error_of_the_step() -> None:
    f = fuse(lambda x, w: fori_loop(0, 40, lambda i, x: x + w[i], x))
    assert f(np.float64(0), np.ones(40)) == 40
    messages = []
    for disabled in ("", "loop_drivers"):
        with options(disable=disabled), pytest.raises(IndexError) as raised:
            f(np.float64(0), np.ones(30))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "30" in messages[0]
    assert f(np.float64(0), np.ones(40)) == 40


def test_a_compiled_step_calls_a_library_through_python(runs: list[BoundDriver]) -> None:
    f = fuse(lambda x: fori_loop(0, 20, lambda i, x: np.sort(-x), x))
    x = np.array([3.0, 1.0, 2.0])
    same_bits(f(x), on_host(f, x))
    assert len(runs) == 1


def test_an_interrupt_ends_a_long_loop() -> None:
    f = fuse(lambda x, n: fori_loop(0, n, lambda i, x: x * 0.5 + i, x))
    f(np.float64(0), 100)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            f(np.float64(0), 10**12)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert f(np.float64(0), 2) == 1


def test_other_threads_run_beside_a_long_loop() -> None:
    f = fuse(lambda x, n: fori_loop(0, n, lambda i, x: x * 0.5 + i, x))
    expected = f(np.float64(0), 100)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(f(np.float64(0), 10**8)))
    thread.start()
    assert f(np.float64(0), 100) == expected
    assert not results
    while thread.is_alive():
        time.sleep(0.001)
    assert len(results) == 1


def test_a_driver_comes_from_disk(tmp_path: Any) -> None:
    def compiled() -> Any:
        cpu_functions.clear_cache()
        before = cpu_functions.statistics()
        f = fuse(lambda x: scan(lambda c, x: (c * 0.5 + x, c.sum()), x[0] * 1, x), cache_dir=str(tmp_path))
        result = f(TABLE)
        return result, cpu_functions.statistics().compiled - before.compiled

    first, count = compiled()
    second, none = compiled()
    same_bits(first, second)
    assert count > 0
    assert none == 0
