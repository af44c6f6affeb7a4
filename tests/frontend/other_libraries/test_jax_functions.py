"""Functions of jax.numpy under `fuse(frontend="jax")`, against jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse as tf
from tests.frontend.other_libraries.jax_arrays import KEY, RANDOM, W, X, jax, jnp, lax

pytest.importorskip("jax.extend")
I = np.array([0, 2, 1], np.int32)
IMAGES = RANDOM.normal(size=(2, 8, 7, 4)).astype(np.float32)
KERNEL = RANDOM.normal(size=(3, 2, 4, 6)).astype(np.float32)


def norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def convolved(strides: tuple[int, int], padding: str, groups: int = 1) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(
        x, k[:, :, : 4 // groups], strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


CASES: dict[str, tuple[Any, ...]] = {
    "gelu": (lambda x, w: jax.nn.gelu(x @ w), X, W),
    "activations": (lambda x: jax.nn.relu(x) + jax.nn.silu(x) + jax.nn.elu(x) + jax.nn.softplus(x), X),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x), jax.scipy.special.logsumexp(x, 1)), X),
    "norm": (norm, X),
    "statistics": (lambda x: (x.mean(0), jnp.std(x), jnp.linalg.norm(x), x.max(1), jnp.argmin(x, 1), x.any()), X),
    "slices": (lambda x: (x[1:, ::2], x[-1], x[::-1], x[..., None]), X),
    "indices": (lambda x, i: (x[i], x[i, i], jnp.take(x, i, axis=1), x[i - 3]), X, I),
    "along": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), X),
    "updates": (lambda x, i: (x.at[1].set(0.0).at[0, 1].add(3.0), x.at[i].add(x), x.at[i].max(1.0)), X, I),
    "outside": (lambda x, i: (x.at[i + 1].set(0.0, mode="drop"), x.at[i + 1].get(mode="fill")), X, I),
    "segments": (lambda x, i: jax.ops.segment_sum(x, i % 2, 2), X, I),
    "dynamic": (lambda x: (lax.dynamic_slice(x, (1, 1), (2, 2)), lax.dynamic_update_slice(x, x[:1, :1], (9, 1))), X),
    "joins": (lambda x: (jnp.concatenate([x, x * 2], 1), jnp.stack([x, x]), jnp.roll(x, 1, 1), jnp.repeat(x, 2, 0)), X),
    "copies": (lambda x: (jnp.tile(x, (2, 3)), x.at[1:].subtract(x[:1]), jnp.empty_like(x) * 0), X),
    "pads": (lambda x: (jnp.pad(x, 1), lax.pad(x, 7.0, ((-1, 2, 1), (1, -1, 0)))), X),
    "masks": (lambda x: (jnp.where(x > 0, x, x * 0.1), jnp.tril(x), jnp.clip(x, -0.5, 0.5)), X),
    "products": (lambda x: (jnp.einsum("ij,kj->ik", x, x), jnp.outer(x[0], x[1]), jnp.vdot(x, x)), X),
    "batched": (jax.vmap(lambda r: r @ r), X),
    "integers": (lambda i: (i // 2 + i % 2, -i // 2, jax.nn.one_hot(i, 4), i << 2), I),
    "rounding": (lambda x: jnp.round(x * 3) + jnp.floor(x) + x**3 + x**-2, X),
    "scans": (lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1, reverse=True), jnp.sort(x, 1)), X),
    "top": (lambda x: lax.top_k(x, 2), X),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, c * 2), x[0], x), X),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x), X),
    "while": (lambda x: lax.while_loop(lambda c: (c * c).sum() < 100, lambda c: c * 2, x), X),
    "branches": (lambda x: (lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), lax.switch(5, [jnp.sin, jnp.tan], x)), X),
    "gradient": (jax.grad(lambda x: jnp.tanh(x @ x.T).sum() + (x[jnp.array([0, 2])] * x[1:3]).sum()), X),
    "hessian": (jax.hessian(lambda v: (jnp.sin(v) ** 2).sum()), X[0]),
    "tangent": (lambda x: jax.jvp(jnp.sin, (x,), (x,))[1], X),
    "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.cos(y)))(x).sum()), X),
    "trees": (lambda p: {"y": p["a"] + 1, "n": p["b"] * 2.0}, {"a": X, "b": 3.0}),
    "halves": (lambda x: (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32), X),
    "contractions": (
        lambda x, w: (
            jnp.einsum("bhwc,hwcd->bd", x[:, :3, :2], w),
            jnp.einsum("bhwc,bhvc->hbwv", x, x),
            w @ w[0, 0, 0],
        ),
        IMAGES,
        KERNEL,
    ),
    "normal": (lambda k: jax.random.normal(jax.random.split(k)[1], (3, 5)), KEY),
    "typed keys": (
        lambda k: jax.vmap(lambda one: jax.random.uniform(one, (2,)))(jax.random.split(jax.random.wrap_key_data(k), 3)),
        KEY,
    ),
    "draws": (
        lambda k: (jax.random.randint(jax.random.fold_in(k, 3), (5,), 0, 9), jax.random.bits(k, (3,), np.uint8)),
        KEY,
    ),
    "permutation": (lambda k: jax.random.permutation(k, 10), KEY),
    "keys in a scan": (
        lambda k: lax.scan(lambda c, _: (jax.random.split(c)[0], jax.random.uniform(c)), k, None, length=3),
        KEY,
    ),
    "bits": (
        lambda i: (lax.population_count(i), lax.clz(i), lax.clz(i.astype(jnp.int16))),
        I,
    ),
    **({"high bits": (lambda i: lax.mulhi(i * 2**20, i * 2**20), I)} if hasattr(lax, "mulhi") else {}),
    "bitcasts": (lambda x: [lax.bitcast_convert_type(x, t) for t in (jnp.int32, jnp.uint32, jnp.uint8)], X),
    "precision": (lambda x: [lax.reduce_precision(x * 1e5, *bits) for bits in ((8, 7), (5, 10), (5, 3), (8, 23))], X),
    "order": (
        lambda x: jnp.searchsorted(x, jnp.asarray([0.0, -0.0, jnp.nan, 1.0])),
        np.float32([-1, -0.0, 0, 2, np.nan]),
    ),
    "narrow sums": (lambda x: lax.dot(x, x.T, preferred_element_type=jnp.bfloat16), np.float32([[257, 1], [3, 5]])),
    "orders of axes": (lambda x: (jnp.column_stack(x), lax.reshape(x, (4, 3), (1, 0)), jnp.dstack(x)), X),
    "bitwise reductions": (
        lambda i: [lax.reduce(i + 4, np.int32(n), f, (0,)) for n, f in ((-1, lax.bitwise_and), (0, lax.bitwise_or))],
        I,
    ),
    "updates by functions": (
        lambda x: (x.at[jnp.array([0, 2])].apply(jnp.exp), x.at[jnp.array([1])].add(2.0), jnp.insert(x, 0, 1)),
        X,
    ),
    "top of columns": (lambda x: lax.top_k(x, 2, axis=0), X),
    "division by zero": (lambda i: (lax.div(i, i - 1), lax.rem(i, i - 2), i.astype(np.uint8) // 0), I),
    "rounding of halves": (lambda x: lax.round(x), np.float32([0.49999997, -0.5, 0.5, -2.5, np.nan, np.inf, -0.0])),
    "batched while": (
        jax.vmap(lambda r: lax.while_loop(lambda c: (c[1] ** 2).sum() < 50, lambda c: (c[0] + 1, c[1] * 2), (0, r))),
        X,
    ),
    "spread of nothing": (lambda x: lax.pad(x[:, :0], 7.0, ((0, 0, 0), (2, 1, 3))), X),
    "inverse": (lambda x: (jnp.linalg.inv(x @ x.T), jnp.linalg.slogdet(x @ x.T), jnp.linalg.solve(x @ x.T, x)), X),
    "factors": (
        lambda x: (jnp.linalg.cholesky(x @ x.T), jnp.linalg.svd(x), jnp.linalg.qr(x), jnp.linalg.eigh(x @ x.T)),
        X,
    ),
    "transforms": (lambda x: (jnp.fft.fft2(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.ifft(x)), X),
    "special": (lambda x: (jax.scipy.special.digamma(x**2 + 1), jax.scipy.special.gammainc(x**2, 2.0)), X),
    "pools backward": (jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME").sum()), X),
    "dilated": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        IMAGES,
        KERNEL,
    ),
    "pools": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"), X),
    "convolution": (convolved((1, 1), "SAME"), IMAGES, KERNEL),
    "strided": (convolved((2, 3), "VALID"), IMAGES, KERNEL),
    "grouped": (convolved((1, 1), "VALID", 2), IMAGES, KERNEL),
}


@pytest.mark.parametrize("name", CASES)
def test_values_types_and_structure_are_those_of_jax(name: str) -> None:
    function, *arguments = CASES[name]
    expected = jax.jit(function)(*arguments)
    with tf.options(target="reference"):
        found = tf.fuse(function, frontend="jax")(*arguments)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    tolerance = 2e-2 if name == "halves" else 2e-5
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=tolerance, atol=tolerance)


def block(p: dict[str, Any], x: Any) -> Any:
    """A transformer block with grouped heads, rotary positions, RMS norm and a gated product."""

    def rms(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def rotate(x: Any) -> Any:
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        sin, cos = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
        return jnp.concatenate(
            [x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1
        )

    length = x.shape[1]
    h = rms(x, p["n1"])
    q, k, v = (jnp.einsum("btd,dhe->bthe", h, p[name]) for name in "qkv")
    k, v = (jnp.repeat(one, 2, axis=2) for one in (k, v))
    scores = jnp.einsum("bthe,bshe->bhts", rotate(q), rotate(k)) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    x = x + jnp.einsum("bhts,bshe,hed->btd", jax.nn.softmax(scores), v, p["o"])
    h = rms(x, p["n2"])
    return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"]


def parameters() -> dict[str, Any]:
    shapes = {"q": (16, 4, 8), "k": (16, 2, 8), "v": (16, 2, 8), "o": (4, 8, 16), "w1": (16, 24), "w3": (16, 24)}
    shapes["w2"] = (24, 16)
    made = {name: RANDOM.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return {**made, "n1": np.ones(16, np.float32), "n2": np.ones(16, np.float32)}


def test_a_transformer_block_and_its_gradient_in_compiled_kernels() -> None:
    p = parameters()
    x = RANDOM.normal(size=(2, 6, 16)).astype(np.float32)

    def loss(p: Any, x: Any) -> Any:
        return (block(p, x) ** 2).mean()

    expected = jax.jit(jax.value_and_grad(loss))(p, x)
    found = tf.fuse(jax.value_and_grad(loss), frontend="jax")(p, x)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=2e-4, atol=2e-5)


def test_sizes_stay_symbolic_where_jax_can_compare_them() -> None:
    function = tf.fuse(lambda x, w: jax.nn.softmax(jax.nn.gelu(x @ w) + x.shape[0]).mean(0), frontend="jax")
    with tf.options(target="reference"):
        for count in (3, 6, 7, 2):
            function(np.ones((count, 4), np.float32), W)
    assert function.cache_info().traces == 1


def test_batches_stay_symbolic_where_jax_cannot_compare_other_sizes() -> None:
    square = jnp.asarray(RANDOM.normal(size=(4, 4)), jnp.float32)

    def stepped(x: Any, rate: float) -> Any:
        lower = jnp.tril(square - rate * jnp.eye(4))
        return lax.fori_loop(0, 2, lambda _, y: jnp.tanh(y @ lower), jnp.concatenate([x, jnp.ones((x.shape[0], 1))], 1))

    function = tf.fuse(stepped, frontend="jax")
    with tf.options(target="reference"):
        for count in (3, 6, 2, 5):
            x = RANDOM.normal(size=(count, 3)).astype(np.float32)
            np.testing.assert_allclose(function(x, 0.5), stepped(x, 0.5), rtol=1e-4, atol=1e-5)
        assert function.cache_info().traces == 1 + 1  # at first, 3 is the size of two axes
        np.testing.assert_allclose(function(x, 0.25), stepped(x, 0.25), rtol=1e-4, atol=1e-5)


def test_batches_stay_symbolic_beside_kernels_whose_sizes_are_constants() -> None:
    def pooled(images: Any, kernel: Any) -> Any:
        return jnp.tanh(convolved((1, 1), "SAME")(images, kernel)).mean((1, 2))

    function, kernel = tf.fuse(pooled, frontend="jax"), KERNEL[:3]
    with tf.options(target="reference"):
        for count in (2, 5, 7):
            images = RANDOM.normal(size=(count, 8, 7, 4)).astype(np.float32)
            np.testing.assert_allclose(function(images, kernel), pooled(images, kernel), rtol=1e-3, atol=1e-4)
    assert function.cache_info().traces == 2  # at first, 2 is the size of two axes of the kernel as well


def test_jax_traces_calls_with_jax_arrays() -> None:
    @tf.fuse
    def scaled(x: Any, n: Any) -> Any:
        return jax.nn.gelu(x) * n

    x, n = jnp.asarray(X), jnp.arange(4, dtype=jnp.int32)
    with tf.options(target="reference"):
        found = scaled(x, n)
        assert scaled(x[:2], n).shape == (2, 4)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, jax.nn.gelu(x) * n, rtol=1e-5)
    assert scaled.cache_info().traces == 1
    with pytest.raises(tf.UnsupportedError, match="frontend='jax'"):
        tf.fuse(lambda x: jax.lax.sort(x))(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + x.sum(),
        lambda x: np.exp(x) + x[x > 0].sum(),
        lambda x: np.sqrt(np.abs(x)).max(axis=1),
        lambda x: x * 2 if x.sum() > 100 else -x,
        lambda x: tf.xp.linalg.vector_norm(x),
    ],
)
def test_functions_of_numpy_take_jax_arrays(function: Callable[..., Any]) -> None:
    with tf.options(target="reference"):
        found, expected = tf.fuse(function)(jnp.asarray(X)), tf.fuse(function)(X)
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
