"""Tests complex numbers end to end: special values, branch cuts, promotion, parts, scalars, errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracefuse
from tests.frontend.numpy_functions import numpy_samples
from tests.session.samples import times
from tests.ways import check, results
from tracefuse import DataType, FusionDefinition, fuse
from tracefuse.dtypes import COMPLEXES, DType, complex64, complex128, float32, promote_nvfuser
from tracefuse.ops import REGISTRY

PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -7.25, 20.5, 88.0, 1e-3, 1e-20, 3e30, np.inf, -np.inf, np.nan]
GRID = np.array([complex(re, im) for re in PARTS for im in PARTS])
"""Numbers whose functions are special: on the branch cuts from both sides, at the ends of the range, not finite."""

LIKE_NUMPY = (
    *("abs", "sqrt", "exp", "log", "log2", "log10", "sinh", "cosh", "tanh", "sin", "tan"),
    *("asinh", "acosh", "atanh", "asin", "acos", "atan", "sign", "reciprocal", "angle", "conj", "round"),
)
"""Rows that have NumPy's infinities, NaN and zeros at all of GRID, with their signs."""


def parts(array: Any) -> Iterator[Any]:
    yield array.real
    if array.dtype.kind == "c":
        yield array.imag


def alike(own: Any, wanted: Any) -> Any:
    """Equal with the sign of zero, or both NaN."""
    return (own == wanted) & (np.signbit(own) == np.signbit(wanted)) | np.isnan(own) & np.isnan(wanted)


@pytest.mark.parametrize(
    ("on", "dtype"), [("cpu", complex64), ("cpu", complex128), ("interpreter-cuda", complex64)], ids=str
)
def test_functions_have_numpys_special_values_and_branch_cuts(on: str, dtype: DType) -> None:
    z = GRID.astype(dtype.numpy)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True, dtype)
        for name in LIKE_NUMPY:
            fd.add_output(getattr(fd.ops, name)(x))
    leave_out = dict.fromkeys(("segments", "printed"), "one kernel, whatever splits it")
    ((_, outputs),) = results(fd.fusion, [z], on, without=leave_out)
    unit = 6 * np.finfo(dtype.numpy).eps
    for name, own in zip(LIKE_NUMPY, outputs, strict=True):
        with np.errstate(all="ignore"):
            wanted = np.asarray(REGISTRY[name].numpy(z))  # type: ignore[attr-defined]
            finite = np.isfinite(z) & np.isfinite(wanted)
            assert own.dtype == wanted.dtype, name
            off = np.abs(own - wanted)[finite] > unit * np.abs(wanted)[finite]
            assert not off.any(), (name, z[finite][off], own[finite][off], wanted[finite][off])
        for left, right in zip(parts(own), parts(wanted), strict=True):
            near = np.isclose(left, right, unit, 0) & (np.signbit(left) == np.signbit(right))
            wrong = ~finite & ~alike(left, right) & ~(np.isfinite(right) & near)
            wrong |= finite & (left == 0) & (right == 0) & (np.signbit(left) != np.signbit(right))
            assert not wrong.any(), (name, z[wrong], own[wrong], wanted[wrong])


@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_products_and_quotients_of_special_values_are_numpys(dtype: DType) -> None:
    some = np.array([complex(a, b) for a in PARTS[::2] for b in PARTS[::2]]).astype(dtype.numpy)
    a, b = (np.ascontiguousarray(g) for g in np.meshgrid(some, some, indexing="ij"))
    for function in (np.multiply, np.divide, np.add, np.subtract, np.equal, np.not_equal):
        own = fuse(function, contract=False)(a, b)
        with np.errstate(all="ignore"):
            wanted = function(a, b)
            close = (
                np.abs(own - wanted) <= 4 * np.finfo(dtype.numpy).eps * np.abs(wanted)
                if own.dtype != bool
                else own == wanted
            )
        for left, right in zip(parts(own), parts(wanted), strict=True):
            both = (left == right) | np.isnan(left) & np.isnan(right)
            wrong = ~(both | close)
            assert not wrong.any(), (function, a[wrong][:3], b[wrong][:3], own[wrong][:3], wanted[wrong][:3])


