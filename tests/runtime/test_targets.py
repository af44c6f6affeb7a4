"""A target is one object of parts, and nothing outside its packages asks for its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.repository.parsed_sources import ROOT, mentioning, tree_of
from tracefuse import fuse, options
from tracefuse.dtypes import bfloat16, float32
from tracefuse.errors import DeviceError, UnsupportedError
from tracefuse.runtime.devices import cuda_arrays, new_cuda_arrays
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.runtime.targets.cuda.cuda_target import cuda_target, cuda_text_target
from tracefuse.runtime.targets.resolution import resolve_target, target_for

SOURCE = ROOT / "tracefuse"
OF_TARGETS = (
    "runtime/targets/cpu", "runtime/targets/cuda", "runtime/devices", "schedule/cpu", "schedule/gpu", "kernel",
)  # fmt: skip
"""What knows a target's name: its own packages, the kinds of arrays, and the kernel language with its emitters."""


def comparisons_with_names() -> Iterator[str]:
    for path in mentioning("tracefuse", "[\"']cpu[\"']|[\"']cuda[\"']"):
        if path.relative_to(SOURCE).as_posix().startswith(OF_TARGETS):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Compare):
                sides = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
                if any(isinstance(part, ast.Constant) and part.value in ("cpu", "cuda") for part in sides):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_nothing_outside_the_packages_of_a_target_compares_its_name() -> None:
    assert list(comparisons_with_names()) == []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The target of GPU 1 of two, as far as it can be made without one."""
    answers: dict[str, Any] = {
        "architecture": lambda device: "sm_90", "multiprocessor_count": lambda device: 132, "device_count": lambda: 2,
        "array_type": lambda: np.ndarray, "current_device_function": lambda: "current", "current_stream_function": None,
        "allocator": None,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(cuda_arrays, name, answer or (lambda: "stream"))
    monkeypatch.setattr(new_cuda_arrays, "constructor", lambda: np.ndarray)
    return cuda_target.__wrapped__(1)


def test_the_texts_of_a_gpu_read_addresses_and_name_its_number(gpu: Any) -> None:
    calls = gpu.calls
    assert (gpu.name, gpu.device.number, gpu.device.uses_alignment, gpu.library.has_halves) == ("cuda", 1, True, True)
    assert calls.addresses
    assert (calls.argument_text("t0"), calls.stream_text()) == ("t0.data.ptr", "current_stream().ptr")
    assert calls.here_text("t0") == "t0.data.device_id == 1"
    assert calls.elsewhere_text() == "current_device() != 1"
    assert calls.plain_text("t0", "p0", 4) == "t0._c_contiguous and p0 % 4 == 0"
    assert calls.plain_text("t0", "p0", 1) == "t0._c_contiguous"
    assert (calls.wide_text("t0", "p0"), calls.writable_text("t0")) == ("p0 % 16 == 0", None)
    assert calls.empty_text("(3,)", float32, "d", "12") == "new_array((3,), d.numpy, memory_of(12))"
    assert calls.empty_text("(3,)", bfloat16, "d", "6") == "new((3,), d)"
    assert calls.all_wide_text([("t0", "p0")]) == "p0 % 16 == 0"
    assert calls.all_wide_text([("t0", "p0"), ("t1", "p1")]) == "(p0 | p1) % 16 == 0"
    assert calls.several_text([("(3,)", float32, "d", "12")]) == "new_arrays(((3,), d.numpy, 12))"
    assert calls.several_text([("(3,)", bfloat16, "d", "6")]) is None
    assert {
        "new_array",
        "new_arrays",
        "memory_of",
        "new",
        "allocate",
        "current_stream",
        "current_device",
        "is_plain",
        "is_wide",
        "empty",
    } <= calls.names().keys()


def test_templates_of_a_gpu_are_those_of_its_chip(gpu: Any) -> None:
    assert gpu.templates.problem.keywords["chip"] == cuda_text_target().templates.problem.keywords["chip"]


def test_kernels_that_are_only_written_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    target = cuda_text_target()
    with options(target="cuda"):
        (segment,) = fuse(lambda x: x + 1).segments(np.ones(64, np.float32))
    kernel = segment.compiled.lowered.launches[0].kernel
    assert "__global__" in target.compiler.compile(kernel).source
    assert target.compiler.require_graphs() is None
    monkeypatch.setattr(cuda_arrays, "unavailable", lambda: "no GPU: none is here")
    graph = target.compiler.graph([], [])
    for run in (target.compiler.entry(None), lambda: graph.replay((0,)), lambda: graph.launch((0,), ())):
        with pytest.raises(DeviceError, match="CUDA kernels cannot run here: no GPU: none is here"):
            run()
    with pytest.raises(DeviceError, match="cannot run here"):
        target.device.empty((3,), float32)


def test_the_cpu_launches_no_graphs_and_a_target_without_graphs_says_so() -> None:
    with pytest.raises(UnsupportedError, match="graph=True launches kernels as one CUDA graph"):
        cpu_target().compiler.require_graphs()


def test_an_option_that_names_no_target_follows_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("auto", "reference"):
        assert resolve_target(option, None) == ("cpu", None)
        assert resolve_target(option, 2) == ("cuda", 2)
    assert resolve_target("cpu", 2) == ("cpu", None)
    monkeypatch.setattr(cuda_arrays, "unavailable", lambda: "no GPU")
    assert resolve_target("cuda", None) == ("cuda", None)
    assert target_for("cuda") is cuda_text_target()
    assert target_for("cpu") is cpu_target()
    monkeypatch.setattr(cuda_arrays, "unavailable", lambda: None)
    monkeypatch.setattr(cuda_arrays, "current_device", lambda: 3)
    assert resolve_target("cuda", None) == ("cuda", 3)
