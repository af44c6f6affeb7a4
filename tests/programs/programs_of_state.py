"""Programs that keep state: in objects, globals, closures, containers."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tests.programs.case import Case

calls = 0
running_total = 0.0
history: list = []
cache: dict = {}
weights = np.linspace(0.1, 1.0, 5)
config = {"gain": 2.0, "offset": np.ones(5), "mode": "linear"}


# A textbook's running mean and variance (Welford, 1962).
class RunningStatistics:
    def __init__(self, n):
        self.count = 0
        self.mean = np.zeros(n)
        self.m2 = np.zeros(n)

    def update(self, x):
        self.count += 1
        delta = x - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (x - self.mean)
        return self.m2 / max(self.count - 1, 1)


# scikit-learn's StandardScaler.partial_fit.
class PartialScaler:
    def __init__(self):
        self.n_seen = 0
        self.mean_ = None
        self.var_ = None

    def partial_fit(self, X):
        n = X.shape[0]
        mean, var = X.mean(axis=0), X.var(axis=0)
        if self.mean_ is None:
            self.mean_, self.var_, self.n_seen = mean, var, n
        else:
            total = self.n_seen + n
            delta = mean - self.mean_
            self.var_ = (self.n_seen * self.var_ + n * var + delta**2 * self.n_seen * n / total) / total
            self.mean_ = (self.n_seen * self.mean_ + n * mean) / total
            self.n_seen = total
        return (X - self.mean_) / np.sqrt(self.var_ + 1e-8)


# CS231n's optimisers: SGD with momentum on a dict of parameters.
class Momentum:
    def __init__(self, params, lr=0.01, mu=0.9):
        self.params = params
        self.lr = lr
        self.mu = mu
        self.v = {k: np.zeros_like(p) for k, p in params.items()}

    def step(self, grads):
        for k in self.params:
            self.v[k] = self.mu * self.v[k] - self.lr * grads[k]
            self.params[k] += self.v[k]


# Kingma and Ba's Adam, as in many notebooks.
class Adam:
    def __init__(self, lr=1e-3, b1=0.9, b2=0.999):
        self.lr, self.b1, self.b2 = lr, b1, b2
        self.t = 0
        self.m = self.v = 0

    def update(self, w, g):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        mhat = self.m / (1 - self.b1**self.t)
        vhat = self.v / (1 - self.b2**self.t)
        return w - self.lr * mhat / (np.sqrt(vhat) + 1e-8)


# Labbe's "Kalman and Bayesian Filters in Python": a constant-velocity filter.
class Kalman:
    def __init__(self, n):
        self.x = np.zeros((n, 2))
        self.P = np.array([[10.0, 0.0], [0.0, 10.0]])
        self.F = np.array([[1.0, 0.1], [0.0, 1.0]])
        self.Q = np.eye(2) * 0.01
        self.R = 0.5

    def predict_update(self, z):
        self.x = self.x @ self.F.T
        self.P = self.F @ self.P @ self.F.T + self.Q
        y = z - self.x[:, 0]
        S = self.P[0, 0] + self.R
        K = self.P[:, 0] / S
        self.x = self.x + y[:, None] * K
        self.P = self.P - np.outer(K, self.P[0])
        return self.x[:, 0]


# A Nature-of-Code style particle system.
class Particles:
    def __init__(self, pos, vel):
        self.pos = pos
        self.vel = vel
        self.age = 0

    def advance(self, dt):
        self.vel[:, 1] -= 9.81 * dt
        self.pos += self.vel * dt
        below = self.pos[:, 1] < 0
        self.pos[below, 1] = 0
        self.vel[below] *= -0.5
        self.age += dt
        return self.pos


# Exponential moving average with lazy start, as in TensorBoard's smoothing.
class Smoother:
    def __init__(self, beta):
        self.beta = beta
        self.last = None

    def __call__(self, x):
        if self.last is None:
            self.last = x
        else:
            self.last = self.beta * self.last + (1 - self.beta) * x
        return self.last


# A recurrent cell that keeps its hidden state (Karpathy's min-char-rnn).
class VanillaRNN:
    def __init__(self, Wxh, Whh, bh):
        self.Wxh, self.Whh, self.bh = Wxh, Whh, bh
        self.h = np.zeros_like(bh)

    def step(self, x):
        self.h = np.tanh(np.dot(self.Whh, self.h) + np.dot(self.Wxh, x) + self.bh)
        return self.h


# Two time levels of the wave equation in one object (Langtangen's "Finite Difference Computing with PDEs").
class Wave:
    def __init__(self, u):
        self.cur = u
        self.prev = u.copy()

    def step(self, c):
        new = 2 * self.cur - self.prev
        new[1:-1] += c * c * (self.cur[2:] - 2 * self.cur[1:-1] + self.cur[:-2])
        new[0] = new[-1] = 0
        self.prev, self.cur = self.cur, new
        return new.max()


# The Python documentation's cached_property example, for a data set.
class DataSet:
    def __init__(self, data):
        self.data = data

    @cached_property
    def scale(self):
        return self.data.std()

    def normalised(self, x):
        return (x - self.data.mean()) / self.scale


# A dataclass state of a simulation, as in many public notebooks.
@dataclass
class Lattice:
    spins: np.ndarray
    energy: float = 0.0
    steps: int = 0
    log: list = field(default_factory=list)

    def relax(self, field_strength):
        neighbours = sum(np.roll(self.spins, s, a) for s in (1, -1) for a in (0, 1))
        self.spins = np.tanh(0.3 * neighbours + field_strength)
        self.energy = -(self.spins * neighbours).sum() / 2
        self.steps += 1
        self.log.append(self.energy)
        return self.spins


# Replay of a ring buffer (reinforcement learning tutorials).
class RingBuffer:
    def __init__(self, n, width):
        self.buffer = np.zeros((n, width))
        self.position = 0
        self.full = False

    def push(self, x):
        self.buffer[self.position] = x
        self.position += 1
        if self.position == len(self.buffer):
            self.position = 0
            self.full = True
        return self.buffer.mean(axis=0)


# A counter in a global (Python tutorial, `global`).
def counted(x):
    global calls
    calls += 1
    return x * calls


# A running total in a global.
def accumulate_total(x):
    global running_total
    running_total += x.sum()
    return x / running_total


# Losses collected in a global list (every training loop).
def log_loss_to_history(pred, target):
    loss = np.mean((pred - target) ** 2)
    history.append(loss)
    return 2 * (pred - target) / pred.size


# A memo in a global dict (the "cache" idiom of the Python FAQ).
def cached_window(x):
    n = x.shape[0]
    if n not in cache:
        cache[n] = np.hanning(n)
    return x * cache[n]


# Settings in a global dict.
def apply_config(x):
    y = config["gain"] * x + config["offset"].sum()
    if config["mode"] == "log":
        y = np.log1p(np.abs(y))
    return y


# Weights in a global array, changed in place between calls.
def weighted_average(x):
    return (x * weights).sum(axis=1) / weights.sum()


# A leaky integrator as a closure with nonlocal (Abelson and Sussman's accumulator).
def make_integrator(leak, start):
    level = start

    def integrate(x):
        nonlocal level
        level = leak * level + x
        return level

    return integrate


# An FIR filter that holds its delay line in a closure (Lyons, "Understanding DSP").
def make_fir(taps):
    line = np.zeros(len(taps))

    def push(sample):
        line[1:] = line[:-1]
        line[0] = sample
        return line @ taps

    return push


# A list of layers, each with weights and a cached input (Nielsen, "Neural Networks and Deep Learning").
class Network:
    def __init__(self, rng, sizes):
        self.weights = [rng.standard_normal((y, x)) / math.sqrt(x) for x, y in zip(sizes[:-1], sizes[1:], strict=True)]
        self.biases = [rng.standard_normal(y) for y in sizes[1:]]
        self.activations = []

    def feedforward(self, a):
        self.activations = [a]
        for w, b in zip(self.weights, self.biases, strict=True):
            a = 1.0 / (1.0 + np.exp(-(a @ w.T + b)))
            self.activations.append(a)
        return a


# Parameters in nested dicts that are arguments (JAX's tutorials, in place as NumPy users write them).
def sgd_nested(params, grads, rate):
    for name, layer in params.items():
        layer["w"] -= rate * grads[name]["w"]
        layer["b"] = layer["b"] - rate * grads[name]["b"]
    return params


# A deque of the last values (Beazley's Python Cookbook, "Keeping the last N items").
class LastValues:
    def __init__(self, count):
        self.values = deque(maxlen=count)

    def push(self, x):
        self.values.append(x * 1.0)
        return sum(self.values) / len(self.values)


CASES = [
    Case(
        RunningStatistics.update,
        lambda r, n: (r.normal(size=n),),
        instance=lambda r, n: RunningStatistics(n),
        between=lambda s, r: setattr(s, "mean", s.mean + r.random()) if r.random() < 0.3 else None,
    ),
    Case(PartialScaler.partial_fit, lambda r, n: (r.normal(size=(n, 3)),), instance=lambda r, n: PartialScaler()),
    Case(
        Momentum.step,
        lambda r, n: ({"w": r.normal(size=(n, 3)), "b": r.normal(size=3)},),
        instance=lambda r, n: Momentum({"w": r.normal(size=(n, 3)), "b": np.zeros(3)}),
        between=lambda s, r: setattr(s, "lr", s.lr * 0.9),
    ),
    Case(Adam.update, lambda r, n: (r.normal(size=n), r.normal(size=n)), instance=lambda r, n: Adam()),
    Case(
        Kalman.predict_update,
        lambda r, n: (r.normal(size=n),),
        instance=lambda r, n: Kalman(n),
        between=lambda s, r: s.Q.__imul__(1.5),
    ),
    Case(
        Particles.advance,
        lambda r, n: (0.1,),
        instance=lambda r, n: Particles(r.random((n, 2)), r.normal(size=(n, 2))),
        between=lambda s, r: setattr(s, "vel", s.vel + r.normal(size=s.vel.shape)) if r.random() < 0.5 else None,
    ),
    Case(Smoother.__call__, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Smoother(0.9)),
    Case(
        VanillaRNN.step,
        lambda r, n: (r.normal(size=(n, 1)),),
        instance=lambda r, n: VanillaRNN(r.normal(size=(6, n)), r.normal(size=(6, 6)) / 3, r.normal(size=(6, 1))),
        between=lambda s, r: s.Whh.__imul__(0.99),
    ),
    Case(Wave.step, lambda r, n: (0.5,), instance=lambda r, n: Wave(np.sin(np.linspace(0, np.pi, n)))),
    Case(DataSet.normalised, lambda r, n: (r.normal(size=n),), instance=lambda r, n: DataSet(r.normal(size=n))),
    Case(Lattice.relax, lambda r, n: (0.1,), instance=lambda r, n: Lattice(r.choice([-1.0, 1.0], size=(n, n)))),
    Case(RingBuffer.push, lambda r, n: (r.normal(size=3),), instance=lambda r, n: RingBuffer(4, 3)),
    Case(counted, lambda r, n: (r.normal(size=n),)),
    Case(
        accumulate_total,
        lambda r, n: (r.random(n),),
        between=lambda m, r: setattr(m, "running_total", 1.0) if r.random() < 0.2 else None,
    ),
    Case(log_loss_to_history, lambda r, n: (r.normal(size=n), r.normal(size=n))),
    Case(cached_window, lambda r, n: (r.normal(size=n),)),
    Case(
        apply_config,
        lambda r, n: (r.normal(size=n),),
        between=lambda m, r: m.config.update(gain=r.random(), mode=str(r.choice(["linear", "log"]))),
    ),
    Case(
        weighted_average,
        lambda r, n: (r.normal(size=(n, 5)),),
        between=lambda m, r: m.weights.__setitem__(slice(None), r.random(5)),
    ),
    Case(make_integrator, lambda r, n: (r.normal(size=n),), closure=lambda r, n: (0.9, 0.0)),
    Case(make_fir, lambda r, n: (r.random(),), closure=lambda r, n: (r.normal(size=n),)),
    Case(Network.feedforward, lambda r, n: (r.normal(size=(n, 4)),), instance=lambda r, n: Network(r, [4, 6, 2])),
    Case(
        sgd_nested,
        lambda r, n: (
            {"l1": {"w": r.normal(size=(n, 3)), "b": r.normal(size=3)}, "l2": {"w": np.ones((3, 2)), "b": np.zeros(2)}},
            {"l1": {"w": r.normal(size=(n, 3)), "b": r.normal(size=3)}, "l2": {"w": np.ones((3, 2)), "b": np.ones(2)}},
            0.1,
        ),
    ),
    Case(LastValues.push, lambda r, n: (r.normal(size=n),), instance=lambda r, n: LastValues(3)),
]
