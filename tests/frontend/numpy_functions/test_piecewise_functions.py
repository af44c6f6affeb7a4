"""Functions that `np.piecewise` calls: NumPy gives them the elements where their condition holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

X = np.array([3.0, 1.0, -1.0, 2.0])

OF_ALL_ELEMENTS = """
t - t.mean(); np.cumsum(t); t[::-1]; t.size * 1.0; np.sort(t); t / len(t); np.arange(t.size); t.sort() or t;
np.full(t.shape, 2.0); t.__imul__(2)
""".replace("\n", "").split(";")
"""Of what a function gets, these read several elements or their number, or change it."""

ELEMENTWISE = """
np.exp(t); 3.0; np.where(t > 1, 1, t**2); np.ones_like(t) + t; np.clip(t, 0, 2); t.copy()
""".replace("\n", "").split(";")


def piecewise(expression: str) -> Any:
    return eval(f"lambda x: np.piecewise(x, [x > 0], [lambda t: {expression.strip()}, 0])", {"np": np})


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("expression", OF_ALL_ELEMENTS)
def test_a_function_of_several_elements_gets_those_that_numpy_gives_it(expression: str, target: str) -> None:
    function = piecewise(expression)
    fused = fuse(function, target=target)
    for x in (X, -X, np.arange(-3.0, 6.0)):
        given = x.copy()
        np.testing.assert_array_equal(fused(given), function(x.copy()))
        np.testing.assert_array_equal(given, x)


@pytest.mark.parametrize("expression", ELEMENTWISE)
def test_an_elementwise_function_is_fused_and_changes_no_argument(expression: str) -> None:
    function, x = piecewise(expression), X.copy()
    fused = fuse(function, target="cpu")
    np.testing.assert_allclose(fused(x), function(X.copy()), rtol=1e-14)
    np.testing.assert_array_equal(x, X)
    assert "np.piecewise" not in str(fused.explain(x))  # no call between two stages
