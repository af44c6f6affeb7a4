"""A kernel that runs a table of launches: its text compiles, and blocks find their launches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers, softmax
from tracefuse.kernel.cuda.cuda_compiler import options_of
from tracefuse.kernel.cuda.cuda_functions import CudaFunction
from tracefuse.kernel.cuda.emit_table import PARAMETER_BYTES, emit_table, entries, fits_table
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.kernel.cuda.replayed_launches import ReplayedKernel, ReplayedTable
from tracefuse.kernel.kernel_ir import Buffer, Variable
from tracefuse.kernel.llvm.device_replay import PATCH_ADDRESS
from tracefuse.kernel.llvm.replay_records import CallValue


def kernels() -> dict[str, Any]:
    """A kernel of each kind that small arrays have."""
    functions = {
        "pointwise": (lambda x, y: x - 0.01 * y, [numbers(40, 64), numbers(40, 64)]),
        "odd": (lambda x, y: x - 0.01 * y, [numbers(41, 63)[:, :61], numbers(41, 61)]),
        "half": (lambda x, s: x * s, [numbers(7, 9, dtype=np.float16), np.float16(2)]),
        "row": (softmax(-1), [numbers(40, 100)]),
        "column": (lambda x: x.sum(0), [numbers(8, 100)]),
        "transpose": (lambda x, y: x.T + y, [numbers(40, 64), numbers(64, 40)]),
    }
    return {name: case(function, *arguments).kernels[0] for name, (function, arguments) in functions.items()}


@pytest.mark.parametrize("name", ["pointwise", "odd", "half", "row", "column", "transpose"])
def test_a_table_compiles_without_warnings(name: str) -> None:
    kernel = kernels()[name]
    assert fits_table(kernel)
    text, entry = emit_table(kernel)
    cubin, log = compile_with_log(text, entry, architecture="sm_90", options=options_of(kernel))
    assert len(cubin) > 0
    assert log.strip("\0\n ") == ""
    assert 8 * entries(kernel) * (len(kernel.parameters) + 1) + 8 <= PARAMETER_BYTES


def test_kernels_that_differ_in_names_alone_have_one_table() -> None:
    first, second = (case(lambda x, y: x + 2 * y, numbers(n, 64), numbers(n, 64)).kernels[0] for n in (40, 56))
    assert emit_table(first) == emit_table(second)


@pytest.mark.parametrize("name", ["pointwise", "half", "column"])
def test_replayed_launches_pass_what_launches_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaFunction, "load", lambda self, device: (self, 55))
    kernel = kernels()[name]
    function, table = (CudaFunction(kernel, None, b"", "entry", "sm_90") for _ in range(2))
    has_half = any(isinstance(p, Variable) and p.dtype.is_half for p in kernel.parameters)

    def arguments(first: int) -> tuple[Any, ...]:
        is_buffer = [isinstance(p, Buffer) for p in kernel.parameters]
        return tuple(CallValue(first + k, 8 * k) if b else 1 + k for k, b in enumerate(is_buffer))

    def patches(first: int, start: int) -> list[tuple[int, int, int, int]]:
        places = [k for k, p in enumerate(kernel.parameters) if isinstance(p, Buffer)]
        return [(start + 8 * k, first + k, PATCH_ADDRESS, 8 * k) for k in places]

    alone = ReplayedKernel(function, 0).launches(arguments(3))
    count, most = len(kernel.parameters), entries(kernel)
    together = ReplayedTable(function, table, 0).launches(tuple(arguments(10 * k) for k in range(most + 2)))
    if has_half:
        assert alone is together is None
        return
    assert alone is not None
    assert together is not None
    buffer = ctypes.create_string_buffer(8 * count)
    function.pack(buffer, 0, *(0 if isinstance(a, CallValue) else a for a in arguments(3)))
    (one,) = alone
    assert (one.function, one.threads, one.contents) == (55, kernel.threads, buffer.raw)
    assert one.patches == tuple(patches(3, 0))
    width = 8 * (count + 1)
    assert [launch.grid[0] for launch in together] == [one.grid[0] * most, one.grid[0] * 2]
    for launch, first, number in zip(together, (0, most), (most, 2), strict=True):
        assert launch.parameters == (0, width * most)
        assert int.from_bytes(launch.contents[width * most :], "little") == number
        for k in range(number):
            assert launch.contents[width * k : width * (k + 1) - 8] == buffer.raw
            assert int.from_bytes(launch.contents[width * (k + 1) - 8 : width * (k + 1)], "little") == one.grid[0] * (
                k + 1
            )
        assert launch.patches == tuple(p for k in range(number) for p in patches(10 * (first + k), width * k))
