"""What several places read is stored if recomputing it costs more, at the value from which they all read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.schedule.kernel_size import MOST_CODE
from tracefuse.schedule.merge_rule import facts_of

U = np.random.default_rng(0).random((12, 14))


def by_rolls(u: Any) -> Any:
    return u + 0.1 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u)


def by_slices(u: Any) -> Any:
    near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    u = u.copy()
    u[1:-1, 1:-1] += 0.1 * (near - 4 * u[1:-1, 1:-1])
    return u


def in_a_ladder(u: Any) -> Any:
    return u * 0.5 + np.roll(u, 3, 1)


def of_taps(u: Any) -> Any:
    padded = np.pad(u, ((4, 4), (0, 0)), mode="edge")
    down = sum(padded[k : k + u.shape[0]] * (k + 1.0) for k in range(9))
    padded = np.pad(down, ((0, 0), (4, 4)), mode="edge")
    return sum(padded[:, k : k + u.shape[1]] * (k + 1.0) for k in range(9)) / 2025


def through_halves(u: Any) -> Any:
    y = np.exp(u) - np.tanh(u)
    return ((y * 2)[1:] + (y + 1)[:-1]) / 4


def of_life(u: Any) -> Any:
    around = sum(np.roll(np.roll(u, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((around > 3.0) | ((u == 1) & (around > 2.0))).astype(u.dtype)


STEPS = (by_rolls, by_slices, in_a_ladder, of_taps, through_halves, of_life)


def segmented(function: Any, *arguments: Any) -> Segmentation:
    return segment_fusion(fuse(function).definition(*arguments).fusion)


def repeated(step: Any, count: int) -> Any:
    def program(u: Any) -> Any:
        for _ in range(count):
            u = step(u)
        return u

    return program


@pytest.mark.parametrize("step", STEPS)
def test_code_grows_with_the_steps_of_a_loop_and_not_with_their_power(step: Any) -> None:
    def code(count: int) -> int:
        facts = [facts_of(part.rule) for part in segmented(repeated(step, count), U).segments]
        sizes = [part.code for part in facts]
        assert max(sizes) <= MOST_CODE
        return sum(sizes)

    few, many = code(3), code(9)
    assert many <= 4 * few


@settings(max_examples=times(25), deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_steps_in_any_order_give_what_numpy_gives(steps: list[Any]) -> None:
    def program(u: Any) -> Any:
        for step in steps:
            u = step(u)
        return u

    np.testing.assert_allclose(fuse(program, target="reference")(U), program(U), rtol=1e-12)
    parts = segmented(program, U)
    assert [step for part in parts.segments for step in part.steps]


def test_a_loop_stores_its_state_and_nothing_else() -> None:
    for step in (by_rolls, by_slices):
        parts = segmented(repeated(step, 6), U).segments
        assert all(len(part.segment.outputs) == 1 for part in parts)
        assert len(parts) == 6


def test_of_a_flag_that_is_widened_the_flag_is_stored() -> None:
    first, *_ = segmented(repeated(of_life, 3), U).segments
    (output,) = first.segment.outputs
    assert first.fusion.values[output].dtype.itemsize == 1


def test_two_halves_of_one_expensive_value_store_it() -> None:
    def expensive(u: Any) -> Any:
        y = np.exp(np.sin(u) + np.cos(u)) + np.tanh(u) + np.arctan(u)
        return (y * 2)[1:] + (y + 1)[:-1]

    first, second = segmented(expensive, U).segments
    assert sum(node.op.name in ("exp", "sin", "cos", "tanh", "arctan") for node in second.fusion.nodes) == 0
    assert len(first.segment.outputs) == 1


def test_what_is_cheap_is_computed_again() -> None:
    assert len(segmented(lambda u: (u * 2)[1:] + (u * 2)[:-1], U).segments) == 1
    assert len(segmented(repeated(lambda u: u[2:] - u[:-2], 2), U).segments) == 1
