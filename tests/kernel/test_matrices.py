"""Matrices in the registers of a warp: loads, products and pairs of halves, in the interpreter and as CUDA C++."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from segments.lazy_dataclasses import replace
from tests.kernel.cuda_kernels import THREAD, source, target
from tracefuse import dtypes
from tracefuse.dtypes import DType, float32, int32, uint32
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import target_of
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.kernel.interpreter.interpret import InterpreterError, interpret
from tracefuse.kernel.kernel_ir import Variable, call
from tracefuse.kernel.kernel_text import kernel_text

HALVES = {dtypes.float16: np.float16, dtypes.bfloat16: ml_dtypes.bfloat16}


def at(value: int) -> ir.Constant:
    return ir.Constant(value, int32)


def part(name: str, value: int) -> ir.Call:
    return call(name, THREAD, at(value))


def product_kernel(dtype: DType, *, threads: int = 32, barrier: bool = True, pitch: int = 24) -> ir.Kernel:
    """y (16 x 8) = rounded(a (16 x 16)) @ b (8 x 16).T, through shared memory with rows of `pitch` elements."""
    a, b, y = source("a", dtype), source("b", dtype), target("y", float32)
    left, right = (ir.Buffer(name, dtype, "shared", 16 * pitch) for name in ("left", "right"))
    registers = [ir.Buffer(name, uint32, "local", 4) for name in ("rows", "columns")]
    sums, k = ir.Buffer("sums", float32, "local", 4), Variable("k", int32)
    row, column = part("truncmod", 16), call("mul", part("truncdiv", 16), at(8))
    start = call("add", call("mul", row, at(pitch)), column)
    transposed = call("add", call("mul", part("truncmod", 8), at(pitch)), call("mul", part("truncdiv", 8), at(8)))
    at_row = call("mul", part("truncdiv", 4), at(8))
    place = call("add", at_row, call("mul", part("truncmod", 4), at(2)))
    copies = [
        ir.For(
            k, THREAD, at(rows * 16), at(threads), "serial",
            (
                ir.Store(
                    shared,
                    call("add", call("mul", call("truncdiv", k, at(16)), at(pitch)), call("truncmod", k, at(16))),
                    ir.Load(buffer, k),
                ),
            ),
        )
        for buffer, shared, rows in ((a, left, 16), (b, right, 8))
    ]  # fmt: skip
    body = (
        *(ir.Allocate(buffer) for buffer in (left, right, *registers, sums)),
        *copies,
        *([ir.Barrier()] if barrier else []),
        ir.LoadMatrices(registers[0], at(0), left, start),
        ir.LoadMatrices(registers[1], at(0), right, transposed),
        *(ir.Store(sums, at(index), ir.Constant(0.0, float32)) for index in range(4)),
        ir.MultiplyMatrices(sums, at(0), registers[0], at(0), registers[1], at(0), dtype),
        *(
            ir.Store(y, call("add", place, at(offset)), ir.Load(sums, at(index)))
            for index, offset in enumerate((0, 1, 64, 65))
        ),
    )
    return ir.Kernel("product", (a, b, y), (), body, "cuda", threads, THREAD)


def arrays(dtype: DType) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(HALVES[dtype]) for shape in ((16, 16), (8, 16)))
    return a, b, np.zeros((16, 8), np.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_a_product_of_loaded_matrices_is_the_product(dtype: DType) -> None:
    a, b, y = arrays(dtype)
    kernel = product_kernel(dtype)
    interpret(kernel, [a, b, y])
    np.testing.assert_allclose(y, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-5)
    text = kernel_text(kernel)
    assert "rows[0 : +4] = matrices at left[" in text
    assert "sums[0 : +4] += rows[0 : +4] @ columns[0 : +2]" in text
    compile_with_log(emit_cuda(kernel), "product", architecture="sm_80")


def test_a_load_without_the_barrier_is_a_race() -> None:
    with pytest.raises(InterpreterError, match="no barrier: reads left"):
        interpret(product_kernel(dtypes.float16, barrier=False), [*arrays(dtypes.float16)])


def test_a_row_that_is_not_aligned_is_refused() -> None:
    with pytest.raises(InterpreterError, match="a row of a matrix in left is not aligned to 16 bytes"):
        interpret(product_kernel(dtypes.float16, pitch=20), [*arrays(dtypes.float16)])


def test_a_part_of_a_warp_cannot_multiply() -> None:
    kernel = product_kernel(dtypes.float16)
    some = ir.If(call("lt", THREAD, at(8)), (kernel.body[-5],))
    assert isinstance(kernel.body[-5], ir.MultiplyMatrices)
    broken = ir.Kernel("product", kernel.parameters, (), (*kernel.body[:-5], some), "cuda", 32, THREAD)
    with pytest.raises(InterpreterError, match="is not reached by all threads of a warp"):
        interpret(broken, [*arrays(dtypes.float16)])


@pytest.mark.parametrize("transposed", [False, True])
def test_a_load_gives_each_thread_its_pairs(transposed: bool) -> None:
    kernel = product_kernel(dtypes.float16)
    shared, words = ir.Buffer("left", dtypes.float16, "shared", 256), ir.Buffer("words", uint32, "local", 4)
    source_buffer, y = kernel.parameters[0], target("y", uint32)
    assert isinstance(source_buffer, ir.Buffer)
    k = Variable("k", int32)
    body = (
        ir.Allocate(shared),
        ir.Allocate(words),
        ir.For(k, THREAD, at(256), at(32), "serial", (ir.Store(shared, k, ir.Load(source_buffer, k)),)),
        ir.Barrier(),
        ir.LoadMatrices(words, at(0), shared, call("mul", THREAD, at(8)), transposed),
        *(
            ir.Store(y, call("add", call("mul", THREAD, at(4)), at(i)), ir.Load(words, at(i))) for i in range(4)
        ),
    )  # fmt: skip
    values = np.arange(256, dtype=np.float16)
    result = np.zeros((32, 4), np.uint32)
    interpret(ir.Kernel("loads", (source_buffer, y), (), body, "cuda", 32, THREAD), [values, result])
    matrices = values.reshape(4, 8, 8)
    matrices = matrices.swapaxes(1, 2) if transposed else matrices
    pairs = np.ascontiguousarray(result).view(np.float16).reshape(32, 4, 2)
    for thread in range(32):
        row, column = thread // 4, thread % 4 * 2
        np.testing.assert_array_equal(pairs[thread], matrices[:, row, column : column + 2])


@pytest.mark.parametrize("shift", [0, 4])
def test_a_load_of_pairs_gives_words_a_step_apart(shift: int) -> None:
    kernel = product_kernel(dtypes.float16)
    words, y = ir.Buffer("words", uint32, "local", 8), target("y", uint32)
    source_buffer = kernel.parameters[0]
    assert isinstance(source_buffer, ir.Buffer)
    body = (
        ir.Allocate(words),
        ir.LoadPairs(words, at(1), source_buffer, call("add", call("mul", THREAD, at(8)), at(shift)), 2),
        *(
            ir.Store(y, call("add", call("mul", THREAD, at(4)), at(i)), ir.Load(words, at(1 + 2 * i))) for i in range(4)
        ),
    )  # fmt: skip
    values, result = np.arange(264, dtype=np.float16), np.zeros((32, 4), np.uint32)
    loads = ir.Kernel("loads", (source_buffer, y), (), body, "cuda", 32, THREAD)
    assert "words[1 : +8 : 2] = pairs at a[" in kernel_text(loads)
    if shift:
        with pytest.raises(InterpreterError, match="which is not aligned to 16 bytes"):
            interpret(loads, [values, result])
        return
    interpret(loads, [values, result])
    np.testing.assert_array_equal(result.view(np.float16).ravel(), values[:256])
    compile_with_log(emit_cuda(loads), "loads", architecture="sm_80")


def tiles_kernel(*, in_registers: bool, transposed: bool, barrier: bool = True, awaited: bool = True) -> ir.Kernel:
    """y (64 x 64) = a (64 x 64) @ b (64 x 64), or b.T, by one group of warps; b is in the order of MultiplyTiles."""
    dtype, rows, pairs = dtypes.float16, 64, 32
    a, b, y = source("a", dtype), source("b", dtype), target("y", float32)
    left, right = (ir.Buffer(name, dtype, "shared", rows * 64) for name in ("left", "right"))
    words, sums, k = (
        ir.Buffer("words", uint32, "local", 16),
        ir.Buffer("sums", float32, "local", pairs),
        Variable("k", int32),
    )
    row, chunk = call("truncdiv", k, at(64)), call("truncmod", call("truncdiv", k, at(8)), at(8))
    swapped = call("xor", chunk, call("truncmod", row, at(8)))
    place = call("add", call("mul", row, at(64)), call("add", call("mul", swapped, at(8)), call("truncmod", k, at(8))))
    lane = part("truncmod", 32)
    first_row = call("add", call("mul", part("truncdiv", 32), at(16)), call("truncdiv", lane, at(4)))
    corner = call("add", call("mul", first_row, at(64)), call("mul", call("truncmod", lane, at(4)), at(2)))
    copies = tuple(
        ir.For(k, THREAD, at(rows * 64), at(128), "serial", (ir.Store(shared, place, ir.Load(buffer, k)),))
        for buffer, shared in ((a, left), (b, right))
    )
    loads = [
        call("add", corner, at(step * 16 + half % 2 * 8 * 64 + half // 2 * 8)) for step in range(4) for half in range(4)
    ]
    loaded = [
        ir.StorePair(words, at(n), *(ir.Cast(ir.Load(a, call("add", where, at(c))), float32) for c in range(2)), dtype)
        for n, where in enumerate(loads)
    ]
    factor = words if in_registers else left
    results = tuple(
        ir.Store(y, call("add", corner, at(n // 4 * 8 + n // 2 % 2 * 8 * 64 + n % 2)), ir.Load(sums, at(n)))
        for n in range(pairs)
    )
    product = ir.MultiplyTiles(sums, at(0), factor, at(0), right, at(0), 64, 64, transposed, True, awaited)
    body = (
        *(ir.Allocate(buffer) for buffer in (left, right, words, sums)), *copies, *loaded,
        *([ir.Barrier()] if barrier else []), product, *results,
    )  # fmt: skip
    return ir.Kernel("tiles", (a, b, y), (), body, "cuda", 128, THREAD)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_tiles_is_the_product(in_registers: bool, transposed: bool) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    y = np.zeros((64, 64), np.float32)
    kernel = tiles_kernel(in_registers=in_registers, transposed=transposed)
    interpret(kernel, [a, b, y])
    exact = a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64)
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)
    assert " tiles " in kernel_text(kernel)
    compile_with_log(emit_cuda(kernel), "tiles", architecture=target_of([kernel], "sm_90"))


def test_a_product_of_tiles_waits_for_copies_and_is_waited_for() -> None:
    arguments: list[Any] = [
        np.zeros((64, 64), np.float16),
        np.zeros((64, 64), np.float16),
        np.zeros((64, 64), np.float32),
    ]
    with pytest.raises(InterpreterError, match="no barrier: reads"):
        interpret(tiles_kernel(in_registers=True, transposed=True, barrier=False), arguments)
    kernel = tiles_kernel(in_registers=True, transposed=True, awaited=False)
    with pytest.raises(InterpreterError, match="sums is accessed before a product of tiles with it is awaited"):
        interpret(kernel, arguments)
    at_product = next(k for k, s in enumerate(kernel.body) if isinstance(s, ir.MultiplyTiles))
    before, after = kernel.body[: at_product + 1], kernel.body[at_product + 1 :]
    with pytest.raises(InterpreterError, match="a barrier during a product of tiles, of sums"):
        interpret(replace(kernel, body=(*before, ir.Barrier())), arguments)
    interpret(replace(kernel, body=(*before, ir.AwaitProducts(kernel_sums(kernel)), *after)), arguments)


def kernel_sums(kernel: ir.Kernel) -> tuple[ir.Buffer, ...]:
    return tuple(s.sums for s in kernel.body if isinstance(s, ir.MultiplyTiles))