def test_functions_hold_where_naive_forms_overflow_or_cancel() -> None:
    z = np.array([3e300 + 4e300j, 3e-300 + 4e-300j, 720 + 1e-3j, 1 + 1e-9j, 1e-12 + 1e-12j, 1e200 + 1j])
    np.testing.assert_allclose(fuse(np.abs)(z[:2]), [5e300, 5e-300], rtol=1e-15)
    np.testing.assert_allclose(fuse(np.sqrt)(z), np.sqrt(z), rtol=1e-15)
    # log of a magnitude next to 1: 1e-18 / 2, which 1 + 1e-18 would lose; log1p likewise.
    np.testing.assert_allclose(fuse(np.log)(z[3:4]).real, 5e-19, rtol=1e-12)
    np.testing.assert_allclose(fuse(np.log1p)(z[4:5]), 1e-12 + 1e-12j, rtol=1e-12)
    # exp(720) is beyond the largest number, its product with sin(1e-320) is not.
    np.testing.assert_allclose(fuse(np.exp)(np.array([720 + 1e-300j])).imag, np.exp(720 - 300 * np.log(10)), rtol=1e-12)
    np.testing.assert_allclose(fuse(np.arcsinh)(z), np.arcsinh(z), rtol=1e-14)


PROMOTED: dict[str, Callable[[Any, Any], Any]] = {
    "array and Python complex": lambda r, z: r + 1j,
    "Python float": lambda r, z: z * 2.5,
    "reals": lambda r, z: z * r,
    "where": lambda r, z: np.where(r > 0, z, r),
    "truth values": lambda r, z: (r > 0) * 1j,
    "power of reals": lambda r, z: r**z,
    "division": lambda r, z: 1 / z + r / z,
    "abs": lambda r, z: abs(z) + r,
    "parts": lambda r, z: z.real * z.imag + np.real(r) - np.imag(r),
    "conjugates": lambda r, z: z * z.conj() + np.conj(r),
    "angle": lambda r, z: np.angle(z) + np.angle(r),
    "sums": lambda r, z: (z.sum(0) / len(z), z.mean(), np.prod(z, 0), (z != 0).all()),
    "variances": lambda r, z: (z.var(0), np.std(z), z.var(axis=0, ddof=1)),
    "products": lambda r, z: (z @ z.T, z @ r.T, z.conj().T @ z, np.vdot(z, z)),
    "moved": lambda r, z: (z.T, z[::-1, 1:], np.concatenate([z, r]), np.pad(z, 1), np.tril(z)),
    "made": lambda r, z: (np.zeros_like(z), np.full_like(z, 1 - 2j), np.ones_like(r, dtype=np.complex64)),
    "predicates": lambda r, z: (np.isnan(z), np.isfinite(z), np.isreal(z), np.iscomplex(z), z == z.conj()),
    "rounded": lambda r, z: (np.round(z), np.round(z, 1), np.rint(z)),
    "logic": lambda r, z: (np.logical_and(z, r), np.logical_not(z), z.astype(bool)),
    "NaN replaced": lambda r, z: np.nan_to_num(z / (r - r)),
    "powers": lambda r, z: (z**2, z**-1, z**0.5, z**3, z ** (1 + 1j), np.square(z), np.float_power(z, 2)),
}  # fmt: skip


