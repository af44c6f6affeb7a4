"""Functions over every type, kind of operand and parameter: types, values and refusals are NumPy's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import tracefuse
import tracefuse.dtypes
from tests.ops import type_cases, type_differences
from tests.ways import backend_of
from tracefuse import FusionDefinition, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion

GENERATORS = {
    type_cases.with_one_array: 1, type_cases.with_two_arrays: 3, type_cases.with_a_number: 3,
    type_cases.with_a_named_type: 6, type_cases.of_reductions: 2, type_cases.of_products: 2, type_cases.with_kinds: 4,
    type_cases.with_one_scalar: 3, type_cases.of_methods: 9, type_cases.of_array_methods: 2,
    type_cases.of_functions: 80,
}  # fmt: skip
"""Of the pairwise-covering sample of each generator every how-manieth case runs; tests/soaks/types.py runs all."""


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda g: g.__name__)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_types_kinds_values_and_refusals_are_numpys(generator: Callable[[], Iterator[type_cases.Case]]) -> None:
    cases = type_cases.covering(generator())[:: GENERATORS[generator]]
    found = type_differences.differences(cases)
    wrong = [f"{case.name}{case.told}: {differs}" for case, differs, reason in found if not reason]
    assert len(cases) > 60
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:40])


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_kernels_give_the_types_and_values_of_the_reference() -> None:
    cases = type_cases.covering(type_cases.with_two_arrays(), seed=1)[:40]
    found = type_differences.differences(cases, "auto", 40)
    assert not [f"{case.name}{case.told}: {differs}" for case, differs, reason in found if not reason]


HALVES = ("float16", "bfloat16")


def nearest(number: int | float, digits: int, lowest: int, largest: float) -> float:
    """The nearest number with so many binary digits, from its exact value; ties to even."""
    exact = abs(Fraction(number))
    exponent = max(math.floor(math.log2(exact)) - digits, lowest) if exact else lowest
    while exact >= Fraction(2) ** (exponent + digits):
        exponent += 1
    whole = round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return math.copysign(float(whole) if whole <= Fraction(largest) else math.inf, number)


@pytest.mark.parametrize("target", ["cpu", "reference", "interpreter", "interpreter-cuda"])
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("source", ["float64", "int64", "uint64", "int32", "uint32"])
def test_conversions_to_halves_round_once(source: str, half: str, target: str) -> None:
    dtype = tracefuse.dtypes.dtype_of(half)
    digits, lowest, largest = (11, -24, 65504.0) if half == "float16" else (8, -133, 255 * 2.0**120)
    numbers: list[int | float] = [
        (1 << k) + (1 << (k - digits)) + d for k in range(digits + 1, 63) for d in (-1, 0, 1)
    ] + [(1 << k) + (3 << (k - digits)) + d for k in range(digits + 1, 63) for d in (-1, 0, 1)]  # fmt: skip
    if source == "float64":
        ties = [2.0**k * (1 + 2.0**-digits) for k in range(lowest - 3, 17)]
        numbers = [n for t in ties for n in (t, math.nextafter(t, 0), math.nextafter(t, math.inf), -t)]
        numbers += [2049.0000001, 65519.99999, 65520.0, 1e39, 1e300, 5e-324]
    else:
        numbers = [n for n in numbers if n <= np.iinfo(source).max] + [np.iinfo(source).max, np.iinfo(source).min]
    array = np.array(numbers, source)
    expected = np.array([nearest(n, digits, lowest, largest) for n in numbers])
    with FusionDefinition() as fd:
        given = fd.define_tensor([-1], dtype=tracefuse.dtypes.data_type_of(tracefuse.dtypes.dtype_of(source)))
        fd.add_output(fd.ops.cast(given, tracefuse.dtypes.data_type_of(dtype)))
    if target == "reference":
        (found,) = evaluate(fd.fusion, [array])
    else:
        (found,) = Executable(segment_fusion(fd.fusion), backend_of(target))([array])
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), expected)


def test_float16_is_compared_with_a_python_number_rounded_to_it() -> None:
    h = np.array([0.1, 2048, 65504, np.inf], np.float16)
    calls = (lambda x: x == 0.1, lambda x: x == 2049, lambda x: x < 1e6, lambda x: x > 0.1, lambda x: x >= 0.1)
    for call in calls:
        with np.errstate(over="ignore"):
            expected = call(h)
        np.testing.assert_array_equal(fuse(call)(h), expected)
    for number in (0.1, 2049, 2049.0000001):
        np.testing.assert_array_equal(fuse(lambda x, n: x == n)(h, number), h == number)


def test_bfloat16_is_compared_as_ml_dtypes_compares_it() -> None:
    b = np.array([0.1, 256, 258], ml_dtypes.bfloat16)
    for call in (lambda x: x == 0.1, lambda x: x > 0.1, lambda x: x == 257, lambda x: x <= 257):
        np.testing.assert_array_equal(fuse(call)(b), call(b))


def test_exact_half_rounds_python_numbers_before_arithmetic() -> None:
    h = np.array([1.5, -2.25, 3.0, 1000.0], np.float16)
    for call in (lambda x: x * 0.1, lambda x: x / 1e5, lambda x: x % 0.1, lambda x: 2049.0000001 - x):
        with np.errstate(all="ignore"):
            expected = call(h)
        np.testing.assert_array_equal(fuse(call, exact_half=True)(h), expected)
        np.testing.assert_array_equal(fuse(lambda x, n: x * n, exact_half=True)(h, 0.1), h * 0.1)


def test_an_axis_out_of_range_is_numpys_axis_error() -> None:
    with pytest.raises(np.exceptions.AxisError, match="axis 2 is out of range for 1 axes"):
        fuse(lambda x: x.sum(2))(np.ones(3))


def test_kernels_reduce_what_the_reference_reduces() -> None:
    empty, scalar = np.zeros((0, 3), np.float32), np.array(2.5, np.float32)
    np.testing.assert_array_equal(fuse(lambda x: x.max(0, initial=1.5))(empty), empty.max(0, initial=1.5))
    np.testing.assert_array_equal(fuse(lambda x: x.min(initial=7))(np.ones((2, 3), np.int8)), 1)
    assert fuse(lambda x: np.sum(x, axis=0))(scalar) == 2.5
    b = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(fuse(lambda x: x @ x)(b), b @ b)
