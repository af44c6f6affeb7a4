"""What inequalities say of extents that differ from them by a constant."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracefuse.ir.extents import LowerBounds, evaluate, floordiv, input_extent

COEFFICIENTS = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9))


def extent_of(coefficients: tuple[int, int, int]) -> Any:
    half, whole, constant = coefficients
    return half * floordiv(input_extent(0), 2) + whole * input_extent(0) + constant


def test_an_index_inside_of_the_first_half_lies_before_the_second() -> None:
    half = floordiv(input_extent(0), 2)
    assert LowerBounds([(6, half)]).is_nonnegative(half - 6)
    assert not LowerBounds([(6, half)]).is_nonnegative(half - 7)
    assert not LowerBounds([]).is_nonnegative(half - 1)


@given(st.lists(st.tuples(COEFFICIENTS, COEFFICIENTS), max_size=3), COEFFICIENTS, st.integers(1, 50))
def test_what_is_proved_holds_wherever_the_inequalities_hold(pairs: Any, of: Any, size: int) -> None:
    inequalities = [(extent_of(left), extent_of(right)) for left, right in pairs]
    values = {-1: size}
    if LowerBounds(inequalities).is_nonnegative(extent_of(of)):
        holds = all(evaluate(left, values) <= evaluate(right, values) for left, right in inequalities)
        assert not holds or evaluate(extent_of(of), values) >= 0
