"""Random programs with branches, loops, selections, checks and writes of state give what Python gives, call by call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse

STEPS = (
    "scale", "branch", "loop", "keep selected", "count", "distinct", "assign", "check", "argument", "append", "best",
    "positions", "early",
)  # fmt: skip
PLANS = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), min_size=1, max_size=5)
VALUES = st.lists(st.sampled_from([-2.5, -1.0, 0.0, 0.25, 1.0, 3.0, 40.0]), min_size=2, max_size=5)


class Program:
    """Runs the steps of a plan; its attributes are the state."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.weights, self.count, self.best = np.array(1.5), 0, 100.0
        self.log: list[Any] = []
        self.kept: Any = None

    def run(self, x: Any) -> Any:
        y = x * 1
        for step, limit in self.plan:
            if step == "scale":
                y = y * self.weights
            elif step == "branch":
                if y.mean() > limit:
                    self.count += 1
                    y = y * 0.5
                else:
                    self.weights = self.weights * 0.75
            elif step == "loop":
                while np.abs(y).max() > limit + 2:
                    y = y / 2
                    self.count += 1
            elif step == "keep selected":
                self.kept = y[y > limit] * 2
            elif step == "count":
                selected = y[y > limit]
                y = y + selected.size + selected.sum()
            elif step == "distinct":
                values, counts = np.unique(np.round(y), return_counts=True)
                self.kept = values[counts == counts.max()]
            elif step == "assign":
                y[y > limit] = np.cumsum(y[y > limit])
            elif step == "check":
                if (y > 30 + limit).any():
                    raise ValueError(f"{(y > 30 + limit).sum()} too large")
            elif step == "argument":
                x += limit
                y = y + x
            elif step == "append":
                self.log.append(y.sum())
            elif step == "best":
                if y.min() < self.best:
                    self.best = y.min()
            elif step == "positions":
                positions = np.nonzero(y > limit)[0]
                y[positions] -= 1
                if positions.size == 0:
                    self.log.append("none")
            elif step == "early" and y.sum() > limit * 3:
                return y, "early"
        return y, self.count


def same(one: Any, other: Any) -> None:
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(other, np.ndarray | np.generic | float):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
    else:
        assert one == other


def outcome(run: Callable[[Any], Any], x: Any) -> tuple[str, Any]:
    try:
        return "returned", run(x)
    except ValueError as error:
        return "raised", str(error)


def run_beside(cls: Any, plan: Any, inputs: Any) -> bool:
    """Calls a fused and a plain object on equal inputs and compares them after each call; whether none raised."""
    ours, plain, raises = cls(plan), Program(plan), False
    for x in inputs:
        arguments = copy.deepcopy(x), copy.deepcopy(x)
        before = copy.deepcopy((vars(plain), x))
        expected = outcome(plain.run, arguments[1])
        found = outcome(ours.run, arguments[0])
        assert found[0] == expected[0]
        same(found[1], expected[1])
        if expected[0] == "raised":  # nothing is written, where Python writes up to the exception
            vars(plain).update(before[0])
            arguments[1][...] = before[1]
            raises = True
        same(arguments[0], arguments[1])
        for name, value in vars(plain).items():
            same(vars(ours)[name], value)
    return not raises


@settings(max_examples=times(10), deadline=None)
@given(plan=PLANS, inputs=st.lists(VALUES, min_size=2, max_size=3))
def test_random_programs_do_what_python_does_and_known_outcomes_trace_nothing(plan: Any, inputs: Any) -> None:
    arrays = [np.array(values) for values in (*inputs, inputs[0])]
    fused: Any = fuse(target="reference")(Program.run)
    cls = type("Fused", (Program,), {"run": fused})
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        run_beside(cls, plan, arrays)
        run_beside(cls, plan, arrays)  # more numbers of the state may have become inputs
        traces = fused.cache_info().traces
        returned = run_beside(cls, plan, arrays)
    assert warned or not returned or fused.cache_info().traces == traces


@pytest.mark.parametrize("step", STEPS)
def test_each_step_alone_compiles_for_the_cpu(step: str) -> None:
    fused: Any = fuse(Program.run)
    inputs = [np.array(values) for values in ([1.0, -2.0, 3.0], [-1.0, -2.0], [4.0, 0.25, 1.0, 1.0], [1.0, -2.0, 3.0])]
    run_beside(type("Fused", (Program,), {"run": fused}), [(step, 0.5)], inputs)
