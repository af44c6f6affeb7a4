"""Functions that a fused function creates are new at every call, over the variables of that call."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from tracefuse import fuse

X = np.arange(3.0)
scale = 2.0


def made(x: Any, power: int = 2) -> Any:
    total, calls = x.sum(), [0]

    def scaled(y: Any, by: Any = power, *, shift: Any = total) -> Any:
        """Scales."""
        calls[0] += 1
        return (y * total) ** by + float(shift) * scale

    def factorial(n: int) -> int:
        return 1 if n <= 1 else n * factorial(n - 1)

    scaled.unit = x.max()
    return {"scaled": scaled, "factorial": factorial, "total": lambda: total, "calls": calls}


def parts(one: Any) -> tuple[Any, ...]:
    scaled = one["scaled"]
    values = (scaled(3.0), scaled(3.0, 1, shift=0.5), one["factorial"](5), one["total"](), one["calls"], scaled.unit)
    return (*values, scaled.__defaults__, scaled.__kwdefaults__, scaled.__doc__, scaled.__qualname__)


def test_functions_that_are_returned_are_those_of_the_call() -> None:
    fused = fuse(made)
    first, second = fused(X), fused(X + 1)
    assert parts(first) == parts(made(X))
    assert parts(second) == parts(made(X + 1))
    assert first["scaled"].__code__ is made(X)["scaled"].__code__
    assert first["scaled"].__globals__ is globals()
    assert first["calls"] is not second["calls"]
    assert fused.cache_info().traces == 1


class Model:
    """Stores functions."""

    def __init__(self) -> None:
        self.predict: Any = None
        self.callbacks: list[FunctionType] = []

    def fit(self, x: Any) -> Any:
        mean, count = x.mean(), len(self.callbacks)
        self.predict = lambda y: y - mean
        self.callbacks.append(lambda: (mean, count))
        return mean


class FusedModel(Model):
    """Its method is fused."""

    fit = fuse(Model.fit)


def test_functions_that_are_stored_see_the_variables_of_their_call() -> None:
    plain, traced = Model(), FusedModel()
    for k in range(3):
        assert traced.fit(X + k) == plain.fit(X + k)
        assert traced.predict(10.0) == plain.predict(10.0)
        assert [one() for one in traced.callbacks] == [one() for one in plain.callbacks]


def test_a_cell_that_was_there_before_the_call_stays_the_cell_of_the_function() -> None:
    bias = 1.0

    def set_bias(value: float) -> None:
        nonlocal bias
        bias = value

    fused = fuse(lambda x: (x + bias, lambda: bias))
    _, read = fused(X)
    set_bias(4.0)
    assert read() == 4.0
    np.testing.assert_array_equal(fused(X)[0], X + 4)
