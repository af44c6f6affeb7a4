"""CPU kernels read and write memory as their text says: strides, aliases, alignment, indices, empty grids."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel.cpu_kernels import INDEX, index, loop, number
from tests.kernel.cpu_rows import COLUMNS, F32, ROWS, I, J, add, at, by_row, map_kernel, mul, random, real
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Assign,
    Axis,
    Barrier,
    Buffer,
    Cast,
    Combiner,
    Constant,
    Copy,
    Declare,
    For,
    GroupReduce,
    If,
    Kernel,
    Let,
    Load,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm


def test_column_sums_accumulate_in_a_local_array() -> None:
    width, block = 32, index("block")
    x, out = Buffer("x", F32), Buffer("out", F32, written=True)
    sums = Buffer("sums", F32, "local", width, written=True)
    low, count = index("low"), index("count")
    j1, j2, j3, r = (index(name) for name in ("j1", "j2", "j3", "r"))
    body = (
        Let(low, mul(block, number(width))),
        Let(count, call("minimum", number(width), call("sub", COLUMNS, low))),
        Allocate(sums),
        loop(j1, count, Store(sums, j1, real(0.0)), kind="vector"),
        loop(
            *(r, ROWS),
            loop(j2, count, Store(sums, j2, add(Load(sums, j2), Load(x, at(r, add(low, j2))))), kind="vector"),
        ),
        loop(j3, count, Store(out, add(low, j3), Load(sums, j3)), kind="vector"),
    )
    extent = call("floordiv", add(COLUMNS, number(width - 1)), number(width))
    kernel = Kernel("column_sums", (x, out, ROWS, COLUMNS), (Axis(block, extent),), body, "cpu")
    values = random(50, 77)
    result = np.empty(77, np.float32)
    compile_cpu(kernel)(values, result, 50, 77)
    np.testing.assert_allclose(result, values.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)


def test_strides_are_arguments_and_may_be_negative_or_zero() -> None:
    x, y, out = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, written=True)
    s0, s1, t0, t1 = (index(name) for name in ("s0", "s1", "t0", "t1"))
    place = add(mul(I, s0), mul(J, s1))
    other = add(mul(I, t0), mul(J, t1))
    body = loop(J, COLUMNS, Store(out, at(I, J), add(Load(x, place), Load(y, other))), kind="vector")
    kernel = Kernel("strided", (x, y, out, s0, s1, t0, t1, ROWS, COLUMNS), (Axis(I, ROWS),), (body,), "cpu")
    a, b = random(40, 30).T[::2, ::-1], np.broadcast_to(random(40), (15, 40))
    result = np.empty((15, 40), np.float32)
    strides = [s // 4 for s in (*a.strides, *b.strides)]
    compile_cpu(kernel)(a, b, result, *strides, 15, 40)
    assert np.array_equal(result, a + b)


def test_a_branch_and_mutable_variables_and_an_unrolled_loop() -> None:
    x, out = Buffer("x", F32), Buffer("out", F32, written=True)
    total, k = Variable("total", F32), index("k")
    value = Load(x, at(I, k))
    kernel = by_row(
        *("branches", (x, out)),
        Declare(total, real(0.0)),
        For(
            *(k, number(0), number(8), number(2), "unroll"),
            (
                If(
                    call("gt", value, real(0.0)),
                    (Assign(total, add(total, value)),),
                    (If(call("lt", value, real(-1.0)), (Assign(total, call("sub", total, real(1.0))),)),),
                ),
            ),
        ),
        Store(out, I, total),
    )
    values = random(9, 8)
    result = np.empty(9, np.float32)
    compile_cpu(kernel)(values, result, 9, 8)
    even = values[:, ::2]
    wanted = np.where(even > 0, even, np.where(even < -1, np.float32(-1), np.float32(0))).sum(1)
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [F32, dtypes.bool_, dtypes.bfloat16, INDEX], ids=str)
def test_a_copy_moves_elements_between_global_and_local_memory(dtype: DType) -> None:
    x, out = Buffer("x", dtype), Buffer("out", dtype, written=True)
    held = Buffer("held", dtype, "local", 4, written=True)
    first = mul(I, number(4))
    kernel = by_row(
        *("copy", (x, out)),
        Allocate(held),
        Copy(held, number(0), x, first, 4),
        Store(out, first, Load(held, number(3))),
        Copy(out, add(first, number(1)), held, number(1), 2),
        Store(out, add(first, number(3)), Load(held, number(0))),
    )
    values = random(6, 4, dtype=np.float64)
    values = (values > 0) if dtype.kind == "bool" else values.astype(dtype.numpy)
    result = np.empty_like(values)
    compile_cpu(kernel)(values, result, 6, 4)
    assert np.array_equal(result, values[:, [3, 1, 2, 0]])


def test_a_kernel_may_write_the_memory_that_it_reads_where_the_buffers_say_so() -> None:
    x = Buffer("x", F32, exclusive=False)
    out = Buffer("out", F32, written=True, exclusive=False)
    value = add(Load(x, at(I, J)), real(1.0))
    kernel = by_row("in_place", (x, out), loop(J, COLUMNS, Store(out, at(I, J), value), kind="vector"))
    values = random(7, 1000)
    wanted = values + 1
    compile_cpu(kernel)(values, values, 7, 1000)
    assert np.array_equal(values, wanted)
    assert "noalias %x" not in emit_llvm(kernel)


def test_a_serial_loop_over_overlapping_memory_keeps_its_order() -> None:
    x = Buffer("x", F32, written=True, exclusive=False)
    same = Buffer("same", F32, exclusive=False)
    step = Store(x, add(J, number(1)), add(Load(same, J), real(1.0)))
    kernel = Kernel("scan", (x, same, COLUMNS), (), (loop(J, COLUMNS, step),), "cpu")
    values = np.zeros(101, np.float32)
    compile_cpu(kernel)(values, values, 100)
    assert np.array_equal(values, np.arange(101, dtype=np.float32))


def test_one_thread_needs_no_barrier_and_is_its_own_group() -> None:
    x, out = Buffer("x", F32), Buffer("out", F32, written=True)
    total, left, right = (Variable(name, F32) for name in ("total", "left", "right"))
    thread = Variable("thread", dtypes.int32)
    body = (
        Declare(total, Load(x, I)),
        Barrier(),
        GroupReduce((total,), Combiner((left,), (right,), (add(left, right),)), 1),
        Store(out, add(I, Cast(thread, INDEX)), total),
    )
    kernel = Kernel("alone", (x, out, ROWS), (Axis(I, ROWS),), body, "cpu", thread=thread)
    values, result = random(9), np.empty(9, np.float32)
    compile_cpu(kernel)(values, result, 9)
    assert np.array_equal(values, result)


def test_scalar_parameters_of_every_type_arrive() -> None:
    types = tuple(d for d in dtypes.ALL if d.kind != "complex")
    scalars = tuple(Variable(f"s_{d.name}", d) for d in types)
    outs = tuple(Buffer(f"out_{d.name}", d, written=True) for d in types)
    body = tuple(Store(out, number(0), scalar) for out, scalar in zip(outs, scalars, strict=True))
    kernel = Kernel("scalars", (*outs, *scalars), (), body, "cpu")
    values = [True, -8, -16, -32, -(2**63), 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 1.5, 2.25, 0.1, 1e300]
    arrays = [np.zeros(1, d.numpy) for d in types]
    compile_cpu(kernel)(*arrays, *values)
    assert [a[0] for a in arrays] == [d.numpy.type(v) for d, v in zip(types, values, strict=True)]
    compile_cpu(kernel)(*arrays, *[a[0] for a in arrays])
    assert [a[0] for a in arrays] == [d.numpy.type(v) for d, v in zip(types, values, strict=True)]


def test_an_index_may_be_of_32_bits_and_unsigned_loads_index_too() -> None:
    x, which = Buffer("x", F32), Buffer("which", dtypes.uint8)
    out = Buffer("out", F32, written=True)
    k, n = Variable("k", dtypes.int32), Variable("n", dtypes.int32)
    one = Constant(1, dtypes.int32)
    body = For(k, Constant(0, dtypes.int32), n, one, "vector", (Store(out, k, Load(x, Load(which, k))),))
    kernel = Kernel("gather", (x, which, out, n), (), (body,), "cpu")
    values, chosen = random(256), np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    result = np.empty(1000, np.float32)
    compile_cpu(kernel)(values, chosen, result, 1000)
    assert np.array_equal(result, values[chosen])


def test_arrays_need_not_be_aligned_to_their_items() -> None:
    memory = np.zeros(4 * 1000 + 1, np.uint8)
    x = memory[1:].view(np.float32).reshape(10, 100)
    x[...] = random(10, 100)
    out = np.zeros(4 * 1000 + 3, np.uint8)[3:].view(np.float32).reshape(10, 100)
    compile_cpu(map_kernel("floor"))(x, out, 10, 100)
    assert np.array_equal(out, np.floor(x))


def test_an_empty_grid_and_an_empty_loop_touch_nothing() -> None:
    x = np.full((2, 2), np.nan, np.float32)
    function = compile_cpu(map_kernel("exp"))
    function(x, x, 0, 2)
    function(x, x, 2, 0)
    assert np.isnan(x).all()
