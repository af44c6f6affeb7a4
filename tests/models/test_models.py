"""Models of flax and equinox: values and gradients against jax.jit, in float32 and bfloat16, and steps of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse as tf

jax = pytest.importorskip("jax")
for _name in ("flax", "equinox", "optax"):
    pytest.importorskip(_name, reason=f"{_name} is not installed; the extra 'models' has it")

from tests.models.model_cases import CASES, OPTIMIZER, in_halves, training_step  # noqa: E402


def check_close(found: Any, expected: Any, tolerance: float) -> None:
    """Each leaf agrees, relative to the largest gradient."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    scale = max(float(np.max(np.abs(np.asarray(two, np.float32)))) for _, two in pairs)
    for one, two in pairs:
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(two, np.float32), atol=tolerance * scale)


@pytest.mark.parametrize("halves", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_jax(name: str, halves: bool) -> None:
    case = CASES[name]()
    arguments = (case.parameters, *case.inputs)
    function, exact = jax.value_and_grad(case.loss), jax.jit(jax.value_and_grad(case.loss))(*arguments)
    with tf.options(target="reference"):
        if not halves:
            check_close(tf.fuse(function)(*arguments), exact, 1e-5)
            return
        found = tf.fuse(function)(*in_halves(arguments))
    jitted = jax.jit(function)(*in_halves(arguments))
    assert [one.dtype for one in jax.tree.leaves(found)] == [one.dtype for one in jax.tree.leaves(jitted)]
    check_close(jax.tree.map(np.float32, found), jax.tree.map(np.float32, exact), 0.05)


def test_a_language_model_trains_as_under_jax() -> None:
    case = CASES["language model"]()
    fused, jitted = tf.fuse(training_step(case)), jax.jit(training_step(case))
    mine = theirs = (case.parameters, OPTIMIZER.init(case.parameters))
    for _ in range(5):
        *mine, loss = fused(*mine, *case.inputs)
        *theirs, expected = jitted(*theirs, *case.inputs)
        assert abs(float(loss) - float(expected)) < 1e-3 * float(expected)
    assert fused.cache_info().traces == 1
    assert type(mine[1][0]) is type(theirs[1][0])
