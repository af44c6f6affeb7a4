"""Host scalars as Python text are what the reference implementation computes, bit for bit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracefuse import FusionDefinition, dtypes, fuse
from tracefuse.dtypes import DType
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.scalar_text import RAISED, scalar_function
from tracefuse.ops import REGISTRY

VALUES = {
    dtypes.float64: [0.0, -0.0, 1.5, -2.25, 1e308, -5e-324, math.inf, -math.inf, math.nan, 0.1],
    dtypes.float32: [0.0, -0.0, 1.5, float(np.float32(0.1)), 1e38, -1e-45, math.inf, math.nan, 16777217.0],
    dtypes.int64: [0, 1, -3, 2**53 + 1, 2**63 - 1],
    dtypes.bool_: [False, True],
}
COUNTS = {"binary": 2, "unary": 1, "ternary": 3}


def cases() -> list[tuple[Pointwise, DType, DType, tuple[DType, ...]]]:
    """Every op with the types of its operands, where it has a text."""
    found = []
    for op in REGISTRY.values():
        if not isinstance(op, Pointwise):
            continue
        for compute in (dtypes.float64, dtypes.float32, dtypes.bool_):
            for count in (1, 2, 3):
                for operands in itertools.product(VALUES, repeat=count):
                    result = dtypes.float64 if op.result == "dtype" else op.result_type(compute)
                    if compute in op.domain and _takes(op, count) and scalar_function(op, compute, result, operands):
                        found.append((op, compute, result, operands))
    return found


def _takes(op: Pointwise, count: int) -> bool:
    return op.arity in (None, count) and {"a", "b", "c"}.intersection(_names(op.scalar)) == set("abc"[:count])


def _names(code: str) -> set[str]:
    return {name for name in "abc" if name in compile(code, "code", "eval").co_names}


CASES = cases()


def test_the_arithmetic_of_floats_has_a_text() -> None:
    names = {op.name for op, *_ in CASES}
    assert {"add", "sub", "mul", "div", "neg", "abs", "sqrt", "lt", "where", "maximum", "cast", "logical_and"} <= names


@pytest.mark.parametrize("name", sorted({op.name for op, *_ in CASES}))
def test_a_text_computes_what_the_reference_implementation_does(name: str) -> None:
    for op, compute, result, operands in (case for case in CASES if case[0].name == name):
        function = scalar_function(op, compute, result, operands)
        assert function is not None
        for values in itertools.product(*(VALUES[dtype] for dtype in operands)):
            try:
                got = function(*values)
            except RAISED:
                continue
            assert_same(got, by_reference(op, compute, result, operands, values), (op.name, compute, operands, values))


def by_reference(op: Pointwise, compute: DType, result: DType, operands: Any, values: Any) -> Any:
    arrays = [np.asarray(value, dtype.numpy) for value, dtype in zip(values, operands, strict=True)]
    with np.errstate(all="ignore"):
        if op.result != "dtype":
            arrays = [
                array.astype(np.bool_ if op.promotion == "where" and not k else compute.numpy)
                for k, array in enumerate(arrays)
            ]
        return np.asarray(op.numpy(*arrays)).astype(result.numpy).item()


def assert_same(got: Any, want: Any, case: Any) -> None:
    assert type(got) is type(want), (case, got, want)
    is_nan = isinstance(want, float) and math.isnan(want)
    is_equal = got == want and math.copysign(1, got) == math.copysign(1, want)
    assert (is_nan and math.isnan(got)) or is_equal, (case, got, want)


FLOATS = st.floats(width=64)


def _expressions(x: Any, a: float, b: float) -> Any:
    scale = (a - b) * 2 + a / (b * b + 1)
    return x * scale, scale, x - np.sqrt(abs(a)) / (a - b), (a > b) & (a != 0.5)


_FUSED = fuse(_expressions)


@given(FLOATS, FLOATS)
def test_calls_compute_host_scalars_as_the_reference_target(a: float, b: float) -> None:
    x = np.array([1.0, -3.0])
    with np.errstate(all="ignore"):
        for got, want in zip(_FUSED(x, a, b), fuse(_expressions, target="reference")(x, a, b), strict=True):
            np.testing.assert_array_equal(got, want)


def test_integers_beyond_64_bits_are_computed_in_full() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True, dtype=dtypes.float64)
        n = fd.define_scalar(dtype=dtypes.int64)
        fd.add_output(fd.ops.mul(x, fd.ops.mul(n, n)))
    with np.errstate(all="ignore"):
        expected = np.float64(np.multiply(np.int64(2**40), np.int64(2**40)))
    np.testing.assert_array_equal(fd.execute([np.ones(2), 2**40])[0], [expected] * 2)
