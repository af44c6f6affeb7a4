"""Whole programs in the manner of Rougier's NumPy exercises and of the SciPy lecture notes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from tests.programs.case import Case


# Bounding values of each row, found with np.ndenumerate as an exercise asks.
def extremes_with_places(z):
    best, place, count = -np.inf, None, 0
    for index, value in np.ndenumerate(z):
        if value > best:
            best, place = value, index
        count += value < 0
    return best, place, int(count)


# Cartesian product of any number of vectors (an exercise of Rougier's, by Prokhvatilov).
def cartesian(*arrays, dtype=None):
    grids = np.indices([len(a) for a in arrays]).reshape(len(arrays), -1).T
    out = np.empty(grids.shape, dtype=dtype or np.result_type(*arrays))
    for column, one in enumerate(arrays):
        out[:, column] = one[grids[:, column]]
    return out


def cartesian_of_three(x, y, k):
    return cartesian(x, y, np.arange(k)), cartesian(x, x, dtype=np.float32).sum(axis=0)


# Most frequent value, with the last of equal ones, by np.bincount and by a Counter of codes.
def modes(codes):
    counts = np.bincount(codes, minlength=4)
    counter = Counter(codes.tolist())
    largest = max(counter.values())
    return counts.argmax(), sorted(key for key, n in counter.items() if n == largest), dict(counter.most_common(1))


# Equal rows of two arrays and rows with unequal values (exercises 82 and 95 in spirit).
def rows_in_common(a, b):
    same = (a[:, None, :] == b[None, :, :]).all(axis=-1)
    left, right = np.where(same)
    varied = a[np.any(a[:, 1:] != a[:, :-1], axis=1)]
    bits = ((a[:, :1] & (2 ** np.arange(8))) != 0).astype(np.uint8)[:, ::-1]
    return left, right, varied, bits


# A block of ones that a sentinel array marks; the nearest value, the rank and the median of a strided window.
def nearest_and_windows(z, v, *, width=3):
    flat = z.flat[np.abs(z - v).argmin()]
    windows = np.lib.stride_tricks.sliding_window_view(z.ravel(), width)
    return flat, np.median(windows, axis=-1), windows.max(axis=1)[::-1], np.ptp(windows, axis=-1)


# The Lorenz attractor's cousin: a Rössler system stepped by a generator.
def roessler(state, a, b, c, h):
    while True:
        x, y, z = state
        state = state + h * np.array([-y - z, x + a * y, b + z * (x - c)])
        yield state


def roessler_path(start, h, steps):
    path = np.stack(list(itertools.islice(roessler(start, 0.2, 0.2, 5.7, h), steps)))
    return path, path.mean(0), path[-1] - start


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def width(self):
        return self.high - self.low

    def __contains__(self, x):
        return self.low <= x <= self.high

    def split(self, k=2):
        edges = np.linspace(self.low, self.high, k + 1)
        return [Interval(*pair) for pair in zip(edges[:-1], edges[1:], strict=True)]


# Composite Gauss-Legendre quadrature on intervals that are NamedTuples.
def integrate_pieces(coefficients, interval, pieces):
    nodes, weights = np.polynomial.legendre.leggauss(3)
    total = 0.0
    for part in Interval(*interval).split(pieces):
        x = part.low + part.width * (nodes + 1) / 2
        total += part.width / 2 * (weights * np.polyval(coefficients, x)).sum()
    return total, 0.5 in Interval(*interval)


# Temperatures by month, the SciPy lectures' curve fit: a Gauss-Newton fit of a cosine with numeric derivatives.
def seasonal(times, average, amplitude, offset):
    return average + amplitude * np.cos((times + offset) * 2 * np.pi / times.max())


def fit_season(times, values, start):
    parameters = np.array(start, dtype=float)
    for _ in range(4):
        base = seasonal(times, *parameters)
        jacobian = np.empty((times.size, parameters.size))
        for k in range(parameters.size):
            moved = parameters.copy()
            moved[k] += 1e-3
            jacobian[:, k] = (seasonal(times, *moved) - base) / 1e-3
        step, *_ = np.linalg.lstsq(jacobian, values - base, rcond=None)
        parameters += step
    return parameters, np.abs(values - seasonal(times, *parameters)).max()


# Wine-glass random walkers: the mean squared distance (SciPy lectures).
def walker_distances(steps):
    positions = np.cumsum(np.where(steps, 1, -1), axis=1)
    squared = positions**2
    mean = np.sqrt(squared.mean(axis=0))
    first = np.array([np.argmax(row > 2) if (row > 2).any() else -1 for row in positions])
    return mean, first, positions[:, -1].tolist()


# Population of hares, lynxes and carrots: fancy indexing over years (SciPy lectures).
def populations(year, hares, lynxes, carrots):
    table = np.column_stack((hares, lynxes, carrots))
    species = np.array(["hare", "lynx", "carrot"])
    best = np.argmax(table, axis=1)
    names = [str(species[k]) for k in best]
    above = year[np.any(table > 50, axis=1)]
    lowest = np.argsort(table, axis=0, kind="stable")[:2]
    change = np.gradient(hares.astype(float))
    return names, above, year[lowest], np.corrcoef(change, lynxes)[0, 1]


@dataclass
class Histogram:
    low: float
    high: float
    bins: int
    counts: Any = None
    extra: dict = field(default_factory=lambda: {"under": 0, "over": 0})

    def __post_init__(self):
        if self.counts is None:
            self.counts = np.zeros(self.bins, dtype=np.int64)

    def __call__(self, values):
        where = np.floor((values - self.low) / (self.high - self.low) * self.bins).astype(int)
        inside = (where >= 0) & (where < self.bins)
        np.add.at(self.counts, where[inside], 1)
        self.extra["under"] += int((where < 0).sum())
        self.extra["over"] += int((where >= self.bins).sum())
        return self

    def __iadd__(self, other):
        self.counts += other.counts
        return self

    def fill(self, values, weight):
        self(values)
        self += Histogram(self.low, self.high, self.bins, self.counts * weight)
        return self.counts / max(self.counts.sum(), 1)


@contextmanager
def scaled_in_place(array, factor):
    array *= factor
    try:
        yield array
    finally:
        array /= factor


# A buffer that is scaled inside of a with block and restored afterwards, with an exception between them.
def energy_at_scale(x, factor, fails):
    try:
        with scaled_in_place(x, factor) as y:
            energy = float(np.vdot(y, y))
            if fails:
                raise ValueError("no energy")
    except ValueError as error:
        return str(error), x.sum()
    return energy, x.sum()


# Horner's rule and polynomial composition by reduce and accumulate.
def horner(coefficients, x):
    value = reduce(lambda total, c: total * x + c, coefficients)
    partial_sums = list(itertools.accumulate(coefficients, lambda a, b: a * 0.5 + b))
    return value, partial_sums, [f(x[0]) for f in (partial(pow, 2.0), partial(np.power, 2.0))]


# Groups of rows by a key of two integer codes, in a defaultdict of lists.
def group_means(first, second, values):
    groups = defaultdict(list)
    for a, b, v in zip(first.tolist(), second.tolist(), values, strict=True):
        groups[a, b].append(v)
    return {key: (len(members), np.mean(members)) for key, members in sorted(groups.items())}


def describe_rows(table):
    def summary(row):
        low, *_, high = np.sort(row)
        return np.array([low, np.median(row), high, high - low])

    spread = np.apply_along_axis(summary, 1, table)
    centred = np.apply_along_axis(lambda column: column - column.mean(), 0, table)
    return spread, centred, np.apply_over_axes(np.sum, table, [0])


@np.vectorize
def collatz_length(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def longest_collatz(start, count):
    lengths = collatz_length(np.arange(start, start + count))
    return lengths, start + int(lengths.argmax())


# Sums over an iterator in nditer's multi-index and read-write modes.
def nditer_tour(a, b):
    out = np.zeros(np.broadcast_shapes(a.shape, b.shape))
    with np.nditer([a, b, out], op_flags=[["readonly"], ["readonly"], ["writeonly"]]) as it:
        for x, y, z in it:
            z[...] = x * 2 + y
    trace, it = 0.0, np.nditer(out, flags=["multi_index"])
    for value in it:
        if it.multi_index[0] == it.multi_index[-1]:
            trace += value
    return out, trace


# A tokenizer over integer codes with a match statement: reverse Polish codes with operators below zero.
def run_codes(codes, registers):
    stack = []
    for code in codes:
        match code:
            case int() if code >= 0:
                stack.append(registers[code])
            case -1 | -2 as op if len(stack) >= 2:
                right, left = stack.pop(), stack.pop()
                stack.append(left + right if op == -1 else left * right)
            case -3:
                stack[-1] = -stack[-1]
            case _:
                return None
    return stack.pop() if len(stack) == 1 else stack


# A walrus in a while loop: Newton's method for all roots at once, with the count of steps.
def cube_roots(x, tolerance=1e-10):
    guess, steps = np.ones_like(x), 0
    while (error := np.abs(guess**3 - x).max()) > tolerance and (steps := steps + 1) < 60:
        guess = guess - (guess**3 - x) / (3 * guess**2)
    return guess, steps, error < tolerance


# Sierpinski's carpet by Kronecker products and its count of holes by size.
def carpet(levels, dtype=np.uint8):
    seed = np.ones((3, 3), dtype)
    seed[1, 1] = 0
    pattern = reduce(np.kron, [seed] * levels) if levels else np.ones((1, 1), dtype)
    return pattern, (pattern == 0).sum(), pattern.sum(axis=1, dtype=np.int32)


CASES = [
    Case(extremes_with_places, lambda r, n: (r.standard_normal((2, n // 2)),)),
    Case(cartesian_of_three, lambda r, n: (r.standard_normal(n), r.integers(0, 9, n - 2), n // 4)),
    Case(modes, lambda r, n: (r.integers(0, 6, n),)),
    Case(rows_in_common, lambda r, n: (r.integers(0, 2, (n, 3)), r.integers(0, 2, (n + 1, 3)))),
    Case(nearest_and_windows, lambda r, n: (r.standard_normal((2, n)).astype(np.float32), float(r.random()))),
    Case(roessler_path, lambda r, n: (r.standard_normal(3), 0.01, n)),
    Case(integrate_pieces, lambda r, n: (r.standard_normal(n // 2), (0.0, 1.0 + r.random()), n // 3)),
    Case(
        fit_season,
        lambda r, n: (t := np.arange(2.0 * n), seasonal(t, 8, 12, 3) + 0.1 * r.random(2 * n), (7.0, 10.0, 2.5)),
    ),
    Case(walker_distances, lambda r, n: (r.random((4, n)) > 0.5,)),
    Case(populations, lambda r, n: (1900 + np.arange(n), *r.integers(10, 60, (3, n)))),
    Case(
        Histogram.fill,
        lambda r, n: (r.standard_normal(3 * n), 2),
        instance=lambda r, n: Histogram(-2.0, 2.0, n),
        between=lambda o, r: setattr(o, "counts", o.counts + 1),
    ),
    Case(energy_at_scale, lambda r, n: (r.standard_normal(n), 2.0, bool(r.integers(2)))),
    Case(horner, lambda r, n: (r.standard_normal(n // 2), r.standard_normal(n))),
    Case(group_means, lambda r, n: (r.integers(0, 2, n), r.integers(0, 3, n), r.standard_normal(n))),
    Case(describe_rows, lambda r, n: (r.standard_normal((n, 5)),)),
    Case(longest_collatz, lambda r, n: (int(r.integers(3, 9)), n)),
    Case(nditer_tour, lambda r, n: (r.standard_normal((3, n // 2)), r.standard_normal(n // 2))),
    Case(run_codes, lambda r, n: ([0, 1, -1, -3, int(r.integers(3)), -2], r.standard_normal((3, n)))),
    Case(cube_roots, lambda r, n: (r.random(n) + 0.5,)),
    Case(carpet, lambda r, n: (n // 5,)),
]
