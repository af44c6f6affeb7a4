"""Samples of parameter grids."""

from __future__ import annotations

import itertools

from tests.session.samples import covering


def test_any_two_values_of_two_axes_meet_in_a_sample() -> None:
    axes = ("abcd", (1, 2, 3), (True, False), (0, 1))
    sample = covering(*axes)
    for a, b in itertools.combinations(range(len(axes)), 2):
        assert {(point[a], point[b]) for point in sample} == set(itertools.product(axes[a], axes[b]))
    assert len(sample) < 4 * 3 * 2


def test_two_axes_are_sampled_whole() -> None:
    assert covering("ab", (1, 2)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
