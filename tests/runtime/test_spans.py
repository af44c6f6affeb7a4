"""Which of many arrays overlap, from their sorted addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracefuse import fuse
from tracefuse.runtime.memory import spans
from tracefuse.runtime.memory.spans import Span, are_apart, neighbours

BOUNDS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 6)), max_size=12)


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[0] + a[1], b[0] + b[1])


@pytest.mark.parametrize("few", [0, 100], ids=["NumPy", "Python"])
@given(bounds=BOUNDS, share=st.floats(0, 1))
def test_written_spans_are_apart_if_no_other_span_meets_them(
    few: int, bounds: list[tuple[int, int]], share: float
) -> None:
    written, before = round(share * len(bounds)), spans.FEW_SPANS
    meet = any(overlap(bounds[i], b) for i in range(written) for j, b in enumerate(bounds) if i != j)
    spans.FEW_SPANS = few
    try:
        assert are_apart([a for a, _ in bounds], [n for _, n in bounds], written) is not meet
    finally:
        spans.FEW_SPANS = before


@given(BOUNDS)
def test_neighbours_are_the_spans_whose_bounds_meet(bounds: list[tuple[int, int]]) -> None:
    found = neighbours([Span(start, (length,), (1,), 1) for start, length in bounds])
    expected = [{j for j, b in enumerate(bounds) if i != j and overlap(a, b)} for i, a in enumerate(bounds)]
    assert found == expected


def test_many_spans_apart_are_compared_with_few_others() -> None:
    found = neighbours([Span(100 * k, (10, 9), (10, 1), 1) for k in range(5000)])
    assert not any(found)
    assert are_apart(range(0, 8000, 2), [2] * 4000, 4000)


@pytest.mark.parametrize("updates_in_place", [True, False], ids=["in place", "out="])
def test_the_checks_of_a_call_grow_with_the_number_of_arrays_not_of_pairs(
    updates_in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    monkeypatch.setattr(np, "may_share_memory", lambda *arrays: bool(compared.append(arrays)))

    def step(parameters: list[Any], gradients: list[Any]) -> Any:
        if not updates_in_place:
            return [p - 0.5 * g for p, g in zip(parameters, gradients, strict=True)]
        for p, g in zip(parameters, gradients, strict=True):
            p -= 0.5 * g
        return None

    own, gradients = [np.ones(3) for _ in range(40)], [np.ones(3) for _ in range(40)]
    results = None if updates_in_place else [np.empty(3) for _ in range(40)]
    fused = fuse(step)
    for _ in range(3):
        compared.clear()
        fused(own, gradients) if results is None else fused(own, gradients, out=results)
    assert len(compared) <= 80
    np.testing.assert_array_equal(
        (own if results is None else results)[39], np.full(3, -0.5 if results is None else 0.5)
    )
