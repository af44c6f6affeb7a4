"""Tests random numbers that a trace draws but does not record: they become constants, with a warning."""

from __future__ import annotations

import random
import time
import warnings
from random import gauss
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

X = np.ones((3, 4))
GENERATOR = np.random.default_rng(0)


class Opaque(type):
    """A metaclass with an attribute: instances of its classes have no overlays."""

    order = 0


class Holder:
    """Holds generators."""

    generator = np.random.default_rng(1)
    others = (np.random.default_rng(1),)


class Closed(Holder, metaclass=Opaque):
    """Holds generators that the clone of a trace does not replace."""


CLOSED = Closed()


def from_an_attribute(x: Any) -> Any:
    return x + CLOSED.generator.standard_normal(4)


def by_another_name(x: Any) -> Any:
    return x + getattr(Holder, "gener" + "ator").standard_normal(4)


def from_a_state(x: Any) -> Any:
    return x + next(map(np.random.RandomState, [0])).standard_normal(4)


@pytest.mark.parametrize(
    ("function", "source"), [(from_an_attribute, "CLOSED.generator"), (from_a_state, r"np.random.RandomState")]
)
def test_drawing_in_a_trace_warns_at_the_function(function: Any, source: str) -> None:
    f = fuse(function)
    with pytest.warns(UserWarning, match=rf"{function.__name__} draws random numbers from {source} while") as caught:
        first = f(X)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(X), first)  # the same trace, the same numbers


@pytest.mark.parametrize(
    "function",
    [lambda x: x + Holder.generator.random(4), by_another_name, lambda x: x + Holder.others[0].standard_normal(4)],
)
def test_a_generator_in_an_attribute_draws_at_every_call(function: Any) -> None:
    fused = fuse(function, target="reference")
    for one in (Holder.generator, *Holder.others):
        one.bit_generator.state = np.random.default_rng(3).bit_generator.state
    first, second = fused(X), fused(X)
    for one in (Holder.generator, *Holder.others):
        one.bit_generator.state = np.random.default_rng(3).bit_generator.state
    np.testing.assert_array_equal(first, function(X))
    np.testing.assert_array_equal(second, function(X))


def test_numbers_drawn_outside_do_not_warn() -> None:
    noise = GENERATOR.standard_normal(4)
    np.testing.assert_array_equal(fuse(lambda x: x + noise)(X), X + noise)
    np.testing.assert_array_equal(fuse(lambda x, n: x + n)(X, np.random.rand(4)).shape, X.shape)


def test_a_generator_that_is_not_drawn_from_does_not_warn() -> None:
    f = fuse(lambda x, flag: x + 1 if flag is None else x + GENERATOR.random(4))
    np.testing.assert_array_equal(f(X, None), X + 1)


def draws_a_number(x: Any) -> Any:
    return x * random.random()


def draws_by_another_name(x: Any) -> Any:
    return x * gauss(0, 1)


def reads_a_clock(x: Any) -> Any:
    start = time.perf_counter()
    return x + start


@pytest.mark.parametrize(
    ("function", "name"),
    [(draws_a_number, "random.random"), (draws_by_another_name, "random.gauss"), (reads_a_clock, "time.perf_counter")],
)
def test_what_differs_from_call_to_call_warns_at_its_line(function: Any, name: str) -> None:
    f = fuse(function)
    with pytest.warns(
        UserWarning, match=rf"{name}\(\) while a function is traced: .* pass it as an argument"
    ) as caught:
        first = f(X)
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, function.__code__.co_firstlineno + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(X), first)


def test_a_generator_of_python_warns_by_its_name() -> None:
    own = random.Random(3)
    with pytest.warns(UserWarning, match="draws random numbers from own while"):
        fuse(lambda x: x * own.random())(X)
