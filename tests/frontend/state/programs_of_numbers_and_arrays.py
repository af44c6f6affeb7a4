"""Programs that change numbers and arrays of the state: optimizers, buffers, counters, histories, caches."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Program = Callable[[], tuple[Callable[..., Any], Any]]
"""Makes a function of one array, and everything that it changes."""


def sgd_in_a_dict() -> Any:
    p = {"w": np.ones(4), "b": np.zeros(1)}

    def step(x: Any) -> Any:
        for k in p:
            p[k] = p[k] - 0.1 * x.mean() * (k == "w")
        return p["w"].sum() + p["b"]

    return step, p


def momentum_in_place() -> Any:
    class Momentum:
        def __init__(self) -> None:
            self.w, self.v = np.ones(4), np.zeros(4)

        def step(self, x: Any) -> Any:
            self.v *= 0.9
            self.v += x.sum()
            self.w -= 0.1 * self.v
            return self.w * 2

    one = Momentum()
    return one.step, one


class Adam:
    """As the optimizers of the usual libraries, with moments in dicts that the first step creates."""

    def __init__(self, parameters: dict[str, Any], rate: float = 0.1) -> None:
        self.parameters, self.rate, self.t = parameters, rate, 0
        self.m: dict[str, Any] = {}
        self.v: dict[str, Any] = {}

    def step(self, gradients: dict[str, Any]) -> None:
        self.t += 1
        for name, g in gradients.items():
            if name not in self.m:
                self.m[name] = np.zeros_like(g)
                self.v[name] = np.zeros_like(g)
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.99 * self.v[name] + 0.01 * g**2
            m = self.m[name] / (1 - 0.9**self.t)
            v = self.v[name] / (1 - 0.99**self.t)
            self.parameters[name] -= self.rate * m / (np.sqrt(v) + 1e-8)


def adam_in_a_class() -> Any:
    parameters = {"w": np.ones(4), "b": np.ones(4)}
    optimizer = Adam(parameters)

    def train(x: Any) -> Any:
        error = parameters["w"] * x.sum() - parameters["b"]
        optimizer.step({"w": error, "b": -error})
        return (error**2).sum()

    return train, (parameters, optimizer)


class Cell:
    def __init__(self, n: int) -> None:
        self.w = np.eye(n) * 0.5
        self.h: Any = None

    def __call__(self, x: Any) -> Any:
        if self.h is None:
            self.h = np.zeros_like(x)
        self.h = np.tanh(x + self.h @ self.w)
        return self.h


def a_recurrent_cell() -> Any:
    cell = Cell(3)
    return lambda x: cell(x[:3]) * 2, cell


def a_running_average() -> Any:
    state = SimpleNamespace(mean=0.0, count=0)

    def update(x: Any) -> Any:
        state.count += 1
        state.mean = state.mean + (x.mean() - state.mean) / state.count
        return x - state.mean

    return update, state


def a_ring_buffer() -> Any:
    recent: collections.deque[Any] = collections.deque(maxlen=3)

    def push(x: Any) -> Any:
        recent.append(x.sum())
        return x + sum(recent)

    return push, recent


def a_ring_buffer_of_an_array() -> Any:
    state = SimpleNamespace(buffer=np.zeros((4, 3)), position=0)

    def push(x: Any) -> Any:
        state.buffer[state.position % 4] = x[:3]
        state.position += 1
        return state.buffer.mean(axis=0)

    return push, state


COUNTER = 0
TOTAL = np.zeros(3)


def a_global_counter() -> Any:
    globals().update(COUNTER=0, TOTAL=np.zeros(3))

    def count(x: Any) -> Any:
        global COUNTER, TOTAL
        COUNTER += 1
        TOTAL = TOTAL + x[:3]
        return x * COUNTER

    return count, lambda: (COUNTER, TOTAL)


def a_counter_in_a_cell() -> Any:
    calls, last = 0, np.zeros(3)

    def count(x: Any) -> Any:
        nonlocal calls, last
        calls += 2
        last, before = x[:3] * calls, last
        return last + before

    return count, lambda: (calls, last)


def a_history_of_losses() -> Any:
    losses: list[Any] = []

    def step(x: Any) -> Any:
        losses.append((x**2).sum())
        losses.append("done")
        return x * 2

    return step, losses


def the_last_entry_of_a_history() -> Any:
    history = [np.zeros(3)]

    def step(x: Any) -> Any:
        history.append(history[-1] * 0.5 + x[:3])
        return history[-1] - history[-2]

    return step, history


def previous_and_current() -> Any:
    state = SimpleNamespace(current=np.zeros(3), previous=np.ones(3))

    def step(x: Any) -> Any:
        new = 2 * state.current - state.previous + x[:3]
        state.previous, state.current = state.current, new
        return new

    return step, state


def a_lazily_created_buffer() -> Any:
    class Layer:
        def __init__(self) -> None:
            self.scale = 2.0

        def __call__(self, x: Any) -> Any:
            if not hasattr(self, "buffer"):
                self.buffer = np.zeros(3)
            self.buffer += x[:3] * self.scale
            return self.buffer.copy()

    layer = Layer()
    return layer, layer


class Cached:
    def __init__(self) -> None:
        self.w = np.arange(3.0)
        self.reads = 0

    @functools.cached_property
    def normalized(self) -> Any:
        self.reads += 1
        return self.w / (self.w.sum() + 1)

    @property
    def scale(self) -> float:
        return 2.0 + self.reads

    @scale.setter
    def scale(self, value: float) -> None:
        self.reads = value


def a_cached_property() -> Any:
    one = Cached()

    def use(x: Any) -> Any:
        one.scale = one.scale - 1.0
        return x[:3] * one.normalized

    return use, one


def a_memo_dict() -> Any:
    memo: dict[Any, Any] = {}

    def table(n: int) -> Any:
        if n not in memo:
            memo[n] = np.arange(n) * 2.0
        return memo[n]

    return lambda x: x[:3] * table(3) + table(4)[1:], memo


PROGRAMS: list[tuple[Program, int]] = [
    (sgd_in_a_dict, 1), (momentum_in_place, 1), (adam_in_a_class, 2), (a_recurrent_cell, 2), (a_running_average, 3),
    (a_ring_buffer, 4), (a_ring_buffer_of_an_array, 4), (a_global_counter, 1), (a_counter_in_a_cell, 1),
    (a_history_of_losses, 1), (the_last_entry_of_a_history, 2), (previous_and_current, 1),
    (a_lazily_created_buffer, 2), (a_cached_property, 2), (a_memo_dict, 2),
]  # fmt: skip
"""Programs, with the number of their traces at most."""
