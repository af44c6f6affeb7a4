"""Tests that `tracefuse.xp` is the array API: every function, its parameters, and NumPy's results."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.frontend import array_api_cases as cases
from tests.frontend.array_api_signatures import SIGNATURES
from tests.session.samples import in_suite
from tracefuse import TracefuseError, fuse, xp
from tracefuse.frontend.array_api import standard_calls

SHAPES = ((), (0,), (1,), (3,), (0, 2), (3, 2), (2, 1, 3))
DTYPES = ("?", "i1", "u1", "i4", "u8", "i8", "f4", "f8", "c8", "c16")
FAMILIES = {
    "elementwise": cases.ELEMENTWISE, "reductions": cases.REDUCTIONS, "movement": cases.MOVEMENT,
    "order": cases.ORDER, "products": cases.PRODUCTS, "linear algebra": cases.LINEAR_ALGEBRA, "Fourier": cases.FOURIER,
    "data-decided": cases.DATA_DECIDED,
}  # fmt: skip
MISSING = object()


def named(name: str) -> Any:
    value: Any = xp
    for part in name.split("."):
        value = getattr(value, part, MISSING)
    return value


def sample(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """Small numbers of both signs, with zeros and equal ones among them."""
    random = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind in "bu" else -3
    x = random.integers(low, 4, shape)
    imaginary = 1j * random.integers(-2, 3, shape) if dtype in ("c8", "c16") else 0
    return np.asarray(x + imaginary).astype(dtype)


def calls_for(family: str, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        f"{position}: {name}": call
        for position, group in enumerate(FAMILIES[family])
        if np.dtype(dtype).kind in group.kinds
        if len(shape) >= group.least_axes and not (group.filled and 0 in shape)
        for name, call in group.calls.items()
    }  # fmt: skip


def assert_close(found: Any, wanted: Any, label: str) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted), label
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, label)
        return
    wanted = np.asarray(wanted)
    assert isinstance(found, np.ndarray), label
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), label
    tolerance = 0 if wanted.dtype.kind in "biu" else 1e-5 if wanted.dtype.itemsize // (1 + (wanted.dtype.kind == "c")) == 4 else 1e-11  # fmt: skip # noqa: E501
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * 10, err_msg=label)


def expected(calls: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
    """NumPy's results, or its errors."""
    results = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, call in calls.items():
            try:
                results[name] = call(cases.reference, x, y)
            except (TypeError, ValueError) as error:
                results[name] = error
    return results


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_function_of_the_standard_takes_its_parameters(name: str) -> None:
    function = named(name)
    assert callable(function)
    try:
        found = inspect.signature(function)
    except ValueError:  # a ufunc, in releases of NumPy whose ufuncs have no signature
        assert function.__wrapped__.nin == SIGNATURES[name].count("x")
        return
    wanted = inspect.signature(eval(f"lambda {SIGNATURES[name]}: None"))
    given = {True: [], False: {}}
    for parameter in wanted.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.POSITIONAL_OR_KEYWORD):
            given[True].append(0)
        else:
            given[False][parameter.name] = 0
            own = found.parameters[parameter.name].default if parameter.name in found.parameters else parameter.default
            same = own == parameter.default or own in (None, np._NoValue, False)
            assert same or (name, parameter.name) in {("eye", "dtype")}, (parameter, own)
    found.bind(*given[True], **given[False])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_outside_a_trace_are_numpys(family: str, dtype: str) -> None:
    for shape in SHAPES:
        x, y = sample(dtype, shape, 1), sample(dtype, shape, 2)
        calls = calls_for(family, dtype, shape)
        for name, result in expected(calls, x, y).items():
            if isinstance(result, Exception):
                with pytest.raises((TypeError, ValueError)):
                    calls[name](xp, x, y)
            else:
                assert_close(calls[name](xp, x, y), result, f"{name} of {dtype} {shape}")


@pytest.mark.parametrize("dtype", ["?", "i4", "f4", "c16"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "data-decided"])
def test_calls_in_a_trace_are_numpys(family: str, dtype: str) -> None:
    shapes = ((), (3,), (3, 2))
    two = {"?": shapes[1:], "i4": shapes[:2], "c16": shapes[::2]}
    for shape in in_suite(two.get(dtype, shapes), shapes):
        x, y = sample(dtype, shape, 1), sample(dtype, shape, 2)
        calls = calls_for(family, dtype, shape)
        results = expected(calls, x, y)
        wanted = {name: result for name, result in results.items() if not isinstance(result, Exception)}
        if wanted:
            found = fuse(lambda x, y, c=calls, w=wanted: {name: c[name](xp, x, y) for name in w})(x, y)
            for name, result in wanted.items():
                assert_close(found[name], result, f"{name} of {dtype} {shape}")


def test_small_arrays_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("compiled")

    monkeypatch.setattr(standard_calls, "FusedFunction", refuse)
    for shape in SHAPES:
        assert xp.add(np.ones(shape), 1).shape == shape


