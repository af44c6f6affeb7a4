"""Whole programs in functional style: keywords, decorators, generators, context managers, closures, tapes."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, replace

import numpy as np

from tests.programs.case import Case


# Running aggregates by key (a group-by written with a defaultdict).
def group_totals(keys, values):
    groups = defaultdict(lambda: np.zeros(2))
    for label in range(3):
        chosen = keys == label
        groups[label] += np.array([values[chosen].sum(), chosen.sum()])
    return {label: total / max(count, 1) for label, (total, count) in groups.items()}


Limits = namedtuple("Limits", "low high", defaults=(0.0, 1.0))


def rescaled(x, limits=Limits(), *, clip=True, **extra):  # noqa: B008
    low, high = limits
    span = x.max() - x.min()
    y = (x - x.min()) / span * (high - low) + low
    if clip and (margin := extra.get("margin", 0.0)) > 0:
        y = np.clip(y, low + margin, high - margin)
    return y


def contrast_stretch(image, gamma):
    """Stretches with defaults, keywords and a walrus."""
    plain = rescaled(image)
    shifted = rescaled(image, limits=Limits(high=255.0), margin=2.0)
    wide = rescaled(image, Limits(-1), clip=False)
    return plain**gamma + shifted - wide


def traced(function):
    """A decorator that counts calls and keeps the last argument's maximum."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        result = function(*args, **kwargs)
        CALLS[function.__name__] += 1
        return result

    wrapper.calls = 0
    return wrapper


CALLS = Counter()


@traced
def _smooth(x, width=3):
    kernel = np.ones(width) / width
    return np.convolve(x, kernel, mode="same")


def repeated_smoothing(x, times):
    """Calls a decorated helper in a loop."""
    residuals = []
    for width in range(3, 3 + 2 * times, 2):
        smooth = _smooth(x, width=width)
        residuals.append(np.abs(x - smooth).sum())
        x = smooth
    return x, residuals


@contextlib.contextmanager
def _subtracted(array, offset):
    array -= offset
    try:
        yield array
    finally:
        array += offset


def energy_about(x, origin):
    """Changes an array inside of a with statement and restores it."""
    with _subtracted(x, origin) as moved:
        energy = (moved**2).sum(axis=-1)
    return energy, x * 2


def _windows(x, size, hop):
    for start in range(0, len(x) - size + 1, hop):
        yield x[start : start + size]


def zero_crossing_rates(x, size, hop):
    """Windows from a generator of the user."""
    rates = [np.mean(np.diff(np.signbit(w)) != 0) for w in _windows(x, size, hop)]
    loud = max(float(np.sqrt((w * w).mean())) for w in _windows(x, size, hop))
    return np.array(rates), loud


# Horner's rule by functools.reduce; polynomials as closures in a dict.
def polynomial_table(x, coefficients):
    horner = functools.partial(functools.reduce, lambda acc, c: acc * x + c)
    families = {
        "plain": horner(coefficients),
        "even": horner(coefficients[::2]),
        "odd": horner(list(coefficients[1::2])),
    }
    return OrderedDict(sorted((name, values.sum()) for name, values in families.items())), families["plain"]


class Tape:
    """Reverse-mode differentiation with closures on a tape (after Karpathy's micrograd, on arrays)."""

    def __init__(self, data, parents=()):
        self.data = data
        self.grad = np.zeros_like(data)
        self._backward = lambda: None
        self._parents = parents

    def __add__(self, other):
        out = Tape(self.data + other.data, (self, other))

        def _backward():
            self.grad = self.grad + out.grad
            other.grad = other.grad + out.grad

        out._backward = _backward
        return out

    def __mul__(self, other):
        out = Tape(self.data * other.data, (self, other))

        def _backward():
            self.grad = self.grad + other.data * out.grad
            other.grad = other.grad + self.data * out.grad

        out._backward = _backward
        return out

    def tanh(self):
        t = np.tanh(self.data)
        out = Tape(t, (self,))

        def _backward():
            self.grad = self.grad + (1 - t**2) * out.grad

        out._backward = _backward
        return out

    def backward(self):
        order, seen = [], set()

        def visit(node):
            if node not in seen:
                seen.add(node)
                for parent in node._parents:
                    visit(parent)
                order.append(node)

        visit(self)
        self.grad = np.ones_like(self.data)
        for node in reversed(order):
            node._backward()


def tape_gradients(a, b, c):
    """Gradients of tanh(a * b + c) * a."""
    a, b, c = Tape(a), Tape(b), Tape(c)
    out = (a * b + c).tanh() * a
    out.backward()
    return out.data, a.grad, b.grad, c.grad


@dataclass(frozen=True)
class Params:
    weight: np.ndarray
    bias: float = 0.0


def updated_params(params, x, y, rate):
    """A frozen dataclass that replace() updates."""
    error = x @ params.weight + params.bias - y
    return replace(
        params, weight=params.weight - rate * x.T @ error / len(y), bias=params.bias - rate * float(error.mean())
    )


def linear_training(w, x, y):
    params = Params(w)
    for _ in range(3):
        params = updated_params(params, x, y, 0.1)
    return params.weight, params.bias


CASES = [
    Case(group_totals, lambda r, n: (r.integers(0, 3, n), r.normal(size=n))),
    Case(contrast_stretch, lambda r, n: (r.random((n, n)), 0.8)),
    Case(repeated_smoothing, lambda r, n: (r.normal(size=4 * n), 3)),
    Case(energy_about, lambda r, n: (r.normal(size=(n, 3)), r.normal(size=3))),
    Case(zero_crossing_rates, lambda r, n: (r.normal(size=4 * n), 6, 3)),
    Case(polynomial_table, lambda r, n: (r.normal(size=n), r.normal(size=7))),
    Case(tape_gradients, lambda r, n: (r.normal(size=n), r.normal(size=n), r.normal(size=n))),
    Case(linear_training, lambda r, n: (r.normal(size=3), r.normal(size=(n, 3)), r.normal(size=n))),
]
