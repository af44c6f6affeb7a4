"""Whole programs in the manner of machine learning from scratch (CS231n, micrograd, Raschka)."""

from __future__ import annotations

import abc
import enum
import functools
import math
import operator
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tests.programs.case import Case


def kind_of(n: int) -> Any:
    """Sizes that are odd have float32, so that calls differ in type too."""
    return np.float32 if n % 2 else np.float64


def numbers(r: np.random.Generator, n: int, *shape: int) -> np.ndarray:
    return r.standard_normal(shape).astype(kind_of(n))


# Batch normalization with running statistics, a mode and a property (Ioffe and Szegedy).
class BatchNorm:
    eps: ClassVar[float] = 1e-5

    def __init__(self, width, momentum=0.9):
        self.gamma, self.beta = np.ones(width), np.zeros(width)
        self.running_mean, self.running_var = np.zeros(width), np.ones(width)
        self.momentum, self.training, self._cache = momentum, True, None

    @property
    def inverse_deviation(self):
        return 1.0 / np.sqrt(self.running_var + self.eps)

    def forward(self, x, dout):
        if not self.training:
            return (x - self.running_mean) * self.inverse_deviation * self.gamma + self.beta
        mean, var = x.mean(axis=0), x.var(axis=0)
        self.running_mean = self.momentum * self.running_mean + (1 - self.momentum) * mean
        self.running_var = self.momentum * self.running_var + (1 - self.momentum) * var
        hat = (x - mean) / np.sqrt(var + self.eps)
        self._cache = hat, var
        self.gamma -= 0.01 * (dout * hat).sum(axis=0)
        self.beta -= 0.01 * dout.sum(axis=0)
        return self.gamma * hat + self.beta


class Scheme(enum.Enum):
    SGD = "sgd"
    RMSPROP = "rmsprop"
    ADAM = "adam"


@dataclass
class Slot:
    m: Any = 0.0
    v: Any = 0.0
    t: int = 0


# One optimizer of three schemes whose slots live in a dict that is filled on demand.
class AnyOptimizer:
    def __init__(self, scheme, rate=1e-2, decay=0.9):
        self.scheme, self.rate, self.decay, self.slots = scheme, rate, decay, {}

    def slot(self, name):
        return self.slots.setdefault(name, Slot())

    def update(self, parameters, gradients):
        for name, gradient in gradients.items():
            one = self.slot(name)
            one.t += 1
            match self.scheme:
                case Scheme.SGD:
                    step = gradient
                case Scheme.RMSPROP:
                    one.v = self.decay * one.v + (1 - self.decay) * gradient**2
                    step = gradient / (np.sqrt(one.v) + 1e-8)
                case Scheme.ADAM:
                    one.m = 0.9 * one.m + 0.1 * gradient
                    one.v = 0.999 * one.v + 0.001 * gradient**2
                    step = (one.m / (1 - 0.9**one.t)) / (np.sqrt(one.v / (1 - 0.999**one.t)) + 1e-8)
            parameters[name] -= self.rate * step
        return sum(float(np.abs(p).sum()) for p in parameters.values())


class Module(abc.ABC):
    @abc.abstractmethod
    def __call__(self, x): ...

    @abc.abstractmethod
    def backward(self, dy): ...

    def parameters(self):
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray) and not k.startswith("_")}


class Dense(Module):
    def __init__(self, w, b):
        self.w, self.b = w, b

    def __call__(self, x):
        self._x = x
        return x @ self.w + self.b

    def backward(self, dy):
        self.dw, self.db = self._x.T @ dy, dy.sum(axis=0)
        return dy @ self.w.T


class Tanh(Module):
    def __call__(self, x):
        self._y = np.tanh(x)
        return self._y

    def backward(self, dy):
        return dy * (1 - self._y**2)


class Sequential:
    def __init__(self, *modules):
        self.modules = OrderedDict((f"{k}_{type(m).__name__}", m) for k, m in enumerate(modules))

    def __iter__(self):
        return iter(self.modules.values())

    def __len__(self):
        return len(self.modules)

    def __getitem__(self, k):
        return list(self)[k]

    def train(self, x, y, rate=0.05):
        out = functools.reduce(lambda value, module: module(value), self, x)
        delta = (out - y) / len(x)
        for module in reversed(list(self)):
            delta = module.backward(delta)
        for module in filter(Module.parameters, self):
            module.w -= rate * module.dw
            module.b -= rate * module.db
        shapes = {name: [p.shape for p in m.parameters().values()] for name, m in self.modules.items()}
        return 0.5 * ((out - y) ** 2).mean(), shapes, self[-1].db


