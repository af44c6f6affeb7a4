"""Random functions over random captured state, which changes in every way between calls: always NumPy's value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.random_programs.random_objects import check_objects
from tests.random_programs.random_state import check_program
from tracefuse import UnsupportedError, fuse


@pytest.mark.parametrize("seed", range(32))
def test_every_call_gives_the_value_for_the_state_at_that_call(seed: int) -> None:
    check_program(seed)


@pytest.mark.parametrize("seed", range(8))
def test_functions_read_and_write_objects_of_many_kinds_as_python_does(seed: int) -> None:
    check_objects(seed)


class Untraced(metaclass=type("Metaclass", (type,), {"order": 0})):
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


class Scaling:
    """A factor that a ufunc of a Python function reads."""

    def __init__(self) -> None:
        self.factor = 2.0
        self.of_method = np.frompyfunc(self.times, 1, 1)

    def times(self, value: Any) -> Any:
        return value * self.factor


SCALING = Scaling()
OF_FUNCTION = np.frompyfunc(lambda a, b: a + b * SCALING.factor, 2, 1)


def test_ufuncs_of_python_functions_read_the_state_of_the_call() -> None:
    def function(x: Any) -> Any:
        return x * SCALING.of_method(2.0) + OF_FUNCTION.reduce([1.0, 2.0, 3.0]) * OF_FUNCTION(1.0, [2.0])[0]

    fused, x = fuse(function, target="reference"), np.arange(3.0)
    for SCALING.factor in (2.0, 3.0, 3.0, 2.0):
        np.testing.assert_array_equal(fused(x), function(x))
    assert fused.cache_info().traces <= 3
    with pytest.raises(UnsupportedError, match=r"times, of which np.frompyfunc makes a ufunc.*\n.*on whole arrays"):
        fuse(lambda x: SCALING.of_method(x), target="reference")(x)
    with pytest.raises(UnsupportedError, match=r"the result is an array of objects.*\n.*astype"):
        fuse(lambda x: np.frompyfunc(abs, 1, 1)(x), target="reference")(x)


def treating_errors(x: Any, **treatments: Any) -> Any:
    before = np.seterr(**treatments)
    try:
        with np.errstate(**treatments):
            return 1 / x
    finally:
        np.seterr(**before)


def test_floating_point_errors_are_ignored_or_refused_with_a_check_that_works() -> None:
    x = np.array([1.0, 0.0])
    np.testing.assert_array_equal(fuse(lambda x: treating_errors(x, all="ignore"))(x), [1, np.inf])
    for treatment in ({"all": "raise"}, {"divide": "call"}):
        refused = fuse(lambda x, t=treatment: treating_errors(x, **t), target="reference")
        with pytest.raises(UnsupportedError, match=r"np.seterr.*(raise|call).*\n.*if not np.isfinite\(y\).all\(\)"):
            refused(x)
    with pytest.warns(UserWarning, match=r"calls run the function itself"), pytest.raises(FloatingPointError):
        fuse(lambda x: treating_errors(x, all="raise"))(x)

    def checked(x: Any) -> Any:
        y = 1 / x
        if not np.isfinite(y).all():
            raise FloatingPointError("y")
        return y

    fused = fuse(checked)
    assert fused(x[:1]) == 1
    with pytest.raises(FloatingPointError, match="y"):
        fused(x)
