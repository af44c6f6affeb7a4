"""Expressions of NumPy with the value of an op, whose derivative is that of the op (see `Equivalent`).

The operands are traced values, of which NumPy's functions record nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.ir.derivatives import Application
from tracefuse.ir.library_kinds import ARRAYS

Results = Sequence[Any]

# ---------------------------------------------------------------------------------------------------------------------
# the gamma function

_TERMS_BELOW = 10
"""Terms of the recurrence before the asymptotic series, whose error is below 1e-16 from there on."""
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""B(2k) / 2k, for k = 1, 2, ..., with Bernoulli's numbers B."""


def digamma(x: Any) -> Any:
    """The derivative of the logarithm of the gamma function: by its recurrence and its asymptotic series.

    Negative numbers by reflection; NaN at 0, -1, -2, ...
    """
    is_positive = x > 0
    above = np.where(is_positive, x, 1 - x)
    result: Any = 0
    for k in range(_TERMS_BELOW):
        result = result - 1 / (above + k)
    large = above + _TERMS_BELOW
    inverse_square = 1 / (large * large)
    series: Any = 0
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) * inverse_square
    result = result + np.log(large) - 0.5 / large - series
    inside = np.where(is_positive, 0.25, x)
    pole = np.where(inside == np.floor(inside), np.nan, math.pi / np.tan(math.pi * (inside - np.floor(inside))))
    return np.where(is_positive, result, result - pole)


# ---------------------------------------------------------------------------------------------------------------------
# linear algebra


def singular_values(x: Any) -> Any:
    return np.linalg.svd(x, compute_uv=False)


def norm_of_singular_values(node: Application) -> Results:
    (x,), order = node.operands, node.attributes["ord"]
    rank = len(node.shapes[0])
    axes = tuple(axis % rank for axis in node.attributes["axis"])
    values = singular_values(np.moveaxis(x, axes, (-2, -1)))
    combined: dict[Any, Any] = {"nuc": np.sum, 2: np.max, -2: np.min}
    result = combined[order](values, axis=-1)
    return (np.expand_dims(result, axes) if node.attributes["keepdims"] else result,)


def condition_number(node: Application) -> Results:
    (x,), order = node.operands, node.attributes["p"]
    if order in (None, 2, -2):
        values = singular_values(x)
        largest, least = values[..., 0], values[..., -1]
        return (least / largest if order == -2 else largest / least,)
    inverse = np.linalg.inv(x)
    return (np.linalg.norm(x, order, axis=(-2, -1)) * np.linalg.norm(inverse, order, axis=(-2, -1)),)


def least_squares(node: Application) -> Results:
    """Of a matrix with full rank; the rank has no derivative."""
    a, b = node.operands
    solution = np.linalg.pinv(a) @ b
    rest = b - a @ solution
    squares = (rest * np.conj(rest)).real if node.results[0].value.dtype.is_complex else rest * rest
    residuals = squares.sum(axis=0)
    if len(node.shapes[1]) == 1:
        residuals = residuals[None]
    return solution, residuals if node.attributes["residuals"] else None, None, singular_values(a)


def _product(extents: Sequence[Any]) -> Any:
    result: Any = 1
    for extent in extents:
        result = result * extent
    return result


def inverse_of_tensor(node: Application) -> Results:
    (a,), first = node.operands, node.attributes["ind"]
    left, right = a.shape[:first], a.shape[first:]
    size = _product(left)
    return (np.linalg.inv(a.reshape((size, size))).reshape((*right, *left)),)


def solution_of_tensor(node: Application) -> Results:
    (a, b), axes = node.operands, node.attributes["axes"]
    rank = len(node.shapes[0])
    if axes is not None:
        last = [axis % rank for axis in axes]
        a = np.transpose(a, (*(k for k in range(rank) if k not in last), *last))
    shape = a.shape[len(node.shapes[1]) :]
    size = _product(b.shape)
    return (np.linalg.solve(a.reshape((size, size)), b.reshape((size,))).reshape(shape),)


def polynomial_fit(node: Application) -> Results:
    named = dict(zip(node.attributes[ARRAYS], node.operands, strict=True))
    x, y = named["x"], named["y"]
    powers = np.stack([x**k for k in range(node.attributes["deg"], -1, -1)], 1)
    if "w" in named:
        weights = named["w"]
        powers = powers * weights[:, None]
        y = y * (weights if len(y.shape) == 1 else weights[:, None])
    return (np.linalg.pinv(powers) @ y,)


# ---------------------------------------------------------------------------------------------------------------------
# order statistics


def partition(node: Application) -> Results:
    (x,), axis = node.operands, node.attributes["axis"]
    if axis is None:
        x, axis = x.ravel(), 0
    return (np.take_along_axis(x, np.argpartition(x, node.attributes["kth"], axis), axis),)


def _of_known(node: Application, fraction: float) -> Results:
    """Interpolates linearly around a fraction of the sorted elements that are not NaN."""
    x, axis, rank = node.operands[0], node.attributes["axis"], len(node.shapes[0])
    axes = (
        tuple(range(rank)) if axis is None else tuple(k % rank for k in (axis if isinstance(axis, tuple) else (axis,)))
    )
    outer_axes = [k for k in range(rank) if k not in axes]
    turned = np.transpose(x, (*outer_axes, *axes))
    rows = np.sort(turned.reshape((*(x.shape[k] for k in outer_axes), _product([x.shape[k] for k in axes]))), axis=-1)
    position = ((~np.isnan(rows)).sum(axis=-1, keepdims=True) - 1) * fraction
    low = np.maximum(np.floor(position), 0).astype(np.int64)
    high = np.maximum(np.ceil(position), 0).astype(np.int64)
    below, above = np.take_along_axis(rows, low, -1), np.take_along_axis(rows, high, -1)
    result = (below + (above - below) * (position - low))[..., 0]
    return (np.expand_dims(result, axes) if node.attributes["keepdims"] else result,)


def known_median(node: Application) -> Results:
    return _of_known(node, 0.5)


def known_quantile(scale: float) -> Any:
    """Of nanquantile (scale 1) and of nanpercentile (scale 100), for one fraction and linear interpolation."""

    def rule(node: Application) -> Results:
        q, method = node.attributes["q"], node.attributes["method"]
        is_plain = isinstance(q, (int, float)) and tuple(node.attributes[ARRAYS]) == ("a",)
        node.require(
            is_plain and method == "linear", "such arguments", "pass one number q, method='linear', no weights"
        )
        return _of_known(node, q / scale)

    return rule


# ---------------------------------------------------------------------------------------------------------------------
# Fourier transforms of Hermitian signals

_OPPOSITE: dict[str | None, Any] = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def hermitian_transform(node: Application) -> Results:
    attributes = node.attributes
    return (
        np.fft.irfft(np.conj(node.operands[0]), attributes["n"], attributes["axis"], _OPPOSITE[attributes["norm"]]),
    )


def inverse_hermitian_transform(node: Application) -> Results:
    attributes = node.attributes
    return (np.conj(np.fft.rfft(node.operands[0], attributes["n"], attributes["axis"], _OPPOSITE[attributes["norm"]])),)
