"""Kernels come from the disk where it has their code, and are compiled again where it is damaged or does not link."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.cuda_kernels import group_reduce
from tests.kernel.disk_folders import NEGATE, cache_in, fresh, negates
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.cuda import nvrtc
from tracefuse.kernel.cuda.cuda_compiler import CudaCompiler
from tracefuse.kernel.llvm import cpu_functions as cpu_module
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.machine_code import UNOPTIMIZED, get_machine


def test_a_kernel_on_disk_is_linked_and_not_compiled(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    function, counts = fresh(NEGATE, disk)
    assert negates(function)
    assert counts == Statistics(1, 0, 0)
    function, counts = fresh(replace(NEGATE, name="other", body=(ir.Comment("elsewhere"), *NEGATE.body)), disk)
    assert negates(function)
    assert counts == Statistics(0, 1, 0)
    compile_cpu(NEGATE, disk)
    assert len([path for path in disk.kernels() if path.name.startswith("cpu-")]) == 1


def test_what_changes_the_code_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = get_machine()
    text = "define void @launch() { ret void }"
    keys = {cpu_module.cache_key(text), cpu_module.cache_key(text.replace("void @launch", "i64 @launch"))}
    for name in ("cpu", "features", "version", "triple"):
        with monkeypatch.context() as patch:
            patch.setattr(machine, name, "another")
            keys.add(cpu_module.cache_key(text))
    monkeypatch.setattr(machine, "optimization", UNOPTIMIZED)
    keys.add(cpu_module.cache_key(text))
    assert len(keys) == 7


def test_a_damaged_kernel_is_recompiled_and_replaced(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    fresh(NEGATE, disk)
    (file,) = [path for path in disk.kernels() if path.name.startswith("cpu-")]
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.warns(RuntimeWarning, match=str(file)):
        function, counts = fresh(NEGATE, disk)
    assert negates(function)
    assert counts.compiled == 1
    assert file.read_bytes() == whole


def test_code_that_cannot_be_linked_is_recompiled(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    key = cpu_module.cache_key(compile_cpu(NEGATE).source)
    disk.store(
        key,
        get_machine().compile(
            "declare void @unheard_of()\ndefine void @launch() {\n call void @unheard_of()\n ret void\n}"
        ),
    )
    with pytest.warns(RuntimeWarning, match="cannot be used: machine code cannot be linked"):
        function, counts = fresh(NEGATE, disk)
    assert negates(function)
    assert counts.compiled == 1
    assert fresh(NEGATE, disk)[1].from_disk == 1


_USELESS_POOL = """
import sys, warnings
import numpy as np
from tracefuse import config, fuse
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.kernel.cache.disk_cache import hashed
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.worker_pool import module_text

if sys.argv[1] == "put":
    key = hashed("pool", (module_text(), *get_machine().key))
    text = "declare void @unheard_of()\\ndefine void @launch() {\\n call void @unheard_of()\\n ret void\\n}"
    disk_cache.in_force().store(key, get_machine().compile(text))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert fuse(lambda x: x * 3)(np.ones(3))[0] == 3
print(*cpu_functions.statistics(), *["pool-" in str(one.message) for one in caught])
"""


def test_a_pool_that_cannot_be_linked_is_recompiled_and_no_kernel_is_discarded(tmp_path: Path) -> None:
    environment = {**os.environ, "TRACEFUSE_CACHE_DIR": str(tmp_path)}
    said = []
    for argument in ("", "put", ""):
        done = subprocess.run(
            [sys.executable, "-c", _USELESS_POOL, argument], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["1", "0", "0"], ["0", "1", "0", "True"], ["0", "1", "0"]]


def test_a_cubin_on_disk_needs_no_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = cache_in(tmp_path)
    kernel = group_reduce(dtypes.float32, 32, 64)
    try:
        nvrtc.nvrtc()
    except nvrtc.CompileError as error:
        pytest.skip(str(error))
    compiler = CudaCompiler("sm_90")
    first = compiler.compile(kernel, disk)
    assert compiler.statistics() == Statistics(1, 0, 0)
    assert b".target" not in disk.kernels()[0].read_bytes()  # PTX begins with it

    def refused(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("NVRTC was asked")

    monkeypatch.setattr(nvrtc, "nvrtc", refused)
    again = CudaCompiler("sm_90")
    second = again.compile(replace(kernel, name="other"), disk)
    assert again.statistics() == Statistics(0, 1, 0)
    assert (second.cubin, second.entry) == (first.cubin, first.entry)
    assert "other" in second.source
    assert len(disk.kernels()) == 1
    assert CudaCompiler("sm_100").key(kernel) != again.key(kernel) != again.key(replace(kernel, contract=False))


_PROGRAM = """
import sys, time
import numpy as np
from tracefuse import fuse
from tracefuse.kernel.llvm import cpu_functions

@fuse
def rows(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)

x = np.random.default_rng(0).normal(size=(7, 33))
print("ready", flush=True)
sys.stdin.readline()
y = rows(x)
assert np.allclose(y, np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)), y
print(*cpu_functions.statistics(), flush=True)
"""


def _started(folder: Path, program: str = _PROGRAM) -> subprocess.Popen[str]:
    environment = {**os.environ, "TRACEFUSE_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _finished(processes: list[subprocess.Popen[str]]) -> list[list[int]]:
    """Lets processes that are ready go at once; their counts of compiled, loaded and shared kernels."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    counts = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        counts.append(list(map(int, output.split())))
    return counts


def test_processes_that_start_at_once_get_right_values_and_leave_one_file_a_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    counts = _finished([_started(folder) for _ in range(3)])
    assert all(compiled + loaded == 1 for compiled, loaded, _ in counts)
    kinds = sorted(path.name.partition("-")[0] for path in folder.iterdir())
    assert kinds == ["cpu", "pool"]
    # A later process, with the function some lines further down, compiles nothing.
    assert _finished([_started(folder, "\n\n# moved\n" + _PROGRAM)]) == [[0, 1, 0]]
    assert len(list(folder.iterdir())) == 2
