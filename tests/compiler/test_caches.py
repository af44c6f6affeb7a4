"""Tests caches from the outside: which calls compile, the effect of options and clearing, parallel compilation."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import config, fuse
from tracefuse.compiler.executable import compile_fusion
from tracefuse.errors import CompileError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm import cpu_functions, worker_pool
from tracefuse.runtime import compile_all
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target

X = np.arange(12, dtype=np.float32).reshape(3, 4)

LAYER = """
def layer(x):
    return np.tanh(x * 1.5) + x.sum(axis=-1, keepdims=True)
"""


@pytest.fixture(autouse=True)
def _nothing_in_memory() -> None:
    tracefuse.clear_caches()


def defined(source: str, file: str) -> Callable[..., Any]:
    """The function of a source, as if it came from a file."""
    names: dict[str, Any] = {"np": np}
    exec(compile(source, file, "exec"), names)
    return names["layer"]  # type: ignore[no-any-return]


def compiled_by(work: Callable[[], Any]) -> tuple[int, int]:
    """Kernels that `work` compiled and read from disk."""
    before = cpu_functions.statistics()
    work()
    after = cpu_functions.statistics()
    return after.compiled - before.compiled, after.from_disk - before.from_disk


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("cpu-"))


# -- what compiles ----------------------------------------------------------------------------------------------------


def test_equal_layers_compile_once(tmp_path: Path) -> None:
    layers = [fuse(defined(LAYER, f"layer{k}.py")) for k in range(60)]
    with config.options(cache_dir=str(tmp_path)):
        assert compiled_by(lambda: [layer(X) for layer in layers]) == (1, 0)
    assert len(files(tmp_path)) == 1


def test_moving_a_function_by_a_line_compiles_nothing(tmp_path: Path) -> None:
    with config.options(cache_dir=str(tmp_path)):
        expected = fuse(defined(LAYER, "model.py"))(X)
        moved = fuse(defined("# a comment\n\n" + re.sub(r"\bx\b", "renamed", LAYER), "model.py"))
        assert compiled_by(lambda: np.testing.assert_array_equal(moved(X), expected)) == (0, 0)
        tracefuse.clear_caches()
        assert compiled_by(lambda: np.testing.assert_array_equal(moved(X), expected)) == (0, 1)


def test_each_way_to_set_the_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / name for name in ("decorated", "block", "variable")]
    fuse(cache_dir=str(folders[0]))(defined(LAYER, "a.py"))(X)
    tracefuse.wait_for_compilation()
    tracefuse.clear_caches()
    with config.options(cache_dir=str(folders[1])):
        fuse(defined(LAYER, "a.py"))(X)
    tracefuse.wait_for_compilation()
    tracefuse.clear_caches()
    with monkeypatch.context() as patch:
        patch.setenv("TRACEFUSE_CACHE_DIR", str(folders[2]))
        config.read_environment()
        fuse(defined(LAYER, "a.py"))(X)
    config.read_environment()
    tracefuse.wait_for_compilation()
    assert [len(files(folder)) for folder in folders] == [1, 1, 1]
    assert len({name for folder in folders for name in files(folder)}) == 1


def test_no_limit_keeps_nothing_on_disk(tmp_path: Path) -> None:
    function = fuse(cache_dir=str(tmp_path / "cache"), cache_limit=0)(defined(LAYER, "a.py"))
    assert compiled_by(lambda: function(X)) == (1, 0)
    assert not (tmp_path / "cache").exists()


# -- clearing ---------------------------------------------------------------------------------------------------------


def test_clearing_forgets_traces_plans_kernels_and_freed_buffers(tmp_path: Path) -> None:
    function = fuse(defined(LAYER, "a.py"))
    with config.options(cache_dir=str(tmp_path)):
        function(X)
        assert function.cache_info() == (1, 1, 0)
        assert cpu_memory.cached_bytes() > 0
        tracefuse.wait_for_compilation()
        tracefuse.clear_caches()
        assert function.cache_info() == (0, 0, 0)
        assert cpu_memory.cached_bytes() == 0
        assert compiled_by(lambda: function(X)) == (0, 1)
        tracefuse.clear_caches(disk=True)
        assert list(tmp_path.iterdir()) == []
        assert compiled_by(lambda: function(X)) == (1, 0)


def test_one_function_can_be_cleared_alone() -> None:
    first, second = (fuse(defined(LAYER, "a.py")) for _ in range(2))
    first(X), second(X)
    first.cache_clear()
    assert (first.cache_info().traces, second.cache_info().traces) == (0, 1)


def test_what_clears_functions_keeps_none_alive() -> None:
    function = fuse(defined(LAYER, "a.py"))
    alive = weakref.ref(function)
    function(X)
    del function
    gc.collect()
    assert alive() is None


def test_results_and_running_functions_outlive_clearing() -> None:
    function = fuse(defined(LAYER, "a.py"))
    result = function(X)
    expected = result.copy()
    wrong: list[int] = []

    def call() -> None:
        for k in range(50):
            if not np.array_equal(function(X), expected):
                wrong.append(k)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        tracefuse.clear_caches()
    for thread in threads:
        thread.join()
    assert not wrong
    assert np.array_equal(result, expected)


# -- compiling side by side -------------------------------------------------------------------------------------------


def two_rows(x: Any, y: Any) -> Any:
    return np.exp(x).sum(axis=-1), np.sqrt(y).sum(axis=0)


class Waiting(CpuKernelCompiler):
    """Compiles only when two kernels are being compiled at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2, timeout=30)

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        self.barrier.wait()
        return super().compile(kernel, disk, work)


