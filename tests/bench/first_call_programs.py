"""Ordinary functions whose first calls bench_first_calls.py times, each of `xp`, which is numpy or jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.random((400, 30))
SHORT = RANDOM.random((400, 8))
BATCH = RANDOM.random((100, 8, 8))
PLANE = RANDOM.random((60, 60)) + 1j * RANDOM.random((60, 60))
HEADS = RANDOM.random((4, 48, 64))
SQUARE = RANDOM.random((110, 110))
IMAGE = RANDOM.random((60, 70, 3))
POSITIONS = RANDOM.integers(0, 400, 300)
LAYERS = [RANDOM.random(shape) for shape in ((256, 64), (64, 128), (128,), (128, 10), (10,))]


def affine(xp: Any, x: Any, y: Any) -> Any:
    return 2 * x + y


def gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.79788456 * (x + 0.044715 * x**3)))


def tangent(xp: Any, x: Any) -> Any:
    return xp.tan(x)


def power(xp: Any, x: Any, y: Any) -> Any:
    return x**y


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def layer_norm(xp: Any, x: Any, scale: Any, shift: Any) -> Any:
    mean = xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + 1e-5) * scale + shift


def running_sum(xp: Any, x: Any) -> Any:
    return xp.cumsum(x, axis=1)


def largest(xp: Any, x: Any) -> Any:
    return xp.argmax(x, axis=1)


def products(xp: Any, a: Any, b: Any) -> Any:
    return xp.einsum("nij,njk->nik", a, b)


def both_axes(xp: Any, x: Any) -> Any:
    x = x / xp.sum(x, axis=1, keepdims=True)
    return x / xp.sum(x, axis=0)


def rosenbrock(xp: Any, x: Any) -> Any:
    return xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def mandelbrot(xp: Any, c: Any) -> Any:
    z, count = c * 0, xp.zeros(c.shape)
    for _ in range(50):
        z = z * z + c
        count = count + (xp.abs(z) < 2)
    return count


def runge_kutta(xp: Any, y: Any) -> Any:
    def slope(y: Any) -> Any:
        return -y * y + xp.sin(y)

    for _ in range(50):
        k1 = slope(y)
        k2 = slope(y + 0.05 * k1)
        k3 = slope(y + 0.05 * k2)
        k4 = slope(y + 0.1 * k3)
        y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def stencil(xp: Any, u: Any) -> Any:
    for _ in range(5):
        u = u + 0.1 * (xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1) - 4 * u)
    return u


def chain(xp: Any, x: Any) -> Any:
    for k in range(1000):
        x = x * 0.999 + 0.001 * (k % 7)
    return x


def loss(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return xp.mean((xp.tanh(x @ w1 + b1) @ w2 + b2) ** 2)


def covariance(xp: Any, x: Any) -> Any:
    centered = x - xp.mean(x, axis=0)
    return centered.T @ centered / (x.shape[0] - 1)


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ xp.swapaxes(k, -1, -2) / 8.0
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True) @ v


def pairwise(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1))


def nearest(xp: Any, x: Any, centers: Any) -> Any:
    return xp.argmin(xp.sum((x[:, None, :] - centers[None]) ** 2, axis=-1), axis=1)


def haversine(xp: Any, a: Any, b: Any) -> Any:
    south, east = xp.sin((b - a) / 2) ** 2, xp.cos(a) * xp.cos(b)
    return 6371 * 2 * xp.arcsin(xp.sqrt(south + east * xp.sin(b / 2) ** 2))


def log_sum_exp(xp: Any, x: Any) -> Any:
    largest = xp.max(x, axis=1, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - largest), axis=1)) + largest[:, 0]


def power_law(xp: Any, x: Any) -> Any:
    return x**0.45 * 3.0


def nested_where(xp: Any, x: Any) -> Any:
    return xp.where(x < 0.3, x * 2, xp.where(x < 0.6, xp.sqrt(x), 1 / x))


def taken_rows(xp: Any, x: Any, positions: Any) -> Any:
    return x[positions] * 2 + 1


def padded_differences(xp: Any, x: Any) -> Any:
    wide = xp.pad(x, ((1, 1), (0, 0)))
    return wide[2:] - 2 * x + wide[:-2]


def standard_scores(xp: Any, x: Any) -> Any:
    return (x - xp.mean(x, axis=0)) / xp.std(x, axis=0)


def running_largest(xp: Any, x: Any) -> Any:
    return xp.max(xp.cumprod(x, axis=1), axis=1)


def both_positions(xp: Any, x: Any) -> Any:
    return xp.argmax(x, axis=1) + xp.argmin(x, axis=1)


def transposed_means(xp: Any, x: Any) -> Any:
    return xp.mean(x.T * 2, axis=1)


def network(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return xp.tanh(x @ w1 + b1) @ w2 + b2


def two_products(xp: Any, a: Any, b: Any) -> Any:
    return xp.tanh(a @ b) @ a


def black_scholes(xp: Any, spot: Any, strike: Any) -> Any:
    d1 = (xp.log(spot / strike) + 0.07) / 0.3
    d2 = d1 - 0.3
    return spot / (1 + xp.exp(-1.6 * d1)) - strike * 0.95 / (1 + xp.exp(-1.6 * d2))


def moving_average(xp: Any, x: Any) -> Any:
    return (x[:, :-4] + x[:, 1:-3] + x[:, 2:-2] + x[:, 3:-1] + x[:, 4:]) / 5


def clipped_mean(xp: Any, x: Any) -> Any:
    return xp.mean(xp.clip(x, 0.1, 0.9))


def cosine(xp: Any, x: Any, y: Any) -> Any:
    return xp.sum(x * y, axis=1) / xp.sqrt(xp.sum(x * x, axis=1) * xp.sum(y * y, axis=1))


def outer_sums(xp: Any, a: Any, b: Any) -> Any:
    return xp.exp(-((a[:, None] - b[None, :]) ** 2)).sum(axis=0)


def polar(xp: Any, x: Any, y: Any) -> Any:
    return xp.hypot(x, y), xp.arctan2(y, x)


def gray(xp: Any, image: Any) -> Any:
    return (image[..., 0] * 0.3 + image[..., 1] * 0.59 + image[..., 2] * 0.11).astype(xp.uint8)


def joined(xp: Any, x: Any, y: Any) -> Any:
    return xp.concatenate([x * 2, y + 1], axis=1)


def counts(xp: Any, x: Any) -> Any:
    return xp.sum((x > 0.25) & (x < 0.75), axis=0)


def adam(xp: Any, w: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 0.01 * (m / 0.1) / (xp.sqrt(v / 0.001) + 1e-8), m, v


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "affine": (affine, (ROWS, ROWS)),
    "gelu": (gelu, (ROWS,)),
    "tangent": (tangent, (ROWS,)),
    "power": (power, (ROWS, ROWS)),
    "softmax": (softmax, (ROWS,)),
    "softmax of 8 columns": (softmax, (SHORT,)),
    "layer norm": (layer_norm, (ROWS, ROWS[0], ROWS[1])),
    "running sum": (running_sum, (ROWS,)),
    "argmax": (largest, (ROWS,)),
    "products of 8x8": (products, (BATCH, BATCH)),
    "both axes": (both_axes, (ROWS,)),
    "rosenbrock": (rosenbrock, (ROWS[0],)),
    "mandelbrot, 50 iterations": (mandelbrot, (PLANE,)),
    "runge-kutta, 50 steps": (runge_kutta, (ROWS,)),
    "stencil, 5 steps": (stencil, (ROWS,)),
    "chain of 2000": (chain, (ROWS,)),
    "gradient of a network": (loss, tuple(LAYERS)),
    "covariance": (covariance, (ROWS,)),
    "attention": (attention, (HEADS, HEADS, HEADS)),
    "pairwise distances": (pairwise, (SHORT[:100],)),
    "nearest centers": (nearest, (SHORT, SHORT[:10])),
    "haversine": (haversine, (ROWS, ROWS)),
    "log of sums of exponentials": (log_sum_exp, (ROWS,)),
    "power law": (power_law, (ROWS,)),
    "nested where": (nested_where, (ROWS,)),
    "taken rows": (taken_rows, (ROWS, POSITIONS)),
    "padded differences": (padded_differences, (ROWS,)),
    "standard scores": (standard_scores, (ROWS,)),
    "largest of running products": (running_largest, (ROWS,)),
    "argmax + argmin": (both_positions, (ROWS,)),
    "means of a transposed array": (transposed_means, (ROWS,)),
    "network": (network, tuple(LAYERS)),
    "two products": (two_products, (SQUARE, SQUARE)),
    "option prices": (black_scholes, (ROWS, ROWS)),
    "moving average": (moving_average, (ROWS,)),
    "clipped mean": (clipped_mean, (ROWS,)),
    "cosine": (cosine, (ROWS, ROWS)),
    "outer sums": (outer_sums, (SQUARE[0], SQUARE[1])),
    "polar": (polar, (ROWS, ROWS)),
    "gray": (gray, (IMAGE,)),
    "joined": (joined, (ROWS, ROWS)),
    "counts": (counts, (ROWS,)),
    "adam": (adam, (ROWS, ROWS, ROWS, ROWS)),
}
GRADIENTS = frozenset({"gradient of a network"})
