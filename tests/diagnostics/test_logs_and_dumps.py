"""Tests the lines that `debug` logs and the files that `dump` writes."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import DataType, FusionDefinition, clear_caches, fuse
from tracefuse.config import DUMPS
from tracefuse.logs import LOGGER

X = np.random.default_rng(0).uniform(1, 2, (6, 8)).astype(np.float32)
W = np.ones((8, 3), np.float32)


def model(x: Any, w: Any) -> Any:
    y = x - x.max(axis=1, keepdims=True)
    return np.exp(y) @ w


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    yield
    LOGGER.handlers.clear()
    LOGGER.setLevel(logging.NOTSET)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, times left out."""
    untimed = (re.sub(r"[\d.]+ (us|ms)", "T", record.message) for record in caplog.records)
    return [re.sub(r"\d+ (new|from)", r"N \1", line) for line in untimed]


def test_level_1_says_segments_times_and_why_a_plan_was_made(caplog: pytest.LogCaptureFixture) -> None:
    fused = fuse(model, debug=1)
    fused(X, W)
    fused(X[:3], W)
    assert lines(caplog) == [
        "model: traced for float32[6, 8], float32[8, 3] in T",
        "model: segmenting T, choosing loops T, compiling kernels T, host program T; "
        "kernels: N new, N from disk, N from memory",
        "model: compiled 2 segments (0 row, 1 library) in T: the first call",
        "segment 0 (row) ran in T",
        "segment 1 (library) ran in T",
        "segment 0 (row) ran in T",
        "segment 1 (library) ran in T",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    caplog.clear()
    fused(np.asfortranarray(X), W)
    fused(np.ones((2, 40000), np.float32), np.ones((40000, 3), np.float32))
    assert [line for line in lines(caplog) if "compiled" in line] == [
        f"model: compiled 2 segments (0 {first}, 1 library) in T: "
        f"the layout of input T0 was {before}, now it is {after}"
        for first, before, after in (
            ("column", "contiguous", "strided '1A'"),
            ("row", "strided '1A'", "contiguous"),
        )
    ]


def test_level_1_tells_new_kernels_from_those_on_disk_and_in_memory(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def kernels() -> str:
        caplog.clear()
        fuse(lambda x: x * 1.640625 - 7.59375, debug=1, cache_dir=str(tmp_path))(X)
        return next(r.message for r in caplog.records if "kernels:" in r.message).split("; ")[1]

    assert kernels() == "kernels: 1 new, 0 from disk, 0 from memory"
    assert kernels() == "kernels: 0 new, 0 from disk, 1 from memory"
    clear_caches()
    assert kernels() == "kernels: 0 new, 1 from disk, 0 from memory"


def test_a_guard_that_failed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    fused = fuse(lambda x: x - x.max(axis=1, keepdims=True), debug=1)
    fused(X)
    fused(np.ones((20, 40000), np.float32))
    assert lines(caplog)[-2].endswith(
        "in T: a guard failed, i1 <= 32768: a row stays in cache between passes; now they are 40000 and 32768"
    )


@pytest.mark.parametrize(
    ("level", "said", "unsaid"),
    [
        (1, "compiled", "its fusion is"),
        (2, "its segments are not one, because\n0 | 1:", "define void"),
        (3, "segment 0 is\n", "pass tidy_kernel took"),
        (4, "pass tidy_kernel took", "pass fold_constants"),
    ],
)
def test_each_level_says_more(caplog: pytest.LogCaptureFixture, level: int, said: str, unsaid: str) -> None:
    fuse(model, debug=level)(X, W)
    text = "\n".join(record.message for record in caplog.records)
    assert said in text
    assert unsaid not in text


def test_without_a_handler_lines_go_to_standard_error_and_with_one_they_do_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, sys\nimport numpy as np\nimport tracefuse\n"
        "if len(sys.argv) > 1:\n    logging.basicConfig(stream=sys.stdout, format='mine: %(message)s')\n"
        "tracefuse.fuse(lambda x: x + 1)(np.ones(3))\n"
    )
    environment = {**os.environ, "TRACEFUSE_DEBUG": "1"}
    runs = [
        subprocess.run([sys.executable, script, *more], capture_output=True, text=True, env=environment, check=True)
        for more in ([], ["own"])
    ]
    assert runs[0].stderr.startswith("tracefuse: <lambda>: traced for float64[3] in ")
    assert (runs[0].stdout, runs[1].stderr) == ("", "")
    assert runs[1].stdout.startswith("mine: <lambda>: traced for float64[3] in ")


# -- dumps -------------------------------------------------------------------------------------------------------------


def test_a_dump_has_every_file_and_its_script_runs_again(tmp_path: Path) -> None:
    fused = fuse(model, dump=",".join(DUMPS), dump_dir=str(tmp_path / "dumps"), contract=False)
    fused(X, W)
    (folder,) = (tmp_path / "dumps").iterdir()
    assert folder.name == "0000_model"
    assert sorted(path.name for path in folder.iterdir()) == [
        "concretized.txt", "fusion.txt", "host_ir.txt", "kernels.txt", "pass00_tidy_kernel.txt", "repro.py",
        "segment0_0.ll", "segments.txt", "view.html",
    ]  # fmt: skip
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert "exp(v" in texts["fusion.txt"]
    assert "fd.ops.matmul" in texts["fusion.txt"]
    assert "launch row0(" in texts["host_ir.txt"]
    assert "def call(a):" in texts["host_ir.txt"]
    assert "why the segments are separate:" in texts["segments.txt"]
    assert "kernel s0_row(" in texts["kernels.txt"]
    assert re.match(r"# tidy_kernel: [\d.]+ ms\nkernel s0_row\(", texts["pass00_tidy_kernel.txt"])
    assert "@llvm" in texts["segment0_0.ll"] or "define" in texts["segment0_0.ll"]
    assert "with options(contract=False):" in texts["repro.py"]
    more = texts["repro.py"] + "print(outputs[0].shape, outputs[0].dtype)\n"
    run = subprocess.run([sys.executable, "-W", "error", "-c", more], capture_output=True, text=True, check=True)
    assert run.stdout == "(6, 3) float32\n"


def test_each_compilation_has_a_folder_and_only_what_was_asked_for(tmp_path: Path) -> None:
    with tracefuse.options(dump="kernel", dump_dir=str(tmp_path)):
        fused = fuse(model)
        fused(X, W)
        fused(X, W)
        fused(np.asfortranarray(X), W)
    names = sorted(f"{path.parent.name}/{path.name}" for path in tmp_path.glob("*/*"))
    assert names == ["0000_model/kernels.txt", "0000_model/repro.py", "0001_model/kernels.txt", "0001_model/repro.py"]


def test_a_kernel_that_does_not_compile_leaves_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise tracefuse.CompileError("no")

    monkeypatch.setattr("tracefuse.runtime.targets.cpu.cpu_kernel_compiler.compile_cpu", refuse)
    with pytest.raises(tracefuse.CompileError):
        fuse(model, dump="fusion", dump_dir=str(tmp_path))(X, W)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["fusion.txt", "repro.py"]


def test_cuda_kernels_are_dumped_without_a_gpu(tmp_path: Path) -> None:
    specs = [tracefuse.ShapeDtype(a.shape, a.dtype) for a in (X, W)]
    fuse(model, target="cuda", dump="source", dump_dir=str(tmp_path)).segments(*specs)
    assert "__global__ void" in (tmp_path / "0000_model" / "segment0_0.cu").read_text()
    assert "np.random.default_rng(0).uniform(0, 5, (6, 8))" in (tmp_path / "0000_model" / "repro.py").read_text()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tracefuse.OptionError) as error:
        fuse(model, dump="fusion", dump_dir=str(tmp_path / "file"))(X, W)
    assert str(error.value) == (
        f"option dump: cannot write in {tmp_path / 'file'}: File exists\n  hint: set dump_dir to another folder"
    )


def test_scripts_of_definitions_run_under_the_options_in_force() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], dtype=DataType.BFloat16), fd.define_scalar()
        fd.add_output(fd.ops.mul(x, s))
    fd.execute([np.ones(4, fd.fusion.values[0].dtype.numpy), 2.5], save_repro_inputs=True)
    script = fd.last_repro_script()
    with tracefuse.options(exact_half=True):
        assert "with options(exact_half=True):\n    outputs = fd.execute(inputs)" in fd.last_repro_script()
    more = f"{script}print(outputs[0].shape, outputs[0].dtype)"
    run = subprocess.run([sys.executable, "-c", more], capture_output=True, text=True, check=True)
    assert run.stdout == "(4,) bfloat16\n"
    assert fd.repro_script_for([np.ones(4, fd.fusion.values[0].dtype.numpy), 2.5]) == script
