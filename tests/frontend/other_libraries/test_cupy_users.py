"""What CuPy's users write: the keywords of `cupy.fuse`, and functions that take CuPy's arrays alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tracefuse import TraceError, UnsupportedError, fuse
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
    assert cupy_functions.modules(PACKAGE) == (like_cupy, like_cupy.linalg)


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
