"""Programs as users of JAX write them, each with its arguments: scripts of jax.numpy in one file, small sizes."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.frontend.jax_program_table import RANDOM, normal, program


def layers(*sizes: int) -> list[dict[str, Any]]:
    pairs = itertools.pairwise(sizes)
    return [{"w": normal(m, n) / np.sqrt(m), "b": jnp.zeros(n)} for m, n in pairs]


def perceptron(parameters: Any, x: Any) -> Any:
    for layer in parameters[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ parameters[-1]["w"] + parameters[-1]["b"]


# ---------------------------------------------------------------------------------------------------------------------
# training


@program(lambda: (layers(1, 16, 1), jnp.linspace(0.0, 1.0, 12)))
def physics_informed_step(parameters: Any, points: Any) -> Any:
    """One step on the residual of u'' = -u, u(0) = 0."""

    def u(parameters: Any, x: Any) -> Any:
        return perceptron(parameters, x[None])[0]

    def loss(parameters: Any) -> Any:
        bent = jax.vmap(jax.grad(jax.grad(u, 1), 1), (None, 0))(parameters, points)
        values = jax.vmap(u, (None, 0))(parameters, points)
        return jnp.mean((bent + values) ** 2) + u(parameters, jnp.zeros(())) ** 2

    value, gradient = jax.value_and_grad(loss)(parameters)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradient)


@program(lambda: (layers(8, 16, 6), layers(3, 16, 8), jax.nn.sigmoid(normal(10, 8)), jax.random.PRNGKey(1)))
def variational_autoencoder_loss(encoder: Any, decoder: Any, x: Any, key: Any) -> Any:
    def loss(both: Any) -> Any:
        mean, log_variance = jnp.split(perceptron(both[0], x), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        logits = perceptron(both[1], z)
        likelihood = jnp.sum(x * jax.nn.log_sigmoid(logits) + (1 - x) * jax.nn.log_sigmoid(-logits), -1)
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1)
        return jnp.mean(divergence - likelihood)

    return jax.value_and_grad(loss)((encoder, decoder))


@program(lambda: (normal(20, 5), jnp.asarray(RANDOM.integers(0, 3, 20)), jnp.zeros((5, 3))))
def logistic_regression_by_newton(x: Any, labels: Any, weights: Any) -> Any:
    def loss(flat: Any) -> Any:
        scores = jax.nn.log_softmax(x @ flat.reshape(weights.shape))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1)) + 1e-2 * jnp.sum(flat**2)

    flat = weights.ravel()
    for _ in range(2):
        flat = flat - jnp.linalg.solve(jax.hessian(loss)(flat), jax.grad(loss)(flat))
    return flat.reshape(weights.shape), loss(flat)


class Moments(NamedTuple):
    mean: Any
    square: Any
    count: Any


@program(lambda: (layers(4, 8, 2), normal(6, 4), normal(6, 2)))
def ten_steps_of_adam_by_scan(parameters: Any, x: Any, y: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        parameters, state = carry
        value, gradient = jax.value_and_grad(lambda p: jnp.mean((perceptron(p, x) - y) ** 2))(parameters)
        count = state.count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, state.square, gradient)
        parameters = jax.tree.map(
            lambda p, m, s: p - 0.01 * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8),
            parameters, mean, square,
        )  # fmt: skip
        return (parameters, Moments(mean, square, count)), value

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return lax.scan(step, (parameters, Moments(zeros, zeros, jnp.float32(0))), None, length=10)


@program(lambda: (normal(3, 8, 8, 2), normal(3, 3, 2, 4), normal(4, 5)))
def convolutional_classifier(images: Any, filters: Any, head: Any) -> Any:
    def loss(filters: Any, head: Any) -> Any:
        hidden = lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        pooled = lax.reduce_window(jax.nn.relu(hidden), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.nn.logsumexp(pooled.mean((1, 2)) @ head, axis=-1).mean()

    return jax.value_and_grad(loss, (0, 1))(filters, head)


@program(lambda: (normal(10, 6), normal(4, 6)))
def contrastive_loss(queries: Any, keys: Any) -> Any:
    def loss(queries: Any) -> Any:
        unit = lambda v: v / jnp.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
        scores = unit(queries)[:4] @ unit(keys).T / 0.1
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores, axis=1)))

    return jax.value_and_grad(loss)(queries)


# ---------------------------------------------------------------------------------------------------------------------
# statistics


@program(lambda: (normal(12, 2), normal(12), normal(5, 2), jnp.float32(0.7)))
def gaussian_process(x: Any, y: Any, test: Any, scale: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-jnp.sum((a[:, None] - b[None]) ** 2, -1) / (2 * scale**2))

    factor = jnp.linalg.cholesky(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]))
    weights = jax.scipy.linalg.cho_solve((factor, True), y)
    cross = kernel(test, x)
    inner = jax.scipy.linalg.solve_triangular(factor, cross.T, lower=True)
    evidence = -0.5 * y @ weights - jnp.log(jnp.diagonal(factor)).sum() - 0.5 * len(y) * jnp.log(2 * jnp.pi)
    return cross @ weights, jnp.diagonal(kernel(test, test)) - jnp.sum(inner**2, 0), evidence


@program(lambda: (normal(15, 2), jnp.eye(3) + 0.1 * normal(3, 3), normal(2, 3)))
def kalman_filter(observations: Any, transition: Any, emission: Any) -> Any:
    def step(carry: Any, y: Any) -> Any:
        mean, cov = carry
        mean, cov = transition @ mean, transition @ cov @ transition.T + 0.1 * jnp.eye(3)
        innovation = emission @ cov @ emission.T + 0.5 * jnp.eye(2)
        gain = jnp.linalg.solve(innovation, emission @ cov).T
        mean = mean + gain @ (y - emission @ mean)
        cov = cov - gain @ emission @ cov
        return (mean, cov), (mean, jnp.linalg.slogdet(innovation)[1])

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), observations)


@program(lambda: (normal(5), jax.random.PRNGKey(3)))
def metropolis_sampler(start: Any, key: Any) -> Any:
    def log_density(x: Any) -> Any:
        return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.cos(3 * x))

    def step(carry: Any, key: Any) -> Any:
        x, value = carry
        first, second = jax.random.split(key)
        moved = x + 0.3 * jax.random.normal(first, x.shape)
        new = log_density(moved)
        is_taken = jnp.log(jax.random.uniform(second)) < new - value
        x, value = jnp.where(is_taken, moved, x), jnp.where(is_taken, new, value)
        return (x, value), (x, is_taken)

    return lax.scan(step, (start, log_density(start)), jax.random.split(key, 20))


@program(lambda: (normal(6), jax.random.PRNGKey(0)))
def hamiltonian_step(x: Any, key: Any) -> Any:
    def potential(x: Any) -> Any:
        return jnp.sum(jnp.logaddexp(x, -2 * x)) + 0.05 * jnp.sum(jnp.diff(x) ** 2)

    momentum = jax.random.normal(key, x.shape)
    energy = potential(x) + 0.5 * momentum @ momentum
    slope = jax.grad(potential)

    def leap(_: Any, state: Any) -> Any:
        x, p = state
        p = p - 0.05 * slope(x)
        x = x + 0.1 * p
        return x, p - 0.05 * slope(x)

    x, momentum = lax.fori_loop(0, 8, leap, (x, momentum))
    return x, potential(x) + 0.5 * momentum @ momentum - energy


@program(lambda: (normal(30, 4), jnp.asarray(RANDOM.integers(0, 5, 30))))
def means_of_segments(values: Any, segments: Any) -> Any:
    total = jax.ops.segment_sum(values, segments, num_segments=5)
    count = jax.ops.segment_sum(jnp.ones(values.shape[0]), segments, num_segments=5)
    largest = jax.ops.segment_max(values, segments, num_segments=5)
    return total / jnp.maximum(count, 1)[:, None], largest


@program(lambda: (normal(40, 2), normal(3, 2)))
def k_means(points: Any, centers: Any) -> Any:
    def step(_: Any, centers: Any) -> Any:
        distances = jnp.sum((points[:, None] - centers) ** 2, -1)
        members = jax.nn.one_hot(jnp.argmin(distances, 1), centers.shape[0])
        return members.T @ points / jnp.maximum(members.sum(0), 1)[:, None]

    return lax.fori_loop(0, 5, step, centers)


@program(lambda: (normal(20, 6),))
def principal_components(x: Any) -> Any:
    centred = x - x.mean(0)
    values = jnp.linalg.eigvalsh(centred.T @ centred / (x.shape[0] - 1))
    _, singular, _ = jnp.linalg.svd(centred, full_matrices=False)
    return values[::-1][:3], singular[:3] ** 2 / jnp.sum(singular**2), jnp.quantile(x, 0.25, axis=0)


@program(lambda: (jax.random.PRNGKey(5),))
def estimate_by_monte_carlo(key: Any) -> Any:
    points = jax.random.uniform(key, (500, 2))
    inside = jnp.linalg.norm(points, axis=1) < 1
    choice = jax.random.permutation(jax.random.fold_in(key, 1), 10)
    return 4 * inside.mean(), choice, jax.random.categorical(key, jnp.log(jnp.arange(1.0, 5.0)), shape=(6,))


# ---------------------------------------------------------------------------------------------------------------------
# language models


@program(lambda: (normal(2, 6, 16), normal(16, 48) * 0.2, normal(16, 16) * 0.2))
def causal_attention(x: Any, to_qkv: Any, out: Any) -> Any:
    batch, length, width = x.shape
    q, k, v = jnp.split(x @ to_qkv, 3, axis=-1)
    heads = [one.reshape(batch, length, 4, width // 4).transpose(0, 2, 1, 3) for one in (q, k, v)]
    scores = jnp.einsum("bhqd,bhkd->bhqk", heads[0], heads[1]) / jnp.sqrt(width // 4)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), heads[2])
    return mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ out


@program(lambda: (normal(12, 12), jnp.int32(3)))
def beam_search(transitions: Any, start: Any) -> Any:
    width, size = 3, transitions.shape[0]
    scores = jax.nn.log_softmax(transitions, -1)

    def step(carry: Any, _: Any) -> Any:
        tokens, totals = carry
        candidates = totals[:, None] + scores[tokens]
        best, flat = lax.top_k(candidates.ravel(), width)
        return (flat % size, best), (flat // size, flat % size)

    best, first = lax.top_k(scores[start], width)
    return lax.scan(step, (first, best), None, length=4)


@program(lambda: (normal(9, 8), normal(8), normal(30, 8), jnp.asarray(RANDOM.integers(0, 30, 9))))
def tied_language_head(hidden: Any, scale: Any, embedding: Any, targets: Any) -> Any:
    def loss(hidden: Any, embedding: Any) -> Any:
        x = hidden * lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True) + 1e-6) * scale
        logits = x @ embedding.T
        picked = jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked) + jnp.mean(embedding[targets] ** 2)

    return jax.value_and_grad(loss, (0, 1))(hidden, embedding)


@program(lambda: (normal(4, 10, 8), jnp.arange(10)))
def rotary_positions(x: Any, positions: Any) -> Any:
    frequencies = 1.0 / (10000 ** (jnp.arange(0, 8, 2) / 8))
    angles = positions[:, None] * frequencies
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.stack([first * cos - second * sin, first * sin + second * cos], -1).reshape(x.shape)


@program(lambda: (normal(12, 8), normal(8, 4), normal(4, 8, 8) * 0.3))
def mixture_of_experts(x: Any, router: Any, experts: Any) -> Any:
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    outputs = jnp.einsum("nd,edf->nef", x, experts)
    picked = jnp.take_along_axis(outputs, chosen[..., None], axis=1)
    return jnp.sum(jax.nn.silu(picked) * (weights / weights.sum(-1, keepdims=True))[..., None], 1)


@program(lambda: (normal(7, 16), jnp.asarray(RANDOM.integers(-8, 8, (16, 16)), jnp.int8), normal(16)))
def quantized_linear(x: Any, weights: Any, scales: Any) -> Any:
    largest = jnp.max(jnp.abs(x), -1, keepdims=True)
    quantized = jnp.round(x / largest * 127).astype(jnp.int8)
    product = lax.dot_general(quantized, weights, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return (product.astype(jnp.float32) * largest / 127 * scales).astype(jnp.bfloat16)


# ---------------------------------------------------------------------------------------------------------------------
# numerics


@program(lambda: (normal(4, 5, 5) + 5 * jnp.eye(5), normal(4, 5)))
def batch_of_solves(matrices: Any, right: Any) -> Any:
    def implicit(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.linalg.solve(a, b) ** 2)

    return jax.vmap(jax.value_and_grad(implicit))(matrices, right)


@jax.custom_vjp
def clipped_gradient(x: Any) -> Any:
    return x


clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.5, 0.5),))


@program(lambda: (normal(8),))
def custom_gradient(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(clipped_gradient(x) ** 3))(x)


@jax.custom_jvp
def stable_log1pexp(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


@stable_log1pexp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return stable_log1pexp(x), t * (1 - 1 / (1 + jnp.exp(x)))


@program(lambda: (normal(8), normal(8)))
def custom_tangent(x: Any, t: Any) -> Any:
    return jax.jvp(jax.grad(lambda x: stable_log1pexp(x).sum()), (x,), (t,))
