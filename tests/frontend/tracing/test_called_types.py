"""Types and functions that are called through variables, attributes, entries and expressions."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.programs.comparison import difference
from tracefuse import fuse

Function = Callable[..., Any]


class Scale:
    single = np.float32

    def __init__(self) -> None:
        self.kind = np.float64

    def applied(self, x: Any) -> Any:
        return self.kind(x) + self.single(x.sum()) + type(self).single(x[0])


SCALE = Scale()


def closed_over(kind: Any) -> Function:
    return lambda x: kind(x)


def chosen(x: Any) -> Any:
    kind = np.float64 if x.dtype == np.float64 else x.dtype.type
    return kind(x) + kind(2)


def default(x: Any, kind: Any = np.float32) -> Any:
    return kind(x)


def of_the_dtype(x: Any) -> Any:
    return x.dtype.type(x.sum()), np.dtype("f4").type(x), type(x.sum())(3), x.dtype.type(2.5)


def of_one_number(x: Any) -> Any:
    return [kind(x.sum()) for kind in (float, int, bool, complex, np.float32)]


def by_expression(x: Any) -> Any:
    return getattr(np, x.dtype.name)(x), {"a": np.int8}["a"](x * 4), (np.float32 if len(x) > 2 else np.float64)(x)


def in_turn(x: Any) -> Any:
    for function in (np.sin, np.float32, lambda v: v**2, abs):
        x = function(x)
    return x


def unpacked(x: Any) -> Any:
    kind, arguments, keywords = np.sum, (x,), {"keepdims": True}
    inner = functools.partial
    return kind(*arguments, **keywords), inner(operator.add, x)(*arguments), kind(x, keepdims=True)


def recursive(x: Any) -> Any:
    def power(n: int) -> Any:
        return x if n == 0 else power(n - 1) * 1.01

    return power(200)


FUNCTIONS: list[Function] = [
    chosen, default, of_the_dtype, in_turn, unpacked, recursive, closed_over(np.float32),
    lambda x: (SCALE.kind(x), SCALE.single(x), SCALE.applied(x)),
]  # fmt: skip
if sys.version_info < (3, 13):  # later versions push NULL after the callee, and load two variables at once
    FUNCTIONS += [by_expression, of_one_number]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from leaves(entry)
    else:
        yield value


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_type_in_a_variable_converts_as_numpy_does(function: Function) -> None:
    fused = fuse(function, target="reference")
    for x in (np.arange(1, 4.0) / 3, np.arange(1, 5, dtype=np.float32)):
        for result, expected in zip(leaves(fused(x)), leaves(function(x)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)
            assert np.asarray(result).dtype == np.asarray(expected).dtype
            assert isinstance(expected, np.generic) or type(result) is type(expected)


def test_functions_in_variables_raise_what_they_raise() -> None:
    def fails(x: Any, kind: Any) -> Any:
        return kind(x, 1, 2, 3)

    for kind in (float, len):
        with pytest.raises(TypeError):
            fuse(fails, target="reference")(np.ones(3), kind)


def test_a_loop_that_asks_is_traced_once_beside_calls_of_variables() -> None:
    def function(x: Any, kind: Any) -> Any:
        total = x[0] * 0
        for i in range(20):
            if x[i] > 0:
                total = kind(x[i]) + total
        return total

    fused = fuse(function, target="reference")
    for x in (np.arange(20.0) - 7, 7 - np.arange(20.0)):
        assert fused(x, np.float64) == function(x, np.float64)
    assert fused.cache_info().traces == 1


class Measured:
    """Methods that Python calls and of which it takes numbers of its own alone."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __bool__(self) -> bool:
        return bool((self.values > 1).any())

    def __float__(self) -> float:
        return float(self.values.sum())

    def __int__(self) -> int:
        return int(self.values.max())

    def __index__(self) -> int:
        return int(self.values.argmax())

    def __complex__(self) -> complex:
        return complex(self.values.sum(), 1.0)

    def __len__(self) -> int:
        return int((self.values > 0).sum())

    def __hash__(self) -> int:
        return hash(float(self.values[0]))

    def __contains__(self, value: Any) -> bool:
        return bool((self.values == value).any())


OF_MEASURED: list[Callable[[Any], Any]] = [
    lambda x: (bool(Measured(x)), not Measured(x), 1 if Measured(x) else 2, Measured(x) and 3, all([Measured(x)])),
    lambda x: (float(Measured(x)) * 2, math.sqrt(Measured(x)), np.full(2, float(Measured(x)))),
    lambda x: (int(Measured(x)) + 1, complex(Measured(x)), x[Measured(x)], [5, 6, 7][Measured(x)]),
    lambda x: (len(Measured(x)), {Measured(x): 1} == {}, hash(Measured(x)), 2.0 in Measured(x), 9.0 not in Measured(x)),
]


@pytest.mark.parametrize("function", OF_MEASURED)
def test_methods_for_numbers_of_objects(function: Callable[[Any], Any]) -> None:
    fused = fuse(function, target="reference")
    for x in (np.array([0.0, 2.0, 1.0]), np.array([1.0, 0.5, 0.5]), np.array([0.5, 0.25, 3.0])):
        assert difference(fused(x), function(x), "result") is None


def test_a_number_by_a_method_needs_no_trace_for_each_value() -> None:
    fused = fuse(lambda x: x * float(Measured(x)), target="reference")
    for k in range(8):
        np.testing.assert_array_equal(fused(np.full(3, k + 1.0)), np.full(3, 3 * (k + 1.0) ** 2))
    assert fused.cache_info().traces == 1


def test_a_method_of_the_wrong_type_raises_as_in_python() -> None:
    class Wrong:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __float__(self) -> Any:
            return int(self.value.sum())

    with pytest.raises(TypeError, match="__float__ returned non-float"):
        fuse(lambda x: float(Wrong(x)), target="reference")(np.ones(3))
