"""Whole programs in the idioms of scripts: lists of arrays in ufuncs, ranges as keys, handlers, logs, assertions."""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.programs.case import Case

logger = logging.getLogger(__name__)


# Connected regions by the spreading of the largest label.
def label_regions(mask):
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        p = np.pad(labels, 1)
        near = np.maximum.reduce([p[1:-1, 1:-1], p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]])
        spread = np.where(mask, near, 0)
        if (spread == labels).all():
            return np.unique(labels[labels > 0], return_counts=True)
        labels = spread


@dataclass(frozen=True)
class Circle:
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Box:
    low: tuple[float, float]
    high: tuple[float, float]


def distance_to(shape, X, Y):
    match shape:
        case Circle(x, y, radius):
            return np.hypot(X - x, Y - y) - radius
        case Box((x0, y0), (x1, y1)):
            return np.maximum(np.maximum(x0 - X, X - x1), np.maximum(y0 - Y, Y - y1))
        case [*shapes]:
            return np.minimum.reduce([distance_to(one, X, Y) for one in shapes])


def covered_area(xs, ys):
    X, Y = np.meshgrid(xs, ys)
    distance = distance_to([Circle(0.2, 0.1, 0.4), Box((-0.5, -0.5), (-0.1, 0.2))], X, Y)
    return distance, (distance < 0).mean()


# The multiclass support vector loss and its gradient (Weston and Watkins).
def hinge_loss(scores, labels):
    n = len(scores)
    margins = np.maximum(0, scores - scores[range(n), labels][:, None] + 1)
    margins[range(n), labels] = 0
    gradient = (margins > 0).astype(scores.dtype)
    gradient[np.arange(n), labels] -= gradient.sum(axis=1)
    return margins.sum() / n, gradient / n


def solve_or_fit(A, b, is_singular):
    if is_singular:
        A = A * 0
    try:
        return np.linalg.solve(A, b), "solved"
    except np.linalg.LinAlgError as error:
        return np.linalg.lstsq(A, b, rcond=None)[0], str(error)


def group_statistics(keys, values):
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    edges = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    counts = np.diff(np.r_[edges, len(keys)])
    return {"keys": keys[edges], "means": np.add.reduceat(values, edges) / counts, "counts": counts}


def logged_descent(X):
    w = np.zeros(X.shape[1])
    for epoch in range(3):
        residual = X @ w - 1
        logger.info("epoch %d: loss %.3f", epoch, (residual**2).mean())
        w -= 0.1 * X.T @ residual / len(X)
    np.testing.assert_equal(w.shape, X.shape[1:])
    return w


@functools.partial(np.vectorize, otypes=[float])
def huber(v, delta):
    return 0.5 * v * v if abs(v) < delta else delta * (abs(v) - 0.5 * delta)


def robust_loss(x, delta):
    return huber(x, delta).mean(), math.sqrt(np.float32(np.median(x)) ** 2)


# The inverse square root of Quake III, by the bits of a float32.
def fast_inverse_root(x):
    y = (0x5F3759DF - (x.view(np.int32) >> 1)).view(np.float32)
    return y * (np.float32(1.5) - np.float32(0.5) * x * y * y)


def occupied_voxels(points, edge):
    cells = np.floor(points / edge).astype(int)
    cells -= cells.min(axis=0)
    extents = cells.max(axis=0) + 1
    flat = np.ravel_multi_index(cells.T, extents)
    occupied, counts = np.unique(flat, return_counts=True)
    return np.array(np.unravel_index(occupied, extents)).T, counts


# A permutation test of two means, with the data of Fisher's sleep study in mind.
def permutation_p_value(a, b):
    random = np.random.RandomState(42)
    pooled, difference = np.concatenate((a, b)), abs(a.mean() - b.mean())
    hits = 0
    for _ in range(8):
        order = random.permutation(pooled)
        hits += abs(order[: len(a)].mean() - order[len(a) :].mean()) >= difference
    return hits / 8


def valid_mean(x, low):
    valid = np.ma.masked_less(x, low)
    kind = np.float32 if x.dtype == np.float32 else x.dtype.type
    return kind(valid.mean()), (valid - valid.min()).filled(-1), valid.count()


def _system(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    return r.standard_normal((n, n)) + n * np.eye(n), r.standard_normal(n), bool(r.integers(2))


CASES = [
    Case(label_regions, lambda r, n: (r.random((n, n)) > 0.6,)),
    Case(covered_area, lambda r, n: (np.linspace(-1, 1, n), np.linspace(-1, 1, n + 1))),
    Case(hinge_loss, lambda r, n: (r.standard_normal((n, 4)), r.integers(0, 4, n))),
    Case(solve_or_fit, _system),
    Case(group_statistics, lambda r, n: (r.integers(0, 5, 4 * n), r.standard_normal(4 * n))),
    Case(logged_descent, lambda r, n: (r.standard_normal((n, 3)),)),
    Case(robust_loss, lambda r, n: (r.standard_normal(n), 0.5)),
    Case(occupied_voxels, lambda r, n: (r.random((n, 3)) * 4, 2.0), layouts=False),
    Case(permutation_p_value, lambda r, n: (r.standard_normal(n), r.standard_normal(n + 1)), layouts=False),
    Case(valid_mean, lambda r, n: (r.random(n), 0.2), layouts=False),
    Case(fast_inverse_root, lambda r, n: (r.random(n).astype(np.float32) + 1,), layouts=False),
]
