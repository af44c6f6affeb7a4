"""Error models: bounds on the difference between the result of an op and the exact result, for the field `error`.

A model computes with magnitudes in float64. Each operand has its value and an absolute error bound; the op's own
arithmetic adds a number of rounding units. A unit is half the distance from 1 to the next number. The bounds follow
Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapters 3 and 4. Check mode propagates them.

Must not know: single ops, fusions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass

FUNCTION_UNITS = 16.0
"""Units that exp, log, tanh and other functions may be off: 8 in the last place."""

NumPyFunction: TypeAlias = Callable[..., Any]


# ---------------------------------------------------------------------------------------------------------------------
# pointwise


@dataclass(frozen=True, slots=True)
class PointwiseError:
    """The error of a pointwise op.

    carried: the error bound that the exact function inherits from its operands, called with the op's reference
    implementation and then (value, error) of each operand. units: the rounding units that its own arithmetic adds; 0
    for none. rounds_once: its arithmetic rounds the exact result once, and is exact if that result is a number of the
    type. on_complex: whether `carried` holds for complex numbers, whose error is the magnitude of a difference.
    """

    carried: Callable[..., Any]
    units: float = FUNCTION_UNITS
    rounds_once: bool = False
    on_complex: bool = False


def _product(numpy: NumPyFunction, a: Any, x: Any, b: Any, y: Any) -> Any:
    return np.where(x > 0, np.abs(b) * x, 0) + np.where(y > 0, np.abs(a) * y, 0) + x * y


def _quotient(numpy: NumPyFunction, a: Any, x: Any, b: Any, y: Any) -> Any:
    left = np.abs(b) - y
    return np.where(left > 0, (x + np.abs(a / b) * y) / left, np.where(y == 0, 0.0, np.inf))


def _monotonic(numpy: NumPyFunction, a: Any, x: Any) -> Any:
    middle = numpy(a)
    moved = np.maximum(np.abs(numpy(a + x) - middle), np.abs(numpy(a - x) - middle))
    return np.where(x == 0, 0.0, np.where(np.isnan(moved), np.inf, moved))


def _chosen(numpy: NumPyFunction, condition: Any, unsure: Any, b: Any, y: Any, c: Any, z: Any) -> Any:
    return np.where(unsure > 0, np.inf, np.where(condition.astype(bool), y, z))


def _comparison(numpy: NumPyFunction, a: Any, x: Any, b: Any, y: Any) -> Any:
    apart = np.abs(np.subtract(a, b, dtype=np.result_type(a, b, np.float64))) > x + y
    return np.where((x + y == 0) | apart, 0.0, np.inf)


def _largest(numpy: NumPyFunction, *operands: Any) -> Any:
    errors = operands[1::2]
    result = errors[0]
    for error in errors[1:]:
        result = np.maximum(result, error)
    return result


SUM = PointwiseError(lambda numpy, a, x, b, y: x + y, units=2.0, rounds_once=True, on_complex=True)
"""A sum or a difference."""

PRODUCT = PointwiseError(_product, units=2.0, rounds_once=True, on_complex=True)
QUOTIENT = PointwiseError(_quotient, units=2.0, rounds_once=True, on_complex=True)

RECIPROCAL = PointwiseError(lambda numpy, a, x: _quotient(numpy, np.ones(()), 0.0, a, x))

SELECTION = PointwiseError(_largest, units=0.0)
"""One of the operands, where a small change of the operands changes the result by no more: maximum, clamp."""

CHOICE = PointwiseError(_chosen, units=0.0, on_complex=True)
"""One of the last two operands, selected by the first."""

COMPARISON = PointwiseError(_comparison, units=0.0, on_complex=True)
"""A truth value of two operands: exact where they are too far apart to cross, else unknown."""

COPY = PointwiseError(lambda numpy, a, x: x, units=0.0, on_complex=True)
"""The operand itself, or a part of it, maybe with another sign."""

MAGNITUDE = PointwiseError(lambda numpy, a, x: x, units=0.0)
"""What moves no further than its operand and is not rounded, of real numbers: abs, relu."""

PARTS = PointwiseError(lambda numpy, a, x, b, y: x + y, units=0.0, on_complex=True)
"""A complex number made from its parts."""

CONSTANT = PointwiseError(lambda numpy, *operands: 0.0, units=0.0, on_complex=True)
"""An exact result."""

SEQUENCE = PointwiseError(lambda numpy, *operands: 0.0, units=2.0, on_complex=True)
"""Numbers at equal distances, from exact operands."""

MONOTONIC = PointwiseError(_monotonic)
"""A monotonic function: its operand's interval maps to the interval between the values at both ends."""

SQUARE_ROOT = PointwiseError(_monotonic, units=2.0, rounds_once=True)


def lipschitz(slope: float) -> PointwiseError:
    """Models a function whose derivative has a magnitude of at most `slope`."""
    return PointwiseError(lambda numpy, a, x: slope * x)


# ---------------------------------------------------------------------------------------------------------------------
# reductions


@dataclass(frozen=True, slots=True)
class Reduced:
    """The inputs of a reduction's error model.

    a, error: the elements and their error bounds. value: the result. axes, keepdims: the reduced axes, in NumPy's
    convention. count: the number of elements per result. unit: half the distance from 1 to the next number.
    """

    a: Any
    error: Any
    value: Any
    axes: tuple[int, ...]
    keepdims: bool
    count: int
    unit: float
    attributes: Mapping[str, Any]

    def total(self, array: Any) -> Any:
        return np.sum(array, axis=self.axes, keepdims=self.keepdims)


