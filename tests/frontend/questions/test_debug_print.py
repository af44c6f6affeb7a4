"""Tests `debug_print`: run-time values, in the order of the source."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import TraceError, debug_print, fuse
from tracefuse.logs import LOGGER

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_values_are_those_of_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse
    def scaled(x: Any, k: Any) -> Any:
        y = x * k
        debug_print("sum {} of {} rows times {}, {!r}", y.sum(), x.shape[0], k, "text")
        return y + 1

    for array, factor in ((X, 2), (X[:1], 3), (X, 4.5)):
        np.testing.assert_array_equal(scaled(array, factor), array * factor + 1)
    assert capsys.readouterr().out.splitlines() == [
        "sum 30.0 of 2 rows times 2, 'text'",
        "sum 9.0 of 1 rows times 3, 'text'",
        "sum 67.5 of 2 rows times 4.5, 'text'",
    ]
    assert scaled.cache_info().traces == 3


def test_arrays_print_as_numpy_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    captured = np.array([1.0, 2.0, 3.0])

    def both(x: Any) -> None:
        debug_print("{0}\n{1} {0}", x, captured)
        debug_print("{1} {0[0]}", x, x[0, 1])

    both(X)
    expected = capsys.readouterr().out
    fuse(both)(X)
    assert capsys.readouterr().out == expected
    assert expected.startswith(f"{X}\n[1. 2. 3.] [[0.")
    with tracefuse.options(eager=True):
        fuse(both)(X)
    assert capsys.readouterr().out == expected
    fuse(both, target="reference")(X)
    assert capsys.readouterr().out == expected


def test_a_value_that_is_changed_in_place_later_prints_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse
    def update(x: Any) -> Any:
        debug_print("before {}", x[0])
        x += 1
        y = x * 2
        debug_print("between {} {}", x[0], y[0])
        y *= 0
        return y

    x = X.copy()
    np.testing.assert_array_equal(update(x), X * 0)
    np.testing.assert_array_equal(x, X + 1)
    assert capsys.readouterr().out == "before [0. 1. 2.]\nbetween [1. 2. 3.] [2. 4. 6.]\n"


def test_lines_come_between_the_segments_in_the_order_of_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse(debug=1)
    def model(x: Any, w: Any) -> Any:
        y = np.exp(x)
        debug_print("first {}", y[0, 0])
        z = y @ w
        debug_print("second {}", z.shape[1])
        debug_print("third {}", z[0, 0])
        return z.sum()

    handler = logging.StreamHandler(sys.stdout)
    LOGGER.addHandler(handler)
    try:
        model(X, np.ones((3, 4), np.float32))
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(logging.NOTSET)
    lines = [line.partition(" ran")[0] for line in capsys.readouterr().out.splitlines()]
    order = [line for line in lines if "model" not in line]
    words = ("first", "second", "third", "(library)")
    first, second, third, library = (next(k for k, line in enumerate(order) if word in line) for word in words)
    assert order[first] == "first 1.0"
    assert order[second] == "second 4"
    assert order[third].startswith("third 11.107")
    assert first < library < third
    assert first < second < third


def test_results_go_into_out_and_trees_as_without(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse
    def pair(x: Any) -> Any:
        debug_print("{}", x.max())
        return {"a": x + 1, "b": (x, 3)}

    out = pair(X)
    assert out["b"] == (X, 3) or out["b"][0] is X
    memory = np.empty_like(X)
    assert pair.into({"a": memory, "b": (None, None)}, X)["a"] is memory
    np.testing.assert_array_equal(memory, X + 1)
    assert capsys.readouterr().out == "5.0\n5.0\n"


def test_trees_of_values_print_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    def trees(x: Any) -> Any:
        debug_print("{} {} {} {}", x.shape, {"max": x.max(), "none": None}, [x[0, 1], "s", (2,)], ())
        return x + 1

    fuse(trees)(X)
    expected = "(2, 3) {'max': 5.0, 'none': None} [1.0, 's', (2,)] ()\n"
    assert capsys.readouterr().out == expected
    trees(X)
    assert capsys.readouterr().out == expected


def test_a_function_that_computes_nothing_prints(capsys: pytest.CaptureFixture[str]) -> None:
    fused = fuse(lambda x: debug_print("rows: {}", x.shape[0]))
    assert fused(X) is None
    assert fused(np.ones((7, 2))) is None
    assert capsys.readouterr().out == "rows: 2\nrows: 7\n"


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("{} {}", "debug_print: '{} {}' takes 2 values, got 1"),
        ("{3}", "debug_print: '{3}' takes 4 values, got 1"),
        ("{x}", "debug_print: '{x}' names 'x'"),
        ("{", "debug_print: '{': Single '{' encountered in format string"),
    ],
)
def test_formats_are_checked_while_recording(format: str, message: str) -> None:
    line = sys._getframe().f_lineno + 3
    for eager in (False, True):
        with pytest.raises(TraceError) as error:
            fuse(lambda x: debug_print(format, x), eager=eager)(X)
        assert str(error.value) == (
            f"{message} (test_debug_print.py:{line})\n"
            "  hint: write one {} for each value, as in debug_print('x is {}', x)"
        )
