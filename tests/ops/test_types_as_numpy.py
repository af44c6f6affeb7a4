"""Tests every ufunc and reduction over every type: result types, values and errors equal NumPy's.

Calls are recorded many in one trace and evaluated by the reference. What differs on purpose is in `is_explained`, and
in docs/numerics.md.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ways import backend_of

import tracefuse
import tracefuse.dtypes
from tracefuse import FusionDefinition, TracefuseError, UnsupportedError, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
FEW_TYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "complex64")
UFUNCS = sorted({f for f in vars(np).values() if isinstance(f, np.ufunc)}, key=lambda f: f.__name__)
OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.lt,
    operator.le, operator.eq, operator.ne, operator.gt, operator.ge,
)  # fmt: skip
NUMBERS = (True, 2, -1, 0.1, 300, 1e5, 2 - 1j, 2049.0000001)
ORDER = ("less", "lt", "greater", "gt", "le", "ge", "max", "min", "arg", "fmax", "fmin")
"""Names of functions that need an order, which complex numbers have in NumPy alone."""


def first(dtype: str) -> Any:
    kind, values = np.dtype(dtype).kind, [True, False, True, False, True, True]
    if kind in "iu":
        values = [3, -2 if kind == "i" else 2, 7, np.iinfo(dtype).max, np.iinfo(dtype).min if kind == "i" else 1, 5]
    elif kind == "f":
        values = [1.5, -2.25, 0.0, -0.0, np.inf, np.nan]
    elif kind == "c":
        values = [1.5 + 2j, -2.25 - 1j, 0.5j, 3, -1 + 0.25j, 0]
    return np.array(values, dtype)


def second(dtype: str) -> Any:
    kind, values = np.dtype(dtype).kind, [True, True, False, False, True, False]
    if kind in "iu":
        values = [2, 3, 1, 5, 1, 4]
    elif kind == "f":
        values = [2.0, 0.3, 1.5, 4.0, 3.0, 1.0]
    elif kind == "c":
        values = [2.0, 0.3 - 1j, -1.5j, 4.0, 3.0 + 1j, 1.0]
    return np.array(values, dtype)


FIRST, SECOND = ({dtype: make(dtype) for dtype in TYPES} for make in (first, second))
SHAPES = ((), (0,), (3, 0), (0, 3), (2, 3))
SHAPED = {(dtype, shape): np.resize(SECOND[dtype], shape) for dtype in TYPES for shape in SHAPES}


@dataclass(frozen=True, eq=False)
class Case:
    """One call: its name, what tells it from others of the name, the call and its arrays."""

    name: str
    told: tuple[Any, ...]
    call: Callable[..., Any]
    arrays: tuple[Any, ...]


def with_two_arrays() -> Iterator[Case]:
    for function in (*UFUNCS, *OPERATORS):
        if not isinstance(function, np.ufunc) or (function.nin == 2 and function.__name__ not in ("matvec", "vecmat")):
            for a in TYPES:
                for b in TYPES:
                    yield Case(function.__name__, (a, b), function, (FIRST[a], SECOND[b]))


def with_one_array() -> Iterator[Case]:
    for ufunc in (u for u in UFUNCS if u.nin == 1):
        for dtype in TYPES:
            yield Case(ufunc.__name__, (dtype,), ufunc, (FIRST[dtype],))
    for sign in (operator.pos, operator.neg, operator.invert, abs):
        for dtype in TYPES:
            yield Case(sign.__name__, (dtype,), sign, (FIRST[dtype],))


def with_a_number() -> Iterator[Case]:
    for function in (*UFUNCS, *OPERATORS):
        name = function.__name__
        if (isinstance(function, np.ufunc) and (function.nin != 2 or function.signature)) or name == "matmul":
            continue
        for dtype in TYPES:
            for number in NUMBERS:
                if "shift" not in name or isinstance(number, complex | float) or number >= 0:
                    yield Case(name, (dtype, number), lambda x, f=function, n=number: f(x, n), (FIRST[dtype],))
                yield Case(name, (number, dtype), lambda x, f=function, n=number: f(n, x), (SECOND[dtype],))


def with_a_named_type() -> Iterator[Case]:
    for ufunc in (u for u in UFUNCS if u.nin < 3 and not u.signature):
        for own in FEW_TYPES:
            arrays = (SECOND[own], SECOND[own])[: ufunc.nin]
            for other in FEW_TYPES:
                for casting in ("no", "safe", "same_kind", "unsafe"):
                    yield Case(
                        ufunc.__name__,
                        (own, f"dtype={other}", casting),
                        lambda *x, u=ufunc, d=other, c=casting: u(*x, dtype=d, casting=c),
                        arrays,
                    )
                if ufunc.nout == 1:
                    yield Case(
                        ufunc.__name__,
                        (own, f"out={other}"),
                        lambda *x, u=ufunc, d=other: u(*x, out=np.zeros_like(x[0], dtype=d)),
                        arrays,
                    )


def of_reductions() -> Iterator[Case]:
    for name in (
        "sum",
        "prod",
        "max",
        "min",
        "any",
        "all",
        "mean",
        "var",
        "argmax",
        "argmin",
        "count_nonzero",
        "cumsum",
    ):
        function = getattr(np, name)
        for dtype in FEW_TYPES:
            for shape in SHAPES:
                x, one_axis = (SHAPED[dtype, shape],), name in ("argmax", "argmin", "cumsum")
                for axis in (None, 0, -1, 1, 2, *(() if one_axis else ((), (0,), (0, 1)))):
                    told = (dtype, shape, axis)
                    for more in parameters(name):
                        yield Case(
                            name, (*told, more), lambda x, f=function, a=axis, m=more: f(x, axis=a, **filled(m, x)), x
                        )


def filled(parameters: dict[str, Any], x: Any) -> dict[str, Any]:
    """With the mask that depends on the array."""
    return {**parameters, "where": x != 1} if "where" in parameters else parameters


def parameters(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    if name != "cumsum":
        found.append({"keepdims": True})
    if name in ("sum", "prod", "max", "min"):
        found += [{"initial": 1}, {"initial": 2.5}, {"initial": -1}, {"initial": 2, "where": True}]
    if name in ("sum", "prod", "any", "all", "mean"):
        found.append({"where": True})
    if name in ("sum", "prod", "mean", "cumsum"):
        found += [{"dtype": d} for d in ("int8", "float32", "bool", "complex64")]
    return found


def of_products() -> Iterator[Case]:
    matrices = {d: np.resize(SECOND[d], (3, 4)) for d in TYPES}
    wide = {d: np.resize(FIRST[d] if np.dtype(d).kind in "biu" else SECOND[d], (4, 2)) for d in TYPES}
    vectors = {d: np.resize(SECOND[d], (4,)) for d in TYPES}
    for name, call, left, right in (
        ("@", operator.matmul, matrices, wide), ("@ of a vector", operator.matmul, matrices, vectors),
        ("dot", np.dot, vectors, vectors), ("inner", np.inner, matrices, vectors), ("vdot", np.vdot, vectors, vectors),
        ("einsum", lambda a, b: np.einsum("ij,jk->", a, b), matrices, wide),
        ("tensordot", lambda a, b: np.tensordot(a, b, 1), matrices, wide), ("outer", np.outer, vectors, vectors),
    ):  # fmt: skip
        for a in TYPES:
            for b in TYPES:
                yield Case(name, (a, b), call, (left[a], right[b]))


def outcome(call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*arrays)
    except Exception as error:
        return error


def traced_outcomes(cases: Sequence[Case]) -> list[Any]:
    """What the calls give in one fused function; where one of them fails at the call, by halves."""
    arrays = {id(x): x for case in cases for x in case.arrays}
    found: list[Any] = []

    def all_of_them(given: list[Any]) -> list[Any]:
        by_array = dict(zip(arrays, given, strict=True))
        found[:] = [outcome(case.call, [by_array[id(x)] for x in case.arrays]) for case in cases]
        return [made for made in found if not isinstance(made, Exception)]

    try:
        results = iter(fuse(all_of_them, target="reference", exact_half=True)(list(arrays.values())))
    except TracefuseError as error:
        middle = len(cases) // 2
        return [error] if not middle else [*traced_outcomes(cases[:middle]), *traced_outcomes(cases[middle:])]
    return [made if isinstance(made, Exception) else next(results) for made in found]


def is_explained(case: Case, expected: Any, found: Any) -> bool:
    """What is refused or differs on purpose."""
    told = [str(t) for t in case.told]
    is_complex = any(np.iscomplexobj(x) for x in case.arrays) or any("complex" in t or "j" in t for t in told)
    if is_complex and isinstance(found, TypeError) and case.name.startswith(ORDER):
        return True
    return case.name == "reciprocal"  # of the integer 0


def difference(expected: Any, found: Any, is_of_halves: bool) -> str | None:
    """In what two outcomes differ."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        kinds = TypeError, ValueError, OverflowError, IndexError
        if not isinstance(expected, Exception):
            return f"raises {found!r}"
        if not isinstance(found, TracefuseError):
            return f"gives {found!r} where NumPy raises {expected!r}"
        same = isinstance(found, UnsupportedError) or any(
            isinstance(expected, k) and isinstance(found, k) for k in kinds
        )
        return None if same else f"raises {found!r} where NumPy raises {expected!r}"
    if isinstance(expected, tuple):
        return next((d for e, f in zip(expected, found, strict=True) if (d := difference(e, f, is_of_halves))), None)
    a, b = np.asarray(expected), np.asarray(found)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{b.dtype}{b.shape}, not {a.dtype}{a.shape}"
    if a.dtype.kind in "biu":
        return None if np.array_equal(a, b) else f"{b}, not {a}"
    unit = 8 * float(np.finfo(np.float16 if is_of_halves else a.dtype).eps)
    wide = complex if a.dtype.kind == "c" else float
    with np.errstate(all="ignore"):
        close = np.allclose(a.astype(wide), b.astype(wide), rtol=unit, atol=unit, equal_nan=True)
    return None if close else f"{b}, not {a}"


@pytest.mark.parametrize(
    ("cases", "step"),
    [(with_one_array, 1), (with_two_arrays, 11), (with_a_number, 9), (with_a_named_type, 37), (of_reductions, 31),
     (of_products, 5)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_types_values_and_refusals_are_numpys(cases: Callable[[], Iterator[Case]], step: int) -> None:
    """Of the cases every step-th, which is no divisor of a loop's length; with a step of 1 it takes minutes."""
    every, wrong = list(cases())[::step], []
    for start in range(0, len(every), 400):
        some = every[start : start + 400]
        for case, found in zip(some, traced_outcomes(some), strict=True):
            expected = outcome(case.call, [x.copy() for x in case.arrays])
            is_of_halves = any(x.dtype.name in ("float16", "bool", "int8", "uint8") for x in case.arrays)
            differs = difference(expected, found, is_of_halves)
            if differs and not is_explained(case, expected, found):
                wrong.append(f"{case.name}{case.told}: {differs}")
    assert len(every) > 200
    assert not wrong, f"{len(wrong)} of {len(every)}:\n" + "\n".join(wrong[:40])


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
