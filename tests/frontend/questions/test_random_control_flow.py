"""Random control flow over computed values gives what Python gives: ten calls of each function with other data."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_programs.random_control_flow import random_function
from tests.session.samples import times
from tracefuse import fuse

VALUES = np.array([-4.0, -1.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0])


class State:
    """The state that the functions read and write."""

    def __init__(self) -> None:
        self.calls, self.last, self.weights = 0, 0.0, np.array(0.5)
        self.log: list[Any] = []


def same(one: Any, other: Any) -> None:
    if isinstance(other, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
        return
    np.testing.assert_array_equal(one, other)
    assert np.asarray(one).dtype == np.asarray(other).dtype
    assert isinstance(one, np.generic | np.ndarray) == isinstance(other, np.generic | np.ndarray)


def outcome(run: Any, *arguments: Any, **keywords: Any) -> tuple[str, Any, str]:
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        try:
            return "returned", run(*arguments, **keywords), lines.getvalue()
        except (ValueError, AssertionError, IndexError) as error:
            return type(error).__name__, error.args if type(error) is ValueError else None, ""


def run_beside(seed: int, target: str, with_state: bool, calls: int = 10) -> None:
    """Calls a function and its fused copy with the same data, and compares results, arguments, state and output."""
    function, text = random_function(seed)
    fused: Any = fuse(function, target=target)
    data = np.random.default_rng(seed)
    state_of_fused = type("FusedState", (State,), {"run": fused})
    ours, plain = state_of_fused(), State()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(calls):
            x = data.choice(VALUES, size=3 + call % 2)
            if not with_state:
                ours, plain = state_of_fused(), State()
            before, arguments = copy.deepcopy(plain), (x.copy(), x.copy())
            expected = outcome(function, plain, arguments[1])
            into = {"out": (np.empty_like(x), None)} if call % 3 == 2 and expected[0] == "returned" else {}
            found = outcome(ours.run, arguments[0], **into)
            try:
                assert found[0] == expected[0], (found, expected)
                if expected[0] == "returned":
                    same(found[1], expected[1])
                    same(arguments[0], arguments[1])
                    assert found[2] == expected[2]
                    assert not into or found[1][0] is into["out"][0]
                else:  # nothing is written, where Python writes up to the exception
                    plain = before
                    same(arguments[0], x)
                for name, value in vars(plain).items():
                    same(getattr(ours, name), value)
            except AssertionError as error:
                raise AssertionError(f"call {call} of\n{text}\nx = {x!r}\n{error}") from error


@settings(max_examples=times(8), deadline=None)
@given(seed=st.integers(0, 10**6), with_state=st.booleans())
def test_random_functions_do_what_python_does(seed: int, with_state: bool) -> None:
    run_beside(seed, "reference", with_state)


@pytest.mark.parametrize("seed", range(2))
def test_compiled_functions_do_what_python_does(seed: int) -> None:
    run_beside(seed, "auto", with_state=True, calls=6)
