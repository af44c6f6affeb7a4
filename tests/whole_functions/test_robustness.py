"""Tests calls in large numbers, from several threads, nested, interrupted, failing, and after a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_memory_plan import Measured
from tests.soaks.calls import growth_of
from tracefuse import FusionDefinition, fuse, rules
from tracefuse.runtime.devices import cpu_memory

ROOT = Path(__file__).parents[2]


def layer(x: Any, y: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ y + y.sum(0)


def adds(x: Any, y: Any) -> Any:
    x += y
    return x.sum()


# ---------------------------------------------------------------------------------------------------------------------
# at once


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(k) on `count` threads at once; raises the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(k: int) -> None:
        try:
            start.wait()
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_call_one_function_with_sizes_that_are_new_and_old() -> None:
    fused, changing = fuse(layer), fuse(adds)

    def work(k: int) -> None:
        for n in (3, 8 + k, 300, 5):
            x = np.random.default_rng(n).normal(size=(n, n))
            np.testing.assert_allclose(fused(x, x), layer(x, x), rtol=1e-12, atol=1e-12)
            own, plain = x.copy(), x.copy()
            assert np.isclose(changing(own, x), adds(plain, x))
            np.testing.assert_array_equal(own, plain)
            out = np.empty_like(x)
            assert fused(x, x, out=out) is out
            np.testing.assert_allclose(out, layer(x, x), rtol=1e-12, atol=1e-12)

    in_threads(4, work)
    assert fused.cache_info().traces == 1


def test_functions_that_call_themselves_are_one_trace() -> None:
    @fuse(static_argnames="n")
    def power(x: Any, n: int) -> Any:
        return np.ones_like(x) if n == 0 else x * power(x, n - 1)

    x = np.arange(5.0)
    np.testing.assert_array_equal(power(x, 4), x**4)
    assert len(power.segments(x, 4)) == 1

    @fuse
    def even(x: Any, n: Any) -> Any:
        return x if int(n) == 0 else odd(x + 1, n - 1)

    @fuse
    def odd(x: Any, n: Any) -> Any:
        return -x if int(n) == 0 else even(x * 2, n - 1)

    np.testing.assert_array_equal(even(x, 3), -(((x + 1) * 2) + 1))
    assert odd.cache_info().traces == 0


# ---------------------------------------------------------------------------------------------------------------------
# failing half way


def two_updates() -> FusionDefinition:
    """Two inputs that are updated by two segments, with others around them."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True) for _ in "12")
        first = fd.ops.exp(fd.ops.neg(x))
        fd.add_output(fd.ops.add(x, first), alias_input=x)
        fd.add_output(fd.ops.add(y, fd.ops.flip(first, [0])), alias_input=y)
        fd.add_output(fd.ops.sin(first))
    fd.segment(merge=rules.one_op_a_segment)
    return fd


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_error_between_segments_releases_everything_and_leaves_no_half_written_array(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    fd = two_updates()
    x, y = np.arange(100, dtype=np.float32) / 100, np.arange(100, 200, dtype=np.float32)
    new_x, new_y = x.copy(), y.copy()
    fd.execute([new_x, new_y])
    measured = Measured()
    limits = [0]

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        if measured.count == limits[-1]:
            raise error("stop")
        return measured.empty(shape, dtype)

    monkeypatch.setattr(cpu_memory, "empty", empty)
    for allowed in range(4):
        measured.count = 0
        limits.append(allowed)
        own, other = x.copy(), y.copy()
        with pytest.raises(error) as caught:
            fd.execute([own, other])
        # Also while the error is at hand, with its traceback.
        assert (caught.value.__traceback__ is not None, measured.live) == (True, 0)
        for array, old, new in ((own, x, new_x), (other, y, new_y)):
            assert np.array_equal(array, old) or np.array_equal(array, new)
    monkeypatch.undo()
    fd.execute([x, y])
    np.testing.assert_array_equal(x, new_x)
    np.testing.assert_array_equal(y, new_y)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_interrupts_in_a_loop_of_calls_leave_nothing_behind() -> None:
    fused, changing = fuse(layer), fuse(adds)
    x = np.random.default_rng(0).normal(size=(40, 40))
    expected = fused(x, x)
    changing(x.copy(), x)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    interrupts = 0
    try:
        for k in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * (k % 17))
                while True:
                    fused(x, x)
                    changing(x.copy(), x)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts == 40
    np.testing.assert_array_equal(fused(x, x), expected)
    np.testing.assert_array_equal(fused(x[:7, :7], x[:7, :7]).shape, (7, 7))


# ---------------------------------------------------------------------------------------------------------------------
# forks


FORKS = """
    import os, sys
    import numpy as np
    from tracefuse import fuse
    from tracefuse.kernel.llvm.worker_pool import get_pool

    large = np.ones(1 << 21, np.float32)
    f = fuse(lambda x: x * 2 + 1)
    for _ in range(3):
        assert f(large)[-1] == 3
    threads = len(os.listdir("/proc/self/task"))
    seen = []
    os.register_at_fork(after_in_parent=lambda: seen.append(len(os.listdir("/proc/self/task"))))
    for _ in range(3):
        child = os.fork()
        if child == 0:
            assert get_pool().workers() == 0
            assert f(large)[-1] == 3
            os._exit(0 if f(np.ones((3, 5)))[0, 0] == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert get_pool().workers() == 0
        assert f(large)[-1] == 3
    assert seen == [1, 1, 1], seen
    assert len(os.listdir("/proc/self/task")) == threads
    print(threads)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of threads on this system")
def test_workers_end_before_a_fork_and_start_again_in_parent_and_child() -> None:
    # BLAS has threads of its own. From Python 3.12 on a fork with threads warns, which is an error here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(FORKS)], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(os.sched_getaffinity(0))


# ---------------------------------------------------------------------------------------------------------------------
# many


def test_many_calls_leave_no_objects_and_no_memory_behind() -> None:
    objects, size = growth_of(200)
    # One object more in each of the 3,000 calls would be 150,000 bytes.
    if size > 50_000:  # what other tests left in the process may have grown meanwhile, however many calls there are
        size = growth_of(600)[1] // 3
    assert objects <= 10
    assert size <= 50_000
