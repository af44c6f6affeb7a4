"""Agents, games and filters that keep state in objects, properties, generators and module globals."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass, field

import numpy as np

from tests.programs.case import Case

epsilon = 0.3


visits: Counter = Counter()


q_table: dict = {}


registry: dict = {}


best = {"score": -math.inf, "weights": None}


Transition = namedtuple("Transition", "state action reward")


# Sutton and Barto's bandit with sample averages.
class SampledArms:
    def __init__(self, k):
        self.estimates = np.zeros(k)
        self.counts = np.zeros(k, dtype=int)
        self.total = 0.0

    def pull(self, rewards):
        arm = int(np.argmax(self.estimates + 1.0 / (self.counts + 1)))
        self.counts[arm] += 1
        self.estimates[arm] += (rewards[arm] - self.estimates[arm]) / self.counts[arm]
        self.total += rewards[arm]
        return arm, self.total


# Watkins' Q-learning on a line, as in many course notes: a dict of arrays by state.
def q_update(state, action, reward, following):
    row = q_table.setdefault(state, np.zeros(3))
    target = reward + 0.9 * q_table.get(following, np.zeros(3)).max()
    row[action] += 0.5 * (target - row[action])
    visits[state] += 1
    return row * 1.0


# A tabular SARSA learner over an array of states.
class Sarsa:
    def __init__(self, n):
        self.q = np.zeros((n, 2))
        self.trace = np.zeros_like(self.q)
        self.last = None

    def learn(self, s, a, r):
        if self.last is not None:
            ps, pa, pr = self.last
            delta = pr + 0.9 * self.q[s, a] - self.q[ps, pa]
            self.trace *= 0.8
            self.trace[ps, pa] = 1.0
            self.q += 0.1 * delta * self.trace
        self.last = (s, a, r)
        return self.q.sum()


# Reynolds' boids with properties over a structure of arrays.
class Flock:
    __slots__ = ("_position", "_velocity", "limit", "ticks")

    def __init__(self, position, velocity):
        self._position, self._velocity, self.limit, self.ticks = position, velocity, 1.0, 0

    @property
    def position(self):
        return self._position

    @position.setter
    def position(self, value):
        self._position = value % 10.0

    @property
    def speed(self):
        return np.hypot(self._velocity[:, 0], self._velocity[:, 1])

    def tick(self, dt):
        center = self.position.mean(axis=0)
        self._velocity = self._velocity + 0.01 * (center - self.position)
        fast = self.speed > self.limit
        self._velocity[fast] *= (self.limit / self.speed[fast])[:, None]
        self.position = self.position + dt * self._velocity
        self.ticks += 1
        return self.position


# Schelling's segregation on a board: unhappy agents leave.
class Schelling:
    def __init__(self, board):
        self.board = board
        self.moved = []

    def happy(self):
        same = np.zeros(self.board.shape)
        for dy, dx in itertools.product((-1, 0, 1), repeat=2):
            if dy or dx:
                same += np.roll(self.board, (dy, dx), (0, 1)) == self.board
        return same >= 3

    def round(self):
        leaving = ~self.happy() & (self.board > 0)
        self.moved.append(int(leaving.sum()))
        self.board[leaving] = 0
        return self.board.sum()


# Holland's genetic algorithm, with elitism in a module global.
def evolve(population, target):
    global epsilon
    scores = -np.abs(population - target).sum(axis=1)
    top = scores.max()
    if top > best["score"]:
        best["score"] = float(top)
        best["weights"] = population[scores.argmax()].copy()
    epsilon *= 0.95
    order = np.argsort(-scores)
    population[order[len(order) // 2 :]] = (
        0.5
        * (population[order[: len(order) - len(order) // 2]][: len(order) - len(order) // 2] + target)[
            : len(order) - len(order) // 2
        ]
    )
    return scores[order]


# Particle swarm optimisation (Kennedy and Eberhart) with personal bests.
@dataclass
class Swarm:
    x: np.ndarray
    v: np.ndarray
    best_x: np.ndarray = None
    best_f: np.ndarray = None
    history: list = field(default_factory=list)

    def __post_init__(self):
        self.best_x = self.x.copy()
        self.best_f = np.full(len(self.x), np.inf)

    def step(self, r1, r2):
        f = (self.x**2).sum(axis=1)
        better = f < self.best_f
        self.best_f[better] = f[better]
        self.best_x[better] = self.x[better]
        leader = self.best_x[self.best_f.argmin()]
        self.v = 0.7 * self.v + r1 * (self.best_x - self.x) + r2 * (leader - self.x)
        self.x += self.v
        self.history.append(float(self.best_f.min()))
        return leader


# A PID controller with anti-windup, as in robotics code.
class Pid:
    def __init__(self, kp, ki, kd, low, high):
        self.gains = (kp, ki, kd)
        self.low, self.high = low, high
        self.integral = 0.0
        self.previous = None

    def __call__(self, error, dt=0.1):
        kp, ki, kd = self.gains
        derivative = 0.0 if self.previous is None else (error - self.previous) / dt
        self.integral += error * dt
        out = kp * error + ki * self.integral + kd * derivative
        if out > self.high:
            self.integral -= error * dt
            out = self.high
        elif out < self.low:
            self.integral -= error * dt
            out = self.low
        self.previous = error
        return out


# A validated attribute by a descriptor (Python's descriptor guide).
class Bounded:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance, value):
        setattr(instance, self.name, np.clip(value, self.low, self.high))


class Arm:
    angles = Bounded(-1.5, 1.5)
    torque = Bounded(-1.0, 1.0)

    def __init__(self, angles):
        self.angles = angles
        self.torque = 0.0

    def move(self, command):
        self.torque = command.mean()
        self.angles = self.angles + 0.3 * command + self.torque
        return self.angles


# The Metropolis walk of a course in statistical physics, with its acceptance kept.
def make_metropolis(energy_scale):
    accepted = 0
    current = None

    def walk(proposal, u):
        nonlocal accepted, current
        if current is None:
            current = proposal
            return current, accepted
        change = ((proposal**2).sum() - (current**2).sum()) * energy_scale
        if u < np.exp(-change):
            current = proposal
            accepted += 1
        return current, accepted

    return walk


# A registry filled by name, as in detectron.
def registered(name, x):
    if name not in registry:
        registry[name] = {"count": 0, "mean": np.zeros_like(x)}
    entry = registry[name]
    entry["count"] += 1
    entry["mean"] += (x - entry["mean"]) / entry["count"]
    return entry["mean"] * 1.0, len(registry)


# Replay memory with namedtuples (the DQN tutorial).
class Replay:
    def __init__(self, capacity):
        self.memory = []
        self.position = 0
        self.capacity = capacity

    def push(self, state, action, reward):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = Transition(state * 1.0, action, reward)
        self.position = (self.position + 1) % self.capacity
        return sum(t.reward for t in self.memory) / len(self.memory)


# Glauber dynamics, one site at a time, on a copy that is swapped in.
class Ising:
    def __init__(self, spins):
        self.front, self.back = spins, np.empty_like(spins)

    def sweep(self, u, beta):
        for parity in (0, 1):
            field = sum(np.roll(self.front, s, a) for s in (1, -1) for a in (0, 1))
            p = 1 / (1 + np.exp(-2 * beta * field))
            mask = np.add.outer(np.arange(len(u)), np.arange(u.shape[1])) % 2 == parity
            self.back[...] = self.front
            self.back[mask] = np.where(u < p, 1.0, -1.0)[mask]
            self.front, self.back = self.back, self.front
        return self.front.mean()


# An extended Kalman filter with a lazily made gain.
class Ekf:
    def __init__(self, n):
        self.mean, self.cov = np.zeros(n), np.eye(n)

    @functools.cached_property
    def noise(self):
        return 0.1 * np.eye(len(self.mean))

    def update(self, z, h):
        s = h @ self.cov @ h + 0.5
        gain = self.cov @ h / s
        self.mean += gain * (z - h @ self.mean)
        self.cov -= np.outer(gain, h) @ self.cov
        self.cov += self.noise
        return self.mean


# Values by name, the newest last.
class Tracked:
    def __init__(self, n):
        self.offset = np.zeros(n)
        self.names = ["x", "y"]
        self.by_name = OrderedDict((name, 0.0) for name in self.names)

    def observe(self, name, z):
        self.by_name[name] = self.by_name[name] * 0.5 + z.sum()
        self.by_name.move_to_end(name)
        self.offset += z
        return self.offset * self.by_name[name]


# Leaky integrate and fire neurons with a refractory counter.
class Neurons:
    def __init__(self, n):
        self.v = np.zeros(n)
        self.rest = np.zeros(n, dtype=np.int64)
        self.spikes = []

    def step(self, current):
        active = self.rest == 0
        self.v[active] += 0.5 * (current[active] - self.v[active])
        fired = self.v > 0.4
        self.v[fired] = 0.0
        self.rest[fired] = 2
        self.rest[~active] -= 1
        self.spikes.append(np.flatnonzero(fired).size)
        return fired


# Epidemic compartments in a dataclass that is replaced.
@dataclass
class Sir:
    s: np.ndarray
    i: np.ndarray
    r: np.ndarray
    day: int = 0

    def advance(self, beta, gamma):
        new = beta * self.s * self.i / (self.s + self.i + self.r)
        healed = gamma * self.i
        self.s, self.i, self.r = self.s - new, self.i + new - healed, self.r + healed
        self.day += 1
        return self.i.max() if self.day % 2 else self.i.mean()


CASES = [
    Case(SampledArms.pull, lambda r, n: (r.random(n),), instance=lambda r, n: SampledArms(n)),
    Case(q_update, lambda r, n: (int(r.integers(n)), int(r.integers(3)), float(r.random()), int(r.integers(n)))),
    Case(
        Sarsa.learn,
        lambda r, n: (int(r.integers(n)), int(r.integers(2)), float(r.random())),
        instance=lambda r, n: Sarsa(n),
    ),
    Case(Flock.tick, lambda r, n: (0.1,), instance=lambda r, n: Flock(r.random((n, 2)) * 10, r.normal(size=(n, 2)))),
    Case(Schelling.round, lambda r, n: (), instance=lambda r, n: Schelling(r.integers(0, 3, (n, n)))),
    Case(evolve, lambda r, n: (r.normal(size=(2 * n, 3)), np.ones(3))),
    Case(
        Swarm.step,
        lambda r, n: (r.random((n, 2)), r.random((n, 2))),
        instance=lambda r, n: Swarm(r.normal(size=(n, 2)), np.zeros((n, 2))),
    ),
    Case(Pid.__call__, lambda r, n: (float(r.normal() * 3),), instance=lambda r, n: Pid(1.0, 0.5, 0.1, -2.0, 2.0)),
    Case(Arm.move, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Arm(r.normal(size=n))),
    Case(
        make_metropolis,
        lambda r, n: (r.normal(size=n), float(r.random())),
        closure=lambda r, n: (0.3,),
    ),
    Case(registered, lambda r, n: (str(r.choice(["conv", "bn", "relu"])) + str(n), r.normal(size=n))),
    Case(
        Replay.push,
        lambda r, n: (r.normal(size=4), int(r.integers(2)), float(r.random())),
        instance=lambda r, n: Replay(3),
    ),
    Case(
        Ising.sweep,
        lambda r, n: (r.random((2 * n, 2 * n)), 0.4),
        instance=lambda r, n: Ising(r.choice([-1.0, 1.0], (2 * n, 2 * n))),
    ),
    Case(Ekf.update, lambda r, n: (float(r.normal()), r.normal(size=n)), instance=lambda r, n: Ekf(n)),
    Case(
        Tracked.observe,
        lambda r, n: (str(r.choice(["x", "y"])), r.normal(size=n)),
        instance=lambda r, n: Tracked(n),
    ),
    Case(Neurons.step, lambda r, n: (r.random(n),), instance=lambda r, n: Neurons(n)),
    Case(
        Sir.advance,
        lambda r, n: (0.3, 0.1),
        instance=lambda r, n: Sir(np.full(n, 90.0), np.full(n, 10.0), np.zeros(n)),
    ),
]
