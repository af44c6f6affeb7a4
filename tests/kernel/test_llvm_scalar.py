"""Every primitive and cast of the LLVM emitter against its NumPy reference, bit for bit where that is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernel.cpu_kernels import cast_kernel, index, pointwise, primitives_kernel, run_pointwise
from tracefuse import dtypes, fuse
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm
from tracefuse.kernel.llvm.text_builder import Processor
from tracefuse.kernel.primitives import apply, convert

Array = np.ndarray[Any, Any]

COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
PREDICATES = ("isnan", "isinf", "isfinite", "signbit")
INTEGER_TWO = ("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "minimum", "maximum", *COMPARE)
BITS_TWO = ("and", "or", "xor")
SHIFTS = ("shl", "shr", "shr_logical")
FLOAT_TWO = (
    "rounded_product", "add", "sub", "mul", "div", "floordiv", "mod", "truncmod", "minimum", "maximum", "nextafter",
    "copysign",
)  # fmt: skip
FLOAT_ONE = ("neg", "abs", "sqrt", "floor", "ceil", "round", "trunc", *PREDICATES)
HALF_TWO = ("add", "mul", "minimum", "maximum", "nextafter", "copysign", *COMPARE)
REALS = tuple(d for d in dtypes.ALL if d.kind != "complex")


def _values(dtype: DType, count: int = 4_000, seed: int = 0) -> Array:
    """Edges of the type and random bits."""
    random = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return random.integers(0, 2, count).astype(bool)
    bits = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy.name)
        edges = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, 7, 8, 31, 32, 63, 64]
        edge = np.array([*edges, *([-1, -2, -7, -8] if dtype.kind == "int" else [])], dtype.numpy)
        small = random.integers(0 if dtype.kind == "uint" else -20, 20, count).astype(dtype.numpy)
        return np.concatenate([edge, bits, small])
    with np.errstate(all="ignore"):
        edge = np.array([0.0, 1.0, 0.5, 1.5, 2.5, 3.5, 65504, 65519.9, 65520, 2**31, 2**63, 1e38, np.inf, np.nan, 6e-8])
        odd = [2.0**-149, 2.0**-25, 2.0**-24 * 1.0001, 255.5, 127.5, 1.00048828125, 1.0004882813, 1.00390625, 2.0**63]
        edge = np.concatenate([edge, odd])
        usual = random.normal(size=count) * np.exp(random.normal(size=count) * 4)
        return np.concatenate([a.astype(dtype.numpy) for a in (edge, -edge, bits, usual)])


def _pairs(dtype: DType) -> tuple[Array, Array]:
    """All pairs of edges, and random pairs."""
    x = _values(dtype)
    few = x[:40]
    first, second = (a.ravel() for a in np.meshgrid(few, few))
    y = _values(dtype, seed=1)
    return np.concatenate([first, x]), np.concatenate([second, y])


def _same(got: Array, wanted: Array) -> Array:
    """Equal bits, or both NaN."""
    if got.dtype.kind in "biu":
        return np.asarray(got == wanted)
    unsigned = f"u{got.dtype.itemsize}"
    return np.asarray((got.view(unsigned) == wanted.view(unsigned)) | (np.isnan(got) & np.isnan(wanted)))


def _check(names: tuple[str, ...], *values: Array) -> None:
    types = [dtypes.dtype_of(value.dtype) for value in values]
    for name, got in zip(names, run_pointwise(primitives_kernel(names, *types), *values), strict=True):
        result = dtypes.dtype_of(got.dtype)
        with np.errstate(all="ignore"):
            meant = "shr_logical" if name == "shr" and result.kind == "uint" else name
            wanted = np.asarray(apply(meant, list(values), result)).astype(got.dtype)
            same = _same(got, wanted)
            if name in ("minimum", "maximum", "nextafter"):
                same = same | (got == wanted)
        if not same.all():
            at = int(np.argmin(same))
            raise AssertionError((name, types[0].name, [v[at] for v in values], got[at], wanted[at]))


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_every_primitive_of_integers_means_what_numpy_says_with_no_undefined_case(dtype: DType) -> None:
    x, y = _pairs(dtype)
    _check((*INTEGER_TWO, *BITS_TWO, *SHIFTS, "pow", "gcd", *(("fast_divide",) if dtype is dtypes.int64 else ())), x, y)
    _check(("neg", "abs", "not"), x)
    _check(("select",), _values(dtypes.bool_, x.size), x, y)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_every_exact_primitive_of_floats_gives_the_bits_of_numpy(dtype: DType) -> None:
    x, y = _pairs(dtype)
    _check((*FLOAT_TWO, *COMPARE), x, y)
    _check(FLOAT_ONE, x)
    _check(("select",), _values(dtypes.bool_, x.size), x, y)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    x, y = (a[-3000:] for a in _pairs(dtype))
    _check(("fma",), x, y, np.roll(x, 7))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_comparisons_signs_and_single_operations_of_halves_are_right(dtype: DType) -> None:
    x, y = _pairs(dtype)
    _check(HALF_TWO, x, y)
    _check(("neg", "abs", *PREDICATES), x)
    _check(("select",), _values(dtypes.bool_, x.size), x, y)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_division_by_a_constant_is_the_same_as_by_a_variable(dtype: DType) -> None:
    names = ("floordiv", "mod", "truncdiv", "truncmod")
    largest = int(np.iinfo(dtype.numpy).max)
    divisors = (0, 1, 2, 3, 7, 100, largest, largest // 2 + 2, *((-1, -3) if dtype.kind == "int" else ()))
    multiples = [m * abs(d) + more for d in divisors if d for m in (1, 2, largest // abs(d)) for more in (-1, 0, 1)]
    near = np.array([m for m in multiples if m <= largest], dtype.numpy)
    x = np.concatenate([_values(dtype), near, ~near])
    buffer = ir.Buffer("x", dtype)
    load = ir.Load(buffer, index("j"))
    values = [ir.call(name, load, ir.Constant(d, dtype)) for name in names for d in divisors]
    outs = iter(run_pointwise(pointwise(tuple(values), (buffer,)), x))
    for name in names:
        for d in divisors:
            with np.errstate(all="ignore"):
                wanted = apply(name, [x, np.full_like(x, d)], dtype)
            assert np.array_equal(next(outs), wanted), (name, d)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_quotients_are_exact_next_to_multiples_of_the_divisor(dtype: DType) -> None:
    random = np.random.default_rng(0)
    width, unsigned = 8 * dtype.itemsize, f"uint{8 * dtype.itemsize}"
    shifts = random.integers(64 - width, 64, (2, 40_000), dtype=np.uint64)
    bits, by = (random.integers(0, 2**64, shifts.shape, dtype=np.uint64) >> shifts).astype(unsigned)
    y = np.where(by == 0, 1, by).astype(unsigned)
    x = np.concatenate([bits, bits // y * y, bits // y * y - 1, bits // y * y + 1]).view(dtype.numpy)
    y = np.tile(y.view(dtype.numpy), 4)
    if dtype.kind == "int":
        x, y = np.concatenate([x, -x, x, -x]), np.concatenate([y, y, -y, -y])
    _check(("floordiv", "mod", "truncdiv", "truncmod"), x, y)


def test_primitives_of_bools_are_those_of_numpy() -> None:
    x, y = _values(dtypes.bool_), _values(dtypes.bool_, seed=1)
    _check((*BITS_TWO, *COMPARE, "minimum", "maximum", "add", "mul"), x, y)
    _check(("not",), x)
    _check(("select",), x, y, np.roll(x, 1))


@pytest.mark.parametrize("source", REALS, ids=str)
def test_every_cast_rounds_once_and_saturates(source: DType) -> None:
    values = _values(source)
    targets = tuple(d for d in REALS if d is not source)
    for target, got in zip(targets, run_pointwise(cast_kernel(source, *targets), values), strict=True):
        with np.errstate(all="ignore"):
            wanted = convert(values, target)
        same = _same(got, wanted)
        at = int(np.argmin(same))
        assert same.all(), (source.name, target.name, values[at], got[at], wanted[at])


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_all_halves_survive_a_round_trip_through_float32(dtype: DType) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    wide = run_pointwise(cast_kernel(dtype, dtypes.float32), every)[0]
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
    back = run_pointwise(cast_kernel(dtypes.float32, dtype), wide)[0]
    with np.errstate(invalid="ignore"):
        assert _same(back, every).all()


def test_float16_conversions_without_hardware_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Processor(half_conversions=False, vector_bits=256)
    monkeypatch.setattr("tracefuse.kernel.llvm.emit_llvm.host_processor", lambda: plain)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    kernel = cast_kernel(dtypes.float16, dtypes.float32)
    assert "fpext" not in emit_llvm(kernel)
    wide = run_pointwise(kernel, every)[0]
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
    values = np.concatenate([_values(dtypes.float32, 200_000), np.ldexp(np.float32(1.0), np.arange(-149, 128))])
    values = values.astype(np.float32)
    narrow = run_pointwise(cast_kernel(dtypes.float32, dtypes.float16), values)[0]
    with np.errstate(all="ignore"):
        assert _same(narrow, values.astype(np.float16)).all()


@pytest.mark.parametrize("count", [2, 4])
def test_large_uint64_become_float32_also_where_their_high_bits_are_known(count: int) -> None:
    flags = np.arange(count) % 2 == 1
    inverted = fuse(lambda x: np.invert(x.astype(np.uint64)).astype(np.float32), dynamic=False)
    assert inverted(flags).tolist() == [np.float32(2.0**64)] * count
    edges = np.array([2**63 + k * 2**39 + d for k in range(count) for d in (-1, 0, 1)], np.uint64)
    assert np.array_equal(fuse(lambda x: x.astype(np.float32))(edges), edges.astype(np.float32))


def test_bitcast_keeps_the_bits_of_every_width() -> None:
    for source, target in (
        *((dtypes.float32, dtypes.int32), (dtypes.uint32, dtypes.float32), (dtypes.float64, dtypes.uint64)),
        *((dtypes.float16, dtypes.int16), (dtypes.bfloat16, dtypes.uint16), (dtypes.int16, dtypes.bfloat16)),
    ):
        values = _values(source)
        got = run_pointwise(primitives_kernel(("bitcast",), source, result=target), values)[0]
        assert got.tobytes() == values.view(target.numpy).tobytes(), (source, target)


def test_a_bitcast_between_widths_is_refused() -> None:
    with pytest.raises(InternalError, match="bitcast of float32 to int64: widths differ"):
        emit_llvm(primitives_kernel(("bitcast",), dtypes.float32, result=dtypes.int64))


def test_a_primitive_that_a_type_does_not_have_raises_with_its_name() -> None:
    with pytest.raises(InternalError, match="exp is not defined for int32"):
        emit_llvm(primitives_kernel(("exp",), dtypes.int32))


def test_complex_numbers_that_are_not_split_are_refused_by_name() -> None:
    kernel = cast_kernel(dtypes.complex64, dtypes.float32)
    with pytest.raises(InternalError, match=r"complex64 in a kernel: .* split into their parts"):
        compile_cpu(kernel)


def test_the_tests_cover_every_primitive() -> None:
    maths = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "erf", "erfc", "erfinv", "lgamma"}
    maths |= {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"}
    maths |= {"erfcinv", "pow", "atan2", "cbrt"}  # in test_cpu_math.py
    here = {*INTEGER_TWO, *BITS_TWO, *SHIFTS, *FLOAT_TWO, *FLOAT_ONE, *HALF_TWO}
    here |= {"not", "select", "fma", "bitcast", "gcd", "fast_divide"}
    here |= {"exp_term", "exp2_term"}  # exp and exp2, by other names
    assert here | maths == set(ir.PRIMITIVES)
