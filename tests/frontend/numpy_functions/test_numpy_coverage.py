"""Tests every NumPy function: it equals NumPy if it records, and otherwise raises with a replacement."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.numpy_functions import numpy_samples
from tests.session.samples import in_suite
from tracefuse import fuse
from tracefuse.frontend.numpy_api.protocols.dispatch import FUNCTIONS
from tracefuse.frontend.numpy_api.protocols.ufuncs import COMPOSED, UFUNC_OPS

pytestmark = pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")

CALLS = [(name, call) for name, calls in numpy_samples.SAMPLES.items() for call in calls]
IS_OF_NEWER_NUMPY = {"matvec", "vecmat", "cumulative_prod", "cumulative_sum", "unstack", "bitwise_count"}


def dispatching(module: Any) -> dict[str, Any]:
    """Functions of a namespace that a traced array answers: ufuncs and those with `__array_function__`."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {n: f for n, f in found.items() if isinstance(f, np.ufunc) or hasattr(f, "_implementation")}


def evaluated(expression: str, arguments: dict[str, Any], fused: bool) -> Any:
    function = eval(f"lambda {', '.join(arguments)}: {expression}", {"np": np})
    if fused:
        return fuse(function, target="reference")(*arguments.values())
    with np.errstate(all="ignore"):
        return function(*(np.copy(a) for a in arguments.values()))


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
        return
    if isinstance(expected, (type, np.dtype)):
        assert found == expected
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    rounding = 2e-6 if expected.dtype in (np.float32, np.complex64) else 1e-13
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=0 if expected.dtype.kind in "biu" else rounding)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found) & (found == 0), np.signbit(expected) & (expected == 0))


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[call for _, call in CALLS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_records_gives_what_numpy_gives(name: str, call: str) -> None:
    if name in IS_OF_NEWER_NUMPY and not hasattr(np, name):
        pytest.skip(f"this NumPy has no {name}")
    arguments = {n: numpy_samples.NAMES[n] for n in numpy_samples.used(call)}
    assert_same(evaluated(call, arguments, fused=True), evaluated(call, arguments, fused=False))


def longer(name: str) -> Any:
    """A sample array with more than twice as many elements along its first axis."""
    array = numpy_samples.NAMES[name]
    return (
        np.sort(np.concatenate([array, array + 1])) if name == "S" else np.concatenate([array, array[::-1], array[:1]])
    )


METHODS = [
    "X.argsort(0)", "X.argpartition(2)", "X.cumprod(1)", "X.cumsum()", "X.argmax(1)", "X.argmin()",
    "S.searchsorted(W, 'right')",
    "(J % 3).choose([J, J * 2, 9])", "X.compress([True, False, True], 0)", "X.round(1)", "X.repeat(2, 1)",
    "Q.trace()", "X.diagonal(1)", "X.take([1, -1], 1)", "X.clip(-1, 1)", "X.swapaxes(0, 1)", "X.flatten('F')",
]  # fmt: skip


@pytest.mark.parametrize("call", METHODS)
def test_methods_give_what_numpys_give(call: str) -> None:
    arguments = {n: numpy_samples.NAMES[n] for n in numpy_samples.used(call)}
    assert_same(evaluated(call, arguments, fused=True), evaluated(call, arguments, fused=False))


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "expit", "gammaln"])
def test_ufuncs_of_scipy_that_rows_mean_record(name: str) -> None:
    special = pytest.importorskip("scipy.special")
    function = getattr(special, name)
    x = np.linspace(0.05, 0.95, 20)
    found = fuse(lambda x: function(x), target="reference")(x)
    np.testing.assert_allclose(found, function(x), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_another_size_gives_what_numpy_gives_and_is_mostly_the_same_trace() -> None:
    counted = {1: 0, 2: 0}
    for name, call in in_suite(CALLS[::2], CALLS):
        names = numpy_samples.used(call)
        function = eval(f"lambda {', '.join(names)}: {call}", {"np": np})
        try:
            with np.errstate(all="ignore"):
                expected = function(*map(longer, names))
        except (ValueError, IndexError, TypeError, AttributeError, RuntimeError):
            continue  # the other parameters do not fit the longer arrays
        fused = fuse(function, target="reference")
        fused(*(numpy_samples.NAMES[n] for n in names))
        found = fused(*map(longer, names))
        counted[fused.cache_info().traces] += 1
        if name != "argpartition":  # which leaves the order of the parts open
            assert_same(found, expected)
    assert counted[1] > 0.95 * (counted[1] + counted[2]) > 225


@pytest.mark.parametrize("statement", [s for statements in numpy_samples.CHANGES.values() for s in statements])
def test_what_changes_its_argument_changes_it_as_numpy_does(statement: str) -> None:
    arguments = {n: numpy_samples.NAMES[n] for n in {"X", *numpy_samples.used(statement)}}
    names: dict[str, Any] = {"np": np}
    exec(f"def changed({', '.join(arguments)}):\n    t = X + 0\n    {statement}\n    return t", names)
    assert_same(fuse(names["changed"], target="reference")(*arguments.values()), names["changed"](*arguments.values()))


def apply(function: Any, x: Any) -> None:
    """Calls a function of NumPy on a traced array, whatever its parameters are."""
    arguments = [x] * function.nin if isinstance(function, np.ufunc) else [function, (), (x,), {}]
    call = function if isinstance(function, np.ufunc) else x.__array_function__
    call(*arguments)


def test_every_function_has_a_sample_or_says_what_to_write() -> None:
    sampled = {*numpy_samples.SAMPLES, *numpy_samples.CHANGES}
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name, function in dispatching(module).items():
            records = function in FUNCTIONS or function in UFUNC_OPS or function in COMPOSED
            assert records == (prefix + name in sampled), prefix + name
            if records:
                continue
            with pytest.raises(tracefuse.UnsupportedError) as error:
                fuse(functools.partial(apply, function), target="reference")(numpy_samples.X)
            assert error.value.message == f"np.{prefix}{name} cannot be fused yet"
            assert error.value.hint, name
