"""Tests how many vectors an iteration of a vector loop processes: fewer, the longer its body is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.dtypes import bool_, float64, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.interleaving import split_short
from tracefuse.kernel.llvm.text_builder import host_processor

REGISTER = host_processor().vector_bits // 32
"""The float32 elements of a register."""


def interleaved(function: object, *arrays: object) -> list[int]:
    """The registers of each iteration of the vector loops, from loads or from what LLVM is told."""
    (segment,) = fuse(function).segments(*arrays)  # type: ignore[call-overload]
    widths = [int(width) // REGISTER for width in re.findall(r" = load <(\d+) x float>", segment.source)]
    marks = [int(count) for count in re.findall(r'interleave.count", i32 (\d)', segment.source)]
    return [max(widths)] if widths else marks


@pytest.mark.parametrize(
    ("functions", "count"), [(0, 2), (2, 4), (5, 2), (9, 1)], ids=["an addition", "short", "longer", "long"]
)
def test_long_bodies_of_vector_loops_run_one_vector_at_a_time(functions: int, count: int) -> None:
    def nested(x: np.ndarray) -> np.ndarray:
        for _ in range(functions):
            x = np.tanh(x)
        return x + 1

    assert interleaved(nested, np.ones(5000, np.float32)) == [count]


def test_unrolled_loops_count_with_their_iterations() -> None:
    x = np.ones((5000, 8), np.float32)
    assert interleaved(lambda x: np.exp(x).sum(-1), x) == [1]
    # Rows that are read whole and separated in registers run one vector at a time.
    assert interleaved(lambda x: x.sum(-1), x) == [1 if host_processor().masks else 4]


@pytest.mark.parametrize(("columns", "unrolled"), [(9, 1), (15, 1), (16, 0), (20, 0)])
def test_loops_of_9_to_15_trips_are_a_vector_of_8_and_an_unrolled_rest(columns: int, unrolled: int) -> None:
    """Where processors have masks they are one masked vector."""
    if host_processor().masks:
        unrolled = 0
    x = np.arange(5000.0 * columns, dtype=np.float32).reshape(5000, columns) % 97
    (segment,) = fuse(lambda x: x.sum(-1)).segments(x)
    assert segment.source.count("llvm.loop.unroll.full") == unrolled
    assert np.array_equal(fuse(lambda x: x.sum(-1))(x), x.astype(np.float64).sum(-1))
    assert np.array_equal(fuse(lambda x: x.max(-1))(x), x.max(-1))


@pytest.mark.parametrize(("columns", "dtype"), [(13, np.float32), (18, np.float64), (29, np.float16), (21, np.int32)])
def test_rows_that_end_in_a_masked_vector_have_the_values_of_others(columns: int, dtype: type) -> None:
    x = np.random.default_rng(columns).integers(-9, 10, (3000, columns)).astype(dtype)
    if x.dtype.kind == "f":
        x[5, -1] = x[7, 3] = x[7, 5] = np.nan

    def function(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return x.sum(-1), x.max(-1), x.argmin(-1), x - x.min(-1, keepdims=True)

    for got, expected in zip(fuse(function)(x), function(x), strict=True):
        assert np.array_equal(got, expected, equal_nan=x.dtype.kind == "f")
    assert np.array_equal(fuse(lambda x: x.argmax(-1))(x), x.argmax(-1))
    if x.dtype.kind == "f":
        e = np.exp(x.astype(np.float64) - 3)
        expected = e / e.sum(-1, keepdims=True)
        result = fuse(lambda x: np.exp(x - 3) / np.exp(x - 3).sum(-1, keepdims=True))(x)
        np.testing.assert_allclose(result, expected, rtol=2e-2 if dtype is np.float16 else 1e-5, atol=1e-3)


@pytest.mark.parametrize("has_branch", [False, True])
def test_a_rest_with_branches_is_not_unrolled(has_branch: bool) -> None:
    """LLVM would write to stderr that it does not unroll some of them."""
    index = ir.Variable("i", int64)
    store: ir.Statement = ir.Store(ir.Buffer("T0", float64, written=True), index, ir.Constant(1.0, float64))
    if has_branch:
        store = ir.If(ir.Call("lt", (index, ir.Constant(4, int64)), bool_), (store,))
    zero, step = ir.Constant(0, int64), ir.Constant(1, int64)
    whole, rest = split_short(ir.For(index, zero, ir.Constant(11, int64), step, "vector", (store,)))
    assert (whole.kind, rest.kind) == ("vector", "serial" if has_branch else "unroll")
