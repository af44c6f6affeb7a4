"""Functions that ask about computed values and also write state, draw random numbers, print or get `out=`."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import TracefuseError, fuse


class EarlyStopping:
    def __init__(self) -> None:
        self.best, self.wait, self.history, self.weights = float("inf"), 0, [], np.ones(4)
        self.stopped = False

    def run(self, x: Any) -> Any:
        loss = ((x - self.weights) ** 2).mean()
        self.history.append(loss)
        if loss < self.best:
            self.best, self.wait = loss, 0
        else:
            self.wait += 1
            if self.wait >= 2:
                self.stopped = True
                self.weights *= 0.5
                return None
        self.weights = self.weights + 0.1 * (x - self.weights)
        return loss


class AdaptiveStep:
    def __init__(self) -> None:
        self.h, self.accepted, self.rejected, self.t = 0.1, 0, 0, 0.0

    def run(self, y: Any) -> Any:
        first = -y
        second = -(y + self.h * first)
        if np.abs(self.h * (second - first) / 2).max() < 1e-2:
            self.t += self.h
            self.h = self.h * 1.5
            self.accepted += 1
            return y + self.h * (first + second) / 2
        self.h /= 2
        self.rejected += 1
        return y


class Walk:
    def __init__(self) -> None:
        self.rng, self.count, self.log = np.random.default_rng(3), 0, {}

    def run(self, x: Any) -> Any:
        noise = self.rng.normal(size=x.shape)
        tracefuse.debug_print("noise {:.6f}", noise.sum())
        if noise.sum() > 0:
            self.count += 1
            more = self.rng.normal(size=4)
            if more.sum() > x.sum():
                self.log["last"] = more
            return x + noise
        self.count -= 1
        less = self.rng.uniform(size=4)
        tracefuse.debug_print("less {:.6f}", less.sum())
        return x - less


class OwnGenerators:
    def run(self, x: Any) -> Any:
        rng = np.random.default_rng(7)
        noise = rng.normal(size=4)
        if (x + noise).sum() > 0:
            other = np.random.default_rng(8)
            return x + noise + other.normal(size=4) + rng.normal(size=4)
        return x - rng.normal(size=4)


class Relaxation:
    def __init__(self) -> None:
        self.steps = 0

    def run(self, x: Any) -> Any:
        error = 10.0
        while error > 1.0:
            before = x.copy()
            x[1:-1] = 0.5 * (x[:-2] + x[2:])
            error = np.abs(x - before).max()
            self.steps += 1
        return self.steps


def same(one: Any, other: Any, path: str) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{path}[{k}]")
    elif isinstance(one, np.random.Generator):
        assert one.bit_generator.state == other.bit_generator.state, path
    elif isinstance(one, np.ndarray | np.generic | float):
        np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=path)
        assert path.startswith("result") or type(one) is type(other), path
    else:
        assert one == other
        assert type(one) is type(other), path


def printed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        result = function(*arguments)
    return result, text.getvalue()


def run_beside_python(cls: type, calls: Sequence[Any]) -> tuple[Any, int]:
    """Runs a method of a plain and of a fused object on equal arguments, and compares all that a caller can see.

    Returns the fused object and the number of traces.
    """
    fused = fuse(vars(cls)["run"])
    plain, ours = cls(), type(cls.__name__, (cls,), {"run": fused})()
    for argument in calls:
        copies = copy.deepcopy(argument), copy.deepcopy(argument)
        ours_result, ours_text = printed(ours.run, copies[0])
        result, text = printed(plain.run, copies[1])
        same(ours_result, result, "result")
        same(vars(ours), vars(plain), "state")
        same(*copies, "argument")
        assert ours_text == text
    return ours, fused.cache_info().traces


@pytest.mark.parametrize("cls", [EarlyStopping, AdaptiveStep, Walk, OwnGenerators, Relaxation])
def test_state_draws_prints_and_arguments_are_those_of_python(cls: type) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=4) * scale for scale in (1, 3, 0.1, 1, 1, 5, 0.2, 1, 1, 2, 1, 1)]
    _, traces = run_beside_python(cls, inputs)
    assert traces <= 6


def test_known_outcomes_run_no_python() -> None:
    class Counter:
        def __init__(self) -> None:
            self.up = self.down = 0

        def run(self, x: Any) -> Any:
            if x.sum() > 0:
                self.up += 1
            else:
                self.down += 1
            return x

    fused = fuse(Counter.run)
    counter: Any = type("Fused", (Counter,), {"run": fused})()
    for sign in (1, -1, 1):
        counter.run(np.ones(2) * sign)
    traces = fused.cache_info().traces
    for sign in (-1, 1, 1, -1):
        counter.run(np.ones(2) * sign)
    assert (counter.up, counter.down) == (4, 3)
    assert fused.cache_info().traces == traces


def test_an_exception_after_a_question_writes_nothing() -> None:
    class Checked:
        def __init__(self) -> None:
            self.count, self.total = 0, np.zeros(2)

        def run(self, x: Any) -> Any:
            self.count += 1
            self.total += x
            if self.total.sum() > 5:
                raise ValueError("too much")
            return self.total * 2

    fused: Any = type("Fused", (Checked,), {"run": fuse(Checked.run)})()
    fused.run(np.ones(2))
    with pytest.raises(ValueError, match="too much"):
        fused.run(np.ones(2) * 4)
    assert fused.count == 1
    np.testing.assert_array_equal(fused.total, np.ones(2))


def doubled(x: Any) -> Any:
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def test_output_buffers_are_filled_on_every_branch() -> None:
    fused = fuse(doubled)
    for sign in (1, -1, 1, -1):
        x, out = np.ones(3) * sign, np.empty(3)
        assert fused(x, out=out) is out
        np.testing.assert_array_equal(out, doubled(x))
        assert fused(x, out=x) is x
        np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize(
    "out", [np.empty(4), np.empty(3, np.float32), np.broadcast_to(np.zeros(1), (3,))], ids=["shape", "type", "memory"]
)
def test_output_buffers_that_do_not_fit_are_refused_before_the_state_is_written(out: Any) -> None:
    written = {"calls": 0}

    @fuse
    def counted(x: Any) -> Any:
        written["calls"] += 1
        return doubled(x)

    for _ in range(2):
        with pytest.raises(TracefuseError, match="out of output 0"):
            counted(np.ones(3), out=out)
    assert written["calls"] == 0


def test_a_call_without_a_question_joins_the_tree() -> None:
    @fuse
    def sometimes(x: Any, k: int) -> Any:
        return x[:k] * x.shape[0] if x.shape[0] > 4 and x.sum() > k else x.sum() + k

    for size in (6, 3, 6, 3):
        x = np.arange(size) * 1.0
        expected = x[:2] * size if size > 4 else x.sum() + 2
        np.testing.assert_allclose(sometimes(x, 2), expected)
    assert sometimes.cache_info().traces == 2
