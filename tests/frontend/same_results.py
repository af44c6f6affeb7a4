"""Compares results of fused functions with those of plain programs: structure, types and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def assert_same(result: Any, expected: Any) -> None:
    """Asserts equal types of containers, texts, numbers and elements, and values that differ by rounding at most."""
    if isinstance(expected, (tuple, list)):
        assert type(result) is type(expected)
        assert len(result) == len(expected)
        for entry, expected_entry in zip(result, expected, strict=True):
            assert_same(entry, expected_entry)
    elif isinstance(expected, dict):
        assert result.keys() == expected.keys()
        for key in expected:
            assert_same(result[key], expected[key])
    elif isinstance(expected, (str, float, bool)) and not isinstance(expected, np.generic):
        assert type(result) is type(expected)
        assert result == pytest.approx(expected)
    else:
        assert np.asarray(result).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-9)
