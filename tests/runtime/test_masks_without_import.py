"""Tests that masked arrays are recognized without importing numpy.ma."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.errors import TracefuseError
from tracefuse.runtime.devices.masked_arrays import is_masked_array, is_masked_class, is_masked_constant


def test_a_first_call_does_not_import_numpy_ma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.ma", raising=False)
    monkeypatch.delattr(np, "ma", raising=False)  # NumPy imports it at the next use

    def scaled(x: np.ndarray, factor: float) -> np.ndarray:
        return x * factor

    assert fuse(scaled)(np.ones(3), 2.5).tolist() == [2.5] * 3
    assert "numpy.ma" not in sys.modules
    assert not is_masked_class(np.ndarray)
    assert not is_masked_constant(np.ones(1))


def test_masked_arrays_and_classes_derived_from_theirs_are_recognized() -> None:
    class Derived(np.ma.MaskedArray):
        pass

    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    assert is_masked_array(masked)
    assert is_masked_array(masked.view(Derived))
    assert is_masked_constant(np.ma.masked)
    assert not is_masked_array(np.ones(2))
    with pytest.raises(TracefuseError, match="filled"):
        fuse(lambda x: x + 1)(masked)
