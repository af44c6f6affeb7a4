"""Tests Ctrl-C at any moment: the interrupted call raises KeyboardInterrupt, and later calls work."""

from __future__ import annotations

import contextlib
import dis
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.soaks.interrupts import end_one, storm
from tracefuse import config, dtypes, fuse, rules
from tracefuse.errors import CompileError
from tracefuse.kernel import interrupt_shield
from tracefuse.kernel.cache.memory_cache import KernelCache
from tracefuse.kernel.interrupt_shield import shielded, shielded_map
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.kernel.llvm.machine_code import Machine, get_machine
from tracefuse.runtime.devices import cpu_memory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent to processes and threads as POSIX has it")

X = np.arange(12.0).reshape(3, 4)


def interrupt_main() -> None:
    """A SIGINT for the main thread, which raises KeyboardInterrupt there."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.fixture(autouse=True)
def _python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------------------------------------------------------------
# at random times


def test_a_storm_of_interrupts_breaks_off_the_interrupted_calls_and_nothing_else() -> None:
    for seed in range(1, 7):  # a busy machine sends few interrupts in one storm
        counts = storm(2.5, seed=seed, mean=0.02)
        if counts.sent > 20 and counts.interrupted > 0 and counts.calls > 0:
            break
    assert counts.sent > 20
    assert counts.interrupted > 0
    assert counts.calls > 0


@pytest.mark.parametrize("seed", [2, 5])
def test_an_interrupt_ends_a_process_that_compiles(seed: int) -> None:
    end_one(seed)


# ---------------------------------------------------------------------------------------------------------------------
# where LLVM runs


@contextlib.contextmanager
def threads_in_llvm() -> Iterator[set[int]]:
    """The threads that take llvmlite's lock meanwhile."""
    from llvmlite.binding import ffi

    seen: set[int] = set()

    def note() -> None:
        seen.add(threading.get_ident())

    def ignore() -> None:
        pass

    ffi.register_lock_callback(note, ignore)
    try:
        yield seen
    finally:
        ffi.unregister_lock_callback(note, ignore)


def test_the_main_thread_is_never_in_llvmlites_lock() -> None:
    assert threading.current_thread() is threading.main_thread()
    with config.options(cache_limit=0), threads_in_llvm() as seen:
        for merge in (None, rules.one_op_a_segment):
            function = fuse(lambda x: np.exp(x * 1.25).sum(-1) + 0.75, merge=merge)
            function(X)
            text = str(function.segments(X))
            assert text
            del function
            gc.collect()
        with pytest.raises(CompileError):
            get_machine().compile("define void @launch() { broken }")
        with pytest.raises(CompileError):
            get_machine().link(b"no object file", {}, ("launch",))
        gc.collect()
        tracefuse.clear_caches()
        tracefuse.show_config()
        Machine.free_unused(get_machine())
    assert seen
    assert threading.main_thread().ident not in seen


def test_a_linker_that_could_not_be_made_is_made_by_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    machine = Machine()
    code = machine.compile("define i64 @launch() {\n ret i64 3\n}")

    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binding, "create_lljit_compiler", interrupted)
        with pytest.raises(KeyboardInterrupt):
            machine.link(code, {}, ("launch",))
    assert machine.link(code, {}, ("launch",)).addresses["launch"] != 0


def test_an_interrupted_compilation_is_finished_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real, goes_on = Machine.compile, threading.Event()

    def slow(machine: Machine, text: str, **how: Any) -> bytes:
        interrupt_main()
        assert goes_on.wait(30)
        return real(machine, text, **how)

    monkeypatch.setattr(Machine, "compile", slow)
    function = fuse(lambda x: x * 1.0625 - 3)
    with config.options(cache_limit=0):
        before = cpu_functions.statistics()
        with pytest.raises(KeyboardInterrupt):
            function(X)
        monkeypatch.setattr(Machine, "compile", real)
        goes_on.set()
        np.testing.assert_array_equal(function(X), X * 1.0625 - 3)
    assert cpu_functions.statistics().compiled - before.compiled == 1


def test_an_interrupt_does_not_begin_the_kernels_that_wait() -> None:
    begun: list[int] = []
    goes_on = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        interrupt_main()
        goes_on.wait(30)

    with pytest.raises(KeyboardInterrupt):
        shielded_map(work, range(5), 1)
    goes_on.set()
    wait_for(lambda: not interrupt_shield._running)
    assert begun == [0]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# ---------------------------------------------------------------------------------------------------------------------
# what is shielded


def test_shielded_work_has_the_callers_options_and_any_result() -> None:
    with config.options(contract=False):
        assert shielded(lambda: (config.resolve().contract, threading.get_ident())) != (True, threading.get_ident())
        assert shielded_map(lambda k: (k, config.resolve().contract), range(3), 2) == [(k, False) for k in range(3)]
    assert shielded(lambda: shielded(lambda: None)) is None


