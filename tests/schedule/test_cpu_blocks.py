"""Reductions on the CPU that join blocks of a row: sums of narrow integers, and logical reductions."""

from __future__ import annotations

import numpy as np
import pytest

from tracefuse import fuse

LENGTHS = (1, 63, 64, 65, 130, 700, 4096, 20000, 32640, 32641, 70001)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "uint16"])
def test_sums_of_the_largest_elements_do_not_overflow_their_lanes(kind: str) -> None:
    sums = fuse(lambda x: (np.sum(x), np.sum(x, axis=1), np.count_nonzero(x, axis=1)))
    least, most = (False, True) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    for length in LENGTHS:
        for value in (least, most):
            elements = np.full((2, length), value, kind)
            elements[1, ::3] = 1
            expected = (elements.sum(), elements.sum(1), np.count_nonzero(elements, axis=1))
            for result, reference in zip(sums(elements), expected, strict=True):
                np.testing.assert_array_equal(result, reference, strict=True)


def test_logical_reductions_find_one_element_in_any_block() -> None:
    found = fuse(lambda x: (np.any(x > 0), np.any(x > 0, axis=1)))
    lacking = fuse(lambda x: np.all(x <= 0))
    for length in LENGTHS:
        for place in (0, length // 2, length - 1):
            elements = np.zeros((2, length))
            elements[1, place] = 1
            np.testing.assert_array_equal(found(elements)[1], [False, True])
            assert found(elements)[0]
            assert not lacking(elements)
        assert lacking(np.zeros((2, length)))
        assert not np.any(found(np.zeros((2, length)))[1])
