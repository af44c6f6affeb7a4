"""Tests handwritten CPU kernels through LLVM: statements, memory, reductions, vector code."""

from __future__ import annotations

import platform
import re

import numpy as np
import pytest

from tests.kernel.cpu_kernels import INDEX, index, loop, number
from tests.kernel.cpu_rows import COLUMNS, F32, ROWS, I, J, add, at, by_row, map_kernel, mul, random, real
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    Allocate,
    Assign,
    Axis,
    Buffer,
    Comment,
    Constant,
    Declare,
    Expression,
    For,
    Kernel,
    Let,
    Load,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.llvm import float32_math
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm


def row_reduction(operation: str, dtype: DType, first: float, instead: float | None = None) -> Kernel:
    """instead: what replaces elements that are not positive."""
    x, out = Buffer("x", dtype), Buffer("out", dtype, written=True)
    total, element = Variable("total", dtype), Load(x, at(I, J))
    positive = call("lt", Constant(0, dtype), element)
    value = element if instead is None else call("select", positive, element, Constant(instead, dtype))
    return by_row(
        *("reduce", (x, out)),
        Declare(total, Constant(first, dtype)),
        loop(J, COLUMNS, Accumulate(total, operation, value), kind="vector"),
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
    infinity = {"minimum": float("inf"), "maximum": -float("inf")}.get(operation)
    short = {"minimum": "min", "maximum": "max"}.get(operation, operation)
    width = "s" if dtype is F32 else "d"
    for instead in {None, infinity}:  # LLVM would choose between states instead of elements
        assembly = compile_cpu(row_reduction(operation, dtype, 0.0, instead)).assembly()
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


def test_contraction_happens_only_where_the_kernel_allows_it() -> None:
    x, y, out = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, written=True)
    value = call("sub", mul(Load(x, at(I, J)), Load(x, at(I, J))), Load(y, at(I, J)))
    body = loop(J, COLUMNS, Store(out, at(I, J), value), kind="vector")
    a = random(1, 1000)
    b = a * a
    result = np.empty_like(a)
    compile_cpu(by_row("squares", (x, y, out), body, contract=False))(a, b, result, 1, 1000)
    assert (result == 0).all()
    assert "llvm.fmuladd" in emit_llvm(by_row("squares", (x, y, out), body, contract=True))
    assert "llvm.fmuladd" not in emit_llvm(by_row("squares", (x, y, out), body, contract=False))


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


@pytest.mark.parametrize(("step", "is_vector"), [(1, True), (2, False)])
def test_loops_that_fill_registers_are_instructions_on_vectors(step: int, is_vector: bool) -> None:
    x, out, tile = Buffer("x", F32), Buffer("out", F32, written=True), Buffer("tile", F32, "local", 16 * step)
    place, factor, difference = (
        J if is_vector else mul(J, number(step)),
        Variable("factor", F32),
        Variable("difference", F32),
    )
    first = (
        Let(difference, call("sub", Load(x, add(at(I, J), number(2))), real(0.5))),
        Store(tile, place, add(mul(difference, factor), Load(x, I))),
    )
    body = (
        Allocate(tile), Let(factor, Load(x, add(I, number(1)))),
        loop(J, number(16), *first, kind="vector"),
        loop(J, number(16), Store(out, at(I, J), Load(tile, place)), kind="vector"),
    )  # fmt: skip
    kernel = by_row("registers", (x, out), *body, contract=False)
    # Elements with others between them, which keep their values, are written one by one.
    assert (emit_llvm(kernel).count("store <16 x float>") == 2) == is_vector
    data, written = random(100), np.zeros((4, 20), np.float32)
    compile_cpu(kernel)(data, written.reshape(-1), 4, 20)
    expected = np.zeros_like(written)
    for row in range(4):
        expected[row, :16] = (data[row * 20 + 2 :][:16] - np.float32(0.5)) * data[row + 1] + data[row]
    np.testing.assert_array_equal(written, expected)
