"""Tests that no kernel accesses arrays across the order of its loops where two kernels would not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import numbers
from tracefuse import fuse
from tracefuse.ir.extents import symbol
from tracefuse.schedule.loop_facts import Facts, across
from tracefuse.schedule.memory_orders import LEAST_EXTENT, MOST_TILES, accesses_across

LOOPS = (symbol("i0", -1), symbol("i1", -2))
IN_ORDER, TURNED = (0, 1), (1, 0)


@pytest.mark.parametrize("reduces", [False, True])
@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4))
def test_accesses_across_are_those_of_the_rarer_order_but_for_tiles(
    reduces: bool, stored: int, read: int, turned: int
) -> None:
    outputs = dict.fromkeys(range(stored), IN_ORDER)
    uses = {10 + k: (IN_ORDER,) for k in range(read)} | {20 + k: (TURNED,) for k in range(turned)}
    count, value = accesses_across(LOOPS, reduces, outputs, uses, {})
    assert count == (min(stored + read, turned) if reduces else max(turned - MOST_TILES, 0))
    assert count == 0 or value is not None


def test_short_axes_broadcast_values_and_single_loops_are_in_order() -> None:
    uses = {1: (IN_ORDER,), 2: (TURNED,)}
    assert accesses_across((LOOPS[0], LEAST_EXTENT - 1), True, {}, uses, {}) == (0, None)
    assert accesses_across(LOOPS, True, {}, {1: (IN_ORDER,), 2: ((0, None),), 3: ((1,),)}, {}) == (0, None)
    assert accesses_across(LOOPS, True, {}, {1: (IN_ORDER,), 2: (TURNED,)}, {2: (1, 0)}) == (0, None)
    assert accesses_across(LOOPS[:1], True, {0: (0,)}, {1: ((0,),)}, {}) == (0, None)


def test_facts_of_no_value_have_no_accesses_across() -> None:
    assert across(Facts(LOOPS, frozenset({0}), {}, {}, frozenset())) == (0, None)


def sum_of_both_orders(x: Any, y: Any) -> Any:
    return x.sum(0), x.T + y


def normalized_sum(x: Any, y: Any) -> Any:
    z = x.T + y
    return z / z.sum(0), z


def results_in_both_orders(x: Any, y: Any) -> Any:
    return np.tanh(x), y - y.max(1, keepdims=True), np.maximum(x.T, y), y.T


def turned_row_and_column(x: Any, y: Any) -> Any:
    sums = y.sum(1)
    return y - y.mean(0, keepdims=True), x * sums, (x * sums).T


def three_turned_inputs(x: Any, y: Any) -> Any:
    return x.T + np.exp(x).T * y + np.sqrt(abs(x.T)) + y


CASES = (sum_of_both_orders, normalized_sum, results_in_both_orders, turned_row_and_column, three_turned_inputs)


@pytest.mark.parametrize("function", CASES)
def test_functions_of_arrays_in_both_orders_are_segments_with_one_order_each(function: Any) -> None:
    x, y = numbers(60, 90), numbers(90, 60, seed=1)
    fused = fuse(function)
    wide = [a.astype(np.float64) for a in (x, y)]
    results, references = fused(x, y), function(*wide)
    pairs = zip(results, references, strict=True) if isinstance(results, tuple) else [(results, references)]
    for result, expected in pairs:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    explanation = fused.explain(x, y)
    for segment in explanation.plan.segments:
        facts = segment.part.facts
        rows = getattr(facts, "rows", facts)
        assert isinstance(rows, Facts)
        assert across(rows) == (0, None), segment.template


def test_the_reason_for_the_boundary_names_the_two_orders() -> None:
    reasons = str(fuse(normalized_sum).explain(numbers(60, 90), numbers(90, 60)))
    assert "one kernel would read arrays in two orders of memory" in reasons