@pytest.mark.parametrize("real", [np.float16, np.float32, np.float64, np.int32], ids=lambda d: d.__name__)
@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_results_have_numpys_types_and_values(dtype: DType, real: Any) -> None:
    random = np.random.default_rng(0)
    z = (random.normal(size=(4, 3)) + 1j * random.normal(size=(4, 3))).astype(dtype.numpy)
    r = (random.uniform(1, 3, (4, 3))).astype(real)
    names = list(PROMOTED) if real in (np.float32, np.float64) else list(PROMOTED)[:9]
    own = fuse(lambda r, z: [PROMOTED[name](r, z) for name in names])(r, z)
    for name, result in zip(names, own, strict=True):
        with np.errstate(all="ignore"):
            wanted = PROMOTED[name](r, z)
        for left, right in zip(*(v if isinstance(v, tuple) else (v,) for v in (result, wanted)), strict=True):
            assert left.dtype == right.dtype, name
            types = [t for t in (left.dtype, dtype.numpy) if t.kind in "fc"]
            narrow = max(np.finfo(t).eps for t in types) if left.dtype.kind in "fc" else 0
            np.testing.assert_allclose(left, right, 50 * narrow, 50 * narrow, err_msg=name)


def test_whole_powers_are_products_as_numpys() -> None:
    z = np.array([1 + 2j, -3j, 0.5 - 4j, complex(np.inf, 1), 0])
    for exponent in (3, 5, -3, 2.0, -2):
        own = fuse(lambda x, exponent=exponent: x**exponent)(z)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(own, z**exponent, 1e-15)
    assert fuse(lambda x: x**3)(z[:2]).tolist() == [-11 - 2j, 27j]
    exponents = np.array([2, 3, 1, 0, 2], np.complex128)
    assert fuse(np.power)(z, exponents).tolist() == [-3 + 4j, 27j, 0.5 - 4j, 1, 0]


def test_complex_scalars_are_arguments_of_kernels() -> None:
    f = fuse(lambda x, s: x * s + s.real)
    x = np.linspace(-1, 1, 7) + 0.5j
    for s in (2 + 1j, -1j, complex(0.5, -0.0)):
        np.testing.assert_allclose(f(x, s), x * s + s.real, rtol=1e-15)
    assert f.cache_info().compiles == 1


def test_parts_make_complex_numbers_in_definitions_and_printed_ones() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True, DataType.Float)
        s = fd.define_scalar(None, dtype=DataType.ComplexDouble)
        z = fd.ops.complex(x, fd.ops.neg(x))
        made = fd.ops.mul(z, s)  # a scalar does not widen a tensor of its kind
        for result in (made, fd.ops.real(z), fd.ops.imag(made), fd.ops.isreal(made), fd.ops.abs(z), fd.ops.conj(x)):
            fd.add_output(result)
        fd.add_output(fd.ops.sum(fd.ops.add(x, s), [0]))
        fd.add_output(fd.ops.complex(x, x, dtype=DataType.ComplexDouble))
        fd.add_output(fd.ops.abs(z, dtype=DataType.Double))
        fd.add_output(fd.ops.var(z, [1]))
        fd.add_output(fd.ops.where(fd.ops.eq(z, 1 - 1j), z, complex(-np.inf, 2)))
        fd.add_output(fd.ops.full([3], complex(0, np.nan), DataType.ComplexFloat))
        fd.add_output(fd.ops.add(x, fd.ops.abs(fd.ops.mul(s, 2j))))
    types = [fd.fusion.values[n].dtype.name for n in fd.fusion.outputs]
    expected = ["complex64", "float32", "float32", "bool", "float32", "float32", "complex64", "complex128", "float64", "float32", "complex64", "complex64", "float32"]  # fmt: skip # noqa: E501
    assert types == expected
    arguments = [np.arange(12, dtype=np.float32).reshape(3, 4), 2 - 1j]
    for backend in ("cpu", "interpreter", "interpreter-cuda"):
        check(fd, arguments, backend)


def test_infinite_parts_stay_apart() -> None:
    re, im = np.array([np.inf, 0.0, -0.0]), np.array([1.0, np.inf, -0.0])
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True, DataType.Double) for _ in range(2))
        fd.add_output(fd.ops.complex(x, y))
    (z,) = fd.execute([re, im])
    assert alike(z.real, re).all()
    assert alike(z.imag, im).all()


