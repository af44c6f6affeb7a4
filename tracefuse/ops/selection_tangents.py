"""Tangents of order statistics and of interpolation, and transposes of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.dtypes import int64
from tracefuse.ir.derivatives import Application
from tracefuse.ir.extents import minimum, product
from tracefuse.ir.library_kinds import ARRAYS

Tangents = Sequence[Any]


# ---------------------------------------------------------------------------------------------------------------------
# order statistics


def _rows(node: Application, value: Any) -> Any:
    """The elements with the reduced axes as one last axis."""
    shape, axis = node.shapes[0], node.attributes["axis"]
    rank = len(shape)
    axes = [*range(rank)] if axis is None else [k % rank for k in (axis if isinstance(axis, tuple) else (axis,))]
    outer_axes = [k for k in range(rank) if k not in axes]
    turned = node.emit("permute", value, dims=(*outer_axes, *axes))
    count = product(shape[k] for k in axes)
    return node.emit("reshape", turned, new_shape=(*(shape[k] for k in outer_axes), count), groups=(), inferable=())


def _of_fraction(node: Application, tangent: Any, fraction: Any) -> Any:
    """Interpolates linearly between the tangents of the two elements around a fraction of the sorted rows."""
    rows = _rows(node, node.operands[0])
    dim = len(rows.extents) - 1
    order = node.emit("argsort", rows, dim=dim, descending=False, stable=True, kind="stable")
    tangents = node.emit("take_along_axis", _rows(node, tangent), order, dim=dim)
    position = (node.emit("extent", value=rows.extents[dim]) - 1) * fraction
    low, high = node.emit("floor", position), node.emit("ceil", position)
    below, above = (_element(node, tangents, place, dim) for place in (low, high))
    result = below + (above - below) * node.emit("cast", position - low, dtype=tangent.value.dtype)
    return node.emit("reshape", result, new_shape=node.result_shapes[0], groups=(), inferable=())


def _element(node: Application, rows: Any, place: Any, dim: int) -> Any:
    index = node.emit("full", node.emit("cast", place, dtype=int64), shape=())
    return node.emit("take", rows, index, dim=dim)


def median(node: Application, tangents: Tangents) -> Tangents:
    return (_of_fraction(node, tangents[0], 0.5),)


def quantile(scale: float) -> Any:
    """The rule of quantile (scale 1) and of percentile (scale 100), for one fraction and linear interpolation."""

    def rule(node: Application, tangents: Tangents) -> Tangents:
        q, method = node.attributes["q"], node.attributes["method"]
        is_plain = isinstance(q, (int, float)) and tuple(node.attributes[ARRAYS]) == ("a",)
        node.require(
            is_plain and method == "linear", "such arguments", "pass one number q, method='linear', no weights"
        )
        return (_of_fraction(node, tangents[0], q / scale),)

    return rule


# ---------------------------------------------------------------------------------------------------------------------
# interpolation


def interp(node: Application, tangents: Tangents) -> Tangents:
    """The slope times the tangent of x, and the interpolation of the tangents of the points."""
    names = node.attributes[ARRAYS]
    node.require(tuple(names) == ("x", "xp", "fp") and node.attributes["period"] is None, "such arguments",
                 "pass left and right as numbers, and no period")  # fmt: skip
    (x, points, values), (of_x, of_points, of_values) = node.operands, tangents
    count = node.emit("extent", value=node.shapes[1][0])
    right = node.emit("searchsorted", points, x, side="right", arrays=("a", "v"))
    right = node.emit("clamp", right, 1, node.emit("maximum", count - 1, 1))
    pair = (right - 1, node.emit("minimum", right, count - 1))
    x0, x1 = (node.emit("take", points, k, dim=0) for k in pair)
    f0, f1 = (node.emit("take", values, k, dim=0) for k in pair)
    width = node.emit("where", x1 == x0, 1, x1 - x0)
    ratio = (x - x0) / width
    terms = []
    if of_x is not None:
        terms.append(of_x / width * (f1 - f0))
    if of_points is not None:
        t0, t1 = (node.emit("take", of_points, k, dim=0) for k in pair)
        terms.append(-(t0 + ratio * (t1 - t0)) / width * (f1 - f0))
    if of_values is not None:
        t0, t1 = (node.emit("take", of_values, k, dim=0) for k in pair)
        terms.append(t0 + ratio * (t1 - t0))
    inside = terms[0]
    for term in terms[1:]:
        inside = inside + term
    ends = []
    for side, place in (("left", 0), ("right", count - 1)):
        is_fixed = node.attributes[side] is not None or of_values is None
        ends.append(0 if is_fixed else node.emit("take", of_values, node.emit("full", place, shape=()), dim=0))
    first, last = (node.emit("take", points, node.emit("full", k, shape=()), dim=0) for k in (0, count - 1))
    return (node.emit("where", x < first, ends[0], node.emit("where", x > last, ends[1], inside)),)


# ---------------------------------------------------------------------------------------------------------------------
# convolution


def convolve(node: Application, tangents: Tangents) -> Tangents:
    """The cotangents of two vectors: correlations of the other one with the cotangent of the complete convolution."""
    return _of_windows(node, tangents, node.operands)


def correlate(node: Application, tangents: Tangents) -> Tangents:
    """A correlation is the convolution with the second vector reversed."""
    a, v = node.operands
    node.require(node.attributes["first_is_longer"], "a second vector that is longer", "give the longer vector first")
    node.require(not v.value.dtype.is_complex, "complex numbers", "use np.convolve with v[::-1].conj()")
    of_a, of_v = _of_windows(node, tangents, (a, node.emit("flip", v, dims=(0,))))
    return of_a, None if of_v is None else node.emit("flip", of_v, dims=(0,))


def _of_windows(node: Application, tangents: Tangents, factors: Sequence[Any]) -> Tangents:
    (n,), (m,) = node.shapes
    least, mode = minimum(n, m), node.attributes["mode"]
    start = {"full": 0, "same": (least - 1) // 2, "valid": least - 1}[mode]
    (cotangent,) = tangents
    widths = (start, n + m - 1 - start - node.result_shapes[0][0])
    cotangent = node.emit("pad", cotangent, pad_widths=widths, value=0)
    results = []
    for other in (1, 0):
        is_active = node.active[1 - other]
        factor = node.emit("conj", factors[other]) if is_active else None
        results.append(
            node.emit("correlate", cotangent, factor, mode="valid", first_is_longer=True) if is_active else None
        )
    return results
