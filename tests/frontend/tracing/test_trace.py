"""Tests tracers: messages word for word, sizes, and in-place operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse

A = np.arange(6.0).reshape(2, 3)

SOURCE = """
def f(x, y):
    h = x * 2
    return h + y
def mask(x): return x[x > 0]
def assign(x):
    x[0] = x
def iterate(x): return [r for r in x.sum()]
def length(x): return len(x.sum())
"""
NAMES: dict[str, Any] = {}
exec(compile(SOURCE, "/some/where/model.py", "exec"), NAMES)


def message(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(target="reference")(function)(*arguments)
    return str(error.value)


def test_extents_that_differ_are_named_with_their_values_and_lines() -> None:
    assert message(NAMES["f"], np.ones((2, 4)), np.ones((2, 5))) == (
        "add: extents differ on axis 1: 4 (h, model.py:3) and 5 (y, model.py:2) (model.py:4)\n"
        "  hint: broadcasting needs one of them to be 1"
    )


def test_the_size_of_a_mask_without_elements_says_so() -> None:
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(NAMES["mask"]).definition(tracefuse.ShapeDtype(A.shape, A.dtype))
    assert str(error.value) == (
        "the size of indexing with a boolean mask: a ShapeDtype has no elements to compute it from (model.py:5)\n"
        "  hint: give arrays: the function runs on them up to its result, and writes nothing"
    )


def test_an_assigned_value_that_does_not_fit_is_refused_with_the_users_line() -> None:
    assert message(NAMES["assign"], A) == (
        "could not broadcast a value with 2 axes into 1 (model.py:7)\n"
        "  hint: assign a value of the shape of what is selected"
    )


def test_iteration_and_length_need_an_axis() -> None:
    hint = "\n  hint: write np.atleast_1d(x)"
    assert message(NAMES["iterate"], A) == f"iteration over a traced array without axes (model.py:8){hint}"
    assert message(NAMES["length"], A) == f"len() of a traced array without axes (model.py:9){hint}"


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (lambda x: 1 if x > 0 else 2, "bool() of a traced array, which depends on x (test_trace.py:"),
        (lambda x: float(x), "float() of a traced array, which depends on x (test_trace.py:"),
        (lambda x: int(x), "int() of a traced array, which depends on x (test_trace.py:"),
        (lambda x: x.item(), "can only convert an array of size 1 to a Python scalar, not one of 6 elements "),
        (lambda x: np.asarray_chkfinite(x), "np.asarray_chkfinite() of a traced array, which depends on x (test_trace"),
        (lambda x: np.tile(x, 20).tolist(), "tolist() of a traced array, which depends on x (test_trace.py:"),
        (lambda x: np.apply_along_axis(print, 0, x), "np.apply_along_axis cannot be fused: an argument is a f"),
        (lambda x: x.dumps(), "x.dumps: a traced array has no bytes (test_trace.py:"),
        (lambda x: np.add.reduceat(x, [0], out=x), "an in-place operation changes axis 0 from 2 to 1 (test_trace.py:"),
        (lambda x: x.reshape(4, -1), "reshape: the elements do not fill rows of 4: 2 are left over (test_trace.py:"),
        (lambda x: x.reshape(7), "reshape: 6 elements do not fill a shape of 7 (test_trace.py:"),
        (lambda x: x.sum(2), "axis 2 is out of range for 2 axes (test_trace.py:"),
        (lambda x: x[0, 5], "index 5 is out of bounds for axis 1 with extent 3 (test_trace.py:"),
        (lambda x: x[-3], "index -3 is out of bounds for axis 0 with extent 2 (test_trace.py:"),
        (lambda x: x[0, 0, 0], "too many indices: 3 for 2 axes (test_trace.py:"),
        (lambda x: x.squeeze(0), "squeeze: axis 0 has extent 2 (test_trace.py:"),
        (lambda x: np.concatenate([x, x.T]), "cat: extents differ on axis 1: 3 (x, test_trace.py:"),
        (lambda x: np.where(x > 0, x), "np.where has one of x and y (test_trace.py:"),
        (lambda x: x[1.5], "1.5 of type float is not an index (test_trace.py:"),
        (lambda x: np.split(x, 2, 1), "split: axis 1 does not divide into 2 equal parts: 1 elements are left over"),
        (lambda x: -(x > 0), "negative does not take bool: operands bool (test_trace.py:"),
        (lambda x: x.astype(np.int8) + 1000, "Python integer 1000 out of bounds for int8 (test_trace.py:"),
        (lambda x: x.astype("U3"), "dtype 'U3' is not supported"),
        (lambda x: np.sum(x, where=x > 0, axis=5), "axis 5 is out of range for 2 axes (test_trace.py:"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_says_so(function: Callable[..., Any], start: str) -> None:
    assert message(function, A).startswith(start)


@pytest.mark.parametrize("key", [(0, 5), -3, (0, 0, 0)])
def test_an_index_outside_is_an_index_error_at_every_call(key: Any) -> None:
    taken = fuse(target="reference")(lambda x: x[key])
    with pytest.raises(IndexError):
        taken(A)
    with pytest.raises(IndexError):
        A[key]
    last = fuse(target="reference")(lambda x: x[1])
    assert np.array_equal(last(A), A[1])
    with pytest.raises(IndexError, match="index 1 is out of bounds for axis 0"):
        last(A[:1])


def test_an_empty_maximum_raises_before_anything_runs() -> None:
    f = fuse(target="reference")(lambda x: x.max(0))
    f(A)
    with pytest.raises(tracefuse.ShapeError, match="max: axis 0 is empty"):
        f(np.ones((0, 3)))


def test_a_leaked_tracer_says_so() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()  # a class written in C: the trace sees the real object

    def f(x: Any) -> Any:
        queue.put(x * 3)
        return x * 2

    fused = fuse(target="reference")(f)
    left = r"^a traced value is left in a \w+, which no later call writes \(test_trace.py:\d+\)\n  hint: keep it"
    with pytest.raises(tracefuse.TraceError, match=left):
        fused(A)
    assert fused.cache_info().traces == 0
    leaked = queue.get()
    with pytest.raises(tracefuse.TraceError) as error:
        leaked + 1
    assert str(error.value).startswith("a traced value of f is used after its trace ended (test_trace.py:")
    assert repr(leaked) == "tracer v1 (its trace has ended)"


def test_the_representation_is_that_of_the_elements() -> None:
    seen: list[str] = []
    fuse(target="reference")(lambda x: seen.append(repr(x[:, :2] * 2)) or x)(A.astype(np.float32))
    assert seen == [repr(A.astype(np.float32)[:, :2] * 2)]


def test_frames_of_tracefuse_do_not_hide_the_users_line() -> None:
    try:
        fuse(NAMES["length"])(A)
    except tracefuse.TraceError as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        assert trace.tb_frame.f_code.co_filename == "/some/where/model.py"


# -- in place ---------------------------------------------------------------------------------------------------------


def test_an_intermediate_changes_in_place_for_every_name() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        z = y
        y += 1
        y *= x
        np.subtract(y, 3, out=y)
        return z

    np.testing.assert_array_equal(fuse(target="reference")(f)(A), f(A.copy()))


def test_in_place_keeps_the_type_and_the_shape() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * 1
        z += y
        return z

    fused = fuse(target="reference")(f)
    x = A.astype(np.float32)
    assert fused(x, A).dtype == np.float32
    assert message(f, A.astype(int), A).startswith("an in-place operation gives float64, which does not go into int64")
    assert message(f, A[0], A).startswith("an in-place operation on 1 axes gives 2")


def test_a_change_is_seen_through_views_and_by_what_they_were_taken_from() -> None:
    def view_of_argument(x: Any) -> Any:
        y = x.T
        y += 1
        return y

    def viewed(x: Any) -> Any:
        y = x * 2
        z = y[0]
        y += 1
        return z

    def view(x: Any) -> Any:
        y = x * 2
        z = y.reshape(-1)
        z += 1
        return y

    def dead_view(x: Any) -> Any:
        y = (x * 2).T
        y += 1
        return y

    for function in (view_of_argument, viewed, view, dead_view):
        own, expected = A.copy(), A.copy()
        np.testing.assert_array_equal(fuse(target="reference")(function)(own), function(expected))
        np.testing.assert_array_equal(own, expected)


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_arithmetic_of_sizes_stays_symbolic() -> None:
    def f(x: Any) -> Any:
        n, m = x.shape
        return n + m, n - m, n * m, (n + 5) // 2, (n * m) % 4, 2 * n + 1, -n, n / m, n * 0.5, n**2, x * (n / 4), m**0.5

    fused = fuse(target="reference")(f)
    for shape in ((2, 3), (5, 7), (4, 4)):
        x = np.ones(shape)
        for found, expected in zip(fused(x), f(x), strict=True):
            np.testing.assert_allclose(found, expected)
            assert type(found) is type(expected)
    assert fused.cache_info().traces == 1


def test_comparisons_of_sizes_guard_their_outcome() -> None:
    f = fuse(target="reference")(lambda x: (x.shape[0] < 4, x.shape[0] == x.shape[1], bool(x.shape[0] - 2)))
    for shape in ((2, 3), (3, 5), (3, 4), (5, 5), (6, 6)):
        n, m = shape
        assert f(np.ones(shape)) == (n < 4, n == m, n != 2)
    assert f.cache_info().traces == 3


def test_what_needs_the_number_guards_the_value() -> None:
    for function in (
        int,
        hash,
        float,
        range,
        math.sqrt,
        lambda n: {n: 1},
        lambda n: [0] * n,
        lambda n: f"{int(n)}",
    ):
        f = fuse(target="reference")(lambda x, function=function: x * len(str(function(x.shape[0]))))
        for n in (3, 4, 3):
            f(np.ones((n, 2)))
        assert f.cache_info().traces == 2


def test_a_size_under_numpys_functions_is_a_weak_scalar() -> None:
    f = fuse(target="reference")(lambda x: x / np.sqrt(x.shape[-1]))
    x = A.astype(np.float32)
    assert f(x).dtype == np.float32
    np.testing.assert_allclose(f(x), x / 3**0.5, rtol=1e-6)
    f(np.ones((2, 9), np.float32))
    assert f.cache_info().traces == 1


def test_a_float_argument_under_numpys_functions_promotes_as_in_numpy() -> None:
    def f(x: Any, rate: float) -> Any:
        return x * np.exp(rate)

    x = A.astype(np.float32)
    assert fuse(target="reference")(f)(x, 0.5).dtype == f(x, 0.5).dtype == np.float64