def test_the_promotion_of_definitions_is_pytorchs() -> None:
    assert promote_nvfuser([float32], [complex128]) is complex64
    assert promote_nvfuser([complex64, DTYPES["float64"]]) is complex128
    assert promote_nvfuser([complex64], [], ["complex"]) is complex64
    assert promote_nvfuser([DTYPES["int64"]], [], ["complex"]) is complex64


DTYPES = {d.name: d for d in tracefuse.dtypes.ALL}


def test_a_cast_to_reals_keeps_the_real_part_and_warns_once_a_trace() -> None:
    z = np.array([1.75 + 2j, -300 - 1j, complex(np.nan, 1)])
    f = fuse(lambda x: (x.astype(np.float32), x.astype(np.int8)))
    with pytest.warns(np.exceptions.ComplexWarning, match=r"discards the imaginary part \(test_complex.py:\d+\)"):
        real, small = f(z)
    np.testing.assert_array_equal(real, np.float32([1.75, -300, np.nan]))
    assert small.tolist() == [1, -128, 0]
    f(z)  # no warning: nothing is traced


@pytest.mark.parametrize("name", ["floor", "remainder", "arctan2", "fabs"])
def test_a_function_without_a_complex_version_raises_with_a_replacement(name: str) -> None:
    ufunc = getattr(np, name)
    with pytest.raises(tracefuse.DtypeError, match="does not take complex"):
        fuse(lambda x: ufunc(*[x] * ufunc.nin))(np.ones(3, np.complex64))