@pytest.mark.parametrize("shape", [(300, 300), (90000,)])
def test_large_arrays_run_a_kernel_with_the_same_results(monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    x = np.random.default_rng(0).random(shape)
    monkeypatch.setattr(standard_calls, "FEWEST_COMPILED_ELEMENTS", x.size + 1)
    small = xp.exp(x), xp.sort(x), xp.sum(x, axis=0)
    monkeypatch.setattr(standard_calls, "FEWEST_COMPILED_ELEMENTS", x.size)
    for one, other in zip((xp.exp(x), xp.sort(x), xp.sum(x, axis=0)), small, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_results_share_no_memory_with_arguments() -> None:
    x = np.arange(6.0)
    for result in (xp.reshape(x, (2, 3)), xp.flip(x), *xp.unstack(x), xp.broadcast_to(x, (2, 6))):
        assert not np.may_share_memory(x, result)


OPERATORS = {
    "f": "abs add eq floordiv ge gt le lt mod mul ne neg pos pow sub truediv",
    "i": "and invert lshift or rshift xor abs add",
}
"""The operators of arrays by kind; each binary one has an in-place and a reflected form."""


@pytest.mark.parametrize("kind", OPERATORS)
def test_traced_arrays_have_the_operators_of_the_standard(kind: str) -> None:
    x, y = (np.arange(1, 7, dtype=f"{kind}8").reshape(2, 3) + k for k in (0, 1))
    names = OPERATORS[kind].split()
    unary = {"abs", "invert", "neg", "pos"}

    def apply(x: Any, y: Any) -> dict[str, Any]:
        results = {}
        for name in names:
            operands = () if name in unary else (y,)
            results[name] = getattr(x, f"__{name}__")(*operands)
            if name not in unary and name not in ("eq", "ne", "ge", "gt", "le", "lt"):
                results[f"r{name}"] = getattr(x, f"__r{name}__")(y)
                results[f"i{name}"] = getattr(xp.asarray(x, copy=True), f"__i{name}__")(y)
        return results

    found, wanted = fuse(apply)(x, y), apply(x, y)
    assert found.keys() == wanted.keys()
    for name, result in wanted.items():
        assert_close(found[name], result, name)


def test_traced_arrays_have_the_attributes_of_the_standard() -> None:
    seen: dict[str, Any] = {}

    def note(x: Any) -> Any:
        namespace = x.__array_namespace__(api_version="2025.12")
        seen.update(
            namespace=namespace,
            device=x.device,
            dtype=x.dtype,
            ndim=x.ndim,
            shape=tuple(map(int, x.shape)),
            size=int(x.size),
        )
        return x.T, x.mT, x @ x.mT, x.to_device(x.device), x.to_device("cpu", stream=None)

    x = np.arange(6.0).reshape(2, 3)
    assert_close(fuse(note)(x), (x.T, x.mT, x @ x.mT, x, x), "attributes")
    assert seen == {"namespace": xp, "device": "cpu", "dtype": x.dtype, "ndim": 2, "shape": (2, 3), "size": 6}


def test_numbers_can_be_asked_of_traced_arrays_without_axes() -> None:
    @fuse
    def ask(x: Any, k: Any) -> Any:
        return x * (float(x[0]) + int(k[0]) + complex(x[1]).real) if bool(x[0] > 0) else x

    for x in (np.array([2.0, 3.0]), np.array([-1.0, 3.0])):
        np.testing.assert_array_equal(ask(x, np.array([3])), ask.__wrapped__(x, np.array([3])))


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"version '2019.01' of the array API is not supported.*\n  hint: use 2021.12"):
        fuse(lambda x: x.__array_namespace__(api_version="2019.01").exp(x))(np.ones(3))


def test_the_namespace_is_what_arrays_return_without_naming_it() -> None:
    assert fuse(lambda x: x.__array_namespace__().sort(x, descending=True))(np.arange(3)).tolist() == [2, 1, 0]


def test_the_namespace_describes_itself() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert info.default_device() == info.devices()[0] == "cpu"
    assert info.default_dtypes()["real floating"] == np.float64
    assert set(info.dtypes(kind=("integral", "bool"))) == {"bool"} | {
        f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)
    }
    assert all(getattr(xp, name) == dtype for name, dtype in info.dtypes().items())
    with pytest.raises(TracefuseError, match=r"unknown kind of types: 'text'\n  hint: use one of 'bool'"):
        info.dtypes(kind="text")


@pytest.mark.parametrize("dtype", [xp.float16, xp.bfloat16, xp.float32, xp.float64, xp.complex64, xp.complex128])
def test_limits_of_floats_are_numbers_of_python(dtype: Any) -> None:
    limits, wanted = xp.finfo(dtype), ml_dtypes.finfo(dtype)
    for name in ("eps", "max", "min", "smallest_normal", "tiny"):
        assert type(getattr(limits, name)) is float
        assert getattr(limits, name) == float(getattr(wanted, name))
    assert type(limits.bits) is int
    assert limits.bits == wanted.bits
    assert limits.dtype == wanted.dtype
    assert isinstance(limits.dtype, np.dtype)
    assert repr(limits) == repr(copy.copy(limits)) == repr(wanted)
    assert xp.finfo(xp.ones(2, dtype=dtype)).eps == limits.eps
    x = np.ones(2, np.float64)
    np.testing.assert_array_equal(fuse(lambda x: x * limits.eps)(x), x * limits.eps)


