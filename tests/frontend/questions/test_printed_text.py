"""`print`, `str`, f-strings and the arguments of exceptions in a fused function: the text that Python makes."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fori_loop, fuse

HISTORY: list[Any] = []


def arrays_and_numbers(x: Any) -> Any:
    print("start", x.shape, len(x), x.dtype)
    largest = x.max()
    print("largest", largest, x[0], sep=" | ")
    print(x, [largest, x[1]], {"a": largest}, (1, 2.5, None), end="!\n")
    print(float(largest), int(largest), bool(largest > 0), x > 0)
    return x * 2


def types_of_numbers(x: Any) -> Any:
    y = x.astype(np.float32)
    print(y[0], y, x.astype(int).sum(), (x > 0).any(), np.float32(0.1), [y[0], y.max() * 1j])
    return y


def steps_of_a_loop(x: Any) -> Any:
    k = 0
    while x.max() > 0.5:
        x, k = x * 0.5, k + 1
        print(f"step {k}: {x.max():.3f}")
    print("done after", k)
    return x


def values_before_a_write(x: Any) -> Any:
    y = x.copy()
    print(y)
    y += 1
    print(y[:2])
    y[0] = 7
    return y


def branches(x: Any) -> Any:
    if x.sum() > 0:
        print("positive")
        return x
    print("negative", x.min())
    return -x


def state(x: Any) -> Any:
    HISTORY.append(x.max())
    print(HISTORY[-1], len(HISTORY))
    return x


def text_of_several(x: Any) -> Any:
    print(f"{x[0]:.2f} {x[0]} {x} {x.shape} {len(x)}", str(x), str(x[1]))
    return x


PRINTING = [
    arrays_and_numbers, types_of_numbers, steps_of_a_loop, values_before_a_write, branches, state, text_of_several,
]  # fmt: skip


def printed(function: Callable[[Any], Any], x: Any) -> str:
    HISTORY.clear()
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many texts
        function(x.copy())
    return lines.getvalue()


def inputs() -> list[Any]:
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=size) for size in (3, 3, 4, 3, 2)]
    return [*arrays, *arrays[:2]]


@pytest.mark.parametrize("function", PRINTING)
@pytest.mark.parametrize("target", ["auto", "reference"])
def test_each_call_prints_what_python_prints(function: Callable[[Any], Any], target: str) -> None:
    fused = fuse(function, target=target)
    for x in inputs():
        assert printed(fused, x) == printed(function, x)


def texts(x: Any) -> Any:
    return str(x), str(x.max()), f"{x[0]:.3f}|{x}|{x[1]}", f"{x.shape[0]} {x.shape}", " ".join(map(str, x))


@pytest.mark.filterwarnings("ignore:.*had more than 4 values")
def test_texts_are_results() -> None:
    fused = fuse(texts)
    for x in inputs():
        assert fused(x) == texts(x)


def test_lists_and_membership() -> None:
    def listed(x: Any) -> Any:
        return x.tolist(), np.outer(x, x).tolist(), 1.0 in x, -9.0 in x

    fused = fuse(listed)
    for x in ([1.0, 2.0], [3.0, 4.0], [3.0, 1.0]):
        assert fused(np.array(x)) == listed(np.array(x))
    assert fused.cache_info().traces == 2


def test_exceptions_have_the_numbers_of_the_call() -> None:
    def checked(x: Any) -> Any:
        if x[0] > 1:
            raise KeyError(float(x[0]), x[1], x.shape[0])
        return x

    fused = fuse(checked)
    for x in (np.array([0.5, 1.0]), np.array([2.5, 1.0]), np.array([3.5, 2.0, 1.0])):
        if x[0] > 1:
            with pytest.raises(KeyError) as raised:
                fused(x)
            assert raised.value.args == (x[0], x[1], x.size)
        else:
            np.testing.assert_array_equal(fused(x), x)


def test_a_line_printed_in_a_body_names_what_to_write() -> None:
    def body(i: Any, c: Any) -> Any:
        print(c)
        return c + 1

    with pytest.raises(UnsupportedError, match=r"line printed inside the body of fori_loop.*\n.*after the loop"):
        fuse(lambda x: fori_loop(0, 3, body, x))(np.ones(2))
