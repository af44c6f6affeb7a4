"""Captured arrays, numbers, pytrees and primitives of functions of jax.numpy are those that JAX would use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse as tf
from tests.frontend.other_libraries.jax_arrays import KEY, W, X, jax, jnp, lax
from tracefuse.frontend.jax_api.jaxpr_recording import PRIMITIVES


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_captured_arrays_are_inputs(kind: Callable[..., Any]) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = kind(W)
            self.rest = {"bias": [kind(W[0])]}

    model, scale = Model(), kind(X[:1, :1])

    @tf.fuse(frontend="jax")
    def apply(x: Any) -> Any:
        bias = sum(jax.tree.leaves(model.rest))
        return jax.vmap(lambda row: jnp.tanh(row @ model.weight + bias))(x) * scale

    with tf.options(target="reference"):
        for _ in range(2):
            expected = np.tanh(X @ np.asarray(model.weight) + np.asarray(model.rest["bias"][0])) * X[0, 0]
            np.testing.assert_allclose(apply(X), expected, rtol=1e-5)
            model.weight, model.rest["bias"][0] = model.weight * 2, model.rest["bias"][0] - 1
    assert apply.cache_info().traces == 1


def test_numbers_that_a_function_asks_for_are_guarded() -> None:
    @tf.fuse(frontend="jax")
    def repeated(x: Any, count: Any, scale: Any) -> Any:
        for _ in range(count):
            x = jnp.sin(x) * scale
        return x

    with tf.options(target="reference"):
        for count in (1, 3, 1):
            expected = X
            for _ in range(count):
                expected = np.sin(expected) * 0.5
            np.testing.assert_allclose(repeated(X, count, 0.5), expected, rtol=1e-5)
    assert repeated.cache_info().traces == 2


def test_jax_arrays_made_of_python_numbers_promote_as_numbers() -> None:
    product = tf.fuse(lambda x, y: x * y)
    halves = jnp.ones(3, jnp.bfloat16)
    with tf.options(target="reference"):
        types = [product(one, halves).dtype for one in (jnp.asarray(2.0), jnp.float32(2), jnp.asarray(3.0))]
    assert types == [jnp.bfloat16, jnp.float32, jnp.bfloat16]


def test_classes_that_jax_registers_are_pytrees() -> None:
    class Layer:
        def __init__(self, weight: Any, name: str) -> None:
            self.weight, self.name = weight, name

    jax.tree_util.register_pytree_with_keys(
        Layer, lambda one: (((jax.tree_util.GetAttrKey("weight"), one.weight),), one.name),
        lambda name, children: Layer(*children, name),
    )  # fmt: skip
    with tf.options(target="reference"):
        found = tf.fuse(lambda layer: jax.tree.map(lambda w: w + 1, layer))(Layer(jnp.ones(3), "first"))
    assert (found.name, found.weight.tolist()) == ("first", [2, 2, 2])


def test_arrays_come_back_as_they_went_in() -> None:
    function = tf.fuse(lambda x: jnp.sin(x) * 2, frontend="jax")
    assert isinstance(function(jnp.ones(3)), jax.Array)
    assert isinstance(function(np.ones(3, np.float32)), np.ndarray)
    assert function(np.ones(3)).dtype == np.float32  # as under jax.jit without jax_enable_x64


def test_results_promote_as_those_of_jax() -> None:
    function = lambda x, s: (jnp.where(x > 0, 1.0, 0.0), x * s, s * 2, x.sum(), 3)  # noqa: E731
    fused, expected = tf.fuse(function, frontend="jax", target="reference"), jax.jit(function)(jnp.ones(3), 2.0)
    compiled = tf.fuse(function, frontend="jax")
    for found in (fused(jnp.ones(3), 2.0), *[compiled(jnp.ones(3), 2.0) for _ in range(3)]):
        assert [one.weak_type for one in found] == [one.weak_type for one in expected]
        assert [one.dtype for one in found] == [one.dtype for one in expected]


def test_jax_functions_are_differentiated_by_tracefuse_too() -> None:
    with tf.options(target="reference"):
        function = tf.fuse(lambda x: jnp.tanh(x).sum(), frontend="jax")
        np.testing.assert_allclose(tf.grad(function)(X), 1 - np.tanh(X) ** 2, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (lax.linalg.eigh(a)[1] ** 2).sum(),
        lambda a: jax.scipy.special.digamma(a).sum(),
        lambda a: (lax.cumlogsumexp(a[:2, :3], 1) ** 2).sum(),
    ],
    ids=["factors", "special", "jax"],
)
def test_primitives_of_libraries_are_differentiated_and_rebuilt_from_their_definition(function: Any) -> None:
    a = (W.T @ W + 3 * np.eye(5)).astype(np.float32)
    fused = tf.fuse(function, frontend="jax", target="reference")
    with tf.options(target="reference"):
        np.testing.assert_allclose(tf.grad(fused)(a), jax.jit(jax.grad(function))(a), rtol=1e-4, atol=1e-4)
        tangent = tf.jvp(fused, (a,), (a,))[1]
    np.testing.assert_allclose(tangent, jax.jit(lambda a: jax.jvp(function, (a,), (a,))[1])(a), rtol=1e-4)
    definition = fused.definition(a)
    names: dict[str, Any] = {}
    exec(f"from tracefuse import *\n{definition!r}", names)
    with tf.FusionDefinition() as again:
        next(value for name, value in names.items() if name.startswith("nvfuser_fusion"))(again)
    np.testing.assert_array_equal(again.execute([a])[0], definition.execute([a])[0])


def test_primitives_that_take_functions_have_a_definition_that_names_them() -> None:
    fused = tf.fuse(
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * 2, (0,)), frontend="jax", target="reference"
    )
    assert "call='" in repr(fused.definition(X))
    with tf.options(target="reference"), pytest.raises(tf.UnsupportedError, match="hessenberg has no derivative rule"):
        tf.grad(tf.fuse(lambda x: lax.linalg.hessenberg(x)[0].sum(), frontend="jax"))(X[:, :3])


def test_a_primitive_without_a_rule_names_itself_and_the_line() -> None:
    own = jax.extend.core.Primitive("own_sine")
    own.def_impl(jnp.sin)
    own.def_abstract_eval(lambda x: x)
    jax.interpreters.mlir.register_lowering(own, jax.interpreters.mlir.lower_fun(jnp.sin, multiple_results=False))
    with pytest.raises(
        tf.UnsupportedError, match=r"the JAX primitive own_sine\[\] cannot be recorded \(test_jax_state_and_primitives"
    ):
        tf.fuse(lambda x: own.bind(x) * 2, frontend="jax")(X)
    with tf.options(target="reference"):
        found = tf.fuse(lambda x: own.bind(x) * 2, frontend="jax", fallback="jax")(X)
    np.testing.assert_allclose(found, 2 * np.sin(X), rtol=1e-6)
    with pytest.raises(tf.OptionError, match="fallback cannot be 'numpy'"):
        tf.fuse(lambda x: x, fallback="numpy")
    with pytest.raises(tf.OptionError, match="frontend cannot be 'torch'"):
        tf.fuse(lambda x: x, frontend="torch")


def test_random_bits_are_those_of_jax() -> None:
    def bits(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return keys, jax.random.bits(keys[0], (4, 5)), jax.random.uniform(keys[2], (7,)), jax.random.key_data(keys[1])

    for one, two in zip(tf.fuse(bits, frontend="jax")(KEY), jax.jit(bits)(KEY), strict=True):
        np.testing.assert_array_equal(one, two)


def test_rules_are_of_primitives_that_jax_has() -> None:
    assert len(PRIMITIVES) > 180


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_one_window_is_written_as_jax_does(method: str) -> None:
    """At constant and computed places, inside and outside, in every mode."""

    def function(x: Any, y: Any, k: Any) -> Any:
        written = [getattr(x.at[1:-1], method)(x[2:-1].sum(0) * y[0]), getattr(x.at[:, 2], method)(y[:5])]
        written += [getattr(x.at[2], method)(y[1]), getattr(x.at[-1, 1], method)(y[2])]
        written += [getattr(x.at[k, 1:3], method)(y[:2], mode=m) for m in ("drop", "clip", "promise_in_bounds")]
        written += [getattr(x.at[k], method)(y[0]), getattr(x.at[2:2], method)(y[0]), getattr(x[0].at[k], method)(9)]
        return [*written, jax.lax.dynamic_update_slice(x, y[:2, None] * 2, (k, k))]

    x, y = jnp.arange(20.0).reshape(5, 4) - 7, jnp.arange(1.0, 7.0)
    fused, jitted = tf.fuse(function), jax.jit(function)
    for k in map(jnp.int32, (0, 3, 4, -1, 5, 9, -8)):
        for place, (found, expected) in enumerate(zip(fused(x, y, k), jitted(x, y, k), strict=True)):
            is_promised = 0 <= k < 5 or place != 6
            assert not is_promised or jnp.array_equal(found, expected)
    assert not [node for node in fused.trace(x, y, k).fusion.nodes if node.op.name == "index_put"]


def test_captured_arrays_of_jax_are_read_on_the_fast_path() -> None:
    scale = jnp.arange(3.0)
    f = tf.fuse(lambda x: x * scale + 1)
    for value, traces in (
        (scale, 1),
        (scale, 1),
        (jnp.full(3, 9.0), 1),
        (jnp.ones((2, 3)), 2),
        (np.float32([1, 2, 3]), 2),
    ):
        scale = value
        np.testing.assert_array_equal(f(jnp.ones(3)), np.asarray(value) + 1)
        assert f.cache_info().traces == traces
    assert f._cache.fast_paths


def test_numbers_that_go_to_functions_of_jax_are_traced_by_jax() -> None:
    def root(start: Any, tolerance: Any) -> Any:
        def step(state: Any) -> Any:
            change = (state[0] ** 3 - 2 * state[0] - 5) / (3 * state[0] ** 2 - 2)
            return state[0] - change, change

        return lax.while_loop(lambda state: jnp.abs(state[1]) > tolerance, step, (start, jnp.inf))[0]

    functions: list[tuple[Any, tuple[float, ...]]] = [
        (root, (2.0, 1e-6)), (lambda s: jnp.arange(5) * s + 1, (2.5,)), (lambda s: {"sine": jnp.sin(s)}, (0.5,)),
    ]  # fmt: skip
    for function, numbers in functions:
        results, expected = tf.fuse(function)(*numbers), jax.jit(function)(*numbers)
        assert jax.tree.structure(results) == jax.tree.structure(expected)
        for result, array in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            assert isinstance(result, jax.Array)
            assert result.dtype == array.dtype
            np.testing.assert_allclose(result, array, rtol=1e-6)
