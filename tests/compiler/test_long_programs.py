"""Tests programs of many ops and functions of many arrays: no recursion over them, and segments of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.cuda_lowering import case, numbers

from tracefuse import ShapeDtype, fuse, options
from tracefuse.config import resolve
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracing import trace
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.argument_leaves import classify
from tracefuse.schedule import loop_union
from tracefuse.schedule.kernel_size import MOST_CODE, MOST_PARAMETERS, Places, at_places
from tracefuse.schedule.loop_facts import LoopRefusal


@pytest.fixture(autouse=True)
def _unrolled() -> Iterator[None]:
    """The loops of these programs write ops, one after another: recorded as loops they would be short programs."""
    with options(loops="unroll"):
        yield


def increments(count: int) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        for _ in range(count):
            x = x + 1.0
        return x

    return of


def diamonds(x: Any) -> Any:
    for _ in range(100):
        x = x * 0.3 + 0.2 * np.sin(x)
    return x


def choices(x: Any) -> Any:
    y = x
    for k in range(150):
        y = np.where(x > k / 150, y + k, y * 0.5)
    return y


def pads(x: Any) -> Any:
    for _ in range(100):
        x = np.pad(x, 1)
    return x


def rolls(x: Any) -> Any:
    for k in range(100):
        x = np.roll(x, k % 7)
    return x


def reshapes(x: Any) -> Any:
    for _ in range(200):
        x = x.reshape(10, -1).reshape(-1)
    return x


def padded_stencil(u: Any) -> Any:
    for _ in range(25):
        u = np.pad((u[:-2] + u[1:-1] + u[2:]) / 3, 1)
    return u


def rolled_stencil(u: Any) -> Any:
    for _ in range(25):
        u = u + 0.1 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
    return u


def centred_again(x: Any) -> Any:
    for _ in range(60):
        x = x - x.mean()
    return x


def summed_slices(x: Any) -> Any:
    return sum(x[k : k + 20] for k in range(70))


def joined_slices(x: Any) -> Any:
    return np.concatenate([x[k : k + 20][::-1] for k in range(60)])


def split(function: Callable[..., Any], *arguments: Any) -> Segmentation:
    leaves = [classify(argument, f"argument {k}") for k, argument in enumerate(arguments)]
    fusion = trace(
        function, leaves, lambda given: (tuple(given), {}), CallRoots(None, arguments), records_loops=False
    ).fusion
    return segment_fusion(run_passes(FUSION_PASSES, fusion, resolve()))


def vectors(count: int) -> list[Any]:
    return [numbers(5 + k % 3, dtype=np.float64, seed=k) for k in range(count)]


def test_a_program_of_a_thousand_dependent_ops_runs() -> None:
    x = np.arange(7.0)
    np.testing.assert_array_equal(fuse(increments(1000))(x), x + 1000)


def test_a_program_of_ten_thousand_dependent_ops_is_split_into_bounded_segments() -> None:
    found = split(increments(10_000), np.arange(7.0))
    sizes = [len(part.fusion.nodes) for part in found.segments]
    assert sum(sizes) == 10_000
    assert max(sizes) == MOST_CODE
    assert len(sizes) <= 2 * 10_000 // MOST_CODE
    assert {verdict.code for verdict in found.partition.boundaries.values()} == {LoopRefusal.TOO_MUCH_CODE}


@pytest.mark.parametrize(
    "function",
    [
        diamonds, choices, pads, rolls, reshapes, padded_stencil, rolled_stencil, centred_again, summed_slices,
        joined_slices,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_a_long_program_computes_what_numpy_does(function: Callable[[Any], Any]) -> None:
    x = np.random.default_rng(0).random(100)
    np.testing.assert_allclose(fuse(function)(x), function(x), rtol=1e-10, atol=1e-12)


def test_five_hundred_arrays_are_joined() -> None:
    arrays = vectors(500)
    np.testing.assert_array_equal(fuse(lambda *xs: np.concatenate(xs))(*arrays), np.concatenate(arrays))


def test_more_arrays_than_one_kernel_joins_are_stacked_in_the_middle() -> None:
    arrays = [numbers(2, 3, seed=k) for k in range(70)]
    np.testing.assert_array_equal(fuse(lambda *xs: np.stack(xs, 1))(*arrays), np.stack(arrays, 1))


def test_five_hundred_arrays_are_summed_in_kernels_of_bounded_parameters() -> None:
    arrays = [numbers(6, dtype=np.float64, seed=k) for k in range(500)]

    def total(*xs: Any) -> Any:
        return sum(xs)

    np.testing.assert_allclose(fuse(total)(*arrays), sum(arrays), rtol=1e-12)
    parts = split(total, *arrays).segments
    assert max(len(part.fusion.tensor_inputs) + len(part.fusion.outputs) for part in parts) <= MOST_PARAMETERS


def test_many_results_of_one_array_are_several_kernels() -> None:
    x = np.arange(5.0)

    def multiples(x: Any) -> list[Any]:
        return [x * k for k in range(150)]

    for k, found in enumerate(fuse(multiples)(x)):
        np.testing.assert_array_equal(found, x * k)
    parts = split(multiples, x).segments
    assert max(len(part.fusion.outputs) for part in parts) < MOST_PARAMETERS


@pytest.mark.parametrize("function", [increments(600), diamonds, padded_stencil], ids=["chain", "diamonds", "stencil"])
def test_a_long_program_is_written_for_a_gpu(function: Callable[[Any], Any]) -> None:
    segments = fuse(function, target="cuda").segments(ShapeDtype((100,), np.float64))
    assert all("__global__" in segment.source for segment in segments)


def test_one_kernel_of_a_deep_region_is_right_on_a_gpu() -> None:
    case(increments(400), numbers(9, dtype=np.float64)).check()


PLACES = st.frozensets(st.integers(0, 40), min_size=1, max_size=12)


@given(PLACES, PLACES, st.integers(1, 30))
def test_places_are_counted_up_to_a_bound_and_known_to_exceed_it(read: Places, inner: Places, most: int) -> None:
    every = at_places(read, inner)
    assert every == {a + b for a in read for b in inner}
    bounded = at_places(read, inner, most)
    assert bounded <= every
    assert bounded == every if len(every) <= most else len(bounded) > most


def path_from_the_last_row(before: Any) -> Any:
    """Follows, from the last row to the first, the column before each: every read depends on the read before it."""
    path, column = np.ones(before.shape, bool), np.argmin(before[-1])
    for row in reversed(range(len(before))):
        path[row, column] = False
        column = before[row, column]
    return path


def test_places_of_reads_that_multiply_from_row_to_row_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(read: Places, inner: Places, most: float = math.inf) -> Places:
        places = at_places(read, inner, most)
        counts.append(len(places))
        return places

    monkeypatch.setattr(loop_union, "at_places", counted)
    split(path_from_the_last_row, np.ones((9, 7), int))
    assert MOST_CODE < max(counts) <= 2 * MOST_CODE


def test_a_long_program_is_checked_and_explained() -> None:
    x = np.arange(7.0)
    checked = fuse(increments(600), check=True)
    np.testing.assert_array_equal(checked(x), x + 600)
    assert "segment" in str(checked.explain(x))
    assert str(checked.definition(x)).count("add") >= 600
