"""Functions whose results have sizes that the data decide: values, traces, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import TracefuseError, cond, fori_loop, fuse, options, scan, while_loop, xp


def without_outliers(x: Any) -> Any:
    kept = x[np.abs(x - x.mean()) < 1.5 * x.std()]
    return (kept - kept.mean()) / 2, kept.size


def doubled_where_positive(x: Any) -> Any:
    positions = np.nonzero(x > 0)[0]
    x[positions] *= 2
    return positions.size


def histogram(x: Any) -> Any:
    values, counts = np.unique(np.round(x), return_counts=True)
    return values, counts / x.size, values[np.argmax(counts)]


def suppressed(x: Any) -> Any:
    order, kept, count = np.argsort(x)[::-1], np.zeros(x.size), 0
    while order.size > 0:
        kept[count] = x[order[0]]
        count += 1
        rest = order[1:]
        order = rest[np.abs(x[rest] - x[order[0]]) > 0.8]
    return kept, count


def sums_in_place(x: Any) -> Any:
    y = np.zeros_like(x)
    y[x > 0] = np.cumsum(x[x > 0])
    return y


def one_array(x: Any) -> Any:
    selected = x[x > 0]
    alias = selected
    selected[:1] = 7
    alias += x[x > 0] * 2
    return selected, np.sort(alias)[::-1], selected.shape[0]


def pairs(x: Any) -> Any:
    rows, columns = np.nonzero(np.outer(x, x) > 0.5)
    return x[rows] - x[columns], np.argwhere(np.outer(x, x) > 0.5)


def median_of_selected(x: Any) -> Any:
    return np.median(x[x > -5]), (x[x > 0.1] + x[x > 0.1] ** 2).sum()


def removed(x: Any) -> Any:
    return np.delete(x, x > 0), x.compress(x < 0), np.extract(x > 0, x), np.repeat(x, (x > 0) + 1), x.nonzero()[0]


def by_names_of_the_standard(x: Any) -> Any:
    return xp.unique_values(xp.round(x)), xp.nonzero(x > 0)[0]


PROGRAMS = [
    without_outliers, doubled_where_positive, histogram, suppressed, sums_in_place, one_array, pairs,
    median_of_selected, removed, by_names_of_the_standard,
]  # fmt: skip


def same(one: Any, other: Any) -> None:
    if isinstance(other, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
        return
    np.testing.assert_allclose(one, other, rtol=1e-12)
    assert np.shape(one) == np.shape(other)
    assert np.asarray(one).dtype == np.asarray(other).dtype


def selected_in_loops(x: Any) -> Any:
    running = scan(lambda c, v: (c + v, c), 0.0, x[x > -9])
    halved = fori_loop(0, 3, lambda i, c: c * 0.5, x[x > 0])
    chosen = cond(x.sum() > 0, lambda a: a * 2.0, lambda a: -a, x[x > 0])
    return running, halved, chosen, np.asarray(x[x > 0]), np.random.default_rng(0).permutation(x[x > 0])


def test_elements_under_a_mask_are_arrays_for_loops_draws_and_creation() -> None:
    fused = fuse(selected_in_loops)
    for size in (3, 7, 4):
        x = np.random.default_rng(size).normal(size=size) + 1
        same(fused(x), selected_in_loops(x))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_programs_give_what_numpy_gives_at_every_count(program: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    fused = fuse(program)
    inputs = [rng.normal(size=size) for size in (8, 30, 3, 9)]
    inputs += [np.full(4, 0.5), -np.ones(4) - np.arange(4) / 8, np.array([-1.0, 2.0, -3.0]), np.array([-1.0, 2.0])]
    for x in inputs:
        ours, plain = x.copy(), x.copy()
        same(fused(ours), program(plain))
        np.testing.assert_array_equal(ours, plain)
    known = fused.cache_info().traces
    for x in reversed(inputs):
        same(fused(x.copy()), program(x.copy()))
    assert fused.cache_info().traces == known


def test_one_trace_serves_all_counts_above_one() -> None:
    fused = fuse(lambda x: x[x > 0] * 2)
    for count in range(2, 12):
        x = np.concatenate([np.ones(count), -np.ones(3)])
        np.testing.assert_array_equal(fused(x), np.full(count, 2.0))
    assert fused.cache_info().traces == 1
    for count in (0, 1, 5, 0, 1):
        x = np.concatenate([np.ones(count), -np.ones(3)])
        np.testing.assert_array_equal(fused(x), np.full(count, 2.0))
    assert fused.cache_info().traces == 3


def test_equal_masks_are_one_size_and_reductions_need_none() -> None:
    def reduced(x: Any) -> Any:
        return x[x > 0].sum(), x[x > 0].max(), np.median(x[x > 0])

    fused = fuse(reduced)
    x = np.array([1.0, -2.0, 4.0])
    same(fused(x), reduced(x))
    assert "size of" not in str(fused.explain(x))

    together = fuse(lambda x, y: x[x > 0] + y[x > 0])
    np.testing.assert_array_equal(together(x, x * 2), [3.0, 12.0])
    assert str(together.explain(x, x)).count("size of") == 1


def scaled(x: Any, mask: Any) -> None:
    x[mask] *= -0.5


def scaled_rows(x: Any, mask: Any) -> None:
    x[mask[:, 0]] *= -0.5


def shifted_column(x: Any, mask: Any) -> None:
    x[mask[:, 1], 1] += 1


def replaced(x: Any, mask: Any) -> None:
    x[mask] = x[mask] * 0.5 - 1


def squared(x: Any, mask: Any) -> None:
    x[mask] = np.square(x[mask])


def scaled_by_rank(x: Any, mask: Any) -> None:
    x[mask] *= np.ndim(x[mask]) + np.size(x[mask])


@pytest.mark.parametrize("update", [scaled, scaled_rows, shifted_column, replaced, squared, scaled_by_rank])
def test_updates_under_a_mask_need_no_size(update: Callable[[Any, Any], None]) -> None:
    x = np.arange(6.0).reshape(3, 2) - 2
    right, fused = x.copy(), fuse(update)
    update(right, right > 0)
    fused(x, x > 0)
    np.testing.assert_array_equal(x, right)
    assert "size of" not in str(fused.explain(x, x > 0))


def test_methods_that_raise_for_no_elements_raise_numpys_error() -> None:
    fused = fuse(lambda x: np.sort(x[x > 0]).max())
    assert fused(np.ones(3)) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no identity|zero-size|empty"):
            fused(-np.ones(3))


@settings(max_examples=times(20), deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.nan]), min_size=2, max_size=6),
    st.sampled_from([0, 1]), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_unique_has_numpys_results_for_all_parameters(
    values: Any, axis: int, index: bool, inverse: bool, counts: bool
) -> None:
    x = np.array([values, values[::-1], values])

    def distinct(x: Any) -> Any:
        return np.unique(x, index, inverse, counts), np.unique(np.nan_to_num(x), index, inverse, counts, axis=axis)

    same(fuse(distinct, target="reference")(x), distinct(x))


def selects(x: Any) -> Any:
    return x[x > 0]


def test_output_buffers_and_graphs_are_refused_with_the_line() -> None:
    for _ in range(2):
        with pytest.raises(TracefuseError, match=r"out= for a result whose size the data decide \(test_data_decided"):
            fuse(selects)(np.ones(3), out=np.empty(3))
    with options(graph=True), pytest.raises(TracefuseError, match=r"graph=True records one size \(test_data_decided"):
        fuse(selects)(np.ones(3))


def test_the_body_of_a_recorded_loop_refuses_with_the_line() -> None:
    def body(x: Any) -> Any:
        return x - np.sort(selects(x))[-1]

    with pytest.raises(TracefuseError, match=r"inside of a recorded loop or branch \(test_data_decided"):
        fuse(lambda x: while_loop(lambda x: x.sum() > 0, body, x))(np.ones(3))


def test_explain_shows_the_question_of_a_size() -> None:
    fused = fuse(lambda x: x[x > 0] * 2)
    fused(np.ones(3))
    text = str(fused.explain(np.ones(3)))
    assert "size of indexing with a boolean mask of T" in text
    assert "test_data_decided_sizes.py:" in text


def test_layouts_are_guarded_after_a_size_that_the_data_decide() -> None:
    def written(x: Any) -> Any:
        kept = x[x > 0]
        y = np.tan(x)
        y.ravel()[:1] += kept.sum()
        return y, kept * 2

    fused = fuse(written)
    base = np.arange(-4.0, 8.0).reshape(3, 4)
    for x in (base, np.asfortranarray(base), base[::-1], base.T, base, base[:, ::2]):
        for found, expected in zip(fused(x), written(x), strict=True):
            np.testing.assert_allclose(found, expected)


def test_arrays_without_elements_follow_others_at_the_same_mask() -> None:
    fused = fuse(lambda x: x[x != 2] * 2, target="reference")
    for shape in ((4, 5, 3), (2, 0, 2), (3, 3, 3), (0, 1, 1)):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        np.testing.assert_array_equal(fused(x), x[x != 2] * 2)