def test_an_error_crosses_with_the_lines_that_raised_it() -> None:
    def raises_here() -> None:
        raise CompileError("no such kernel", hint="none")

    for run in (lambda: shielded(raises_here), lambda: shielded_map(lambda _: raises_here(), [0], 1)):
        with pytest.raises(CompileError, match="no such kernel") as caught:
            run()  # type: ignore[no-untyped-call]
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[0] == "test_an_error_crosses_with_the_lines_that_raised_it"
        assert names[-1] == "raises_here"


def test_threads_that_get_no_signals_work_where_they_are() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(shielded(threading.get_ident) == threading.get_ident()))
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns of forks once another test has imported it
def test_a_fork_waits_for_what_other_threads_compile() -> None:
    begun, order = threading.Event(), []

    def work() -> None:
        begun.set()
        time.sleep(0.1)
        order.append("compiled")

    thread = threading.Thread(target=lambda: shielded(work))
    thread.start()
    assert begun.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if order == ["compiled"] and not interrupt_shield._running and shielded(lambda: True) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    assert interrupt_shield._forks == []


# ---------------------------------------------------------------------------------------------------------------------
# at every step of what the main thread does itself


INTERRUPTIBLE = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


def at_every_step(work: Callable[[], Any], files: tuple[str, ...], check: Callable[[], None]) -> int:
    """Raises KeyboardInterrupt wherever Python may raise it while `work` is in these files, in turn; the number.

    That is after a call, at the begin of a function, and when a loop goes back.
    """
    names: dict[CodeType, dict[int, str]] = {}

    def run(limit: int) -> bool:
        steps = 0
        before: dict[int, str] = {}  # by the id of the frame: a frame that is kept would keep traced values alive

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal steps
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = True
            if event == "call":
                before.pop(id(frame), None)
            if event == "opcode" and steps >= 0:
                code = frame.f_code
                if code not in names:
                    names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
                last = before.get(id(frame), "")
                before[id(frame)] = names[code][frame.f_lasti]
                steps += last in INTERRUPTIBLE
                if steps > limit:
                    steps = -1
                    raise KeyboardInterrupt
            return trace

        outside = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(outside)
        return False

    count = 0
    while run(count):
        check()
        count += 1
    return count


def test_an_interrupt_at_any_step_of_the_buffer_cache_loses_no_buffer() -> None:
    cache = cpu_memory.BufferCache(limit=4096)
    held: list[Any] = []

    def work() -> None:
        held[:] = [cache.empty((k, 8), dtypes.float64) for k in (1, 1, 2, 1, 40, 1, 60, 50)]
        del held[:3]
        held.extend(cache.empty((1, 8), dtypes.float64) for _ in range(3))
        cache.clear()

    def check() -> None:
        held.clear()
        # The frames that were interrupted are in cycles, and hold buffers until these are collected.
        gc.collect()
        arrays = [cache.empty((k, 8), dtypes.float64) for k in (1, 1, 2, 60)]
        addresses = [array.ctypes.data for array in arrays]
        assert len(set(addresses)) == 4
        # What an interrupt kept from being forgotten goes with the next new buffer.
        arrays.append(cache.empty((3, 8), dtypes.float64))
        assert cache.nbytes <= 4096
        del arrays
        again = [cache.empty((1, 8), dtypes.float64).ctypes.data for _ in range(5)]
        assert set(again) <= set(addresses)
        cache.clear()
        assert cache._bytes == cache.nbytes == 0

    gc.freeze()  # a collection then looks at what the test makes alone
    try:
        assert at_every_step(work, (cpu_memory.__file__,), check) > 100
    finally:
        gc.unfreeze()


def test_an_interrupt_at_any_step_of_the_kernel_cache_leaves_it_usable() -> None:
    made: list[int] = []
    caches = [KernelCache[int](most=2)]

    def make() -> tuple[int, bool]:
        made.append(1)
        return 7, False

    def work() -> None:
        caches[0] = KernelCache(most=2)
        for key in "abca":
            assert caches[0].get(key, make) == 7

    def check() -> None:
        # From another thread, so that a lock that is held would show.
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(caches[0].get("a", make)), daemon=True)
        thread.start()
        thread.join(10)
        assert found == [7]
        wait_for(lambda: not interrupt_shield._running)

    assert (
        at_every_step(work, (sys.modules[KernelCache.__module__].__file__ or "", interrupt_shield.__file__), check) > 30
    )


def test_an_interrupt_at_any_step_of_a_trace_leaves_no_recorder_behind() -> None:
    from tracefuse.frontend import tracing
    from tracefuse.frontend.tracer.record.recorder import current

    def check() -> None:
        assert current.get() is None

    def work() -> None:
        function = fuse(lambda x: x + 1)
        assert function.definition(X) is not None

    assert at_every_step(work, (tracing.__file__,), check) > 30
