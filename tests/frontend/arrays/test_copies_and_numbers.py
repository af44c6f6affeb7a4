"""Copies that NumPy makes share nothing with their operand; numbers and sizes combine with arrays by every operator."""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.programs.comparison import difference
from tracefuse import fuse

COPIES: list[Callable[[Any], Any]] = [
    lambda x: np.tile(x, 1), lambda x: np.tile(x, (1, 1)), lambda x: np.tile(x, (2, 1)), lambda x: np.repeat(x, 1),
    lambda x: np.repeat(x, 1, axis=0), lambda x: x.repeat(1), lambda x: np.repeat(x[:1], 2, axis=0),
    lambda x: np.choose([0], [x[0]]), lambda x: np.roll(x, 0), lambda x: np.concatenate([x]), lambda x: np.pad(x, 0),
    lambda x: np.take(x, [0], axis=0), lambda x: np.delete(x, []), lambda x: np.append(x, []), lambda x: np.block([x]),
    lambda x: np.tril(x, 9), lambda x: x[[0]], lambda x: x.flatten(), lambda x: x.astype(float),
    lambda x: np.array(x), lambda x: np.resize(x, x.shape), lambda x: np.where(x > -1, x, 0), lambda x: +x,
]  # fmt: skip


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_shares_nothing_with_its_operand(copied: Callable[[Any], Any]) -> None:
    def operand_changes(x: Any) -> Any:
        x = x * 1
        y = copied(x)
        x += 100
        return y

    def copy_changes(x: Any) -> Any:
        x = x * 1
        y = copied(x)
        y += 100
        return x * 1, y

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(fuse(operand_changes, target="reference")(x), operand_changes(x))
    for result, expected in zip(fuse(copy_changes, target="reference")(x), copy_changes(x), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["lshift", "rshift", "and_", "or_", "xor"])
def test_bits_of_numbers_and_sizes_beside_arrays(name: str) -> None:
    operate = getattr(operator, name)

    def function(x: Any, n: Any) -> Any:
        return (
            operate(n, x),
            operate(x, n),
            operate(x.shape[0], x),
            operate(x, x.shape[0]),
            operate(n, 3),
            operate(3, n),
        )

    fused = fuse(function, target="reference")
    for n in (1, 6):
        for x in (np.arange(5), np.arange(4, dtype=np.uint8)):
            for result, expected in zip(fused(x, n), function(x, n), strict=True):
                np.testing.assert_array_equal(result, expected)
                assert np.asarray(result).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_means_in_an_integer_type_are_truncated(dtype: Any) -> None:
    x = np.array([[1.5, 2.75, 4.0], [0.0, 0.0, 1.0]])

    def function(x: Any) -> Any:
        return np.mean(x, dtype=dtype), x.mean(axis=1, dtype=dtype), np.mean(x, axis=0, keepdims=True, dtype=dtype)

    for result, expected in zip(fuse(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


def test_a_conversion_to_a_half_rounds_before_the_next_conversion() -> None:
    x = np.array([0.1, 1 / 3, 2.5], np.float32)

    def through_halves(x: Any) -> Any:
        half = x.astype(np.float16)
        return half, half.astype(np.float32), half.astype(ml_dtypes.bfloat16).astype(np.float64)

    for result, expected in zip(fuse(through_halves)(x), through_halves(x), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_exact_halves_round_before_a_conversion() -> None:
    def function(h: Any) -> Any:
        return (h / 3).astype(np.float32), (h * 0.3 + h).astype(np.float32), np.sqrt(h).astype(np.float64)

    h = np.array([0.5, 1.5, 0.7], np.float16)
    for result, expected in zip(fuse(function, exact_half=True)(h), function(h), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("default", [2, 2.5, True])
def test_numbers_as_the_default_of_a_selection(default: Any) -> None:
    def function(x: Any, default: Any) -> Any:
        return np.select([x > 1, x < 0], [x, -x], default), np.choose(x.astype(int) % 2, [x, default])

    for x in (np.arange(4), np.arange(4, dtype=np.uint8), np.arange(4.0)):
        results = fuse(function, target="reference")(x, default)
        for result, expected in zip(results, function(x, default), strict=True):
            np.testing.assert_array_equal(result, expected)
            assert result.dtype == expected.dtype


def test_weighted_averages_of_large_integers() -> None:
    x = np.array([2**62, 2**62, 5])
    average = fuse(lambda x: np.average(x, weights=x), target="reference")(x)
    np.testing.assert_allclose(average, np.average(x, weights=x), rtol=1e-15)


class Metres(float):
    pass


class Count(int):
    pass


class Turn(complex):
    pass


class Axis(enum.IntEnum):
    X = 0
    Y = 1


class Side(enum.Enum):
    LEFT = 1


class Face(enum.IntFlag):
    LEFT = 1
    RIGHT = 2


LENGTH, COUNT, TURN = Metres(2.5), Count(3), Turn(1j)

OF_SUBCLASSES: list[Callable[[Any, Any], Any]] = [
    lambda x, k: (x * LENGTH, LENGTH - x, x + Axis.Y, x / COUNT, x * TURN),
    lambda x, k: (np.maximum(x, Axis.Y), np.where(x > 1, x, Axis.Y), np.full(2, COUNT), x[Axis.Y], x > COUNT),
    lambda x, k: (x**Axis.Y, x**COUNT, x.sum(axis=Axis.X), x[: Axis.Y], np.minimum(Axis.Y, x), x[0] * LENGTH),
    lambda x, k: (
        x == Side.LEFT,
        x != Side.LEFT,
        k & Face.RIGHT,
        Face(k),
        Face(k).name,
        k * COUNT,
        k + Axis.Y,
        k == Axis.Y,
        Axis(k % 2),
    ),
]


@pytest.mark.parametrize("function", OF_SUBCLASSES)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_subclasses_of_numbers_keep_their_type_beside_arrays(function: Callable[..., Any], dtype: Any) -> None:
    fused = fuse(function, target="reference")
    for k in (1, 3, 2):
        x = np.arange(k, k + 4).astype(dtype)
        assert difference(fused(x, k), function(x, k), "result") is None


@dataclasses.dataclass
class Record:
    values: Any
    length: Any = 0
    parts: Any = ()


COPIES_OF_OBJECTS: list[Callable[[Any, Any], Any]] = [
    lambda x, k: copy.deepcopy({"x": x, "k": [k], "n": len(x), "shape": x.shape}),
    lambda x, k: dataclasses.asdict(Record(x, x.size, [k, x.sum()])),
    lambda x, k: (copy.copy(len(x)), copy.deepcopy([x, x])[0] is x, copy.deepcopy(k), copy.copy(float(x.sum()))),
    lambda x, k: pickle.loads(pickle.dumps([k, len(x), float(x.sum())])),
]


@pytest.mark.parametrize("function", COPIES_OF_OBJECTS)
def test_copies_of_numbers_and_sizes_are_the_numbers(function: Callable[..., Any]) -> None:
    fused = fuse(function, target="reference")
    for k in (2, 5):
        x = np.arange(k + 1.0)
        assert difference(fused(x, k), function(x, k), "result") is None
