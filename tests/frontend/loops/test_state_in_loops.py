"""Attributes and entries that iterations of a recorded loop change; arrays that a loop may leave as they are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


class Momentum:
    """An optimizer, as written by hand."""

    def __init__(self) -> None:
        self.x, self.velocity = np.arange(3.0), np.zeros(3)
        self.time, self.steps, self.large = 0.0, 0, 0
        self.sums = {"x": 0.0, "squares": [0.0, 1.0]}

    def step(self, gradient: Any) -> None:
        self.velocity = gradient - self.velocity
        self.x = self.x - self.velocity
        if self.x[0] < -5:
            self.large += 1
        self.sums["x"] = self.sums["x"] + self.x.sum()
        self.sums["squares"][0] += self.x[0] * self.x[0]

    def run(self, gradient: Any, count: int) -> Any:
        for k in range(count):
            self.step(gradient)
            self.time += 0.5
            self.steps += 1
            self.last = k
        return self.x * 2


COUNTED = {"calls": 0, "sum": 0.0}
TOTAL = Momentum()


def adds_to_globals(x: Any) -> Any:
    COUNTED["calls"] += 1
    COUNTED["sum"] = COUNTED["sum"] + x
    TOTAL.steps += 1
    return x * 2


def calls_what_changes_globals(x: Any) -> Any:
    total = 0.0
    for entry in x:
        total = total + adds_to_globals(entry)
    return total


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_attributes_and_entries_that_iterations_change_are_carried(target: str) -> None:
    fused = type("Momentum", (Momentum,), {"run": fuse(Momentum.run, target=target)})()
    expected, gradient = Momentum(), np.array([1.0, 2.0, 5.0])
    for count in (20, 30):
        np.testing.assert_equal(fused.run(gradient, count), expected.run(gradient, count))
        np.testing.assert_equal(vars(fused), vars(expected))
        assert type(fused.steps) is int
    assert "range_loop" in str(fused.run.definition(gradient, 30))


def test_functions_that_loops_call_change_the_state_in_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    x, states = np.arange(20.0), []
    for function in (calls_what_changes_globals, fuse(calls_what_changes_globals, target="reference")):
        monkeypatch.setitem(globals(), "COUNTED", {"calls": 0, "sum": 0.0})
        monkeypatch.setattr(TOTAL, "steps", 0)
        states.append((function(x), copy.copy(COUNTED), TOTAL.steps))
    assert states[0] == states[1] == (380.0, {"calls": 20, "sum": 190.0}, 20)


def leaves_at_once(x: Any, y: Any) -> Any:
    z = y
    for entry in x:
        if entry > 0:
            break
        z = z + 1
    y[0] = 9
    return z


def rebinds_in_a_branch(x: Any, y: Any) -> Any:
    z, part = y, y[1:]
    for entry in x:
        if entry > 0:
            z = z + entry
    part[0] = 9
    return z


def binds_two_variables(x: Any, y: Any) -> Any:
    z = other = y
    for entry in x:
        z = other + entry
        other = z
    other[0] = 9
    return z


def may_have_no_iteration(x: Any, y: Any) -> Any:
    z = y
    for k in range(x.shape[0] - 20):
        z = z + k
    y[0] = 9
    return z


@pytest.mark.parametrize("first", [-1, 1])
@pytest.mark.parametrize(
    "function", [leaves_at_once, rebinds_in_a_branch, binds_two_variables, may_have_no_iteration],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_an_array_that_a_loop_may_leave_as_it_is_is_no_copy(function: Any, first: int) -> None:
    x = np.full(20, first)
    given, expected = np.arange(4), np.arange(4)
    np.testing.assert_equal(fuse(function, target="reference")(x, given), function(x, expected))
    np.testing.assert_equal(given, expected)
