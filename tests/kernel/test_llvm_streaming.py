"""Tests non-temporal stores: which stores use them, their values, and invalid uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernel.cpu_kernels import cast_kernel
from tracefuse import dtypes, fuse
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import CACHE_LINE, For, Kernel, Store
from tracefuse.kernel.llvm.cpu_functions import CpuFunction, cache_key, compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm
from tracefuse.kernel.llvm.streaming_stores import is_marked, past_caches
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.runtime.devices import cpu_memory

streams = pytest.mark.skipif(not host_processor().streaming_stores, reason="a processor without AVX2")


def streaming(source: DType, *targets: DType) -> Kernel:
    """Casts of one input, with all stores past the caches."""
    kernel = cast_kernel(source, *targets)
    (loop,) = kernel.body
    assert isinstance(loop, For)
    kept = {b.name: replace(b, alignment=CACHE_LINE) if b.written else b for b in kernel.buffers}
    stores = tuple(replace(s, buffer=kept[s.buffer.name], cache="streaming") for s in loop.body if isinstance(s, Store))
    parameters = tuple(kept.get(p.name, p) for p in kernel.parameters)
    return replace(kernel, parameters=parameters, body=(replace(loop, body=stores),))  # type: ignore[arg-type]


def wide_stores(function: CpuFunction) -> list[str]:
    return [line.split()[0] for line in function.assembly().splitlines() if "\tvmovnt" in line]


@streams
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.int8, dtypes.bool_], ids=str)
def test_streamed_results_are_those_of_other_stores(dtype: DType) -> None:
    function = compile_cpu(streaming(dtypes.float32, dtype, dtypes.int32))
    assert wide_stores(function)
    random = np.random.default_rng(0)
    for n in (0, 1, 15, 16, 17, 63, 64, 100, 4095, 4096, 5000, 200_003):
        x = random.uniform(-120, 120, n).astype(np.float32)
        outs = [cpu_memory.empty((n,), made) for made in (dtype, dtypes.int32)]
        function(x, *outs, n)
        expected = x != 0 if dtype is dtypes.bool_ else x.astype(dtype.numpy)
        assert np.array_equal(outs[0], expected)
        assert np.array_equal(outs[1], x.astype(np.int32))


@streams
def test_a_result_that_does_not_start_at_a_line_is_refused_and_nothing_is_written() -> None:
    function = compile_cpu(streaming(dtypes.float32, dtypes.float32))
    x, memory = np.ones(100, np.float32), np.zeros(200, np.float32)
    start = -(memory.ctypes.data // 4) % 16
    with pytest.raises(SystemError, match="casts needs its outputs aligned to cache lines"):
        function(x, memory[start + 1 : start + 101], 100)
    assert not memory.any()
    function(x, memory[start : start + 100], 100)
    assert memory.sum() == 100


def is_streamed(text: str) -> bool:
    """Whether a module has stores that bypass the caches, or marks of those that LLVM vectorizes."""
    return is_marked(text) or "!nontemporal" in text


@streams
def test_only_marked_stores_of_whole_vectors_become_non_temporal() -> None:
    plain, marked = (make(dtypes.float32, dtypes.bfloat16) for make in (cast_kernel, streaming))
    assert not is_streamed(emit_llvm(plain))
    assert not wide_stores(compile_cpu(plain))
    assert is_streamed(emit_llvm(marked))
    assert cache_key(emit_llvm(plain)) != cache_key(emit_llvm(marked))
    text = "\n".join(
        [
            "  store <16 x i16> %a, ptr %p, align 2, !alias.scope !7, !llvm.access.group !3",
            "  store <16 x i16> %a, ptr %p, align 2, !llvm.access.group !1",
            "  store i16 %b, ptr %p, align 2, !llvm.access.group !3",
            "!tracefuse.streaming = !{!2}",
            *("!1 = distinct !{}", "!2 = distinct !{}", "!3 = !{!1, !2}", "!7 = !{!8}", "!8 = distinct !{!8}"),
        ]
    )
    before, after = text.splitlines(), past_caches(text).splitlines()
    assert after[0] == f"{before[0].replace('align 2', 'align 32')}, !nontemporal !9"
    assert after[1:-1] == before[1:]
    assert after[-1] == "!9 = !{i32 1}"


def test_a_processor_without_such_stores_gets_plain_ones() -> None:
    marked = streaming(dtypes.float32, dtypes.float32)
    assert not is_streamed(emit_llvm(marked, replace(host_processor(), streaming_stores=False)))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [2048, 2047])
def test_large_results_of_all_templates_are_numpys(dtype: Any, columns: int) -> None:
    """Past the caches where rows are whole lines, through them where they are not."""
    rows = 16 * 1024 * 1024 // (2 * columns * np.dtype(dtype).itemsize) + 1
    x = np.random.default_rng(1).integers(-8, 8, (rows, columns)).astype(dtype)

    @fuse
    def pointwise(x: Any) -> Any:
        return np.concatenate([x[:, 32:], -x[:, :32]], axis=1) + x

    @fuse
    def row(x: Any) -> Any:
        return x - x.max(axis=1, keepdims=True)

    @fuse
    def column(x: Any) -> Any:
        return x - x.max(axis=0)

    @fuse
    def turned(x: Any) -> Any:
        return x.T + 1

    assert np.array_equal(pointwise(x), np.concatenate([x[:, 32:], -x[:, :32]], axis=1) + x)
    assert np.array_equal(row(x), x - x.max(axis=1, keepdims=True))
    assert np.array_equal(column(x), x - x.max(axis=0))
    assert np.array_equal(turned(x), x.T + np.ones(1, dtype))
    marked = [is_streamed(f.segments(x)[0].source) for f in (pointwise, row, column)]
    assert marked == [columns == 2048 and host_processor().streaming_stores] * 3


def test_memory_of_the_caller_is_written_wherever_it_starts() -> None:
    @fuse
    def double(x: Any) -> Any:
        return x * 2

    x = np.ones((2048, 2048), np.float32)
    memory = np.zeros(x.size + 17, np.float32)
    for start in (0, 1, 4, 16):
        out = memory[start : start + x.size].reshape(x.shape)
        double(x, out=out)
        assert np.array_equal(out, x * 2)
