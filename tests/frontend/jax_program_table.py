"""The table of programs as users of JAX write them, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {}
"""The function and its arguments, by name."""
RANDOM = np.random.default_rng(0)


def compare(result: Any, expected: Any) -> None:
    """Asserts that two pytrees have equal structures, shapes and dtypes, and values up to rounding."""
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array)
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        left, right = (np.asarray(a, np.float64) for a in (one, two))
        np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-4)


def normal(*shape: int) -> Any:
    return jnp.asarray(RANDOM.standard_normal(shape).astype(np.float32))


def program(arguments: Callable[[], tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a program. arguments: makes its arguments."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, arguments
        return function

    return add
