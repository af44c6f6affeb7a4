"""Fused functions inside of JAX's transformations, against the functions themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracefuse as tf

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")
jnp = jax.numpy

RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(3, 4)), jnp.float32)
W = jnp.asarray(RANDOM.normal(size=(4, 2)), jnp.float32)


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) * 2 + x.sum()


def several(x: Any, w: Any) -> Any:
    """Results that are operands, equal, integers and halves."""
    y = x @ w
    return {"x": x, "y": [y, y], "i": jnp.argmax(y, 1), "h": y.astype(jnp.bfloat16), "one": jnp.float32(1)}


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: sum(jnp.sum(one.astype(jnp.float32)) for one in jax.tree.leaves(f(x, w)))


TRANSFORMATIONS: dict[str, Callable[..., Any]] = {
    "jit": lambda f: jax.jit(lambda x, w: f(x + 1, w)),
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(x[:, None], w),
    "jvp": lambda f: lambda x, w: jax.jvp(lambda x, w: total(f)(x, w), (x, w), (x, w)),
    "grad": lambda f: jax.grad(total(f), (0, 1)),
    "grad of jit": lambda f: jax.grad(jax.jit(total(f)), 1),
    "hessian": lambda f: jax.jit(jax.hessian(total(f), 1)),
    "vmap of grad": lambda f: lambda x, w: jax.jit(jax.vmap(jax.grad(total(f)), (0, None)))(x[:, None], w),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(total(f))),
    "scan": lambda f: jax.grad(
        lambda x, w: jax.lax.scan(lambda c, _: (c * total(f)(c, w), c), x, None, length=2)[0].sum()
    ),
}


@pytest.mark.parametrize("function", [layer, several])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_act_as_on_the_function_itself(name: str, function: Callable[..., Any]) -> None:
    transform = TRANSFORMATIONS[name]
    found, expected = transform(tf.fuse(function, target="reference"))(X, W), transform(function)(X, W)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_allclose(
            np.float32(one), np.float32(two), rtol=1e-2 if function is several else 1e-4, atol=1e-4
        )


def test_kernels_run_inside_of_a_jitted_function() -> None:
    fused = tf.fuse(layer)
    found = jax.jit(jax.value_and_grad(lambda w: fused(X, w).sum() + (fused(X, w + 1) ** 2).sum()))(W)
    expected = jax.value_and_grad(lambda w: layer(X, w).sum() + (layer(X, w + 1) ** 2).sum())(W)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)


def test_a_fused_function_may_capture_what_jax_traces() -> None:
    found = jax.jit(lambda x, w: tf.fuse(lambda y: y @ w + 1, target="reference")(x))(X, W)
    np.testing.assert_allclose(found, X @ W + 1, rtol=1e-5)
    with pytest.raises(tf.TraceError, match="w is captured and traced by JAX"):
        jax.grad(lambda w: tf.fuse(lambda y: (y @ w).sum(), target="reference")(X))(W)


def test_numbers_and_text_stay_values_of_python() -> None:
    @tf.fuse(target="reference")
    def repeated(x: Any, count: int, how: str) -> Any:
        for _ in range(count):
            x = getattr(jnp, how)(x)
        return x

    np.testing.assert_allclose(jax.jit(lambda x: repeated(x, 2, "sin"))(X), jnp.sin(jnp.sin(X)), rtol=1e-5)


@pytest.mark.parametrize(
    ("fused", "message"),
    [
        (tf.fuse(lambda x: np.exp(x)), "is no function of jax.numpy"),
        (tf.fuse(lambda x: x + 1, frontend="numpy"), "has frontend='numpy'"),
        (tf.fuse(lambda x: x + 1, fallback="jax"), "has fallback='jax'"),
        (tf.fuse(lambda x: x + 1, donate_argnums=0), "has out= or donated arguments"),
        (
            tf.fuse(lambda x: jax.lax.linalg.hessenberg(x @ x.T)[0]),
            "JAX computes hessenberg, which a program of XLA cannot call",
        ),
    ],
)
def test_what_a_program_of_xla_cannot_hold_is_refused(fused: Any, message: str) -> None:
    with pytest.raises(tf.UnsupportedError, match=message):
        jax.jit(fused)(X)


def test_an_exception_of_a_kernel_is_an_error_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    call = jax.jit(tf.fuse(lambda x: x * 2, target="reference"))
    call(X)

    def fails(*arguments: Any) -> None:
        raise MemoryError("no memory for segment 0")

    monkeypatch.setattr("tracefuse.frontend.fuse.FusedFunction.into", fails)
    with pytest.raises((RuntimeError, ValueError), match="no memory for segment 0"):
        jax.block_until_ready(call(X))


def test_state_that_a_function_changes_is_refused_inside_of_jax_and_stays() -> None:
    state = SimpleNamespace(total=jnp.zeros(3), steps=0, seen=[], known={})

    class Counter:
        count = 0

        @tf.fuse(frontend="jax")
        def add(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    def total(x: Any) -> Any:
        state.total = state.total + x
        return x * 2

    def steps(x: Any) -> Any:
        state.steps += 1
        return jnp.sin(x)

    def seen(x: Any) -> Any:
        state.seen.append(x)
        return jnp.sin(x)

    def known(x: Any) -> Any:
        state.known["x"] = jnp.sin(x)
        return x

    counter, before = Counter(), state.total
    for function in (total, steps, seen, known, counter.add):
        fused = function if function == counter.add else tf.fuse(function)
        for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
            with pytest.raises(tf.UnsupportedError, match=r"changes .* inside of jax\.jit"):
                transform(lambda x, fused=fused: fused(x) + 1)(jnp.ones(3))
    assert (state.total is before, state.steps, state.seen, state.known, counter.count) == (True, 0, [], {}, 0)
    assert tf.fuse(total)(jnp.ones(3)).tolist() == [2.0] * 3  # outside of JAX it is written
    assert np.asarray(state.total).tolist() == [1.0] * 3
    with pytest.raises(tf.UnsupportedError, match="assigned an array"):
        tf.fuse(known)(jnp.ones(3))
    assert state.known == {}


def cubes(x: Any) -> Any:
    return jnp.sum(jnp.sin(x) * x**2)


DERIVATIVES: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
    "grad": lambda of, f: of.grad(f)(X),
    "value_and_grad": lambda of, f: of.value_and_grad(lambda x, w: (f(x), w), has_aux=True)(X, W),
    "jvp": lambda of, f: of.jvp(f, (X,), (X + 1,)),
    "vjp": lambda of, f: of.vjp(f, X)[1](jnp.ones(())),
    "grad of grad": lambda of, f: of.grad(lambda x: of.grad(f)(x).sum())(X),
    "checkpoint": lambda of, f: of.grad(of.checkpoint(f))(X),
    "jit": lambda of, f: jax.jit(of.grad(f))(X),
    "vmap": lambda of, f: jax.vmap(of.grad(f))(X),
    "grad of JAX": lambda of, f: jax.grad(lambda x: of.grad(f)(x).sum())(X),
    "of a fused function": lambda of, f: of.grad(f if of is jax else tf.fuse(f))(X),
    "operators alone": lambda of, f: of.jvp(lambda x: x * x, (X,), (X,)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_functions_of_jax_numpy_are_those_of_jax(name: str) -> None:
    with tf.options(target="reference"):
        found = DERIVATIVES[name](tf, cubes)
    expected = DERIVATIVES[name](jax, cubes)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_a_fused_function_calls_another_inside_of_jax() -> None:
    inner = tf.fuse(lambda x: jnp.sin(x) * 2, target="reference")
    outer = tf.fuse(lambda x: (inner(x) + inner(x * 2)).sum(), target="reference")
    plain = lambda x: (jnp.sin(x) * 2 + jnp.sin(x * 2) * 2).sum()  # noqa: E731
    np.testing.assert_allclose(jax.jit(outer)(X), plain(X), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(outer)(X), jax.grad(plain)(X), rtol=1e-5)


def test_transformations_by_jax_of_a_fused_function_are_fused() -> None:
    inner = tf.fuse(lambda x: jnp.sin(x).sum())
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(tf.fuse(jax.grad(inner))(x), np.cos(x), rtol=1e-6)
    np.testing.assert_allclose(tf.fuse(jax.vmap(inner))(x), np.sin(x).sum(1), rtol=1e-6)
