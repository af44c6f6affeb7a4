"""Tests that calls which read and write state stay on the fast path where they can, and leave it where they must."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import dtypes, fuse, options
from tracefuse.frontend.calls.call import Signature
from tracefuse.frontend.tracer.values.host_numbers import (
    ComputedNumber,
    ConstantNumber,
    ExtentNumber,
    FactNumber,
    HostNumber,
    compiled,
)
from tracefuse.ir.extents import input_extent
from tracefuse.ops import REGISTRY, Pointwise

X = np.arange(4.0)


class Counter:
    """State that methods and functions change."""

    def __init__(self) -> None:
        self.weight, self.count, self.level = np.ones(4), 0, 0.5

    @fuse
    def step(self, x: Any) -> Any:
        self.count += 1
        self.level = self.level / 2 + 1
        return x * self.weight + self.level


@pytest.fixture
def in_full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts calls that are flattened in full."""
    calls: list[int] = []
    flatten = Signature.flatten_call
    monkeypatch.setattr(Signature, "flatten_call", lambda *given: calls.append(1) or flatten(*given))
    return calls


def test_methods_functions_and_calls_through_the_class_take_turns(in_full: list[int]) -> None:
    one, other, plain = Counter(), Counter(), Counter()
    for k in range(12):
        target = (one, other)[k % 2]
        call = (target.step, lambda x, target=target: Counter.step(target, x))[k // 2 % 2]
        plain.level = target.level / 2 + 1
        np.testing.assert_array_equal(call(X), X + plain.level)
        assert (target.level, target.count) == (plain.level, k // 2 + 1)
    assert len(in_full) <= 8


def test_other_types_and_counts_of_arguments_leave_the_fast_path() -> None:
    scale = SimpleNamespace(by=2.0)
    fused = fuse(lambda x, y=1: x * scale.by + y)
    for arguments in ((X,), (X, 2), (X, 2.5), (X, np.float32(2)), (X, X), (X, True), (X,), (X.astype("f4"), 2)):
        for _ in range(3):
            expected = arguments[0] * scale.by + (arguments[1] if len(arguments) > 1 else 1)
            result = fused(*arguments)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
            scale.by += 1.0


def test_a_warm_call_that_changes_state_is_not_flattened(in_full: list[int]) -> None:
    counter = Counter()
    for _ in range(3):
        counter.step(X)
    before = len(in_full)
    for _ in range(5):
        counter.step(X)
        counter.weight = counter.weight + 1.0
    assert len(in_full) == before
    assert counter.count == 8


def test_a_function_called_in_a_trace_reads_what_the_trace_has_written() -> None:
    state = SimpleNamespace(w=np.ones(4))
    inner = fuse(lambda x: x + state.w)
    for _ in range(3):
        inner(X)

    @fuse
    def outer(x: Any) -> Any:
        state.w = x * 2
        return inner(X) + 0 * x

    for k in range(3):
        np.testing.assert_array_equal(outer(X + k), X + (X + k) * 2)
        np.testing.assert_array_equal(inner(X), X + (X + k) * 2)


def test_options_in_force_leave_the_fast_path() -> None:
    seen: list[str] = []
    state = SimpleNamespace(by=3.0)

    @fuse
    def noted(x: Any) -> Any:
        seen.append(type(x).__name__) if False else None
        return x * state.by

    for _ in range(3):
        noted(X)
    with options(target="reference"):
        np.testing.assert_array_equal(noted(X), X * 3)
    np.testing.assert_array_equal(noted(X), X * 3)


def test_zeros_of_either_sign_and_nan_are_compared_as_values() -> None:
    state = SimpleNamespace(by=0.0)
    fused = fuse(lambda x: np.copysign(x, state.by))
    for value in (0.0, -0.0, 0.0, math.nan, 1.0, 1, True, -0.0):
        state.by = value
        result, expected = fused(X), np.copysign(X, value)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_a_number_in_thousands_of_steps_is_computed() -> None:
    def function(x: Any, s: float) -> Any:
        for _ in range(3000):
            s = s * 0.999 + 1
        return x + s, s

    fused = fuse(function)
    for s in (0.5, 2.5):
        result, number = fused(X, s)
        expected, right = function(X, s)
        assert number == right
        np.testing.assert_array_equal(result, expected)


ARITHMETIC = [("add", 2), ("mul", 2), ("div", 2), ("maximum", 2), ("sqrt", 1), ("abs", 1), ("exp", 1)]


def _pointwise(name: str) -> Pointwise:
    op = REGISTRY[name]
    assert isinstance(op, Pointwise)
    return op


@st.composite
def host_numbers(draw: st.DrawFn) -> HostNumber:
    """A graph of arithmetic on two floats, a size and constants."""
    floats = st.floats(allow_nan=False, width=32)
    numbers: list[HostNumber] = [FactNumber(1), FactNumber(2), ExtentNumber(input_extent(0))]
    numbers += [ConstantNumber(value) for value in draw(st.lists(floats, max_size=2))]
    for _ in range(draw(st.integers(1, 8))):
        name, arity = draw(st.sampled_from(ARITHMETIC))
        op = _pointwise(name)
        operands = [draw(st.sampled_from(numbers)) for _ in range(arity)]
        types = tuple(dtypes.int64 if isinstance(one, ExtentNumber) else dtypes.float64 for one in operands)
        numbers.append(ComputedNumber(op, operands, dtypes.float64, dtypes.float64, "float", types))
    return numbers[-1]


@settings(max_examples=times(30), deadline=None)
@given(host_numbers(), st.floats(), st.floats(), st.integers(0, 9))
def test_compiled_numbers_are_what_their_steps_give(number: HostNumber, a: float, b: float, size: int) -> None:
    facts = {1: a, 2: b, -1: size}
    function, names = compiled(number)
    np.testing.assert_equal(function(*[facts[name] for name in names]), number(facts))
