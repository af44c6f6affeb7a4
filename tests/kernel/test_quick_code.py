"""Kernels run quickly compiled code until the optimized code, which a background thread compiles, replaces it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.kernel.cpu_kernels import primitives_kernel
from tests.kernel.disk_folders import NEGATE, cache_in, negates
from tests.kernel.test_constant_tables import kernel as kernel_with_constant
from tests.session.script_processes import run_script
from tracefuse import dtypes, fuse, wait_for_compilation
from tracefuse.errors import CompileError
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.llvm import cpu_functions, quick_code
from tracefuse.kernel.llvm.background_compilation import begin
from tracefuse.kernel.llvm.cpu_functions import CpuFunction, clear_cache, compile_cpu
from tracefuse.kernel.llvm.machine_code import Machine, Optimization
from tracefuse.kernel.llvm.quick_code import MOST_WORK


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    wait_for_compilation()
    clear_cache()
    yield
    wait_for_compilation()
    clear_cache()


def is_optimized(function: CpuFunction) -> bool:
    return function.module.seconds_until_replaced is not None


class Gate:
    """Holds up background compilation until it is opened; fails it if there is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.error: Exception | None = None
        original = Machine.compile

        def compile(
            machine: Machine, text: str, *, passes: bool = True, optimization: Optimization | None = None
        ) -> bytes:
            if threading.current_thread().name == "tracefuse compilation":
                self.entered.set()
                assert self.opened.wait(30)
                if self.error is not None:
                    raise self.error
            return original(machine, text, passes=passes, optimization=optimization)

        monkeypatch.setattr(Machine, "compile", compile)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()
    wait_for_compilation()


def test_the_optimized_code_replaces_the_first_and_is_stored(tmp_path: Path) -> None:
    disk, before = cache_in(tmp_path), cpu_functions.statistics()
    function = compile_cpu(NEGATE, disk, 5)
    address = function.module.address
    assert negates(function)
    assert not is_optimized(function)
    assert function.progress == "compiled quickly, not yet optimized"
    key = cpu_functions.cache_key(function.source)
    assert disk.load(key) is None
    assert negates(compile_cpu(replace(NEGATE, name="other"), disk, 5))
    wait_for_compilation()
    assert is_optimized(function)
    assert negates(function)
    assert function.progress.startswith("compiled quickly, optimized ")
    assert function.module.address == address
    counts = Statistics(*(b - a for a, b in zip(before, cpu_functions.statistics(), strict=True)))
    assert counts == Statistics(1, 0, 1)
    stored = disk.load(key)
    clear_cache()
    loaded = compile_cpu(NEGATE, disk, 5)
    assert not loaded.module.is_quick
    clear_cache()
    at_once = cache_in(tmp_path / "other")
    compile_cpu(NEGATE, at_once)
    assert at_once.load(key) == stored


@pytest.mark.parametrize("work", [None, MOST_WORK + 1])
def test_kernels_with_much_or_unknown_work_are_optimized_at_once(work: int | None) -> None:
    function = compile_cpu(NEGATE, None, work)
    assert not function.module.is_quick
    assert function.progress == ""
    assert negates(function)


@pytest.mark.parametrize("licence", ["reassoc", "afn", "arcp", "fast"])
def test_texts_that_leave_llvm_a_choice_are_optimized_at_once(licence: str) -> None:
    assert quick_code.is_used("  %fast.reassoc = fmul contract double %a, %b\n", 5)
    assert not quick_code.is_used(f"  %r = fadd contract {licence} double %a, %b\n", 5)


def test_threads_that_call_while_the_code_is_replaced_get_right_values(gate: Gate) -> None:
    function = compile_cpu(NEGATE, None, 5)
    begin()
    rounds, wrong = [0] * 3, []

    def calls(number: int) -> None:
        while not (is_optimized(function) and rounds[number] > 50):
            rounds[number] += 1
            if not negates(function):
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert gate.entered.wait(30)
    gate.opened.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_compile_a_kernel_share_it() -> None:
    with ThreadPoolExecutor(4) as pool:
        functions = list(pool.map(lambda n: compile_cpu(replace(NEGATE, name=f"k{n}"), None, 5), range(8)))
    assert len({function.module for function in functions}) == 1
    wait_for_compilation()
    assert all(map(is_optimized, functions))


