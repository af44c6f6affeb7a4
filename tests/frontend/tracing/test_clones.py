"""The clone that a trace runs: Python's own features work in it, and nothing outside sees the trace."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.frontend.tracing.cloned_functions import (
    ACTIVATION,
    DESCRIBED,
    LAZY,
    PARENT,
    Activation,
    Frozen,
    K,
    Shifted,
    W,
    X,
    reference,
)


class Point(NamedTuple):
    x: Any
    y: Any

    def norm(self) -> Any:
        return (self.x**2 + self.y**2) ** 0.5


class Vector:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __add__(self, other: Any) -> Vector:
        return Vector(self.v + (other.v if isinstance(other, Vector) else other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self.v is other.v

    def __hash__(self) -> int:
        return 7

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Any:
        return self.v[k]


class Counting:
    instances = 0

    def __new__(cls) -> Counting:
        one = super().__new__(cls)
        one.serial = 5  # type: ignore[attr-defined]
        return one

    def __init__(self) -> None:
        self.w = np.ones(4) * K


POINT, VECTOR = Point(np.ones(4), 2.0), Vector(np.ones(4))


def factorial(n: int, x: Any) -> Any:
    return x if n <= 1 else n * factorial(n - 1, x)


def is_even(n: int) -> bool:
    return n == 0 or is_odd(n - 1)


def is_odd(n: int) -> bool:
    return n != 0 and is_even(n - 1)


@functools.cache
def memoised(n: int) -> float:
    return n * K


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords) * K

    return call


@decorated
def squared(x: Any, *, by: float = 1.0) -> Any:
    return x * x * by


def class_body(x: Any) -> Any:
    class Local:
        scale = K
        weights = W * 2

        def apply(self, y: Any) -> Any:
            return y * self.scale + self.weights + np.ones(4)

    return Local().apply(x)


def uses_globals(x: Any) -> Any:
    names = globals()
    return x * names["K"] + names.get("W") + ("no such name" in names) + eval("K")


def imports_inside(x: Any) -> Any:
    import math

    from numpy import zeros as made

    return x + math.sqrt(4.0) + made(4)


def copies(x: Any) -> Any:
    one = copy.copy(PARENT)
    one.extra = {**one.extra, "n": 9}
    two = dataclasses.replace(PARENT, child=Frozen(x * 2, "ab"))
    assert PARENT.extra["n"] == 1
    return one.child.scaled() * one.extra["n"] + two.child.scaled() + len(dataclasses.fields(two))


def matches(x: Any) -> Any:
    match PARENT.child:
        case Frozen(w=w, name="name"):
            return x * w
        case _:
            return x


def excepts(x: Any) -> Any:
    try:
        return x * LAZY.missing
    except AttributeError as error:
        return x * len(str(error))


def comprehensions(x: Any) -> Any:
    return sum(x * w * K for w in [W, W + 1]) + max({k: k * K for k in range(3)}.values())


def generators(x: Any) -> Any:
    def parts() -> Any:
        for k in range(3):
            yield x * k * K

    return sum(parts())


def equal_objects(x: Any) -> Any:
    table = {VECTOR: 1.0, ACTIVATION: 2.0}
    return x * table[VECTOR] + table[ACTIVATION] + (VECTOR == VECTOR) + (VECTOR + x)[0] + len(VECTOR)


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: ACTIVATION(x), lambda x: LAZY.a * x * LAZY.b, lambda x: x * DESCRIBED.size, lambda x: POINT.norm() * x,
    lambda x: PARENT.child.scaled() * x, lambda x: factorial(4, x), lambda x: x * is_even(4), lambda x: x * memoised(3),
    lambda x: squared(x, by=2.0), class_body, uses_globals, imports_inside, copies, matches, excepts, comprehensions,
    generators, equal_objects, lambda x: Counting().w * Counting().serial + x,  # type: ignore[attr-defined]
    lambda x: x * isinstance(ACTIVATION, Activation) + isinstance(x, Activation) + issubclass(Shifted, Activation),
    lambda x: x * (type(ACTIVATION) is Shifted) * len(type(ACTIVATION).__name__) * (ACTIVATION.__class__ is Shifted),
    lambda x: x * hasattr(LAZY, "none") + getattr(LAZY, "b") + len(vars(ACTIVATION)),  # noqa: B009
    lambda x: functools.reduce(lambda a, b: a + b, [x, W, W * K]), lambda x: x * Activation.scaled(2.0),
    lambda x: x * {"a": {"b": [K, (W, 1)]}}["a"]["b"][0] + Point(x, W)._replace(y=1.0).norm(),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_clone_gives_what_the_function_gives(function: Callable[[Any], Any]) -> None:
    before = list(Activation.made)
    fused = reference(function)
    for k in range(2):
        np.testing.assert_allclose(fused(X + k), function(X + k), rtol=1e-14)
    assert fused.cache_info().traces == 1
    assert Activation.made == before
