"""Tests inputs whose result C or LLVM leaves undefined: each has one value on every target.

The expected values are Python's integers and floats, not NumPy's, whose own answers differ between processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ways import backend_of, on_backend, on_host, run_whole
from tracefuse import fuse
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import ALL, DType, bfloat16, bool_, dtype_of, float16, float32, float64, int8
from tracefuse.errors import ShapeError
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler

INTEGERS = [d for d in ALL if d.is_integer]
FLOATS = [float16, bfloat16, float32, float64]


def wrapped(value: int, dtype: DType) -> int:
    """A whole number cut to the bits of a type."""
    bits = 8 * dtype.itemsize
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "int" and low >> (bits - 1) else low


def run(backend: str, fd: FusionDefinition, *arguments: Any) -> list[Any]:
    given = [on_backend(backend, a) for a in arguments]
    return [on_host(result) for result in run_whole(fd.fusion, given, backend_of(backend))]


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def of_zero(function: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    """0 where the divisor is 0."""
    return lambda a, b, bits: function(a, b) if b else 0


def left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def right(a: int, b: int, bits: int) -> int:
    return a >> b if 0 <= b < bits else -1 if a < 0 else 0


def logical(a: int, b: int, bits: int) -> int:
    return (a & ((1 << bits) - 1)) >> b if 0 <= b < bits else 0


EXPECTED: dict[str, Callable[[int, int, int], int]] = {
    "floor_divide": of_zero(lambda a, b: a // b),
    "remainder": of_zero(lambda a, b: a % b),
    "trunc_divide": of_zero(truncated),
    "fmod": of_zero(lambda a, b: a - b * truncated(a, b)),
    "left_shift": left,
    "right_shift": right,
    "logical_right_shift": logical,
    "gcd": lambda a, b, bits: math.gcd(a, b),
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "neg": lambda a, b, bits: -a,
    "abs": lambda a, b, bits: abs(a),
}
"""The result of each op for integers a and b of a number of bits, before it wraps to them."""


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arithmetic_of_integers_has_a_value_for_every_pair(backend: str, dtype: DType) -> None:
    bits = 8 * dtype.itemsize
    limits = np.iinfo(dtype.name)
    middle = (-bits - 1, -bits, -7, -2, -1, 0, 1, 2, 7, bits - 1, bits, bits + 1, 100)
    values = [limits.min, limits.min + 1, *(v for v in middle if limits.min <= v), limits.max - 1, limits.max]
    a, b = (np.array(side, dtype.numpy) for side in zip(*((x, y) for x in values for y in values), strict=True))
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True, dtype) for _ in range(2))
        for name in EXPECTED:
            operands = (x,) if name in ("neg", "abs") else (x, y)
            fd.add_output(getattr(fd.ops, name)(*operands))
    for name, result in zip(EXPECTED, run(backend, fd, a, b), strict=True):
        reference = EXPECTED[name]
        expected = [wrapped(reference(p, q, bits), dtype) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
        assert result.tolist() == expected, f"{name} of {dtype}"


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_saturate_as_integers_and_nan_is_zero(backend: str, source: DType) -> None:
    whole = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.0, 128.0, -129.0, 255.5, 256.0, -1.0, 3e4, 4e4, -4e4, 6e4]
    large = [2.0**31, -(2.0**31) * 1.5, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, math.inf, -math.inf]
    with np.errstate(all="ignore"):
        values = np.array([*whole, *large, math.nan]).astype(source.numpy)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True, source)
        for target in INTEGERS:
            fd.add_output(fd.ops.cast(x, target))
        fd.add_output(fd.ops.cast(x, bool_))
    *results, truth = run(backend, fd, values)
    exact = values.astype(np.float64).tolist()
    for target, result in zip(INTEGERS, results, strict=True):
        limits = np.iinfo(target.name)
        expected = [
            0 if math.isnan(v) else limits.max if v >= limits.max else limits.min if v <= limits.min else int(v)
            for v in exact
        ]
        assert result.tolist() == expected, f"{source} as {target}"
    assert truth.tolist() == [v != 0 for v in exact]


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.kind == "int"], ids=str)
def test_powers_of_integers_wrap_and_negative_exponents_are_cut_off(backend: str, dtype: DType) -> None:
    pairs = [(2, -1), (-1, -3), (-1, -2), (1, -5), (0, -1), (0, 0), (3, 60), (-3, 61), (np.iinfo(dtype.name).min, 2)]
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True, dtype) for _ in range(2))
        fd.add_output(fd.ops.pow(x, y))
    (result,) = run(backend, fd, *(np.array(side, dtype.numpy) for side in zip(*pairs, strict=True)))
    expected = [wrapped(a**b, dtype) if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(a, 0) for a, b in pairs]
    assert result.tolist() == expected


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_an_extreme_of_nothing_is_refused_before_any_launch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(self: Any, function: Any) -> Any:
        raise AssertionError("a kernel is about to run")

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.add(x, 1))
        fd.add_output(getattr(fd.ops, name)(x, [1]))
    monkeypatch.setattr(CpuKernelCompiler, "entry", entry)
    with pytest.raises(ShapeError, match=rf"{name}: axis 1 is empty \(0 elements\)"):
        fd.execute([np.zeros((3, 0), np.float32)])
    with pytest.raises(ValueError, match="is empty"):
        fuse(lambda v: getattr(np, name)(v + 1))(np.zeros(0))
    monkeypatch.undo()
    assert fd.execute([np.zeros((0, 3), np.float32)])[1].shape == (0,)


@pytest.mark.parametrize("dtype", [bool_, int8, float16, float32, float64], ids=str)
def test_arrays_without_elements_give_results_without_elements(backend: str, dtype: DType) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], True, dtype)
        fd.add_output(fd.ops.where(fd.ops.eq(x, x), x, x))
        fd.add_output(fd.ops.sum(x, [1]))
        fd.add_output(fd.ops.permute(x, [2, 0, 1]))
        fd.add_output(fd.ops.cumsum(x, 1))
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)):
        a, b, c = shape
        results = run(backend, fd, np.zeros(shape, dtype.numpy))
        assert [r.shape for r in results] == [shape, (a, c), (c, a, b), shape]
        assert not any(r.any() for r in results)
        assert dtype_of(results[0].dtype) is dtype