class Refusing(CpuKernelCompiler):
    """Refuses every kernel, the first one last."""

    def __init__(self) -> None:
        super().__init__()
        self.others = threading.Event()

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        if kernel.name.startswith("s0"):
            self.others.wait(30)
        self.others.set()
        raise CompileError(f"no {kernel.name[:2]}", hint="none")


def lowered_for(compiler: CpuKernelCompiler) -> Any:
    executable = compile_fusion(fuse(two_rows).definition(X, X).fusion)
    executable.target = replace(cpu_target(), compiler=compiler)
    return executable


def test_segments_compile_at_the_same_time_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all, "available_threads", lambda: 2)
    executable = lowered_for(Waiting())
    outputs = executable([X, X])
    np.testing.assert_allclose(outputs[0], np.exp(X).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(outputs[1], np.sqrt(X).sum(0), rtol=1e-5)
    plan, _ = executable.plan_for([X, X])
    names = [function.kernel.name for segment in plan.segments for function in segment.functions]
    assert [name[:2] for name in names] == ["s0", "s1"]


def test_a_kernel_that_does_not_compile_is_named_with_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all, "available_threads", lambda: 2)
    with pytest.raises(CompileError, match=r"segment 0 \(\w+\): no s0\n  hint: none"):
        lowered_for(Refusing())([X, X])


# -- show_config ------------------------------------------------------------------------------------------------------


def test_the_configuration_names_versions_options_and_the_cache_folder(tmp_path: Path) -> None:
    with config.options(cache_dir=str(tmp_path), contract=False):
        fuse(defined(LAYER.replace("1.5", "2.5"), "a.py"))(X)
        shown = tracefuse.show_config()
    assert shown.versions["numpy"] == np.__version__
    assert {"Python", "tracefuse", "llvmlite", "LLVM"} <= shown.versions.keys()
    assert shown.threads == worker_pool.available_threads()
    assert (shown.cache_folder, shown.cache_kernels) == (str(tmp_path), len(list(tmp_path.iterdir())))
    assert shown.cache_bytes == sum(path.stat().st_size for path in tmp_path.iterdir()) > 0
    assert re.search(r"^option contract +False  \(set\)$", str(shown), re.MULTILINE)
    assert re.search(r"^option eager +False$", str(shown), re.MULTILINE)
    assert f"{tmp_path}: {shown.cache_kernels} kernels" in str(shown)
    assert shown._repr_html_().startswith("<pre>Python ")


def test_the_module_prints_the_configuration(tmp_path: Path) -> None:
    environment = {**os.environ, "TRACEFUSE_CACHE_DIR": str(tmp_path), "TRACEFUSE_DEBUG": "2"}
    command = [sys.executable, "-W", "error", "-m", "tracefuse"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert shown.stderr == ""
    assert f"{tmp_path}: 0 kernels, 0.0 MiB of at most 1024 MiB" in shown.stdout
    assert "  2  (set)" in shown.stdout
