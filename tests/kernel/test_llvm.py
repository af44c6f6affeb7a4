"""Tests handwritten CPU kernels through LLVM: statements, memory, reductions, vector code."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest

from tests.kernel.cpu_kernels import INDEX, index, loop, number
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    Allocate,
    Assign,
    Axis,
    Barrier,
    Buffer,
    Cast,
    Combiner,
    Comment,
    Constant,
    Copy,
    Declare,
    Expression,
    For,
    GroupReduce,
    If,
    Kernel,
    Let,
    Load,
    Statement,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.llvm import float32_math
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm

F32 = dtypes.float32
ROWS, COLUMNS, I, J = index("rows"), index("columns"), index("i"), index("j")


def add(a: Expression, b: Expression) -> Expression:
    return call("add", a, b)


def mul(a: Expression, b: Expression) -> Expression:
    return call("mul", a, b)


def at(row: Expression, column: Expression) -> Expression:
    return add(mul(row, COLUMNS), column)


def real(value: float, dtype: DType = F32) -> Constant:
    return Constant(value, dtype)


def by_row(name: str, buffers: tuple[Buffer, ...], *body: Statement, contract: bool = True) -> Kernel:
    """A kernel with one grid iteration for each row; parameters: the buffers, rows, columns."""
    parameters = (*buffers, ROWS, COLUMNS)
    return Kernel(name, parameters, (Axis(I, ROWS),), body, "cpu", work=mul(ROWS, COLUMNS), contract=contract)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).normal(size=shape) * 3
    return values.astype(dtype)


def row_reduction(operation: str, dtype: DType, first: float) -> Kernel:
    x, out = Buffer("x", dtype), Buffer("out", dtype, written=True)
    total = Variable("total", dtype)
    return by_row(
        *("reduce", (x, out)),
        Declare(total, Constant(first, dtype)),
        loop(J, COLUMNS, Accumulate(total, operation, Load(x, at(I, J))), kind="vector"),
        Store(out, I, total),
    )


def softmax(size: int | Expression = COLUMNS) -> Kernel:
    x, out = Buffer("x", F32), Buffer("out", F32, written=True)
    scratch = Buffer("scratch", F32, "local", size, written=True)
    top, total, e = Variable("top", F32), Variable("total", F32), Variable("e", F32)
    j2, j3 = index("j2"), index("j3")
    return by_row(
        *("softmax", (x, out)),
        Allocate(scratch),
        Declare(top, real(-np.inf)),
        loop(J, COLUMNS, Accumulate(top, "maximum", Load(x, at(I, J))), kind="vector"),
        Comment("the exponentials are kept in the scratch buffer"),
        Declare(total, real(0.0)),
        loop(
            *(j2, COLUMNS),
            Let(e, call("exp", call("sub", Load(x, at(I, j2)), top))),
            Store(scratch, j2, e),
            Accumulate(total, "add", e),
            kind="vector",
        ),
        loop(j3, COLUMNS, Store(out, at(I, j3), call("div", Load(scratch, j3), total)), kind="vector"),
    )


@pytest.mark.parametrize("columns", [1, 3, 16, 100, 257, 50_000])
def test_softmax_with_a_scratch_buffer_on_stack_or_heap(columns: int) -> None:
    x = random(5, columns)
    out = np.empty_like(x)
    compile_cpu(softmax())(x, out, 5, columns)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_scratch_buffer_of_constant_size_may_be_small_or_large(size: int) -> None:
    x = random(4, 100)
    out = np.empty_like(x)
    compile_cpu(softmax(size))(x, out, 4, 100)
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


def test_softmax_passes_nan_on_to_its_row_alone() -> None:
    x = random(3, 70)
    x[1, 33] = np.nan
    out = np.empty_like(x)
    compile_cpu(softmax())(x, out, 3, 70)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


REDUCTIONS = [
    *((op, d) for op in ("add", "mul", "minimum", "maximum") for d in (F32, dtypes.float64, dtypes.int32, INDEX)),
    *((op, d) for op in ("minimum", "maximum", "add") for d in (dtypes.uint8, dtypes.int16)),
    *(("and", dtypes.int32), ("or", dtypes.uint64)),
]
NUMPY = {"add": np.add, "mul": np.multiply, "minimum": np.minimum, "maximum": np.maximum}
NUMPY |= {"and": np.bitwise_and, "or": np.bitwise_or}


@pytest.mark.parametrize(("operation", "dtype"), REDUCTIONS, ids=str)
@pytest.mark.parametrize("columns", [1, 1000])
def test_a_row_reduction_accumulates_in_any_order(operation: str, dtype: DType, columns: int) -> None:
    first = {"add": 0, "mul": 1, "or": 0, "and": -1 if dtype.kind == "int" else 0}.get(operation)
    x = random(3, columns, dtype=np.float64)
    if operation == "mul" and dtype.is_floating:
        x = 1 + x / 1000
    x = (np.abs(x) * 9 if dtype.is_integer else x).astype(dtype.numpy)
    if first is None:
        wide = np.finfo(dtype.numpy) if dtype.is_floating else np.iinfo(dtype.numpy.name)
        first = {"minimum": wide.max, "maximum": wide.min}[operation]
    out = np.empty(3, dtype.numpy)
    compile_cpu(row_reduction(operation, dtype, first))(x, out, 3, columns)
    wanted = NUMPY[operation].reduce(x, axis=1, dtype=dtype.numpy)
    if dtype.is_floating and operation in ("add", "mul"):
        np.testing.assert_allclose(out, wanted, rtol=1e-4 if dtype is F32 else 1e-12)
    else:
        assert np.array_equal(out, wanted)


@pytest.mark.parametrize("operation", ["minimum", "maximum"])
@pytest.mark.parametrize("dtype", [F32, dtypes.float64], ids=str)
@pytest.mark.parametrize("place", [0, 1, 17, 998, 999])
def test_a_row_extremum_is_nan_where_the_row_holds_one(operation: str, dtype: DType, place: int) -> None:
    x = random(2, 1000, dtype=dtype.numpy)
    x[0, place] = np.nan
    out = np.empty(2, dtype.numpy)
    first = float("inf") if operation == "minimum" else -float("inf")
    compile_cpu(row_reduction(operation, dtype, first))(x, out, 2, 1000)
    assert np.isnan(out[0])
    assert out[1] == NUMPY[operation].reduce(x[1])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("dtype", [F32, dtypes.float64], ids=str)
@pytest.mark.parametrize("operation", ["add", "mul", "minimum", "maximum"])
def test_a_float_reduction_becomes_vector_code(operation: str, dtype: DType) -> None:
    assembly = compile_cpu(row_reduction(operation, dtype, 0.0)).assembly()
    short = {"minimum": "min", "maximum": "max"}.get(operation, operation)
    width = "s" if dtype is F32 else "d"
    assert re.search(rf"v?{short}p{width}\s.*%[yz]mm", assembly)


FAST = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh")
FAST += ("cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "rsqrt", "sqrt", "floor", "round", "trunc", "ceil")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("names", [FAST[k : k + 4] for k in range(0, len(FAST), 4)], ids="-".join)
def test_float32_functions_become_vector_code_with_calls_for_rare_arguments_alone(names: tuple[str, ...]) -> None:
    for name in names:
        function = compile_cpu(map_kernel(name))
        assembly = function.assembly()
        body = assembly[assembly.index("body:") : assembly.index("chunk:")]
        assert re.search(r"%[yz]mm", body), name
        rare = re.findall(r"\$tf\.\w+\.\w+\.float\.guard(?:\.lanes)?(?=,)", body)
        assert body.count("call") <= len(rare), name
        vector_loops = len(re.findall(r"\.lanes(?=,)", body))
        assert bool(vector_loops) == float32_math.has_rare_path(name, F32), name


def map_kernel(name: str, dtype: DType = F32) -> Kernel:
    x, out = Buffer("x", dtype), Buffer("out", dtype, written=True)
    return by_row(name, (x, out), loop(J, COLUMNS, Store(out, at(I, J), call(name, Load(x, at(I, J)))), kind="vector"))


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


def test_contraction_happens_only_where_the_kernel_allows_it() -> None:
    x, y, out = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, written=True)
    value = call("sub", mul(Load(x, at(I, J)), Load(x, at(I, J))), Load(y, at(I, J)))
    body = loop(J, COLUMNS, Store(out, at(I, J), value), kind="vector")
    a = random(1, 1000)
    b = a * a
    result = np.empty_like(a)
    compile_cpu(by_row("squares", (x, y, out), body, contract=False))(a, b, result, 1, 1000)
    assert (result == 0).all()
    text = emit_llvm(by_row("squares", (x, y, out), body, contract=True))
    assert "fmul contract" in text
    assert "contract" not in emit_llvm(by_row("squares", (x, y, out), body, contract=False))


@pytest.mark.parametrize("flag", ["nnan", "ninf", "arcp", "fast", "afn"])
def test_no_text_holds_a_flag_that_changes_special_values(flag: str) -> None:
    for kernel in (softmax(), map_kernel("tanh"), row_reduction("maximum", F32, 0.0)):
        assert not re.search(rf"\b{flag}\b", emit_llvm(kernel))


def test_a_malformed_kernel_is_an_internal_error_that_names_it() -> None:
    out = Buffer("out", F32, written=True)
    with pytest.raises(InternalError, match="broken reads ghost before it is defined"):
        emit_llvm(by_row("broken", (out,), Store(out, I, Variable("ghost", F32))))
    with pytest.raises(InternalError, match="broken assigns to rows, which is not mutable"):
        emit_llvm(by_row("broken", (out,), Assign(ROWS, number(1))))
    with pytest.raises(InternalError, match="not a kernel for the CPU"):
        emit_llvm(Kernel("broken", (out,), (), (), "cuda"))


def test_nothing_is_printed_where_a_vector_loop_stays_scalar(capfd: pytest.CaptureFixture[str]) -> None:
    compile_cpu(map_kernel("lgamma"))
    compile_cpu(map_kernel("erfinv"))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_positions_in_a_vector_loop_may_count_its_variable_and_its_start_any_number_of_times() -> None:
    x, out, k = Buffer("x", F32), Buffer("out", F32, written=True), index("k")
    first, last = index("first"), index("last")
    both_ways = call("sub", add(J, add(J, mul(I, number(80)))), add(J, mul(first, number(2))))
    backward = add(call("sub", mul(last, number(2)), J), number(39))
    body = For(
        *(J, add(first, number(3)), last, number(1), "vector"),
        (
            loop(k, number(2), Store(out, add(both_ways, mul(k, number(20))), Load(x, k)), kind="unroll"),
            Store(out, add(backward, mul(I, number(80))), Load(x, add(call("sub", J, first), number(2)))),
        ),
    )
    kernel = Kernel("positions", (x, out, ROWS, first, last), (Axis(I, ROWS),), (body,), "cpu", work=ROWS)
    data = random(64)
    written, expected = np.zeros((4, 80), np.float32), np.zeros((4, 80), np.float32)
    compile_cpu(kernel)(data, written.reshape(-1), 4, 2, 18)
    for row in range(4):
        for j in range(5, 18):
            expected[row, [j - 4, j + 16]] = data[:2]
            expected[row, 75 - j] = data[j]
    np.testing.assert_array_equal(written, expected)