@pytest.mark.parametrize("shape", [(3, 40000), (70000, 2), (300000,)], ids=str)
@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_long_sums_are_split_like_others(dtype: DType, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    z = np.exp(2j * np.pi * random.random(shape)).astype(dtype.numpy)
    own = fuse(lambda x: (x.sum(0), x.sum(-1), x.prod(0), x.mean()))(z)
    wide = z.astype(np.complex128)
    scale = np.finfo(dtype.numpy).eps * np.sqrt(z.size)
    for left, right in zip(own, (wide.sum(0), wide.sum(-1), wide.prod(0), wide.mean()), strict=True):
        assert left.dtype == dtype.numpy
        np.testing.assert_allclose(left, right, 0, 20 * scale * max(1.0, float(np.abs(right).max())))


# ---------------------------------------------------------------------------------------------------------------------
# NumPy's functions: the calls that are compared on reals, on complex numbers

IN_PLACE_OF = {"X": "Z", "V": "(Z[0])", "D": "(Z[:, :3])", "Q": "(Z[:, :3])"}
COMPLEX_CALLS = sorted({
    made
    for calls in numpy_samples.SAMPLES.values()
    for call in calls
    if (made := re.sub(r"\b[XVDQ]\b", lambda found: IN_PLACE_OF[found[0]], call)) != call and "dtype" not in call
})  # fmt: skip


def called(call: str, **names: Any) -> Any:
    return eval(call, {"np": np, **{k: v.copy() for k, v in numpy_samples.NAMES.items()}, **names})


@pytest.mark.filterwarnings("ignore")
def test_numpys_functions_give_the_same_or_say_that_there_is_no_order() -> None:
    z, compared, refused = numpy_samples.NAMES["Z"], 0, []
    for call in COMPLEX_CALLS:
        try:
            wanted = called(call)
        except (TypeError, ValueError, RuntimeError, np.linalg.LinAlgError):
            continue  # what NumPy refuses
        try:
            own = fuse(lambda x, call=call: called(call, Z=x), target="reference")(z)
        except (tracefuse.DtypeError, tracefuse.UnsupportedError) as error:
            refused.append(str(error))
            continue
        compared += 1
        for left, right in zip(*(r if isinstance(r, tuple | list) else (r,) for r in (own, wanted)), strict=True):
            if isinstance(right, np.ndarray | np.generic):
                assert np.asarray(left).dtype == right.dtype, call
                np.testing.assert_allclose(left, right, 1e-12, 1e-12, err_msg=call)
    assert compared > 200
    assert all("complex" in message for message in refused)


# ---------------------------------------------------------------------------------------------------------------------
# random fusions of whole numbers, which are exact

LIMIT = 2**21
"""No part grows beyond this: sums of a few products are exact in float32."""


@st.composite
def exact_fusions(draw: st.DrawFn) -> tuple[FusionDefinition, list[Any]]:
    """A definition over complex64 tensors of one shape, and arguments whose parts are small whole numbers."""
    rows, columns = draw(st.integers(0, 9)), draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    with FusionDefinition() as fd:
        tensors = [(fd.define_tensor([-1, -1], True, DataType.ComplexFloat), 6) for _ in range(2)]
        for _ in range(draw(st.integers(2, 7))):
            (x, a), (y, b) = (draw(st.sampled_from(tensors)) for _ in range(2))
            tensors.append(_step(fd, draw(st.sampled_from(STEPS)), x, a, y, b, columns))
        for tensor, _ in draw(st.sets(st.sampled_from(tensors[2:]), min_size=1, max_size=3)):
            fd.add_output(tensor)
    parts = random.integers(-3, 4, (2, 2, rows, columns))
    return fd, [(re + 1j * im).astype(np.complex64) for re, im in parts]


STEPS = ("add", "sub", "mul", "conj", "swap", "flip", "roll", "where", "sum", "scaled")


def _step(fd: FusionDefinition, step: str, x: Any, a: int, y: Any, b: int, columns: int) -> tuple[Any, int]:
    """(a new tensor of the same shape, the bound of its parts)."""
    ops = fd.ops
    if step == "mul" and 2 * a * b < LIMIT:
        return ops.mul(x, y), 2 * a * b
    if step == "sum" and a * columns + b < LIMIT:
        return ops.add(ops.sum(x, [1], keepdim=True), y), a * columns + b
    if step == "where":
        return ops.where(ops.gt(ops.real(x), ops.imag(y)), x, y), max(a, b)
    if step == "swap":
        return ops.complex(ops.imag(x), ops.neg(ops.real(y))), max(a, b)
    if step == "flip":
        return ops.flip(x, [0, 1]), a
    if step == "roll":
        return ops.roll(x, 3, 1), a
    if step == "conj":
        return ops.conj(x), a
    if step == "scaled" and 2 * a < LIMIT:
        return ops.mul(x, 2j), 2 * a
    return (ops.sub(x, y), a + b) if a + b < LIMIT else (ops.neg(x), a)


@pytest.mark.parametrize(("on", "examples"), [("cpu", 6), ("interpreter-cuda", 20)])
def test_random_fusions_are_exact_on_whole_numbers(on: str, examples: int) -> None:
    @settings(max_examples=times(examples), suppress_health_check=list(HealthCheck))
    @given(drawn=exact_fusions())
    def holds(drawn: tuple[FusionDefinition, list[Any]]) -> None:
        check(*drawn, on, bits=True, without={"printed": "what a segment prints is seen above"})

    holds()


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")  # of NumPy's own call
@pytest.mark.parametrize("ddof", [0, 2, 3])
def test_the_variance_of_complex_numbers_is_numpys_with_no_freedom_left(ddof: int) -> None:
    x = np.array([[2, 1j, 1 + 2j], [4, 3j, -3 + 1j]])

    def variances(x: Any) -> Any:
        return np.var(x, axis=0, ddof=ddof), np.std(x, axis=0, ddof=ddof, keepdims=True)

    with np.errstate(all="ignore"):
        wanted = variances(x)
    for result, expected in zip(fuse(variances)(x), wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-14)
