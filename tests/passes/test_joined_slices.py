"""Slices written one after another: reads see what was written, and adjoining slices are written at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.test_overwritten_slices import count_of_writes
from tests.session.samples import times
from tracefuse import fuse
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate
from tracefuse.passes.dead_code import drop_dead
from tracefuse.passes.joined_slices import join_slices

ROWS = 24
STEPS = st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1), st.sampled_from((1, 1, 1, 2, 3, ROWS)))


def joined(function: Any, *arguments: Any) -> Fusion:
    fusion = fuse(function, disable="passes", loops="unroll").definition(*arguments).fusion
    return drop_dead(join_slices(fusion))


@settings(max_examples=times(12), deadline=None)
@given(st.lists(STEPS, min_size=9, max_size=25), st.sampled_from((0, 1)), st.sets(st.integers(0, 24), max_size=3))
def test_arrays_of_slices_hold_what_numpy_leaves(steps: list[Any], axis: int, seen: set[int]) -> None:
    def update(x: Any) -> Any:
        x, sums = x.copy(), []
        rows = x if axis == 0 else x.T
        for count, (target, source, height) in enumerate(steps):
            height = min(height, ROWS - max(target, source))
            rows[target : target + height] = rows[source : source + height] * 0.5 + count
            if count in seen:
                sums.append(rows.sum())
        return x, *sums

    x = np.arange(3.0 * ROWS).reshape(ROWS, 3)
    x = x if axis == 0 else x.T.copy()
    fusion = joined(update, x)
    values = [x if fusion.values[number].is_tensor else 0 for number in fusion.inputs]
    for computed, expected in zip(evaluate(fusion, values), update(x), strict=True):
        np.testing.assert_array_equal(computed, expected)


def test_rows_that_adjoin_are_written_at_once_and_in_place() -> None:
    def update(x: Any, y: Any) -> Any:
        for k in range(16):
            x[k] = x[(k * 7) % 17] * 0.5 + y[k]
        for k in range(12):
            y[k] = x[k] - y[k + 1]
        return x[3:9].sum()

    x, y = np.random.default_rng(0).random((2, 17, 3))
    fusion = joined(update, x, y)
    assert count_of_writes(fusion) == 2
    expected = x.copy(), y.copy()
    fused = fuse(update, loops="unroll")
    for _ in range(2):
        np.testing.assert_allclose(fused(x, y), update(*expected), rtol=1e-15)
        np.testing.assert_allclose((x, y), expected, rtol=1e-15)
