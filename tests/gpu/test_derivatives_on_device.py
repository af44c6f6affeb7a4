"""Gradients and functions of jax.numpy on a GPU: values as on the CPU, on CuPy and on JAX arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse as tf
from tests.frontend.gradient_cases import SMOOTH, function_of
from tests.frontend.other_libraries.test_jax_functions import block, parameters
from tests.frontend.tracing.test_gradients import branched, counted, recurrence
from tests.ways import why_not

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402
import jax  # noqa: E402

SAMPLED = SMOOTH[::6]


def on_device(tree: Any) -> Any:
    return jax.tree.map(cupy.asarray, tree)


def equal(found: Any, expected: Any, tolerance: float) -> None:
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, cupy.ndarray)
        np.testing.assert_allclose(one.get(), np.asarray(two), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("expression", SAMPLED)
def test_gradients_are_those_of_the_cpu(expression: str) -> None:
    results = []
    for place in (cupy.asarray, np.asarray):
        function, arrays = function_of(expression, place=place)
        numbers = tuple(range(len(arrays)))
        gradient = tf.grad(lambda *given, function=function: (function(*given) ** 2).sum(), numbers)
        results.append(list(gradient(*map(place, arrays))))
    equal(*results, 1e-6)


@pytest.mark.parametrize("function", [recurrence, counted, branched], ids=lambda f: f.__name__)
def test_gradients_of_loops_are_those_of_the_cpu(function: Any) -> None:
    random = np.random.default_rng(4)
    arrays = [random.normal(size=(3, 3)) / 2, np.ones(3), random.normal(size=(5, 3))]
    arrays = arrays[: function.__code__.co_argcount]
    gradient = tf.grad(function, tuple(range(len(arrays))))
    equal(list(gradient(*map(cupy.asarray, arrays))), list(gradient(*arrays)), 1e-6)


def test_a_transformer_block_of_jax_on_cupy_and_jax_arrays() -> None:
    p = parameters()
    x = np.random.default_rng(1).normal(size=(2, 6, 16)).astype(np.float32)

    def loss(p: Any, x: Any) -> Any:
        return (block(p, x) ** 2).mean()

    function = tf.fuse(jax.value_and_grad(loss), frontend="jax")
    expected = jax.jit(jax.value_and_grad(loss))(p, x)
    equal(function(on_device(p), cupy.asarray(x)), expected, 2e-3)
    of_jax = function(jax.tree.map(jax.numpy.asarray, p), jax.numpy.asarray(x))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(of_jax))
    np.testing.assert_allclose(np.asarray(of_jax[0]), np.asarray(expected[0]), rtol=2e-3)
