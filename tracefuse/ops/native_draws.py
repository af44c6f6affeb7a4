"""Draws of NumPy's generators as calls of NumPy's C functions, which a compiled loop makes between its kernels.

The functions are those that the generator's methods call, on the same state, so that the numbers are the same.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import memoized
from tracefuse.dtypes import float64, int64
from tracefuse.ir.extents import Expression
from tracefuse.ir.fusion import Attributes


@dataclass(frozen=True, slots=True)
class NativeDraw:
    """A draw as a call of a C function.

    function: its address. source: of the generator, whose state is the first argument. numbers: the arguments after it,
    floats or places of operands. bounds: of integers, the first and the end, in place of `numbers`; extents or places. fills: whether the
    function writes a number of elements to memory; else it returns one element.
    """

    function: int
    source: Any
    numbers: tuple[Any, ...] = ()
    bounds: tuple[Any, Any] | None = None
    fills: bool = False


def state_of(generator: Any) -> int | None:
    """Returns the address of the state of a generator of NumPy; None for any other."""
    if type(generator) is not np.random.Generator:
        return None
    address: int | None = generator.bit_generator.ctypes.bit_generator.value
    return address


def native_draw(attributes: Attributes) -> NativeDraw | None:
    """Returns a draw as a call of a C function; None if there is none that gives the same numbers."""
    make = _METHODS.get(attributes["method"])
    source = attributes["source"]
    if make is None or state_of(source.generator()) is None:
        return None
    values, names = attributes["arguments"], attributes["names"]
    if len(names) != len(values):
        return None
    given = dict(zip(names, values, strict=True))
    given.pop("size", None)
    draw: NativeDraw | None = make(source, attributes["dtype"], given)
    return None if draw is None or not draw.function else draw


@memoized("the addresses of NumPy's C functions", key="name", most=64)
def _address(name: str) -> int:
    """Returns the address of a C function of NumPy; 0 if it is not exported."""
    module = ctypes.CDLL(str(np.random._generator.__file__))
    function = getattr(module, name, None)
    return 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _number(value: Any, default: float) -> Any:
    """Returns an argument: a float, or the place of an operand; None for anything else."""
    if value is None:
        return default
    if isinstance(value, (bool, int, float, np.number)) and not isinstance(value, np.complexfloating):
        return float(value)
    return value if hasattr(value, "position") else None


def _standard(symbol: str) -> Callable[..., NativeDraw | None]:
    def make(source: Any, dtype: Any, given: Mapping[str, Any]) -> NativeDraw | None:
        is_plain = dtype is float64 and given.keys() <= {"dtype"}
        return NativeDraw(_address(symbol), source, fills=True) if is_plain else None

    return make


def _normal(source: Any, dtype: Any, given: Mapping[str, Any]) -> NativeDraw | None:
    center, scale = _number(given.get("loc"), 0.0), _number(given.get("scale"), 1.0)
    if center is None or not isinstance(scale, float) or not scale >= 0 or math.copysign(1.0, scale) < 0:
        return None
    return NativeDraw(_address("random_normal"), source, (center, scale))


def _exponential(source: Any, dtype: Any, given: Mapping[str, Any]) -> NativeDraw | None:
    scale = _number(given.get("scale"), 1.0)
    if not isinstance(scale, float) or not scale >= 0 or math.copysign(1.0, scale) < 0:
        return None
    return NativeDraw(_address("random_exponential"), source, (scale,))


def _uniform(source: Any, dtype: Any, given: Mapping[str, Any]) -> NativeDraw | None:
    low, high = _number(given.get("low"), 0.0), _number(given.get("high"), 1.0)
    if not isinstance(low, float) or not isinstance(high, float) or not 0 <= high - low < math.inf:
        return None
    return NativeDraw(_address("random_uniform"), source, (low, high - low))


def _integers(source: Any, dtype: Any, given: Mapping[str, Any]) -> NativeDraw | None:
    low, high = given.get("low"), given.get("high")
    if dtype is not int64 or given.get("endpoint") or not given.keys() <= {"low", "high", "endpoint", "dtype"}:
        return None
    bounds = (0, low) if high is None else (low, high)
    if not all(type(one) is int or isinstance(one, Expression) or hasattr(one, "position") for one in bounds):
        return None
    return NativeDraw(_address("random_bounded_uint64_fill"), source, bounds=bounds, fills=True)


_METHODS: Mapping[str, Callable[..., NativeDraw | None]] = {
    "random": _standard("random_standard_uniform_fill"), "standard_normal": _standard("random_standard_normal_fill"),
    "normal": _normal, "uniform": _uniform, "exponential": _exponential, "integers": _integers,
}  # fmt: skip
"""The methods of a generator that are calls of one C function."""
