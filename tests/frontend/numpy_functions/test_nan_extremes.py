"""np.nanmax and np.nanmin of arrays, lists and scalars: NumPy has another rule for what is no array."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

nan = np.nan
ARRAYS = (
    np.array([]), np.array([nan, nan]), np.array([1.0, nan, -2.0]), np.array(nan), np.array(3.0),
    np.array([[nan, 1.0], [nan, nan]]), np.array([1, 2]), np.array([[nan]], np.float16),
)  # fmt: skip
KEYWORDS = (
    "", "initial=1.5", "initial=np.nan", "initial=-np.inf", "axis=0, initial=2.0", "axis=-1, initial=np.nan",
    "keepdims=True, initial=1", "where=x == x, initial=2.0", "out=np.zeros(()), initial=1",
)  # fmt: skip


def outcome(function: Any, x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of slices of NaN alone
        try:
            return np.asarray(function(x))
        except (ValueError, OverflowError) as error:  # an AxisError is a ValueError
            return "OverflowError" if isinstance(error, OverflowError) else "ValueError"


@pytest.mark.parametrize("form", ["x", "x.tolist()", "list(x)", "[x]", "x[()]"])
def test_extremes_of_arrays_lists_and_scalars_with_initial_values(form: str) -> None:
    for keywords in KEYWORDS:
        for name in ("nanmin", "nanmax"):
            function = eval(f"lambda x: np.{name}({form}, {keywords})")
            fused = fuse(function, target="reference")
            for x in ARRAYS:
                if form == "list(x)" and not x.ndim:
                    continue
                actual, expected = outcome(fused, x), outcome(function, x)
                np.testing.assert_array_equal(actual, expected, err_msg=f"{name} {keywords} of {x!r}")
                assert isinstance(expected, str) or actual.dtype == expected.dtype
