"""Whole programs of small models and their evaluation, as courses on statistical learning write them (ISLR, CS109)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.programs.case import Case


# Layers chosen by single dispatch on the type of their description.
@functools.singledispatch
def apply_layer(layer, x):
    raise TypeError(type(layer))


@apply_layer.register
def _(layer: float, x):
    return x * layer


@apply_layer.register
def _(layer: tuple, x):
    low, high = layer
    return np.clip(x, low, high)


@apply_layer.register(str)
def _(layer, x):
    return getattr(np, layer)(x)


def described_network(x, *layers, **extra):
    for layer in layers:
        x = apply_layer(layer, x)
    for name, scale in sorted(extra.items()):
        x = x + scale * apply_layer(name, x)
    return x


# Minibatches from a generator, shuffled by a permutation that is drawn in the function.
def epochs_of_batches(X, y, size, seed):
    rng = np.random.default_rng(seed)

    def batches():
        order = rng.permutation(len(X))
        for start in range(0, len(X), size):
            chosen = order[start : start + size]
            yield X[chosen], y[chosen]

    w = np.zeros(X.shape[1])
    history = []
    for _ in range(2):
        losses = [0.0]
        for xb, yb in batches():
            error = xb @ w - yb
            w -= 0.1 * xb.T @ error / len(xb)
            losses.append(float(error @ error))
        history.append(sum(losses) / (len(losses) - 1))
    return w, history


# Confusion matrix, macro F1 and Cohen's kappa with guarded divisions.
def evaluate(predicted, actual, classes):
    matrix = np.zeros((classes, classes), dtype=int)
    np.add.at(matrix, (actual, predicted), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.diag(matrix) / matrix.sum(axis=0)
        recall = np.diag(matrix) / matrix.sum(axis=1)
        f1 = np.nan_to_num(2 * precision * recall / (precision + recall))
    observed = np.trace(matrix) / matrix.sum()
    chance = (matrix.sum(0) * matrix.sum(1)).sum() / matrix.sum() ** 2
    return matrix, f1.mean(), (observed - chance) / (1 - chance) if chance != 1 else 1.0


# Locally weighted regression at each query by np.vectorize with a signature.
def lowess(x, y, bandwidth):
    def at(q):
        w = np.exp(-((x - q) ** 2) / (2 * bandwidth**2))
        (s, sx), (_, sxx), (sy, sxy) = (
            (w.sum(), (w * x).sum()),
            (0, (w * x * x).sum()),
            ((w * y).sum(), (w * x * y).sum()),
        )
        slope = (s * sxy - sx * sy) / (s * sxx - sx * sx)
        return (sy - slope * sx) / s + slope * q

    return np.array([at(q) for q in x]), np.vectorize(at)(x[:3])


# Step-wise selection of features by the residual sum of squares, with a set of chosen columns.
def forward_selection(X, y, most):
    chosen: set[int] = set()
    path = []
    while len(chosen) < most:
        scores = {}
        for k in set(range(X.shape[1])) - chosen:
            columns = sorted(chosen | {k})
            beta, *_ = np.linalg.lstsq(X[:, columns], y, rcond=None)
            scores[k] = float(((y - X[:, columns] @ beta) ** 2).sum())
        best = min(scores, key=scores.get)
        chosen.add(best)
        path.append((best, scores[best]))
    return path, sorted(chosen)


# A class that compares, adds and scales histograms by special methods.
@functools.total_ordering
class Tally:
    def __init__(self, counts):
        self.counts = counts

    def __add__(self, other):
        return Tally(self.counts + other.counts)

    def __rmul__(self, factor):
        return Tally(factor * self.counts)

    def __eq__(self, other):
        return bool((self.counts == other.counts).all())

    def __lt__(self, other):
        return self.counts.sum() < other.counts.sum()

    def __hash__(self):
        return hash(len(self.counts))

    def __len__(self):
        return len(self.counts)

    def __bool__(self):
        return bool(self.counts.any())

    def merge(self, other, factor):
        larger = max(self, factor * Tally(other))
        self.counts = (self + larger).counts
        return self.counts / (len(self) + self.counts.sum()), larger == self, bool(larger)


# Leave-one-out errors of nearest neighbours by np.delete in a comprehension, with early returns in a helper.
def leave_one_out(X, y):
    def predict(rest, labels, x):
        if not len(rest):
            return 0
        d = ((rest - x) ** 2).sum(1)
        if d.min() == 0:
            return int(labels[d.argmin()])
        weights = 1 / d
        return int(np.bincount(labels, weights).argmax())

    predicted = [predict(np.delete(X, k, axis=0), np.delete(y, k), X[k]) for k in range(len(X))]
    return predicted, np.mean(np.asarray(predicted) == y)


def float_of(r: np.random.Generator, n: int, *shape: int) -> Any:
    return r.standard_normal(shape).astype(np.float32 if n % 2 else np.float64)


CASES = [
    Case(forward_selection, lambda r, n: (r.standard_normal((n, 4)), r.standard_normal(n), 2)),
    Case(
        Tally.merge,
        lambda r, n: (r.integers(0, 9, n), int(r.integers(1, 3))),
        lambda r, n: Tally(r.integers(0, 9, n)),
        between=lambda o, r: setattr(o, "counts", o.counts[::-1].copy()),
    ),
    Case(leave_one_out, lambda r, n: (float_of(r, n, n, 2), r.integers(0, 3, n)), sizes=(5, 6)),
    Case(described_network, lambda r, n: (r.standard_normal(n), 2.0, (-1.0, 1.0), "exp", "sin")),
    Case(epochs_of_batches, lambda r, n: (r.standard_normal((n, 3)), r.standard_normal(n), 4, 7)),
    Case(evaluate, lambda r, n: (*r.integers(0, 3, (2, n)), 3)),
    Case(lowess, lambda r, n: (np.sort(r.random(n)), r.standard_normal(n), 0.3)),
]
