"""Whole programs in the manner of handbooks of numerical recipes (Numerical Recipes, Rosetta Code, NPBench, SciPy)."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import math
from collections import deque
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import numpy as np

from tests.programs.case import Case


# The best of several restarts of a random search, kept by deep copies.
@dataclasses.dataclass
class Best:
    loss: float = math.inf
    weights: Any = None
    settings: dict = dataclasses.field(default_factory=dict)


def restarts(X, y, tries, rate):
    best = Best()
    state = {"w": np.zeros(X.shape[1]), "step": 0, "shape": X.shape}
    for attempt in range(tries):
        state["w"] = state["w"] - rate * (attempt + 1) * X.T @ (X @ state["w"] - y) / len(y)
        state["step"] += 1
        loss = float(((X @ state["w"] - y) ** 2).mean())
        if loss < best.loss:
            best = Best(loss, copy.deepcopy(state["w"]), copy.deepcopy(state))
            state["w"][0] += 1
    return dataclasses.asdict(best), state


# Undo by snapshots of an object that holds arrays, a counter and the size of its input.
class Document:
    def __init__(self, cells):
        self.cells, self.version, self.undo = cells, 0, []

    def edit(self, values, at, revert):
        self.undo.append(copy.deepcopy({"cells": self.cells, "version": self.version, "length": len(values)}))
        self.cells[at : at + 2] += values[:2]
        self.version += 1
        if revert:
            snapshot = self.undo.pop()
            self.cells, self.version = snapshot["cells"], snapshot["version"]
        return self.cells.sum(), len(self.undo)


class Axis(enum.IntEnum):
    X = 0
    Y = 1


class Face(enum.IntFlag):
    LEFT = 1
    RIGHT = 2
    BOTH = LEFT | RIGHT


# Boundary layers of a grid that flags select, along an axis that an IntEnum names.
def boundary_flux(u, axis, faces):
    flux, faces = np.zeros(u.shape[1 - axis], u.dtype), Face(faces)
    for face in (Face.LEFT, Face.RIGHT):
        if face & faces:
            edge = u.take(0 if face is Face.LEFT else -1, axis=axis)
            flux = flux + edge * (Axis(axis) + 1)
    return flux, Axis(axis).name, u * Axis.Y + Face.RIGHT, faces & Face.LEFT


# Numbers with a unit as subclasses of float, as libraries for units define them.
class Metres(float):
    __slots__ = ()

    def __repr__(self):
        return f"{float(self)} m"


def travel(speeds, length, steps):
    length = Metres(length)
    return speeds * length, length / 2 + speeds.sum(), np.linspace(0, length, steps), repr(Metres(2.5))


# Stencils given by offsets and coefficients (Rosetta Code's image convolution), with edges by suppressed errors.
def sparse_stencil(image, offsets, coefficients):
    out = np.zeros_like(image)
    with ExitStack() as stack:
        stack.enter_context(suppress(ZeroDivisionError))
        stack.enter_context(nullcontext())
        for (di, dj), c in zip(offsets, coefficients, strict=False):
            if di < 0:
                raise ZeroDivisionError(di)
            out += c * np.roll(image, (di, dj), axis=(0, 1))
    return out


# Gauss-Seidel with over-relaxation by rows, with a residual check every second sweep.
def relaxed_solution(A, b, omega=1.1, sweeps=6):
    x = np.zeros_like(b)
    history = []
    for sweep in range(sweeps):
        for i in range(len(b)):
            sigma = A[i] @ x - A[i, i] * x[i]
            x[i] += omega * ((b[i] - sigma) / A[i, i] - x[i])
        if sweep % 2:
            history.append(np.linalg.norm(A @ x - b, np.inf))
    return x, history


# QR iterations with Wilkinson's shift for the eigenvalues of a symmetric tridiagonal matrix.
def shifted_qr(A, iterations=8):
    A = A.copy()
    n = A.shape[0]
    for _ in range(iterations):
        d = (A[-2, -2] - A[-1, -1]) / 2
        sign = 1.0 if d >= 0 else -1.0
        mu = A[-1, -1] - sign * A[-1, -2] ** 2 / (abs(d) + math.hypot(d, A[-1, -2]) + 1e-30)
        Q, R = np.linalg.qr(A - mu * np.eye(n))
        A = R @ Q + mu * np.eye(n)
    return np.sort(np.diag(A)), np.abs(np.tril(A, -1)).max() < 10


# Romberg's table, filled triangle by triangle, of a function that is passed in.
def romberg(f, a, b, levels):
    table = np.zeros((levels, levels))
    for k in range(levels):
        n = 2**k
        h = (b - a) / n
        x = a + h * np.arange(n + 1)
        table[k, 0] = h * (f(x).sum() - (f(x[0]) + f(x[-1])) / 2)
        for j in range(1, k + 1):
            table[k, j] = table[k, j - 1] + (table[k, j - 1] - table[k - 1, j - 1]) / (4**j - 1)
    return table[-1, -1], table


def romberg_of_two(scale, levels):
    def bump(x):
        return np.exp(-((x - scale) ** 2))

    return romberg(bump, 0.0, 2.0, levels), romberg(lambda x: scale * x**3, -1, 1.0, 3)[0]


# Adaptive Simpson quadrature by recursion on computed errors.
def adaptive(f, a, b, tolerance, depth=0):
    c = (a + b) / 2
    whole = (b - a) / 6 * (f(a) + 4 * f(c) + f(b))
    halves = (b - a) / 12 * (f(a) + 4 * f((a + c) / 2) + 2 * f(c) + 4 * f((c + b) / 2) + f(b))
    if depth > 3 or abs(halves - whole) < 15 * tolerance:
        return halves + (halves - whole) / 15
    return adaptive(f, a, c, tolerance / 2, depth + 1) + adaptive(f, c, b, tolerance / 2, depth + 1)


def adaptive_energy(weights, width):
    return adaptive(lambda t: float((weights * np.cos(t * width)).sum()), 0.0, 1.0, 1e-3)


# Fast Walsh-Hadamard transform in place, through views of computed strides.
def walsh_hadamard(a):
    h, n = 1, len(a)
    while h < n:
        pairs = a.reshape(-1, 2, h)
        pairs[:] = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        h *= 2
    return a / math.sqrt(n)


# Longest common subsequence with a traceback, of two sequences of codes.
def common_subsequence(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    for i, p in enumerate(a, 1):
        for j, q in enumerate(b, 1):
            table[i, j] = table[i - 1, j - 1] + 1 if p == q else max(table[i - 1, j], table[i, j - 1])
    out, i, j = deque(), len(a), len(b)
    while i and j:
        if table[i, j] == table[i - 1, j]:
            i -= 1
        elif table[i, j] == table[i, j - 1]:
            j -= 1
        else:
            out.appendleft(int(a[i - 1]))
            i, j = i - 1, j - 1
    return table[-1, -1], list(out)


# Dijkstra's algorithm on an adjacency matrix, with a heap.
def dijkstra(weights, source):
    distance = np.full(len(weights), np.inf)
    distance[source] = 0.0
    heap = [(0.0, source)]
    done = set()
    while heap:
        d, u = heapq.heappop(heap)
        if u in done:
            continue
        done.add(u)
        for v in np.flatnonzero(np.isfinite(weights[u])):
            if (new := d + weights[u, v]) < distance[v]:
                distance[v] = new
                heapq.heappush(heap, (float(new), int(v)))
    return distance, len(done)


# Rows of a grid visited by an iterator over broadcast operands and by one over inner loops.
def iterated_sums(a, b):
    pairs = np.broadcast(a, b)
    out = np.empty(pairs.shape)
    out.flat = [u * v for u, v in pairs]
    total = 0.0
    for inner in np.nditer(a, flags=["external_loop"], order="C"):
        total += inner.sum()
    return out, total, pairs.ndim, pairs.size


# A function that copies only where its result would share memory with its argument.
def safe_reverse(x, out=None):
    result = x[::-1] if out is None else np.subtract(x[::-1], 1, out=out)
    if np.shares_memory(result, x):
        result = result.copy()
    result[0] = 5
    return result, out is result, np.may_share_memory(x, result)


# Tables by rows of lists: quartiles by np.apply_along_axis, whose function returns a list.
def quartile_table(x):
    def five(row):
        low, q1, median, q3, high = np.percentile(row, [0, 25, 50, 75, 100])
        return [low, q1, median, q3, high]

    return np.apply_along_axis(five, 1, x), np.apply_along_axis(lambda c: (c.min(), c.sum()), 0, x)


# Missing entries as None in tables that users write, which NumPy reads as NaN.
def with_missing(x, replacement):
    base = np.full(x.shape, None, dtype=float)
    base[1:] = x[1:]
    table = np.array([None, 1.0, replacement], dtype=float)
    missing = np.isnan(base)
    base[missing] = replacement
    return base, np.nansum(table) * x[0], missing.sum(), x.reshape(None).shape


# Multi-grid: one V-cycle for the Poisson equation in one dimension, recursive.
def v_cycle(u, f, h):
    def smooth(v, g, step, times):
        for _ in range(times):
            v[1:-1] = 0.5 * (v[2:] + v[:-2] + step * step * g[1:-1])
        return v

    u = smooth(u.copy(), f, h, 2)
    if len(u) <= 3:
        return u
    residual = np.zeros_like(u)
    residual[1:-1] = f[1:-1] + (u[2:] - 2 * u[1:-1] + u[:-2]) / (h * h)
    coarse = v_cycle(np.zeros_like(residual[::2]), residual[::2], 2 * h)
    correction = np.zeros_like(u)
    correction[::2] = coarse
    correction[1::2] = 0.5 * (coarse[:-1] + coarse[1:])
    return smooth(u + correction, f, h, 2)


# Leapfrog integration of a planetary system whose bodies are dicts, with an energy log.
def orrery(bodies, dt, steps):
    def accelerations():
        total = {}
        for name, body in bodies.items():
            pull = np.zeros(2)
            for other, source in bodies.items():
                if other != name:
                    r = source["x"] - body["x"]
                    pull = pull + source["m"] * r / (r @ r + 0.01) ** 1.5
            total[name] = pull
        return total

    energies = []
    for _ in range(steps):
        for name, a in accelerations().items():
            bodies[name]["v"] += dt * a
        for body in bodies.values():
            body["x"] += dt * body["v"]
        energies.append(sum(0.5 * b["m"] * (b["v"] @ b["v"]) for b in bodies.values()))
    return np.array(energies), {name: np.linalg.norm(b["x"]) for name, b in bodies.items()}


# A memoized recursion over integers beside arrays (Rosetta Code's partition function), with a cache.
@functools.cache
def partitions(n, k):
    if n == 0:
        return 1
    return 0 if n < 0 or k == 0 else partitions(n, k - 1) + partitions(n - k, k)


def weighted_partitions(x):
    counts = np.array([partitions(n, n) for n in range(6)])
    return np.convolve(x, counts)[: len(x)], counts @ counts


# A vectorized rational approximation whose coefficients are class attributes, through a descriptor.
class Coefficients:
    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance, value):
        setattr(instance, self.name, np.asarray(value, dtype=float))


class Rational:
    top, bottom = Coefficients(), Coefficients()

    def __init__(self, top, bottom):
        self.top, self.bottom = top, bottom

    def __matmul__(self, x):
        return np.polyval(self.top, x) / np.polyval(self.bottom, x)

    def evaluate(self, x):
        self.top = self.top * 1.5
        return self @ x, -(self @ np.abs(x)).max()


# The discrete cosine transform of blocks of a picture and their quantization (as in JPEG).
def jpeg_blocks(picture, quality):
    k = np.arange(4)
    basis = np.cos(np.pi * np.outer(k, 2 * k + 1) / 8) * np.where(k == 0, math.sqrt(1 / 4), math.sqrt(1 / 2))[:, None]
    rows, columns = (s // 4 for s in picture.shape)
    blocks = picture[: 4 * rows, : 4 * columns].reshape(rows, 4, columns, 4).swapaxes(1, 2)
    table = 1 + (k[:, None] + k) * quality
    quantized = np.rint(basis @ (blocks - 0.5) @ basis.T * 64 / table).astype(np.int16)
    restored = basis.T @ (quantized * table / 64) @ basis + 0.5
    zigzag = sorted(itertools.product(range(4), repeat=2), key=lambda p: (sum(p), p[sum(p) % 2]))
    rows_, columns_ = zip(*zigzag, strict=True)
    return restored.swapaxes(1, 2).reshape(4 * rows, -1), quantized[..., rows_, columns_]


# Discrete wavelet denoising with a soft threshold that depends on the median of the details.
def wavelet_denoise(signal, levels=2):
    approximations, details = signal, []
    for _ in range(levels):
        even, odd = approximations[::2], approximations[1::2]
        m = min(len(even), len(odd))
        details.append((even[:m] - odd[:m]) / math.sqrt(2))
        approximations = (even[:m] + odd[:m]) / math.sqrt(2)
    threshold = np.median(np.abs(details[0])) / 0.6745
    for detail in reversed(details):
        soft = np.sign(detail) * np.maximum(np.abs(detail) - threshold, 0)
        merged = np.empty(2 * len(soft), signal.dtype)
        merged[::2], merged[1::2] = approximations[: len(soft)] + soft, approximations[: len(soft)] - soft
        approximations = merged / math.sqrt(2)
    return approximations, threshold


def _graph(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    weights = r.integers(1, 9, (5, 5)).astype(float)
    weights[r.random((5, 5)) > 0.7] = np.inf
    return weights, int(r.integers(5))


def _bodies(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    return (
        {name: {"m": 1.0 + k, "x": r.standard_normal(2), "v": r.standard_normal(2)} for k, name in enumerate("abc")},
        0.01,
        3,
    )


def _symmetric(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    off = r.standard_normal(n - 1)
    return (np.diag(r.standard_normal(n)) + np.diag(off, 1) + np.diag(off, -1),)


def float_of(r: np.random.Generator, n: int, *shape: int) -> np.ndarray:
    return r.standard_normal(shape).astype(np.float32 if n % 2 else np.float64)


CASES = [
    Case(restarts, lambda r, n: (r.standard_normal((n, 3)), r.standard_normal(n), 4, 0.1)),
    Case(
        Document.edit,
        lambda r, n: (r.standard_normal(n), int(r.integers(3)), bool(r.integers(2))),
        lambda r, n: Document(r.standard_normal(n)),
        between=lambda o, r: o.cells.__setitem__(0, r.random()),
    ),
    Case(boundary_flux, lambda r, n: (float_of(r, n, n, n - 1), int(r.integers(2)), int(r.integers(1, 4)))),
    Case(travel, lambda r, n: (float_of(r, n, n), float(r.random()), n)),
    Case(sparse_stencil, lambda r, n: (float_of(r, n, n, n), [(0, 1), (1, 0), (1, 1), (-1, 0)], [0.5, 0.25, 0.1, 9.0])),
    Case(relaxed_solution, lambda r, n: (r.standard_normal((n, n)) / n + 2 * np.eye(n), r.standard_normal(n))),
    Case(shifted_qr, _symmetric, sizes=(4, 6)),
    Case(romberg_of_two, lambda r, n: (float(r.random()), n // 2), sizes=(6, 8)),
    Case(adaptive_energy, lambda r, n: (r.standard_normal(n), 1.0 + float(r.random()))),
    Case(walsh_hadamard, lambda r, n: (float_of(r, n // 8, n),), sizes=(8, 16)),
    Case(common_subsequence, lambda r, n: (r.integers(0, 3, n), r.integers(0, 3, n - 1)), sizes=(5, 6)),
    Case(dijkstra, _graph),
    Case(iterated_sums, lambda r, n: (float_of(r, n, 3, n), float_of(r, n, n))),
    Case(safe_reverse, lambda r, n: (r.standard_normal(n), np.empty(n) if r.integers(2) else None)),
    Case(quartile_table, lambda r, n: (float_of(r, n, 3, n),)),
    Case(with_missing, lambda r, n: (r.standard_normal(n), float(r.random()))),
    Case(v_cycle, lambda r, n: (np.zeros(n), r.standard_normal(n), 1 / (n - 1)), sizes=(9, 17)),
    Case(orrery, _bodies),
    Case(weighted_partitions, lambda r, n: (r.standard_normal(n),)),
    Case(
        Rational.evaluate,
        lambda r, n: (float_of(r, n, n),),
        lambda r, n: Rational([0.5, 1.0, 2.0], [1.0, 0.0, 3.0]),
        between=lambda o, r: setattr(o, "bottom", [1.0, r.random(), 4.0]),
    ),
    Case(jpeg_blocks, lambda r, n: (r.random((n, n + 1)), int(r.integers(1, 5)))),
    Case(wavelet_denoise, lambda r, n: (float_of(r, n, n),)),
]