ReductionError: TypeAlias = Callable[[Reduced], Any]
"""The bound of a reduction of inexact numbers; infinite where nothing is known."""


def sum_error(reduced: Reduced) -> Any:
    """Bounds a sum of n terms in any order: (n - 1) u times the sum of magnitudes, plus 2 u for rounded terms."""
    magnitudes = reduced.total(np.abs(reduced.a) + reduced.error)
    return reduced.total(reduced.error) + (reduced.count + 1) * reduced.unit * magnitudes


def mean_error(reduced: Reduced) -> Any:
    """Bounds a mean: a sum over n, rounded once more."""
    return sum_error(reduced) / reduced.count + 2 * reduced.unit * np.abs(reduced.value)


def product_error(reduced: Reduced) -> Any:
    """Bounds a product of n terms in any order: the factor (1 + u) for each multiplication."""
    magnitudes = np.abs(reduced.a)
    large = np.prod(magnitudes + reduced.error, axis=reduced.axes, keepdims=reduced.keepdims)
    exact = np.prod(magnitudes, axis=reduced.axes, keepdims=reduced.keepdims)
    return large * (1 + reduced.unit) ** (reduced.count + 1) - exact


def largest_error(reduced: Reduced) -> Any:
    """Bounds a maximum or minimum: it moves no further than any element does."""
    return np.max(reduced.error, axis=reduced.axes, keepdims=reduced.keepdims)


def exact_or_unknown(reduced: Reduced) -> Any:
    """Bounds a truth value or a position: exact if every element is exact, else unknown."""
    return np.where(reduced.total(reduced.error) > 0, np.inf, 0.0)


def exponentials_error(reduced: Reduced) -> Any:
    """Bounds a sum of exponentials of differences to the largest element, each rescaled when a larger one arrives."""
    a, x, unit = reduced.a, reduced.error, reduced.unit
    below = np.max(a, axis=reduced.axes, keepdims=True) - a
    error = x + np.max(x, axis=reduced.axes, keepdims=True) + 4 * unit * (below + x)
    terms = np.exp(error - below)
    return reduced.total(terms * error) + (reduced.count + 3) * (FUNCTION_UNITS + 2) * unit * reduced.total(terms)


def deviations_error(reduced: Reduced) -> Any:
    """Bounds a sum of squared deviations from the mean, over n - correction if the op has a correction."""
    a, x, unit, count = reduced.a, reduced.error, reduced.unit, reduced.count
    mean = np.mean(a, axis=reduced.axes, keepdims=True)
    off = np.mean(x + (count + 1) * unit * (np.abs(a) + x), axis=reduced.axes, keepdims=True) + 2 * unit * np.abs(mean)
    deviation = np.abs(a - mean)
    error = x + off + 2 * unit * (deviation + x + off)
    bound = reduced.total(2 * deviation * error + error**2) + (count + 3) * unit * reduced.total(
        (deviation + error) ** 2
    )
    terms = max(count - reduced.attributes["correction"], 0) if "correction" in reduced.attributes else 1
    return bound / terms + 4 * unit * np.abs(reduced.value)


# ---------------------------------------------------------------------------------------------------------------------
# library functions

Bounded: TypeAlias = tuple[Any, Any]
"""A value and the bound of its error."""

LibraryError: TypeAlias = Callable[[NumPyFunction, list[Bounded], Mapping[str, Any], float], Any]
"""Called with the op's reference implementation, the operands, the attributes and the unit."""


def matrix_product_error(
    numpy: NumPyFunction, operands: list[Bounded], attributes: Mapping[str, Any], unit: float
) -> Any:
    """Bounds inner products of n terms plus further addends: n u times the product of magnitudes, plus 2 u."""
    (a, x), (b, y) = operands[:2]
    inner = attributes["a_dims"][-attributes.get("summed_axes", 1) :] if "a_dims" in attributes else (-1,)
    extent = math.prod(a.shape[axis] for axis in inner)
    a, b = np.abs(a), np.abs(b)
    bound = numpy(a, y, **attributes) + numpy(x, b, **attributes) + numpy(x, y, **attributes)
    bound = bound + (extent + 2) * unit * numpy(a + x, b + y, **attributes)
    for c, z in operands[2:]:
        bound = bound + z + 2 * unit * (np.abs(c) + z)
    return bound


def accumulation_error(
    numpy: NumPyFunction, operands: list[Bounded], attributes: Mapping[str, Any], unit: float
) -> Any:
    """Bounds up to n added or multiplied exact terms: 2 n u times the result of the magnitudes; else unknown."""
    value = numpy(*(a for a, _ in operands), **attributes)
    if any(np.any(error > 0) for _, error in operands):
        return np.full(value.shape, np.inf)
    if not np.issubdtype(value.dtype, np.inexact):
        return np.zeros(value.shape)
    large = numpy(*(np.abs(a) for a, _ in operands), **attributes)
    shape = operands[0][0].shape
    return 2 * (shape[attributes["dim"]] if "dim" in attributes else max(shape)) * unit * large
