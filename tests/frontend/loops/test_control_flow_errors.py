"""Errors of while_loop, fori_loop, scan and cond name the difference and the line; bodies must not write state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracefuse
from tests.frontend.loops.control_flow_values import Counter, X
from tracefuse import TracefuseError, fuse


class State(NamedTuple):
    x: Any
    count: Any


def body_that_writes(where: str, counter: Counter, found: list[Any]) -> Callable[[Any], Any]:
    count = 0

    def body(value: Any) -> Any:
        nonlocal count
        match where:
            case "an attribute":
                counter.count += 1
            case "an attribute's list":
                counter.history.append(1)
            case "an attribute's array":
                counter.total[0] += 1
            case "a variable":
                count += 1
            case "a list":
                found.append(value)
        return value + 1

    return body


@pytest.mark.parametrize(
    "where", ["an attribute", "an attribute's list", "an attribute's array", "a variable", "a list"]
)
@pytest.mark.parametrize(
    "loop",
    [
        lambda body, x: tracefuse.fori_loop(0, 3, lambda i, value: body(value), x),
        lambda body, x: tracefuse.while_loop(lambda value: value.sum() < 9, body, x),
        lambda body, x: tracefuse.scan(lambda value, _: (body(value), None), x, length=3)[0],
        lambda body, x: tracefuse.cond(x.sum() < 9, body, lambda value: value, x),
    ],
)
def test_a_body_that_writes_state_is_refused(loop: Any, where: str) -> None:
    counter = Counter()

    def run(x: Any) -> Any:
        return loop(body_that_writes(where, counter, []), x)

    with pytest.raises(
        tracefuse.UnsupportedError, match=r"inside the body of \w+, which (is recorded once|it does not)"
    ):
        fuse(run)(X)
    assert (counter.count, counter.history, counter.total.any()) == (0, [0], False)


@pytest.mark.parametrize("unroll", [0, -1, 2.0, "4"])
def test_an_unroll_that_is_no_count_is_refused(unroll: Any) -> None:
    message = r"(fori_loop|scan): unroll cannot be .*\n  hint: give a positive integer, or True"
    with pytest.raises(TracefuseError, match=message):
        fuse(lambda x: tracefuse.fori_loop(0, 3, lambda i, y: y, x, unroll=unroll))(X)
    with pytest.raises(TracefuseError, match=message):
        fuse(lambda x: tracefuse.scan(lambda c, y: (c, y), x[0], x, unroll=unroll))(X)


def carries_more(x: Any) -> Any:
    return tracefuse.while_loop(lambda c: c.sum() > 0, lambda c: np.concatenate([c, c]), x)


def carries_halves(x: Any) -> Any:
    return tracefuse.while_loop(lambda c: c["x"].sum() > 0, lambda c: {"x": c["x"].astype(np.float32)}, {"x": x})


def carries_less(x: Any) -> Any:
    return tracefuse.while_loop(lambda c: c[1] > 0, lambda c: State(*c), (x, 1))


def asks_many(x: Any) -> Any:
    return tracefuse.while_loop(lambda c: c > 0, lambda c: c - 1, x)


def asks_in_body(x: Any) -> Any:
    return tracefuse.fori_loop(0, 3, lambda i, c: c if c.sum() > 0 else -c, x)


def writes_outside(x: Any) -> Any:
    y = np.zeros(3)

    def body(i: Any, c: Any) -> Any:
        y[0] = 1
        return c

    return tracefuse.fori_loop(0, 3, body, x)


def leaks(x: Any) -> Any:
    seen = []

    def body(i: Any, c: Any) -> Any:
        seen.append(c * 2)
        return c + 1

    return tracefuse.fori_loop(0, 3, body, x) + seen[0]


def branches_differ(x: Any) -> Any:
    return tracefuse.cond(x.sum() > 0, lambda: x, lambda: x.astype(np.float32))


def scans_two_lengths(x: Any) -> Any:
    return tracefuse.scan(lambda c, y: (c, y[0]), 0.0, (x, np.zeros(3)))


def no_pair(x: Any) -> Any:
    return tracefuse.scan(lambda c, y: c + y, 0.0, x)


def prints(x: Any) -> Any:
    def body(i: Any, c: Any) -> Any:
        tracefuse.debug_print("{}", c)
        return c + 1

    return tracefuse.fori_loop(0, 3, body, x)


ERRORS = {
    carries_more: "while_loop: init_val is f64[7], and f64[14] after a step",
    carries_halves: "while_loop: init_val['x'] is f64[7], and f32[7] after a step",
    carries_less: "while_loop: body_fun returns State(x=*, count=*), where the carried value is (*, *)",
    asks_many: "while_loop: cond_fun returns bool[7], not one truth value",
    asks_in_body: "bool() of a traced array",
    writes_outside: "in-place change of y, test_control_flow_errors.py:",
    leaks: "a write of seen inside the body of fori_loop, which is recorded once for all steps",
    branches_differ: "cond: true_fun returns f64[7] and false_fun f32[7]",
    scans_two_lengths: "scan: 7 slices, then 3",
    no_pair: "scan: f returned Tracer, not the carried value and a result",
    prints: "a line printed inside the body of fori_loop",
}


@pytest.mark.parametrize("function", ERRORS, ids=lambda f: f.__name__)
def test_errors_name_the_difference_and_the_line(function: Callable[..., Any]) -> None:
    with pytest.raises(TracefuseError) as caught:
        fuse(function)(X)
    assert caught.value.message.startswith(ERRORS[function])
    assert "test_control_flow_errors.py" in (caught.value.where or "")
    assert caught.value.hint


def test_a_later_call_with_another_shape_raises_before_anything_runs() -> None:
    @fuse
    def shifted(x: Any, y: Any) -> Any:
        return tracefuse.fori_loop(0, 3, lambda i, c: y[1:] + c.sum(), x)

    np.testing.assert_allclose(shifted(np.zeros(3), np.ones(4)).shape, (3,))
    with pytest.raises(tracefuse.ShapeError, match="axis 0 has 3 elements, then 4") as caught:
        shifted(np.zeros(3), np.ones(5))
    assert caught.value.hint == "a step must keep the shape"
