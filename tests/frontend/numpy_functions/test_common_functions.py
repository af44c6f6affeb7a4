"""Tests common NumPy and CuPy functions against NumPy in float64, at sizes that share one trace.

Each row says into how many segments it goes, so that a segment that is not needed is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest

from tracefuse import fuse, xp

windows = np.lib.stride_tricks.sliding_window_view
RANDOM = np.random.default_rng(0)


def f32(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def positive(*shape: int) -> Any:
    return np.abs(f32(*shape)) + np.float32(0.1)


def wide(value: Any) -> Any:
    """An argument with its floats in float64."""
    if isinstance(value, Particles):
        return replace(value, x=wide(value.x), v=wide(value.v))
    if isinstance(value, AdamState):
        return AdamState(*map(wide, value))
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def leaves(result: Any) -> list[Any]:
    return [result.x, result.v, result.time] if isinstance(result, Particles) else optree.tree_leaves(result)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalized(x: Any, axes: Any) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def group_norm(x: Any, groups: int) -> Any:
    n, c, h, w = x.shape
    return normalized(x.reshape(n, groups, c // groups, h, w), (2, 3, 4))


def batch_norm(x: Any, mean: Any, var: Any) -> Any:
    m, v = x.mean((0, 2, 3)), x.var((0, 2, 3))
    y = (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5)
    return y, 0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * v


def rotate_half(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return x * np.concatenate((cos, cos), -1) + turned * np.concatenate((sin, sin), -1)


def rotate_pairs(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * 0.25
    return np.einsum("bhqk,bhkd->bhqd", softmax(scores), v)


def cross_entropy(z: Any, labels: Any) -> Any:
    z = z - z.max(-1, keepdims=True)
    return np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, labels[:, None], axis=-1)[:, 0]


def cross_entropy_one_hot(z: Any, labels: Any) -> Any:
    z = z - z.max(-1, keepdims=True)
    one_hot = labels[:, None] == np.arange(10)
    return -(one_hot * (z - np.log(np.exp(z).sum(-1, keepdims=True)))).sum(-1)


class AdamState(NamedTuple):
    m: Any
    v: Any
    step: Any


def adam(p: Any, g: Any, state: AdamState, rate: float) -> Any:
    step, m, v = state.step + 1, 0.9 * state.m + 0.1 * g, 0.999 * state.v + 0.001 * g * g
    return p - rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8), AdamState(m, v, step)


@dataclass
class Particles:
    x: Any
    v: Any
    time: float


def verlet(p: Particles, dt: float) -> Particles:
    r = np.sqrt((p.x * p.x).sum(-1, keepdims=True))
    v = p.v - dt * p.x / r**3
    return replace(p, x=p.x + dt * v, v=v, time=p.time + dt)


def sobel(image: Any) -> Any:
    p = np.pad(image, 1, mode="edge")
    across = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    down = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    return np.hypot(across, down)


def heat(u: Any) -> Any:
    return u + 0.1 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u)


def causal(scores: Any) -> Any:
    made = np if isinstance(scores, np.ndarray) else xp
    rows, columns = made.arange(scores.shape[-2])[:, None], made.arange(scores.shape[-1])[None]
    return softmax(np.where(columns <= rows, scores, -np.inf))


def popcount(x: Any) -> Any:
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    return (((x + (x >> 4)) & 0x0F0F0F0F) * np.uint32(0x01010101)) >> 24


def masked_mean(x: Any, mask: Any) -> Any:
    return np.where(mask, x, 0).sum(-1) / np.maximum(mask.sum(-1), 1)


def pool(x: Any) -> Any:
    b, h, w = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2).mean((2, 4))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], int]] = {
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), lambda n: (f32(n, 33),), 1),
    "gated linear unit": (lambda x: np.split(x, 2, -1)[0] * np.tanh(np.split(x, 2, -1)[1]), lambda n: (f32(n, 8),), 1),
    "root mean square norm": (
        lambda x, w: x * w / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6),
        lambda n: (f32(n, 64), f32(64)), 1,
    ),
    "group norm": (group_norm, lambda n: (f32(n, 8, 5, 6), 4), 1),
    "batch norm": (batch_norm, lambda n: (f32(n, 4, 5, 6), f32(4), positive(4)), 1),
    "rotary halves": (rotate_half, lambda n: (f32(2, n, 16), f32(n, 8), f32(n, 8)), 1),
    "rotary pairs": (rotate_pairs, lambda n: (f32(2, n, 16), f32(n, 8), f32(n, 8)), 1),
    "causal softmax": (causal, lambda n: (f32(2, n, n),), 1),
    # Two products, which read the transposed keys where they are, and what is between them.
    "attention": (attention, lambda n: tuple(f32(2, 3, n, 16) for _ in range(3)), 3),
    "cross entropy": (cross_entropy, lambda n: (f32(n, 10), RANDOM.integers(0, 10, n)), 1),
    "cross entropy by one-hot": (cross_entropy_one_hot, lambda n: (f32(n, 10), RANDOM.integers(0, 10, n)), 1),
    "binary cross entropy": (
        lambda z, t: np.mean(np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))),
        lambda n: (f32(n, 9), f32(n, 9) > 0), 1,
    ),
    "distances of pairs": (
        lambda a, b: np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)), lambda n: (f32(n, 3), f32(n + 2, 3)), 1,
    ),
    "adam": (adam, lambda n: (f32(n), f32(n), AdamState(f32(n), positive(n), 3), 1e-3), 1),
    "verlet": (verlet, lambda n: (Particles(f32(n, 3), f32(n, 3), 0.5), 0.01), 1),
    "moments": (
        lambda x: (((x - x.mean(0)) ** 3).mean(0) / x.var(0) ** 1.5, x.std(0, ddof=1)), lambda n: (f32(n, 6),), 1,
    ),
    "masked mean": (masked_mean, lambda n: (f32(n, 6), f32(n, 6) > 0), 1),
    # One more checks that no sum of weights is 0.
    "weighted mean": (lambda x, w: np.average(x, axis=0, weights=w), lambda n: (f32(n, 6), positive(n)), 2),
    "mean without NaN": (lambda x: np.nanmean(np.where(x > 1, np.nan, x), axis=0), lambda n: (f32(n, 6),), 1),
    "laplacian": (
        lambda u: u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1],
        lambda n: (f32(n, n + 3),), 1,
    ),
    "heat on a torus": (heat, lambda n: (f32(n, n + 3),), 1),
    "sobel": (sobel, lambda n: (f32(n, n + 3),), 2),
    "pooling": (pool, lambda n: (f32(2, 2 * n, 2 * n),), 1),
    "windowed mean": (lambda x: windows(x, 3, axis=1).mean(-1), lambda n: (f32(n, 14),), 1),
    "windows of two axes": (lambda x: windows(np.pad(x, 1), (3, 2)).max((-1, -2)), lambda n: (f32(n, 14),), 1),
    "windowed sum by a scan": (lambda x: np.cumsum(x)[3:] - np.cumsum(x)[:-3], lambda n: (f32(n),), 2),
    "rows of a table": (
        lambda table, ids: table[ids].sum(1), lambda n: (f32(20, 4), RANDOM.integers(0, 20, (n, 3))), 1,
    ),
    "popcount": (popcount, lambda n: (RANDOM.integers(0, 2**32, n, dtype=np.uint32),), 1),
    "images": (
        lambda image, mean: ((image / np.float32(255)) - mean).transpose(0, 3, 1, 2),
        lambda n: (RANDOM.integers(0, 256, (2, n, n, 3), dtype=np.uint8), f32(3)), 1,
    ),
    "complex plane": (lambda a, b: np.abs((a + 1j * b) ** 2 + 1) < 2, lambda n: (f32(n, n), f32(n, n)), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_common_function_is_right_and_goes_into_as_few_segments_as_it_should(name: str) -> None:
    function, arguments, segments = FUNCTIONS[name]
    fused = fuse(function)
    for n in (7, 12, 31):
        given = arguments(n)
        results = (fused(*given), function(*map(wide, given)), function(*given))
        for actual, wanted, usual in zip(*map(leaves, results), strict=True):
            assert np.asarray(actual).dtype == np.asarray(usual).dtype
            np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-5)
        assert len(fused.segments(*given)) == segments, fused.explain(*given)
    assert fused.cache_info().traces == 1
