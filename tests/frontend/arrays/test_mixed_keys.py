"""Keys that mix masks of any rank, truth values, integers, integer arrays, slices, None and an ellipsis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse
from tracefuse.errors import OutOfRangeError

LONE = np.array([False, True, False])
PLANE = np.arange(12).reshape(3, 4) % 5 == 0

KEYS: dict[str, Callable[..., Any]] = {
    "a mask and a truth value": lambda m, i: (m, True),
    "a truth value after an ellipsis": lambda m, i: (..., True),
    "nothing selected beside a slice": lambda m, i: (slice(None, None, 2), False),
    "a mask without axes among integers": lambda m, i: (i, np.array(True)),
    "two truth values": lambda m, i: (True, m, True),
    "an integer apart from a mask": lambda m, i: (m, slice(1, 3), -1),
    "None between an integer and a mask": lambda m, i: (slice(None), 2, None, np.array([True, False])),
    "an ellipsis without axes": lambda m, i: (slice(None), i, ..., [0, 1, 1]),
    "a mask of two axes and an integer array": lambda m, i: (PLANE, np.array([0, 1, 0])),
    "a mask that selects one and an integer array": lambda m, i: (m, i),
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_mixed_key_selects_and_assigns_what_numpy_does(key: Callable[..., Any], target: str) -> None:
    def program(x: Any, m: Any, i: Any) -> Any:
        first = x[key(m, i)] * 2
        x[key(m, i)] += 10
        x[key(m, i)] = first
        return first

    fused = fuse(program, target=target)
    for _ in range(2):
        mine, right = (np.arange(24.0).reshape(3, 4, 2) for _ in range(2))
        i = np.array([2, 0, 2])
        result, expected = fused(mine, LONE, i), program(right, LONE, i)
        assert result.shape == expected.shape
        assert np.array_equal(result, expected)
        assert np.array_equal(mine, right)


def test_masks_with_more_axes_than_the_array_are_an_index_error_with_a_line() -> None:
    def program(x: Any, m: Any) -> None:
        x[m, m] = 1

    for function in (program, fuse(program)):
        with pytest.raises(IndexError, match="too many indices") as caught:
            function(np.zeros((3, 4)), PLANE)
    assert isinstance(caught.value, OutOfRangeError)
    assert caught.value.where is not None
    assert "test_mixed_keys" in caught.value.where


def test_updates_at_a_mask_and_positions_add_for_each_position() -> None:
    def program(x: Any, m: Any, i: Any) -> None:
        np.add.at(x, (m, i), 1.0)

    mine, right = np.zeros((3, 4)), np.zeros((3, 4))
    with tracefuse.options(target="reference"):
        fuse(program)(mine, LONE, np.array([1, 1, 2]))
    program(right, LONE, np.array([1, 1, 2]))
    assert np.array_equal(mine, right)
    assert mine[1, 1] == 2
