"""Random functions over random captured state, which changes in every way between calls: always NumPy's value."""

from __future__ import annotations

import numpy as np
import pytest
from random_state import check_program

from tracefuse import fuse


@pytest.mark.parametrize("seed", range(40))
def test_every_call_gives_the_value_for_the_state_at_that_call(seed: int) -> None:
    check_program(seed)


class Untraced(metaclass=type("Metaclass", (type,), {})):
    """Its instances have no overlays in a trace."""

    def __init__(self) -> None:
        self.table = np.eye(3)


def test_a_row_of_an_array_without_an_overlay_is_that_of_the_contents_that_are_compared() -> None:
    owner = Untraced()
    fused = fuse(lambda x: x + owner.table[0])
    x, first = np.zeros(3), owner.table
    np.testing.assert_array_equal(fused(x), [1, 0, 0])
    first[0] = 5
    np.testing.assert_array_equal(fused(x), [5, 5, 5])
    owner.table = np.eye(3)  # what the first trace compares with, while the memory that it read has other contents
    np.testing.assert_array_equal(fused(x), [1, 0, 0])
    assert fused.cache_info().traces == 2