@pytest.mark.parametrize("is_traced", [False, True])
def test_types_can_be_asked_of_arrays(is_traced: bool) -> None:
    seen: list[Any] = []

    def ask(x: Any, k: Any) -> Any:
        seen.append((
            xp.finfo(x).eps, xp.iinfo(k).max,
            xp.result_type(x, xp.float64), xp.result_type(x, k), xp.result_type(x, 2.5),
            xp.can_cast(x, xp.float64), xp.can_cast(x, k.dtype), xp.isdtype(x.dtype, "real floating"),
            tuple(map(int, xp.broadcast_shapes((2, 1), x.shape, ()))),
        ))  # fmt: skip
        return x

    (fuse(ask) if is_traced else ask)(np.ones(3, np.float32), np.ones(3, np.int16))
    wanted = (2.0**-23, 2**15 - 1, np.float64, np.float32, np.float32, True, False, True, (2, 3))
    assert seen[0] == wanted


def test_shapes_that_cannot_be_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\) cannot be broadcast: sizes 2 and 3"):
        xp.broadcast_shapes((2,), (3,))


def test_arrays_come_from_dlpack() -> None:
    x = np.arange(3.0)
    assert np.may_share_memory(xp.from_dlpack(x), x)
    assert not np.may_share_memory(xp.from_dlpack(x, copy=True), x)
    np.testing.assert_array_equal(fuse(lambda x: xp.from_dlpack(x) + 1)(x), x + 1)


def test_created_arrays_can_be_written_in_a_trace() -> None:
    def build(n: Any) -> Any:
        made = [xp.zeros((n, 2)), xp.arange(n), xp.eye(n), xp.full(n, 3.0), xp.asarray([1, 2, 3])]
        for array in made:
            array[0] = 5
        return made

    for n in (3, 4):
        for one, other in zip(fuse(build)(n), build(n), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


def test_results_without_axes_are_arrays_that_can_be_written() -> None:
    def write(x: Any, number: Any) -> Any:
        copied, total, ones = xp.asarray(number, copy=True), xp.sum(x), xp.ones(())
        copied[()], name = 3, total
        name += 1  # of both names
        ones[...] = float(total)
        return copied, total, name, ones, xp.astype(number, xp.float64)

    x = np.arange(6.0)
    for number in (np.int32(2), np.array(2, np.int32)):
        assert_close(fuse(write)(x, number), write(x, number), "numbers")


def test_reshape_without_a_copy_is_a_view_or_raises() -> None:
    def write(x: Any) -> Any:
        flat = xp.reshape(x, (-1,), copy=False)
        flat[0] = 9
        return flat

    fused = fuse(write)
    for x in (np.ones((2, 3)), np.ones((4, 2))[1:]):
        other = x.copy()
        assert_close(fused(x), write(other), "view")
        assert_close(x, other, "argument")
    with pytest.raises(ValueError, match="needs a copy: the elements do not follow one another"):
        fused(np.ones((2, 3)).T)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers_have_numpys_order_in_a_trace(dtype: str) -> None:
    parts = (0.0, -0.0, 1.0, np.nan, -np.inf)
    x = np.array([complex(a, b) for a in parts for b in parts], dtype)
    y = x[::-1].copy()

    def order(x: Any, y: Any) -> Any:
        return xp.max(x), xp.min(x[:3]), x < y, x >= y, np.maximum(x, y), xp.sort(x), xp.argmax(x), np.sort(x[:8]).max()

    with np.errstate(all="ignore"):
        for one, other in zip(fuse(order)(x, y), order(x, y), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axis", [0, 1])
def test_running_results_of_complex_numbers_begin_with_the_first_element(axis: int) -> None:
    x = np.array([[complex(2, -np.inf), complex(-0.0, -0.0)], [1 + 2j, 3 - 1j]])

    def running(x: Any) -> Any:
        return xp.cumulative_prod(x, axis=axis), xp.cumulative_sum(x, axis=axis)

    first = (slice(None),) * axis + (0,)
    for found, wanted in zip(fuse(running)(x), running(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
        for part in ("real", "imag"):
            signs = np.signbit(getattr(found[first], part)), np.signbit(getattr(wanted[first], part))
            np.testing.assert_array_equal(*signs)


@pytest.mark.parametrize("function", [np.linalg.eigvals, lambda x: np.linalg.eig(x)[0]])
def test_eigenvalues_of_real_matrices_are_real_or_complex_as_numpys(function: Any) -> None:
    fused = fuse(lambda x: function(x) * 2)
    real, turned = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 1.0], [-1.0, 0.0]])
    for x in (real, turned, real.astype(np.float32), np.ones((2, 2), int), turned, real):
        found, wanted = fused(x), function(x) * 2
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
