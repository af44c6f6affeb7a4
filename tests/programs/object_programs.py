"""Whole programs in object-oriented style: dataclasses, enums, operators, inheritance, properties."""

from __future__ import annotations

import enum
import functools
import itertools
import operator
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.programs.case import Case


# A vector class with operators, as many ray tracers have one (Shirley, "Ray Tracing in One Weekend").
class Vec3:
    def __init__(self, x, y, z):
        self.x, self.y, self.z = x, y, z

    def __mul__(self, other):
        return Vec3(self.x * other, self.y * other, self.z * other)

    def __add__(self, other):
        return Vec3(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other):
        return Vec3(self.x - other.x, self.y - other.y, self.z - other.z)

    def dot(self, other):
        return self.x * other.x + self.y * other.y + self.z * other.z

    def __abs__(self):
        return self.dot(self)

    def norm(self):
        mag = np.sqrt(abs(self))
        return self * (1.0 / np.where(mag == 0, 1, mag))


class Sphere(NamedTuple):
    center: Vec3
    radius: float

    def intersect(self, origin, direction):
        b = 2 * direction.dot(origin - self.center)
        c = abs(self.center) + abs(origin) - 2 * self.center.dot(origin) - self.radius * self.radius
        disc = b**2 - 4 * c
        sq = np.sqrt(np.maximum(0, disc))
        h0 = (-b - sq) / 2
        h1 = (-b + sq) / 2
        h = np.where((h0 > 0) & (h0 < h1), h0, h1)
        return np.where((disc > 0) & (h > 0), h, 1.0e39)


SCENE = [Sphere(Vec3(0.3, 0.1, 1.0), 0.6), Sphere(Vec3(-0.7, 0.1, 0.7), 0.4)]


# Nearest hits of rays in a scene (Bergstrom's NumPy ray tracer).
def raytrace(x, y):
    origin = Vec3(0.0, 0.35, -1.0)
    direction = (Vec3(x, y, 0.0) - origin).norm()
    distances = [s.intersect(origin, direction) for s in SCENE]
    nearest = functools.reduce(np.minimum, distances)
    shade = np.zeros_like(nearest)
    for s, d in zip(SCENE, distances, strict=True):
        hit = (nearest < 1.0e39) & (d == nearest)
        point = origin + direction * np.where(hit, d, 0.0)
        normal = (point - s.center) * (1.0 / s.radius)
        light = (Vec3(5.0, 5.0, -10.0) - point).norm()
        shade += hit * np.maximum(normal.dot(light), 0.05)
    return shade


@dataclass(frozen=True)
class Material:
    density: float
    stiffness: float

    @property
    def speed(self):
        return np.sqrt(self.stiffness / self.density)


class Boundary(enum.Enum):
    FIXED = "fixed"
    FREE = "free"
    PERIODIC = "periodic"


@dataclass
class Rod:
    material: Material
    u: np.ndarray
    previous: np.ndarray = None
    boundary: Boundary = Boundary.FIXED
    elapsed: float = 0.0
    history: list = field(default_factory=list)

    def __post_init__(self):
        if self.previous is None:
            self.previous = self.u.copy()

    def advance(self, dt):
        r2 = (self.material.speed * dt) ** 2
        lap = np.roll(self.u, 1) - 2 * self.u + np.roll(self.u, -1)
        new = 2 * self.u - self.previous + r2 * lap
        match self.boundary:
            case Boundary.FIXED:
                new[0] = new[-1] = 0.0
            case Boundary.FREE:
                new[0], new[-1] = new[1], new[-2]
            case Boundary.PERIODIC:
                pass
        self.previous, self.u = self.u, new
        self.elapsed += dt
        self.history.append(float(np.abs(new).max()))
        return self


def next_boundary(rod, r):
    order = list(Boundary)
    rod.boundary = order[(order.index(rod.boundary) + 1) % len(order)]


# A pipeline of transforms, each a callable object (after scikit-learn's Pipeline).
class Centre:
    def __call__(self, x):
        return x - x.mean(axis=0, keepdims=True)


class Power:
    __slots__ = ("exponent", "seen")

    def __init__(self, exponent):
        self.exponent = exponent
        self.seen = 0

    def __call__(self, x):
        self.seen += len(x)
        return np.sign(x) * np.abs(x) ** self.exponent


class Pipeline:
    def __init__(self, *stages):
        self.stages = list(stages)

    def __iter__(self):
        return iter(self.stages)

    def __len__(self):
        return len(self.stages)

    def transform(self, x):
        for stage in self:
            x = stage(x)
        return x / len(self)


# Strategies by inheritance and super() (Martin, "Design Patterns" style).
class Integrator:
    order = 0

    def __init__(self, rhs):
        self.rhs = rhs
        self.evaluations = 0

    def f(self, y):
        self.evaluations += 1
        return self.rhs(y)

    def step(self, y, h):
        raise NotImplementedError


class Heun(Integrator):
    order = 2

    def step(self, y, h):
        k1 = self.f(y)
        k2 = self.f(y + h * k1)
        return y + h * (k1 + k2) / 2


class Extrapolated(Heun):
    order = 3

    def step(self, y, h):
        once = super().step(y, h)
        half = super().step(super().step(y, h / 2), h / 2)
        return half + (half - once) / (2 ** super().order - 1)


class Pendulum:
    def __init__(self, n, damping):
        self.integrator = Extrapolated(self.rhs)
        self.damping = damping
        self.n = n

    def rhs(self, y):
        theta, omega = y
        return np.stack([omega, -np.sin(theta) - self.damping * omega])

    def swing(self, y, steps):
        for _ in range(steps):
            y = self.integrator.step(y, 0.1)
        return y, self.integrator.evaluations