# Gated recurrent unit (Cho et al.) over a sequence, with state that persists between calls.
class Gru:
    __slots__ = ("hidden", "steps", "u", "w")

    def __init__(self, r, inputs, size):
        self.w, self.u = (0.3 * r.standard_normal((3, k, size)) for k in (inputs, size))
        self.hidden, self.steps = None, 0

    def run(self, sequence):
        h = np.zeros((sequence.shape[1], self.u.shape[-1])) if self.hidden is None else self.hidden
        outputs = []
        for x in sequence:
            z, r = (1 / (1 + np.exp(-(x @ self.w[k] + h @ self.u[k]))) for k in range(2))
            candidate = np.tanh(x @ self.w[2] + (r * h) @ self.u[2])
            h = (1 - z) * h + z * candidate
            outputs.append(h)
            self.steps += 1
        self.hidden = h
        return np.stack(outputs, axis=1)


# Scaled dot-product attention of several heads with a mask, by einsum.
def multi_head(x, wq, wk, wv, heads, *, causal=True):
    b, t, d = x.shape
    q, k, v = ((x @ w).reshape(b, t, heads, d // heads) for w in (wq, wk, wv))
    scores = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(d // heads)
    if causal:
        scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    weights = scores / scores.sum(-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", weights, v).reshape(b, t, d), weights.mean(axis=(0, 1))


# Reverse-mode automatic differentiation with a graph of nodes and operator overloading (Karpathy's micrograd).
class Node:
    def __init__(self, data, parents=(), backward=lambda g: ()):
        self.data, self.parents, self.backward, self.grad = data, parents, backward, 0.0

    def __add__(self, other):
        return Node(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        return Node(self.data * other.data, (self, other), lambda g: (g * other.data, g * self.data))

    def tanh(self):
        t = np.tanh(self.data)
        return Node(t, (self,), lambda g: (g * (1 - t * t),))

    def sweep(self):
        order, seen = [], set()

        def visit(node):
            if id(node) not in seen:
                seen.add(id(node))
                for parent in node.parents:
                    visit(parent)
                order.append(node)

        visit(self)
        self.grad = np.ones_like(self.data)
        for node in reversed(order):
            for parent, g in zip(node.parents, node.backward(node.grad), strict=True):
                parent.grad = parent.grad + g


def differentiate(x, w, b):
    leaves = [Node(v) for v in (x, w, b)]
    out = (leaves[0] * leaves[1] + leaves[2]).tanh()
    out = out * out + leaves[0]
    out.sweep()
    return (out.data, *map(operator.attrgetter("grad"), leaves))


@dataclass(frozen=True)
class TreeNode:
    feature: int = -1
    threshold: float = 0.0
    value: float = 0.0
    left: Any = None
    right: Any = None


# Prediction with a regression tree of frozen nodes, vectorized by masks.
def predict_tree(node, X):
    if node.left is None:
        return np.full(len(X), node.value)
    goes_left = X[:, node.feature] <= node.threshold
    return np.where(goes_left, predict_tree(node.left, X), predict_tree(node.right, X))


def boosted(X, y):
    leaf = functools.partial(TreeNode, -1, 0.0)
    tree = TreeNode(0, 0.1, left=leaf(-1.0), right=TreeNode(1, -0.2, left=leaf(0.5), right=leaf(2.0)))
    first = predict_tree(tree, X)
    shifted = replace(tree, threshold=0.5)
    second = predict_tree(shifted, X)
    return first, np.mean((y - 0.5 * first - 0.5 * second) ** 2)


# k-means++ seeding and Lloyd's iterations until the labels settle.
def lloyd(points, k, limit=10):
    centres = points[:k].copy()
    labels = None
    for iteration in range(limit):
        distances = np.linalg.norm(points[:, None] - centres[None], axis=2)
        new = distances.argmin(axis=1)
        if labels is not None and np.array_equal(new, labels):
            break
        labels = new
        for j in range(k):
            members = points[labels == j]
            if len(members):
                centres[j] = members.mean(axis=0)
    else:
        iteration = limit
    return centres, labels, iteration


# A replay buffer of a fixed size with a deque of transitions and n-step returns.
@dataclass
class NStep:
    gamma: float
    window: deque = field(default_factory=lambda: deque(maxlen=3))
    emitted: list = field(default_factory=list)

    def push(self, state, reward):
        self.window.append((state, reward))
        if len(self.window) == self.window.maxlen:
            total = sum(self.gamma**k * reward for k, (_, reward) in enumerate(self.window))
            first, *_ = self.window
            self.emitted.append((first[0].sum(), total))
        return len(self.emitted), [s[0] for s, _ in self.window]


# Restricted Boltzmann machine: one step of contrastive divergence with a generator of its own.
class Boltzmann:
    def __init__(self, seed, visible, hidden):
        self.rng = np.random.default_rng(seed)
        self.w = self.rng.normal(0, 0.1, (visible, hidden))
        self.a, self.b = np.zeros(visible), np.zeros(hidden)

    @staticmethod
    def sigmoid(x):
        return 1.0 / (1.0 + np.exp(-x))

    def sample(self, probability):
        return (self.rng.random(probability.shape) < probability).astype(probability.dtype)

    def contrast(self, v0, rate=0.1):
        p0 = self.sigmoid(v0 @ self.w + self.b)
        h0 = self.sample(p0)
        v1 = self.sample(self.sigmoid(h0 @ self.w.T + self.a))
        p1 = self.sigmoid(v1 @ self.w + self.b)
        self.w += rate * (v0.T @ p0 - v1.T @ p1) / len(v0)
        self.a += rate * (v0 - v1).mean(0)
        self.b += rate * (p0 - p1).mean(0)
        return ((v0 - v1) ** 2).sum() / v0.size


# Word vectors by skip-grams with negative samples, updated in place at repeated indices.
def skip_gram(table, context, centres, targets, negatives):
    u, v = table[centres], context[targets]
    positive = 1 / (1 + np.exp(-(u * v).sum(1)))
    gradient = (positive - 1)[:, None]
    np.subtract.at(table, centres, 0.1 * gradient * v)
    np.subtract.at(context, targets, 0.1 * gradient * u)
    for n in negatives.T:
        score = 1 / (1 + np.exp(-np.einsum("ij,ij->i", u, context[n])))
        context[n] -= 0.1 * score[:, None] * u
    return -np.log(positive).mean()


# Perceptron with early stopping through for and else.
def perceptron(X, y, epochs=5):
    w, b = np.zeros(X.shape[1], X.dtype), 0.0
    for epoch in range(epochs):
        mistakes = 0
        for x, t in zip(X, y, strict=True):
            if t * (x @ w + b) <= 0:
                w += t * x
                b += t
                mistakes += 1
        if not mistakes:
            break
    else:
        epoch = -1
    return w, b, epoch


def _layers(r: np.random.Generator, n: int) -> Sequential:
    first = Dense(0.3 * r.standard_normal((4, 3)), np.zeros(3))
    return Sequential(first, Tanh(), Dense(0.3 * r.standard_normal((3, 2)), np.zeros(2)))


def _gradients(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    return tuple({"w": r.standard_normal((n, 2)), "b": r.standard_normal(2)} for _ in range(2))


def _weights(r: np.random.Generator, n: int) -> tuple[Any, ...]:
    return (numbers(r, n, 2, n // 2, 4), *(0.5 * numbers(r, n, 4, 4) for _ in range(3)), 2)


def toggle(o: Any, r: np.random.Generator) -> None:
    o.training = not o.training


CASES = [
    Case(
        BatchNorm.forward,
        lambda r, n: (r.standard_normal((n, 3)), r.standard_normal((n, 3))),
        lambda r, n: BatchNorm(3),
        between=toggle,
    ),
    Case(
        AnyOptimizer.update,
        _gradients,
        lambda r, n: AnyOptimizer(Scheme.ADAM),
        sizes=(5, 8),
        between=lambda o, r: setattr(o, "scheme", list(Scheme)[int(r.integers(3))]),
    ),
    Case(Sequential.train, lambda r, n: (r.standard_normal((n, 4)), r.standard_normal((n, 2))), _layers),
    Case(Gru.run, lambda r, n: (numbers(r, n, n // 2, 2, 3),), lambda r, n: Gru(r, 3, 4)),
    Case(multi_head, _weights),
    Case(differentiate, lambda r, n: tuple(numbers(r, n, n) for _ in range(3))),
    Case(boosted, lambda r, n: (numbers(r, n, n, 2), r.standard_normal(n))),
    Case(lloyd, lambda r, n: (numbers(r, n, n, 2), 2)),
    Case(NStep.push, lambda r, n: (r.standard_normal(n), float(r.random())), lambda r, n: NStep(0.9)),
    Case(Boltzmann.contrast, lambda r, n: ((r.random((n, 6)) > 0.5).astype(float),), lambda r, n: Boltzmann(3, 6, 4)),
    Case(
        skip_gram,
        lambda r, n: (
            r.standard_normal((6, 3)),
            r.standard_normal((6, 3)),
            *r.integers(0, 6, (2, n)),
            r.integers(0, 6, (n, 2)),
        ),
    ),
    Case(perceptron, lambda r, n: (numbers(r, n, n, 2), np.where(r.random(n) > 0.5, 1.0, -1.0))),
]
