"""What CuPy's users write: the keywords of `cupy.fuse`, and functions that take CuPy's arrays alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tracefuse import ShapeDtype, TraceError, UnsupportedError, fuse
from tracefuse.frontend import frontends, tracing
from tracefuse.frontend.numpy_api.twins import cupy_functions
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer.record.recorder import Recorder, current

X = np.arange(6.0).reshape(2, 3)
PACKAGE = "cupy_like"


def insisting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes ndarrays of its own package alone, as those of CuPy."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        for value in arguments:
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if not isinstance(one, (int, str)) and type(one) is not np.ndarray:
                    raise TypeError(f"Unsupported type {type(one)}")
        return function(*arguments, **keywords)

    return call


@pytest.fixture
def like_cupy() -> Iterator[Any]:
    """A package with functions like those of CuPy."""
    package, algebra = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.linalg")
    for name in ("concatenate", "real", "imag", "round", "all", "any", "copyto", "stack", "sum", "roll", "unique"):
        setattr(package, name, insisting(getattr(np, name)))
    algebra.norm, package.linalg = insisting(np.linalg.norm), algebra  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, PACKAGE, package)
        patch.setitem(sys.modules, f"{PACKAGE}.linalg", algebra)
        yield package


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "concatenate": lambda module, x: module.concatenate([x, x * 2], axis=1),
    "stack": lambda module, x: module.stack((x, x)),
    "real": lambda module, x: module.real(x),
    "imag": lambda module, x: module.imag(x),
    "round": lambda module, x: module.round(x, 1),
    "all": lambda module, x: module.all(x),
    "any": lambda module, x: module.any(x, axis=0),
    "sum": lambda module, x: module.sum(x, axis=1, keepdims=True),
    "roll": lambda module, x: module.roll(x, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_insist_on_their_own_arrays_record(name: str, like_cupy: Any) -> None:
    twins = cupy_functions.function_twins(PACKAGE)
    recording = ModuleType("recording")
    for one, original in vars(like_cupy).items():
        if id(original) in twins:
            setattr(recording, one, twins[id(original)])

    def function(x: Any) -> Any:
        return CALLS[name](recording, x)

    np.testing.assert_array_equal(fuse(function, target="reference")(X), CALLS[name](np, X))


def test_their_twins_leave_arrays_of_the_package_to_it(like_cupy: Any) -> None:
    twins = cupy_functions.function_twins(PACKAGE)
    np.testing.assert_array_equal(twins[id(like_cupy.concatenate)]([X, X]), np.concatenate([X, X]))
    norm = twins[id(like_cupy.linalg.norm)]
    assert norm(X) == np.linalg.norm(X)
    loaded = [sys.modules[name] for name in cupy_functions.module_names(PACKAGE) if name in sys.modules]
    assert loaded == [like_cupy, like_cupy.linalg]


class UfuncLikeCupys:
    """A ufunc with methods that take arrays of their own package alone."""

    nargs = 3

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self.outer, self.at, self.identity = insisting(ufunc.outer), insisting(ufunc.at), ufunc.identity

    def __call__(self, *arguments: Any) -> Any:
        return self._ufunc(*arguments)


def test_methods_of_ufuncs_and_scattered_updates_record(like_cupy: Any) -> None:
    scatter, matmul = ModuleType(f"{PACKAGE}x"), insisting(np.matmul)
    scatter.scatter_add = original = insisting(lambda a, slices, value: np.add.at(a, slices, value))  # type: ignore[attr-defined]
    like_cupy.add, like_cupy.matmul = UfuncLikeCupys(np.add), matmul
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, f"{PACKAGE}x", scatter)
        twins = cupy_functions.function_twins(PACKAGE)
    add, scatter_add, product = twins[id(like_cupy.add)], twins[id(original)], twins[id(matmul)]

    def function(x: Any, positions: Any) -> Any:
        y, z = x * 1, x * 1
        add.at(y, positions, x[:1])
        scatter_add(z, positions, 2)
        return add(x, 1), add.outer(x, x), product(x, x.T), y, z

    positions = np.array([1, 1, 0])
    made = fuse(function, target="reference")(X, positions)
    right = X + 1, np.add.outer(X, X), X @ X.T, X + X[:1] * [[1], [2]], X + np.array([[2], [4]])
    for mine, one in zip(made, right, strict=True):
        np.testing.assert_array_equal(mine, one)
    np.testing.assert_array_equal(add.outer(X, X), right[1])
    assert add.identity == 0
    y = X.copy()
    scatter_add(y, positions, 2)
    np.testing.assert_array_equal(y, right[4])


class ArrayOfCupy:
    """The class that stands for `cupy.ndarray`, of a library."""

    __module__ = "numpy"


@pytest.mark.parametrize("device", [None, 0])
def test_traced_values_have_the_classes_of_the_library_of_the_call(device: int | None, like_cupy: Any) -> None:
    def function(x: Any, s: Any) -> Any:
        xp = cupy.get_array_module(x)
        is_of = (isinstance(x, np.ndarray), isinstance(x, ArrayOfCupy), type(x) is ArrayOfCupy, xp is np, xp is cupy)
        before = s
        s += 1
        return x * (100 + sum(2**k for k, answer in enumerate((*is_of, isinstance(s, np.float64))) if answer)) + before

    cupy = like_cupy
    cupy.ndarray, cupy.__name__, cupy.get_array_module = ArrayOfCupy, "cupy", lambda *arrays: np
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setattr(frontends, "trace", lambda *a, **k: tracing.trace(*a, **{**k, "device": device}))
        text = str(fuse(function).definition(ShapeDtype((2, 3), np.float64), np.float64(3)))
    assert f"mul(T0, {100 + (0b101001 if device is None else 0b110110)})" in text
    assert "S1)" in text.splitlines()[-2]


def test_get_names_what_to_write_on_a_gpu() -> None:
    recorder = Recorder(Tracer)
    recorder.device = 0
    token = current.set(recorder)
    try:
        traced = recorder.capture(np.ones(3))
        with pytest.raises(
            UnsupportedError, match=r"x.get\(\) cannot be fused yet.*\n  hint: return the array and call get"
        ):
            traced.get()
    finally:
        current.reset(token)
    with pytest.raises(AttributeError):
        fuse(lambda x: x.get())(X)


def test_the_keywords_of_cupys_fuse() -> None:
    @fuse(kernel_name="scaled_sum")
    def function(x: Any) -> Any:
        return x * 2 + 1

    np.testing.assert_array_equal(function(X), X * 2 + 1)
    function.clear_cache()
    assert function.cache_info() == (0, 0, 0)
    np.testing.assert_array_equal(fuse()(lambda x: x + 1)(X), X + 1)
    with pytest.raises(TraceError, match="kernel_name cannot be 3"):
        fuse(kernel_name=3)(lambda x: x)


FACTOR = 2.0


def scaled(module: Any, x: Any) -> Any:
    out = module.zeros(3)
    out[...] = x[0] * FACTOR
    return out


def test_a_module_and_a_function_that_are_arguments_are_traced_as_those_of_the_state() -> None:
    def function(xp: Any, function: Any, x: Any) -> Any:
        return function(xp, xp.concatenate([x, x])), xp is np

    fused = fuse(function)
    with pytest.MonkeyPatch.context() as patch:
        for factor in (2.0, 3.0):
            patch.setitem(globals(), "FACTOR", factor)
            result, is_numpy = fused(np, scaled, X)
            assert is_numpy
            np.testing.assert_array_equal(result, X[0] * factor)
    assert fused.cache_info().traces <= 2
