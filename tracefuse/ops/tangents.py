"""Tangents of ops that are neither linear nor pointwise with partial derivatives: order, extremes, products, complex parts.

Each takes the node as an `Application` and the tangents of its operands, None for zero, and is linear in them (see
ir/derivatives.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.ir.derivatives import Application
from tracefuse.ir.extents import product

Tangents = Sequence[Any]


def abs(node: Application, tangents: Tangents) -> Tangents:
    """The component along the direction of a; 0 at 0."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    if not a.value.dtype.is_complex:
        return (tangent * node.emit("sign", a),)
    along = node.emit("real", tangent * node.emit("conj", a))
    return (along / node.emit("where", y == 0, 1, y),)


def sign(node: Application, tangents: Tangents) -> Tangents:
    """The turn of the direction of a complex number; 0 for real numbers."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    if not a.value.dtype.is_complex:
        return (None,)
    size = node.emit("abs", a)
    turn = node.emit("imag", tangent * node.emit("conj", y)) / node.emit("where", size == 0, 1, size)
    return (y * node.emit("complex", turn * 0, turn),)


def angle(node: Application, tangents: Tangents) -> Tangents:
    (a,), (tangent,) = node.operands, tangents
    if not a.value.dtype.is_complex:
        return (None,)
    x, y = node.emit("real", a), node.emit("imag", a)
    across = x * node.emit("imag", tangent) - y * node.emit("real", tangent)
    return (across / (x * x + y * y),)


# ---------------------------------------------------------------------------------------------------------------------
# reductions


def _kept(node: Application, value: Any) -> Any:
    """A result of the reduction with the reduced axes kept, with extent 1."""
    if node.attributes["keepdim"]:
        return value
    dims = node.attributes["dims"]
    return node.emit("broadcast", value, is_broadcast_dim=tuple(k in dims for k in range(len(node.shapes[0]))))


def _sum(node: Application, value: Any) -> Any:
    return node.emit("sum", value, dims=node.attributes["dims"], keepdim=node.attributes["keepdim"])


def _count(node: Application) -> Any:
    return node.emit("extent", value=product(node.shapes[0][axis] for axis in node.attributes["dims"]))


def extreme(node: Application, tangents: Tangents) -> Tangents:
    """Equal extreme elements share the derivative evenly."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    is_extreme = a == _kept(node, y)
    share = node.emit("where", is_extreme, 1.0, 0.0)
    return (_sum(node, node.emit("where", is_extreme, tangent, 0)) / _sum(node, share).astype(y.value.dtype),)


def prod(node: Application, tangents: Tangents) -> Tangents:
    """The product of the others for each element: y / a, and for a single 0 the product of the rest."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    is_zero = a == 0
    nonzero = node.emit("where", is_zero, 1, a)
    regular = y * _sum(node, tangent / nonzero)
    product_of_nonzero = node.emit("prod", nonzero, dims=node.attributes["dims"], keepdim=node.attributes["keepdim"])
    zeros = _sum(node, node.emit("where", is_zero, 1, 0))
    at_zero = product_of_nonzero * _sum(node, node.emit("where", is_zero, tangent, 0))
    return (node.emit("where", zeros == 0, regular, node.emit("where", zeros == 1, at_zero, 0)),)


def _deviation(node: Application) -> Any:
    (a,) = node.operands
    return a - node.emit("mean", a, dims=node.attributes["dims"], keepdim=True)


def sum_of_squares(node: Application, tangents: Tangents) -> Tangents:
    return (_sum(node, 2 * _deviation(node) * tangents[0]),)


def var(node: Application, tangents: Tangents) -> Tangents:
    count = node.emit("maximum", _count(node) - node.attributes["correction"], 0)
    return (_sum(node, 2 * _deviation(node) * tangents[0]) / count,)


def sum_of_exponentials(node: Application, tangents: Tangents) -> Tangents:
    """The terms relative to the largest element move with it."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    dims = node.attributes["dims"]
    largest = node.emit("max", a, dims=dims, keepdim=True)
    is_largest = a == largest
    share = node.emit("where", is_largest, tangent, 0)
    count = node.emit("sum", node.emit("where", is_largest, 1.0, 0.0), dims=dims, keepdim=True)
    moved = node.emit("sum", share, dims=dims, keepdim=True) / count.astype(y.value.dtype)
    return (_sum(node, node.emit("exp", a - largest) * (tangent - moved)),)


# ---------------------------------------------------------------------------------------------------------------------
# scans and order


def cumprod(node: Application, tangents: Tangents) -> Tangents:
    """Before the first 0 each term is y / a; from it on only the derivative by that 0 remains."""
    (a,), (y,), (tangent,), dim = node.operands, node.results, tangents, node.attributes["dim"]
    is_zero = a == 0
    zeros = node.emit("cumsum", node.emit("where", is_zero, 1, 0), dim=dim)
    is_first = is_zero & (zeros == 1)
    terms = node.emit("where", is_zero, 0, tangent / node.emit("where", is_zero, 1, a))
    regular = y * node.emit("cumsum", terms, dim=dim)
    rest = node.emit("cumprod", node.emit("where", is_first, 1, a), dim=dim)
    return (regular + rest * node.emit("cumsum", node.emit("where", is_first, tangent, 0), dim=dim),)


def running_extreme(node: Application, tangents: Tangents) -> Tangents:
    """The tangent of the element that is the extreme so far; of equal ones the first."""
    (a,), (y,), (tangent,) = node.operands, node.results, tangents
    shape, dim = node.shapes[0], node.attributes["dim"] % len(node.shapes[0])
    line = node.emit("iota", 0, 1, length=shape[dim])
    line = node.emit("broadcast", line, is_broadcast_dim=tuple(k != dim for k in range(len(shape))))
    before = node.emit("roll", y, shift=1, dim=dim)
    is_new = ((a == y) & (y != before)) | (line == 0)
    position = node.emit("cummax", node.emit("where", is_new, line, 0), dim=dim)
    return (node.emit("take_along_axis", tangent, position, dim=dim),)


def sort(node: Application, tangents: Tangents) -> Tangents:
    order = node.emit(
        "argsort", node.operands[0], dim=node.attributes["dim"], descending=False, stable=True, kind="stable"
    )
    return (node.emit("take_along_axis", tangents[0], order, dim=node.attributes["dim"] % len(node.shapes[0])),)


# ---------------------------------------------------------------------------------------------------------------------
# products


def linear(node: Application, tangents: Tangents) -> Tangents:
    a, weight = node.operands[:2]
    terms = []
    if tangents[0] is not None:
        terms.append(_of_rows(node, tangents[0], weight))
    if tangents[1] is not None:
        terms.append(_of_rows(node, a, tangents[1]))
    if len(tangents) > 2 and tangents[2] is not None:
        terms.append(node.emit("expand", tangents[2], shape=node.result_shapes[0]))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return (total,)


def _of_rows(node: Application, a: Any, weight: Any) -> Any:
    return node.emit("matmul", a, weight if len(weight.extents) == 1 else node.emit("permute", weight, dims=(1, 0)))
