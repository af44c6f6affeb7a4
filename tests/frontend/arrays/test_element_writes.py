"""Functions and methods that write elements: results and arguments are what NumPy leaves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import UnsupportedError, fuse
from tracefuse.frontend.numpy_api.twins import creation
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer.record.recorder import Recorder, current

STATEMENTS = """
y.flat[...] = 2
y.flat[3] = 2; y.T.flat[1] = 5
y.flat[::5] = [1, 2]
y.flat[[1, 5, 1]] = [2, 3, 4]
y.flat = [1, 2, 3]
y.flat[y.ravel() > 2] = [7, 8]
x.flat[1:] = y.flat[:-1]; y[0] = x.flat[5] + sum(x.flat[2:4])
np.fill_diagonal(x, 5)
np.fill_diagonal(x.T, [1, 2], wrap=True)
np.fill_diagonal(y, [1, 2], wrap=True)
np.put(x, [0, 2, 40, -1], [5, 6], mode="wrap"); np.put(y, [0, 50], 3, mode="clip"); y.put([[1], [2]], 8)
np.place(x, x > 2, [5, 6]); np.place(y, y > 1, -1)
np.put_along_axis(x, np.array([[1], [0], [2]]), y[:, :1], 1); np.put_along_axis(y, np.array([1, 2]), [5, 6], None)
np.add.at(x, ([0, 0, 1], [1, 1, 2]), [1, 2, 3]); np.add.at(y, (slice(None), [0, 0]), 1)
np.subtract.at(x, [0, 0], y[:2]); np.multiply.at(y, [-1, 2, 2], 2)
np.maximum.at(x, [0, 0, 1], [[3], [4], [1]]); np.minimum.at(y, np.argmax(x, 0), -3)
np.negative.at(x, [0, 0, 1]); np.sqrt.at(y, ([2, 2, 1], [1, 1, 2])); np.add.at(x, x > 1, 1); np.add.at(y, (0, 1), 1)
x[[0, 0, 1]] = y; y[[1, 1], 2:] = x[:2, :2]
x[x > 2] = x[x > 2].max(); y[y > 1] -= y[y > 1].mean()
x[:, x[0] > 1] = x[:, x[0] > 1].sum()
x[...] = np.ascontiguousarray(x.T).T + np.asfortranarray(y); np.asarray(x)[0] = 3
x.sort(); y.T.sort(); x.fill(y.max())
"""


def function_of(statement: str) -> Any:
    names: dict[str, Any] = {"np": np}
    exec(f"def function(x, y):\n    {statement}\n    return x * 1, y.sum()\n", names)
    return names["function"]


def arguments() -> tuple[Any, Any]:
    return np.arange(12.0).reshape(3, 4)[::-1] - 4, np.arange(12.0).reshape(3, 4) * 0.5


@pytest.mark.parametrize("statement", STATEMENTS.strip().splitlines())
def test_elements_are_written_as_numpy_writes_them(statement: str) -> None:
    function = function_of(statement)
    fused = fuse(function, target="reference")
    for _ in range(2):
        own, expected = arguments(), arguments()
        for made, right in zip(fused(*own), function(*expected), strict=True):
            np.testing.assert_allclose(made, right)
        for made, right in zip(own, expected, strict=True):
            np.testing.assert_allclose(made, right)


REDUCTIONS = """
x[m].sum(), x[m].prod(), x[m].mean(), x[m].std(), x[m].var(ddof=1), x[m].max(), x[m].min(), x[m].argmax(), x[m].argmin()
(x[m] > 3).any(), (x[m] > 2).all(), np.count_nonzero(x[m] > 3), np.ptp(x[m]), np.median(x[m]), np.linalg.norm(x[m])
x[m] @ y[m], np.dot(x[m], y[m]), np.average(x[m], weights=y[m]), (x[m] ** 2 + y[m]).sum(), np.nansum(x[m])
x[:, m[0]].sum(), x[:, m[0]].sum(axis=1), x[m[:, 3]].mean(axis=0), x[m[:, 3]].max(axis=0), x[m[:, 3]].max(1).sum()
x[m].sum(keepdims=True), x[m].mean(keepdims=True), x[m].sum(dtype=np.float32), x[m].sum(0), x[m[:, 3], 1:].argmin(0)
x[x > 99].sum(), x[x > 99].prod(), (x[x > 99] > 0).any()
"""


@pytest.mark.parametrize("expression", REDUCTIONS.strip().splitlines())
def test_reductions_under_a_mask_are_those_of_the_selected_elements(expression: str) -> None:
    names: dict[str, Any] = {"np": np}
    exec(f"def function(x, y):\n    m = x > 1\n    return ({expression})\n", names)
    for made, right in zip(
        fuse(names["function"], target="reference")(*arguments()), names["function"](*arguments()), strict=True
    ):
        np.testing.assert_allclose(made, right)
        assert np.asarray(made).dtype == np.asarray(right).dtype
        assert np.shape(made) == np.shape(right)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_the_largest_of_no_elements_is_an_error_as_in_numpy(target: str) -> None:
    fused = fuse(lambda x: x[x > 1].max(), target=target)
    assert fused(np.array([0.0, 2.0, 3.0])) == 3
    with pytest.raises(ValueError, match=r"no identity: the mask selects no element \(test_element_writes.py:\d+\)"):
        fused(np.zeros(3))


def test_an_argument_without_axes_is_updated_at_every_call() -> None:
    def function(x: Any, y: Any) -> Any:
        x += y.sum()
        x[...] = x * 2
        return x, y * x

    fused, x = fuse(function), np.array(1.0)
    for expected in (8, 22):
        result = fused(x, np.ones(3))
        assert result[0] is x
        assert x == expected
        np.testing.assert_array_equal(result[1], [expected] * 3)
    array = np.ones(3)
    with pytest.warns(UserWarning, match="x is changed in place and y lies in the same memory"):
        fused(array[:1].reshape(()), array)
    assert array[0] == 8
    x.flags.writeable = False
    with pytest.raises(tracefuse.ReadOnlyError, match="x, which is updated in place, is read-only"):
        fused(x, np.ones(3))


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_memory_of_an_array_is_described_as_in_numpy(order: Any) -> None:
    def function(x: Any) -> Any:
        z = x.copy()
        return (
            x.strides, x.T.strides, z[::2].strides, x.flags.c_contiguous, x.flags["F"], x.T.flags.forc, z.flags.owndata,
            z[1:].base is z, z.base is None, z.flags.writeable, isinstance(x, np.ndarray), isinstance(z, np.ndarray),
            x.ravel("K"), x.ravel("A"), z.view() + 1,
        )  # fmt: skip

    fused = fuse(function, target="reference")
    x = np.array(np.arange(12.0).reshape(3, 4), order=order)
    for made, right in zip(fused(x), function(x), strict=True):
        np.testing.assert_array_equal(made, right)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.dumps(), r"x.dumps: a traced array has no bytes \(.*\n  hint: return the array and pickle it"),
        (lambda x: x.tobytes("A"), r"x.tobytes\('A'\): a traced array has no bytes \(.*\n  hint: give the order 'C'"),
        (lambda x: x.ctypes, r"x.ctypes: a traced array has no bytes \(.*\n  hint: call the C function outside"),
        (
            lambda x: x.view(np.bool_),
            r"x.view\(bool\): a traced array has no bytes \(.*\n  hint: x.astype\(np.bool\)",
        ),
        (lambda x: x.base, r"x.base of an argument: .*\n  hint: compare arrays with np.shares_memory"),
    ],
)
def test_what_needs_memory_is_refused_with_its_line(function: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        fuse(function, target="reference")(np.ones(3))


def grids_of(n: Any, y: Any) -> Any:
    steps = np.mgrid[0:n:0.5, 0:2:3j]
    return (
        np.mgrid[0:n, 0:n] + y[0], *np.ogrid[0:n, 1:3], np.r_[0:n, 5, y, 6.5], np.c_[y, y], np.r_[y, 1:4:3j],
        np.mgrid[0:n], np.linspace(0, n, 5), steps,
    )  # fmt: skip


def test_grids_with_symbolic_bounds_and_joins_of_traced_parts() -> None:
    fused = fuse(grids_of, target="reference")
    for n in (3, 5):
        for made, right in zip(fused(n, np.arange(3.0)), grids_of(n, np.arange(3.0)), strict=True):
            np.testing.assert_allclose(made, right)
            assert made.dtype == right.dtype


def test_creation_functions_of_a_module_like_cupy_record() -> None:
    module = ModuleType("cupy_like")
    module.zeros, module.arange, module.array = np.zeros.__call__, np.arange.__call__, np.array.__call__  # type: ignore[attr-defined]
    twins = creation.twins_of(module)
    recorder = Recorder(Tracer)
    token = current.set(recorder)
    try:
        zeros, numbers, array = (twins[id(getattr(module, name))] for name in ("zeros", "arange", "array"))
        assert isinstance(zeros((2, 3)), Tracer)
        assert isinstance(numbers(4), Tracer)
        made = array([1.0, 2.0])
        made[0] = 5
        assert [node.op.name for node in recorder.builder.nodes][:2] == ["full", "iota"]
    finally:
        current.reset(token)


@pytest.mark.parametrize("name", ["maximum", "minimum", "floor_divide", "remainder", "bitwise_and", "add"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_an_integer_updates_elements_of_a_narrower_type_at_computed_positions(name: str, dtype: str) -> None:
    def function(x: Any, positions: Any) -> Any:
        result = x.copy()
        getattr(np, name).at(result, positions, 3)
        return result

    x, positions = np.arange(100, 106).astype(dtype), np.array([0, 1, 1, -1, 5])
    result = fuse(function, target="reference")(x, positions)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, function(x, positions))
