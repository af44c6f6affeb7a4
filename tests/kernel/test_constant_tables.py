"""Tests kernels that differ in constants alone: they share machine code, and compute what each computes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracefuse
from tests.session.samples import times
from tracefuse import dtypes, fuse
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.kernel_ir import Buffer, Call, Constant, Expression, Load, Variable, call
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.kernel.llvm.constant_tables import without_constants
from tracefuse.kernel.llvm.cpu_functions import compile_cpu

NUMBERS = {dtypes.float32: 1.1, dtypes.float64: -2.7, dtypes.int32: 7, dtypes.int64: -40}


def kernel(dtype: dtypes.DType, offset: int, value: float, contract: bool = False) -> ir.Kernel:
    """y[k + offset] = x[k] * value + value if x[k] < value else value, for k < n."""
    index, n = Variable("k", dtypes.int64), Variable("n", dtypes.int64)
    x, y = Buffer("x", dtype), Buffer("y", dtype, written=True)
    zero, one, constant = (Constant(number, dtypes.int64) for number in (0, 1, offset))
    element, factor = Load(x, index), Constant(value, dtype)
    result = call("select", call("lt", element, factor), call("add", call("mul", element, factor), factor), factor)
    loop = ir.For(index, zero, n, one, "vector", (ir.Store(y, call("add", index, constant), result),))
    return ir.Kernel("varied", (x, y, n), (), (loop,), "cpu", work=n, contract=contract)


def compiled() -> int:
    return cpu_functions.statistics().compiled


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_kernels_that_differ_in_constants_are_compiled_twice_in_all(dtype: dtypes.DType) -> None:
    tracefuse.clear_caches()
    x, before = np.arange(-20, 21).astype(dtype.numpy), compiled()
    for number in range(5):
        one = kernel(dtype, 3 + number, NUMBERS[dtype] + 3 * number)
        results = [np.zeros(60, dtype.numpy) for _ in range(2)]
        compile_cpu(one)(x, results[0], len(x))
        interpret(one, (x, results[1], len(x)))
        assert results[0].tobytes() == results[1].tobytes()
    assert compiled() - before == 2


@settings(max_examples=times(8))
@given(st.floats(width=64), st.floats(width=64))
def test_every_factor_rounds_as_in_code_of_its_own(first: float, second: float) -> None:
    x = np.array([5e-324, -1e-310, 1e308, -1.7, np.inf, np.nan, 0.0, 3.0, 1 / 3])
    results = []
    for earlier in ((), (first,)):
        tracefuse.clear_caches()
        for value in (*earlier, second):
            y = np.zeros(60)
            compile_cpu(kernel(dtypes.float64, 5, value, contract=True))(x, y, len(x))
        results.append(y.tobytes())
    assert results[0] == results[1]


def constants(expression: Expression) -> list[Constant]:
    match expression:
        case Constant():
            return [expression]
        case Call():
            return [one for argument in expression.arguments for one in constants(argument)]
    return []


def test_powers_of_two_small_integers_and_divisors_stay_constants() -> None:
    x = Buffer("x", dtypes.float64, written=True)
    value: Expression = Load(x, Constant(9, dtypes.int64))
    for number in (0.5, -4.0, 0.0, float("inf"), 0.3):
        value = call("mul", value, Constant(number, dtypes.float64))
    value = call("div", value, Constant(3.0, dtypes.float64))
    index: Expression = Variable("i", dtypes.int64)
    for number in (-1, 0, 1, 2, 1 << 31):
        index = call("add", index, Constant(number, dtypes.int64))
    body = (ir.Store(x, call("floordiv", index, Constant(5, dtypes.int64)), value),)
    shared = without_constants(ir.Kernel("k", (x, Variable("i", dtypes.int64)), (), body, "cpu"))
    assert shared is not None
    assert shared.values == (2, 0.3)


def test_distances_between_the_elements_of_a_vector_loop_stay_constants() -> None:
    x, i, row = Buffer("x", dtypes.float64, written=True), Variable("i", dtypes.int64), Variable("row", dtypes.int64)
    seven, three = (Constant(number, dtypes.int64) for number in (7, 3))
    place = call("add", call("mul", row, seven), call("mul", i, three))
    loop = ir.For(
        i, Constant(0, dtypes.int64), row, Constant(1, dtypes.int64), "vector", (ir.Store(x, place, Load(x, place)),)
    )
    shared = without_constants(ir.Kernel("k", (x, row), (), (loop,), "cpu"))
    assert shared is not None
    assert shared.values == (7, 7)


def test_reductions_and_kernels_without_constants_share_no_code() -> None:
    one = kernel(dtypes.float64, 3, 0.3)
    total = Variable("total", dtypes.float64)
    assert without_constants(one) is not None
    assert without_constants(kernel(dtypes.float64, 1, 0.5)) is None
    assert without_constants(replace(one, body=(*one.body, ir.Accumulate(total, "add", total)))) is None


def test_functions_with_other_constants_share_code_also_on_disk(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((50, 6))
    for run in range(2):
        tracefuse.clear_caches()
        before = compiled()
        with tracefuse.options(cache_dir=str(tmp_path)):
            for factor in (1.7, 0.3, -2.9, 5.1):
                shifted = fuse(lambda x, factor=factor: x[:, 1:] * factor + 11.3)
                np.testing.assert_allclose(shifted(x), x[:, 1:] * factor + 11.3, rtol=1e-12)
            tracefuse.wait_for_compilation()
        assert compiled() - before == (0 if run else 2)
        assert len(list(tmp_path.glob("cpu-*"))) == 2
