"""Scans on the CPU whose elements rows of a wider array read: one scan for all columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda a: a * np.exp(-a[:, 0].cumsum())[:, None],
    lambda a: a * (a[:, 0].cumsum()[:, None] * 1j),
    lambda a: a.T + np.maximum.accumulate(a[..., 0]) * 3,
    lambda a: (a * 2, np.where(a > 0, a[:, 1].cumprod()[:, None] + 1, a)),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(2, 4), (300, 3), (70, 64)])
def test_what_is_computed_from_a_scan_reads_its_element_in_every_column(
    function: Callable[[Any], Any], shape: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).standard_normal(shape) / 8
    result, expected = fuse(function, target="cpu")(x), function(x)
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
