"""Tests the worker pool: every iteration runs once; concurrent callers, fork, exit, signals."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.cpu_kernels import primitives_kernel
from tests.session.samples import times
from tracefuse import dtypes
from tracefuse.kernel.llvm import worker_pool
from tracefuse.kernel.llvm.cpu_functions import compile_cpu

pytestmark = pytest.mark.skipif(not worker_pool.has_workers(), reason="workers need Linux")

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = worker_pool.get_pool().thread_count
    yield
    worker_pool.set_thread_count(before)


def _expm1(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    out = np.empty_like(x)
    compile_cpu(primitives_kernel(("expm1",), dtypes.float32))(x, out, x.size)
    return out


def _many_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """`count` threads also where there are fewer processors."""
    monkeypatch.setattr(worker_pool, "available_threads", lambda: count)
    worker_pool.set_thread_count(count)
    assert worker_pool.get_pool().thread_count == count


@settings(max_examples=times(30), deadline=None)
@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 4))
def test_every_iteration_runs_exactly_once(extent: int, grain: int, threads: int) -> None:
    seen: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool, "available_threads", lambda: 4)
        worker_pool.set_thread_count(threads)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    def body(context: int, begin: int, end: int) -> None:
        seen.append((begin, end))

    address = ctypes.cast(body, ctypes.c_void_p).value
    assert address is not None
    worker_pool.get_pool().parallel_for(address, 0, extent, grain)
    seen.sort()
    assert all(begin < end for begin, end in seen) or extent == 0
    covered = [i for begin, end in seen for i in range(begin, end)]
    assert covered == list(range(extent))


def test_one_and_several_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=LARGE + 13).astype(np.float32)
    worker_pool.set_thread_count(1)
    alone = _expm1(x)
    for count in (2, 3, 7):
        _many_threads(monkeypatch, count)
        for _ in range(5):
            assert np.array_equal(_expm1(x), alone)
    assert worker_pool.get_pool().workers() >= 6


def test_concurrent_callers_all_get_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    _many_threads(monkeypatch, 4)
    x = np.random.default_rng(0).normal(size=LARGE).astype(np.float32)
    wanted = _expm1(x)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(_expm1(x), wanted):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_count_of_threads_is_between_one_and_the_processors() -> None:
    worker_pool.set_thread_count(0)
    assert worker_pool.get_pool().thread_count == 1
    worker_pool.set_thread_count(100_000)
    assert worker_pool.get_pool().thread_count == len(os.sched_getaffinity(0))


_SETUP = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, {folder!r})
from tests.kernel.cpu_kernels import primitives_kernel
from tracefuse import dtypes
from tracefuse.kernel.llvm import worker_pool
from tracefuse.kernel.llvm.cpu_functions import compile_cpu

worker_pool.available_threads = lambda: 4
worker_pool.set_thread_count(4)
function = compile_cpu(primitives_kernel(("expm1",), dtypes.float32))
x = np.linspace(-1, 1, 1 << 20).astype(np.float32)

def run():
    out = np.empty_like(x)
    function(x, out, x.size)
    return out

wanted = run()
assert worker_pool.get_pool().workers() == 3
"""


def _script(body: str) -> subprocess.CompletedProcess[str]:
    """Runs a new interpreter that already has workers."""
    text = _SETUP.format(folder=str(Path(__file__).parents[2])) + textwrap.dedent(body)
    # BLAS has threads of its own, about which Python 3.12 warns at a fork.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=environment)


def _succeeds(body: str) -> str:
    done = _script(body)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stderr == ""
    return done.stdout


def test_a_forked_child_starts_its_own_workers() -> None:
    _succeeds("""
        for _ in range(5):
            child = os.fork()
            if child == 0:
                fine = worker_pool.get_pool().workers() == 0 and np.array_equal(run(), wanted)
                os._exit(0 if fine and worker_pool.get_pool().workers() == 3 else 1)
            assert np.array_equal(run(), wanted)
            assert os.waitpid(child, 0)[1] == 0
    """)


def test_a_fork_while_other_threads_use_the_pool_leaves_a_usable_child() -> None:
    _succeeds("""
        # From Python 3.12 on a fork warns of the caller's own threads.
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        stop = False
        def busy():
            while not stop:
                run()
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for t in threads: t.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if np.array_equal(run(), wanted) else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop = True
        for t in threads: t.join()
    """)


@pytest.mark.parametrize(
    "ending",
    ["pass", "time.sleep(0.2)", "sys.exit(0)", "del function", "import gc; del function; gc.collect(); run0 = 0"],
)
def test_the_interpreter_exits_cleanly_with_spinning_or_sleeping_workers(ending: str) -> None:
    _succeeds(f"run()\n{ending}")


def test_the_interpreter_exits_while_daemon_threads_are_in_kernels() -> None:
    _succeeds("""
        def busy():
            while True:
                run()
        for _ in range(3):
            threading.Thread(target=busy, daemon=True).start()
        time.sleep(0.1)
    """)


def test_signals_reach_the_main_thread_alone() -> None:
    _succeeds("""
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append(threading.current_thread() is threading.main_thread()))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        end = time.time() + 0.3
        while time.time() < end:
            assert np.array_equal(run(), wanted)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert seen and all(seen)
        blocked = []
        for task in os.listdir("/proc/self/task"):
            if int(task) != os.getpid():
                line = next(l for l in open(f"/proc/self/task/{task}/status") if l.startswith("SigBlk"))
                blocked.append(int(line.split()[1], 16) >> (signal.SIGALRM - 1) & 1)
        assert sum(blocked) >= 3
    """)


def test_an_interrupt_during_kernels_raises_keyboard_interrupt() -> None:
    done = _script("""
        # A parent may have ignored it, as a shell does for what it runs in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        while True:
            run()
    """)
    assert done.returncode in (130, -signal.SIGINT), done
    assert "KeyboardInterrupt" in done.stderr