def test_kernels_that_differ_in_constants_share_the_optimized_code(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    x, y = np.arange(100.0), np.zeros(105)

    def call(constant: float) -> CpuFunction:
        function = compile_cpu(kernel_with_constant(dtypes.float64, 5, constant, contract=False), disk, 100)
        function(x, y, 100)
        results.append(y.copy())
        return function

    results: list[Any] = []
    constants = (1.25, 2.75, 3.1, 4.3)
    functions = [call(constant) for constant in constants]
    assert not any(map(is_optimized, functions))
    wait_for_compilation()
    functions += [call(5.7), *map(call, constants)]
    assert all(map(is_optimized, functions))
    for early, late in zip(results[:4], results[5:], strict=True):
        np.testing.assert_array_equal(early, late)
    assert len({*map(bytes, results)}) == 5
    assert len([file for file in disk.kernels() if file.name.startswith("cpu-")]) == 2


def test_code_that_is_no_longer_used_is_neither_kept_nor_compiled(gate: Gate, tmp_path: Path) -> None:
    running = compile_cpu(NEGATE, None, 5)
    waiting = compile_cpu(primitives_kernel(("exp",), dtypes.float32), cache_in(tmp_path), 5)
    begin()
    assert gate.entered.wait(30)
    modules = [weakref.ref(function.module) for function in (running, waiting)]
    del running, waiting
    clear_cache()
    gc.collect()
    assert [module() for module in modules] == [None, None]
    gate.opened.set()
    wait_for_compilation()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_removed_meanwhile_is_not_made_again(gate: Gate, tmp_path: Path) -> None:
    disk = cache_in(tmp_path / "kernels")
    function = compile_cpu(NEGATE, disk, 5)
    begin()
    assert gate.entered.wait(30)
    for file in (tmp_path / "kernels").iterdir():
        file.unlink()
    (tmp_path / "kernels").rmdir()
    gate.opened.set()
    wait_for_compilation()
    assert is_optimized(function)
    assert not list(tmp_path.iterdir())


def test_a_job_that_fails_warns_and_the_first_code_goes_on(gate: Gate) -> None:
    gate.error = CompileError("no registers", hint="none")
    gate.opened.set()
    function = compile_cpu(NEGATE, None, 5)
    with pytest.warns(RuntimeWarning, match="the optimized code of a kernel is not used.*no registers"):
        wait_for_compilation()
    assert not is_optimized(function)
    assert negates(function)


def test_the_option_runs_functions_on_quick_code_first() -> None:
    x = np.arange(24.0).reshape(4, 6)
    for is_on in (False, True):
        f = fuse(lambda x: np.exp(x).cumsum(axis=1) * 3, background_compilation=is_on, cache_limit=0)
        first = f(x)
        wait_for_compilation()
        (progress,) = f.explain(x).progress
        assert ["compiled quickly, optimized " in text for text in progress] == [True] * is_on
        np.testing.assert_array_equal(f(x), first)
        tracefuse.clear_caches()


_PROGRAM = """
import os, sys, time
import numpy as np
import tracefuse
from tracefuse import fuse
from tracefuse.kernel.llvm import background_compilation, cpu_functions
from tracefuse.kernel.llvm.machine_code import OPTIMIZED, get_machine

class UntilFork:
    def run(self):
        while not forks:
            time.sleep(0.001)

how, folder = sys.argv[1:]
get_machine().optimization, forks = OPTIMIZED, []
x = np.random.default_rng(0).normal(size=(7, 33))
with tracefuse.options(cache_dir=folder, background_compilation=True):
    if how == "fork":
        background_compilation.add(UntilFork())
        os.register_at_fork(before=lambda: forks.append(None))
    functions = [fuse(lambda x, k=k: np.exp(x * k).cumsum(axis=1) + x[::-1]) for k in (2, 3)]
    expected = [f(x) for f in functions]
    if how == "fork":
        assert all("not yet optimized" in f.explain(x).progress[0][0] for f in functions)
        child = os.fork()
        tracefuse.wait_for_compilation()
        assert all("quickly, optimized " in f.explain(x).progress[0][0] for f in functions)
        assert all((f(x) == result).all() for f, result in zip(functions, expected))
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
print(cpu_functions.statistics().compiled)
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_the_next_process_finds_all_code_and_a_fork_goes_on(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_PROGRAM)
    counts = []
    for variant in (how, "exit"):
        done = run_script(script, variant, str(tmp_path / "kernels"))
        assert (done.returncode, done.stderr) == (3, "")
        counts.append(int(done.stdout))
    assert counts == [2, 0]
