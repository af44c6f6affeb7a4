"""Tests how many vectors an iteration of a vector loop processes: fewer, the longer its body is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tracefuse import fuse


def interleaved(function: object, *arrays: object) -> list[int]:
    (segment,) = fuse(function).segments(*arrays)  # type: ignore[call-overload]
    return [int(count) for count in re.findall(r'interleave.count", i32 (\d)', segment.source)]


@pytest.mark.parametrize(
    ("functions", "count"), [(0, 4), (2, 4), (5, 2), (9, 1)], ids=["a sum", "short", "longer", "long"]
)
def test_long_bodies_of_vector_loops_run_one_vector_at_a_time(functions: int, count: int) -> None:
    def nested(x: np.ndarray) -> np.ndarray:
        for _ in range(functions):
            x = np.tanh(x)
        return x + 1

    assert interleaved(nested, np.ones(5000, np.float32)) == [count]


def test_unrolled_loops_count_with_their_iterations() -> None:
    x = np.ones((5000, 8), np.float32)
    assert interleaved(lambda x: np.exp(x).sum(-1), x) == [1]
    assert interleaved(lambda x: x.sum(-1), x) == [4]
