"""Objects of the user's classes as arguments and as operands of arrays: as the plain function with NumPy."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fuse

X = np.arange(3.0)


class Particle:
    """Has a position, a mass and a record of its positions."""

    def __init__(self, position: Any, mass: float = 1.0) -> None:
        self.position, self.mass, self.steps, self.record = np.array(position), mass, 0, []

    def move(self, force: Any) -> None:
        self.position = self.position + force / self.mass
        self.steps += 1
        self.record.append(self.position.sum())


class Slotted:
    """Has its attributes in slots."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def move_all(particles: list[Particle], *, extra: dict[str, Any] | None = None) -> Any:
    for particle in particles:
        particle.move(sum(other.mass * other.position for other in particles if other is not particle))
    if extra is not None:
        extra["one"].value = particles[0].position
    return np.stack([particle.position for particle in particles])


def test_objects_in_arguments_are_read_and_changed_at_every_call() -> None:
    fused = fuse(move_all)
    groups = [[Particle([0.0, 1.0]), Particle([1.0, 0.0], 2.0)] for _ in range(2)]
    slotted = [Slotted(None), Slotted(None)]
    for call in range(5):
        if call == 2:
            for group in groups:
                group[0].mass = 4.0
        if call == 3:
            for group in groups:
                group[1] = Particle([2.0, 2.0], 0.5)
        results = [
            function(group, extra={"one": one})
            for function, group, one in zip((fused, move_all), groups, slotted, strict=True)
        ]
        np.testing.assert_allclose(*results)
        np.testing.assert_allclose(slotted[0].value, slotted[1].value)
        for one, other in zip(*groups, strict=True):
            assert (one.steps, len(one.record)) == (other.steps, len(other.record))
            np.testing.assert_allclose(one.record, other.record)
    assert fused.cache_info().traces == 3  # each of two masses differed once


def test_one_object_in_two_arguments_is_one_object() -> None:
    def change(one: Any, other: Any) -> Any:
        one.value = one.value * 2
        other.value = other.value + 1
        return one.value + other.value, one is other

    fused = fuse(change)
    for pairs in ((0, 1), (0, 0), (1, 0)):
        given, expected = ([Slotted(X), Slotted(X + 1)] for _ in range(2))
        np.testing.assert_equal(fused(*(given[k] for k in pairs)), change(*(expected[k] for k in pairs)))
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one.value, other.value)


def test_an_object_that_is_returned_is_the_one_of_the_caller() -> None:
    one = Slotted(X)
    fused = fuse(lambda owner: (owner, owner.value + 1))
    assert fused(one)[0] is one
    other = Slotted(X)
    assert fused(other)[0] is other
    assert fused.cache_info().traces == 1


class Measured:
    """Gives its array to NumPy."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.value


class Logged(np.lib.mixins.NDArrayOperatorsMixin):
    """Computes ufuncs itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = (one.value if isinstance(one, Logged) else one for one in inputs)
        return Logged(getattr(ufunc, method)(*plain, **keywords))


class Scaled:
    """Multiplies arrays as a whole: NumPy leaves the operator to it."""

    __array_ufunc__ = None

    def __init__(self, value: Any) -> None:
        self.value = value

    def __rmul__(self, other: Any) -> Any:
        return other * self.value


class ByElement:
    """NumPy calls its operator for each element."""

    def __rmul__(self, other: Any) -> Any:
        return other


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (Measured, lambda x, q: (x + q, np.sin(q), np.asarray(q) * 2, np.mean(q), np.dot(x, q), np.where(x > 1, q, x))),
        (Logged, lambda x, q: ((q + x).value, (x * q).value, np.sin(q).value, np.add(x, q).value, (-q).value)),
        (Scaled, lambda x, q: (x * q, x.sum() * q)),
        (Scaled, lambda x, q: np.mean(deque([x.mean(), q.value.max()], maxlen=2))),
    ],
)
def test_protocols_of_numpy_are_called_as_numpy_calls_them(make: Any, function: Any) -> None:
    fused = fuse(function)
    captured = make(X)
    of_state = fuse(lambda x: function(x, captured))
    for call in range(3):
        given = make(X * call)
        np.testing.assert_equal(fused(X, given), function(X, given))
        captured.value = X + call
        np.testing.assert_equal(of_state(X), function(X, captured))
    assert (fused.cache_info().traces, of_state.cache_info().traces) == (1, 1)


def test_an_operator_that_numpy_calls_for_each_element_is_refused_with_what_to_write() -> None:
    with pytest.raises(UnsupportedError, match="write __array_ufunc__ = None in the class ByElement"):
        fuse(lambda x, one: x * one, target="reference")(X, ByElement())