# A grid that is indexed and iterated (a game-board class).
class Board:
    def __init__(self, cells):
        self.cells = cells

    @classmethod
    def empty(cls, shape):
        return cls(np.zeros(shape, dtype=np.int64))

    @staticmethod
    def neighbours(cells):
        padded = np.pad(cells, 1)
        n, m = cells.shape
        return sum(
            padded[1 + dy : 1 + dy + n, 1 + dx : 1 + dx + m]
            for dy, dx in itertools.product((-1, 0, 1), repeat=2)
            if (dy, dx) != (0, 0)
        )

    def __getitem__(self, key):
        return self.cells[key]

    def __setitem__(self, key, value):
        self.cells[key] = value

    def __eq__(self, other):
        return (self.cells == other.cells).all()

    __hash__ = None

    def stamp(self, pattern, at):
        y, x = at
        h, w = pattern.shape
        self[y : y + h, x : x + w] |= pattern

    def play(self, pattern):
        fresh = Board.empty(self.cells.shape)
        self.stamp(pattern, (1, 2))
        n = self.neighbours(self.cells)
        fresh[(n == 3) | ((self.cells == 1) & (n == 2))] = 1
        still = self == fresh
        self.cells = fresh.cells
        return still


class Exponential:
    """A filter with a property that has a setter."""

    def __init__(self, n):
        self._level = np.zeros(n)
        self._alpha = 0.5

    @property
    def alpha(self):
        return self._alpha

    @alpha.setter
    def alpha(self, value):
        self._alpha = min(max(value, 0.0), 1.0)

    def __call__(self, x):
        self._level += self.alpha * (x - self._level)
        self.alpha = self.alpha * 0.9
        return self._level.copy()


class Delay:
    """A delay line in a bounded deque."""

    def __init__(self, n, depth):
        self.line = deque([np.zeros(n) for _ in range(depth)], maxlen=depth)
        self.weights = [0.5**k for k in range(depth)]

    def feed(self, x):
        self.line.appendleft(x)
        return sum(map(operator.mul, self.weights, self.line))


class Op(enum.IntEnum):
    ADD = 0
    MUL = 1
    NEG = 2
    DUP = 3


PROGRAM = [(Op.DUP, None), (Op.MUL, None), (Op.NEG, None), (Op.ADD, 2.0)]


def stack_machine(x):
    """Interprets a small stack program with match."""
    stack = [x]
    for instruction in PROGRAM:
        match instruction:
            case (Op.ADD, float(constant)):
                stack.append(stack.pop() + constant)
            case (Op.MUL, None):
                stack.append(stack.pop() * stack.pop())
            case (Op.NEG, _):
                stack.append(-stack.pop())
            case (Op.DUP, _):
                stack.append(stack[-1])
            case other:
                raise ValueError(other)
    (result,) = stack
    return result


def change_program(module, r):
    module.PROGRAM[-1] = (Op.ADD, float(r.integers(5)))


class Layer:
    """Layers with a parameter registry that __setattr__ fills (after PyTorch's Module)."""

    def __init__(self, inputs, outputs, r):
        self._parameters = {}
        self.weight = r.normal(size=(inputs, outputs))
        self.bias = np.zeros(outputs)

    def __setattr__(self, name, value):
        if isinstance(value, np.ndarray):
            self._parameters[name] = value
        object.__setattr__(self, name, value)

    def forward(self, x):
        return np.tanh(x @ self.weight + self.bias)

    def decay(self, x, rate):
        y = self.forward(x)
        for name, value in self._parameters.items():
            value *= 1 - rate
        return y, sum((p**2).sum() for p in self._parameters.values())


class Lazy:
    """Attributes that __getattr__ computes at the first access."""

    def __init__(self, points):
        self.points = points

    def __getattr__(self, name):
        if name == "centroid":
            value = self.points.mean(axis=0)
        elif name == "spread":
            value = self.points.std(axis=0)
        else:
            raise AttributeError(name)
        setattr(self, name, value)
        return value

    def standardise(self, x):
        return (x - self.centroid) / self.spread


CASES = [
    Case(raytrace, lambda r, n: (r.uniform(-1, 1, n * 3), r.uniform(-1, 1, n * 3))),
    Case(
        Rod.advance,
        lambda r, n: (0.1,),
        instance=lambda r, n: Rod(Material(2.0, 3.0), r.normal(size=n)),
        between=next_boundary,
    ),
    Case(
        Pipeline.transform,
        lambda r, n: (r.normal(size=(n, 3)),),
        instance=lambda r, n: Pipeline(Centre(), Power(0.5), np.tanh),
        between=lambda p, r: setattr(p.stages[1], "exponent", float(r.uniform(0.3, 2))),
    ),
    Case(Pendulum.swing, lambda r, n: (r.normal(size=(2, n)), 3), instance=lambda r, n: Pendulum(n, 0.1)),
    Case(
        Board.play,
        lambda r, n: (r.integers(0, 2, (3, 3)),),
        instance=lambda r, n: Board(r.integers(0, 2, (n, n))),
    ),
    Case(Exponential.__call__, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Exponential(n)),
    Case(Delay.feed, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Delay(n, 3)),
    Case(stack_machine, lambda r, n: (r.normal(size=n),), between=change_program),
    Case(Layer.decay, lambda r, n: (r.normal(size=(n, 4)), 0.1), instance=lambda r, n: Layer(4, 3, r)),
    Case(
        Lazy.standardise,
        lambda r, n: (r.normal(size=(n, 2)),),
        instance=lambda r, n: Lazy(r.normal(size=(9, 2))),
    ),
]
