"""JAX's typed random keys as arguments and results of fused functions, and `jax.debug.print` in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse as tf

jax = pytest.importorskip("jax")
jnp = jax.numpy


def same(found: Any, expected: Any) -> None:
    """Equal trees of arrays and of keys, to rounding."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == two.dtype
        if jnp.issubdtype(two.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        np.testing.assert_allclose(one, two, rtol=1e-5)


def draw(state: dict[str, Any], x: Any) -> Any:
    key, of_call = jax.random.split(state["key"])
    return {"key": key, "count": state["count"] + 1}, x + jax.random.normal(of_call, x.shape)


def test_keys_are_arguments_and_results_with_one_trace_for_all() -> None:
    fused, found = tf.fuse(draw, target="reference"), {"key": jax.random.key(0), "count": jnp.zeros(())}
    expected = found
    for size in (3, 3, 4):
        (found, one), (expected, two) = fused(found, jnp.ones(size)), draw(expected, jnp.ones(size))
        same((found, one), (expected, two))
    assert fused.cache_info().traces == 1


def test_arrays_of_keys_have_symbolic_sizes() -> None:
    def normals(keys: Any) -> Any:
        return jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys), keys[::-1]

    fused = tf.fuse(normals, target="reference")
    for count in (3, 4, 5):
        keys = jax.random.split(jax.random.key(count), count)
        same(fused(keys), normals(keys))
    assert fused.cache_info().traces == 1


def noise(key: Any) -> Any:
    return jax.random.uniform(key, (2,)), jax.random.fold_in(key, 3)


def test_keys_pass_through_transformations_of_jax() -> None:
    key, fused = jax.random.key(1), tf.fuse(noise, target="reference")
    same(jax.jit(fused)(key), noise(key))
    keys = jax.random.split(key, 3)
    same(jax.vmap(fused)(keys), jax.vmap(noise)(keys))


def test_debug_print_prints_the_values_of_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(x: Any) -> Any:
        jax.debug.print("{} of {name}: {most:.1f}", x.sum(), most=x.max(), name="x")
        return x * 2

    fused = tf.fuse(shown, target="reference")
    if "debug_print" not in str(jax.make_jaxpr(shown)(jnp.ones(2))):
        with pytest.raises(tf.UnsupportedError, match="calls a Python function"):  # before JAX 0.10
            fused(jnp.arange(3.0))
        return
    for start in (0.0, 1.0):
        fused(start + jnp.arange(3.0))
    jax.jit(fused)(jnp.ones(2)).block_until_ready()
    assert capsys.readouterr().out == "3.0 of x: 2.0\n6.0 of x: 3.0\n2.0 of x: 1.0\n"


@pytest.mark.parametrize("fallback", [None, "jax"])
def test_callbacks_into_python_are_refused_with_the_line(fallback: str | None) -> None:
    def called(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(tf.UnsupportedError, match=r"pure_callback calls a Python function.*\(test_random_keys.py:"):
        tf.fuse(called, fallback=fallback)(jnp.ones(2))
