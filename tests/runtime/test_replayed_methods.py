"""Tests fused functions whose calls run without Python code: they count, and go back to Python for any other call."""

from __future__ import annotations

import inspect
import sys
import traceback
import weakref
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse
from tracefuse.errors import TraceError
from tracefuse.kernel.llvm.replay_records import can_replay

pytestmark = pytest.mark.skipif(not can_replay(), reason="arrays or references have another layout")

X = np.arange(12.0).reshape(3, 4)


def doubled() -> Any:
    function = fuse(lambda x, y: x * 2 + y, target="cpu")
    for _ in range(5):
        function(X, X)
    return function


def test_calls_without_python_code_are_counted_and_leave_no_references() -> None:
    function = doubled()
    assert not inspect.isfunction(type(function).__call__)
    before, kept = function.cache_info(), [sys.getrefcount(e) for e in (X, function, function._cache)]
    for _ in range(100):
        np.testing.assert_array_equal(function(X, X), X * 3)
    after = function.cache_info()
    assert (after.traces, after.compiles, after.hits) == (before.traces, before.compiles, before.hits + 100)
    assert kept == [sys.getrefcount(e) for e in (X, function, function._cache)]
    function.cache_clear()
    assert function.cache_info().hits == 0


def test_other_calls_go_to_python() -> None:
    function = doubled()
    row = np.zeros_like(X)
    with tracefuse.options(threads=1):
        np.testing.assert_array_equal(function(X, X), X * 3)
    for result in (
        function(X, y=X), function.__call__(X, X), type(function).__call__(function, X, X), function(X, X, out=row),
        function(X.astype(np.float32), X), function(np.repeat(X, 2, 1)[:, ::2], X),
    ):  # fmt: skip
        np.testing.assert_array_equal(result, X * 3)
    for arguments in ((X,), (X, X, X), ()):
        with pytest.raises(TraceError):
            function(*arguments)


class Settings:
    sign = "plus"


TABLE = {"order": "first"}


def test_state_that_a_function_reads_is_compared_at_each_call() -> None:
    settings = Settings()
    helper: Any = np.negative

    def formula(x: Any) -> Any:
        result = helper(x) if TABLE["order"] == "first" else x * 3
        return result if settings.sign == "plus" else -result

    function = fuse(formula, target="cpu")
    for _ in range(5):
        function(X)
    assert function._cache.direct is not None
    hits = function._cache.hits
    np.testing.assert_array_equal(function(X), formula(X))
    assert function._cache.hits == hits  # no Python code ran
    try:
        for function_of_numpy in (np.square, np.negative):
            helper = function_of_numpy
            for TABLE["order"] in ("last", "first"):
                for settings.sign in ("minus", "plus", "".join(("pl", "us"))):
                    np.testing.assert_array_equal(function(X), formula(X))
        del settings.sign
        np.testing.assert_array_equal(function(X), formula(X))
        del TABLE["order"]
        with pytest.raises(KeyError):
            function(X)
    finally:
        TABLE["order"] = "first"


def test_a_call_inside_of_a_trace_is_recorded() -> None:
    factor = 2

    def doubled_rows(x: Any) -> Any:
        return x * factor

    inner = fuse(doubled_rows, target="cpu")
    outer = fuse(lambda x: inner(X) + x, target="cpu")
    for _ in range(5):
        np.testing.assert_array_equal(inner(X), X * 2)
    np.testing.assert_array_equal(outer(X), X * 3)
    factor = 4
    np.testing.assert_array_equal(outer(X), X * 5)


def test_an_index_out_of_range_raises_without_frames_of_tracefuse() -> None:
    function = fuse(lambda x, k: x[k], target="cpu")
    for _ in range(5):
        function(X, np.array([0, 2]))
    with pytest.raises(IndexError) as caught:
        function(X, np.array([0, 7]))
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 1


def test_functions_are_freed_and_several_results_stay_several() -> None:
    function, two = doubled(), fuse(lambda x: (x + 1, x - 1), target="cpu")
    for _ in range(5):
        first, second = two(X)
        np.testing.assert_array_equal(first - second, np.full_like(X, 2))
    freed = weakref.ref(function)
    del function
    assert freed() is None
