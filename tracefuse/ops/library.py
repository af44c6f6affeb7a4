"""Matrix products, which BLAS and cuBLAS run faster than a generated kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import ALL, NUMBERS
from tracefuse.errors import ShapeError
from tracefuse.ir.axes import broadcast_shapes
from tracefuse.ir.derivatives import Multilinear, Tangent
from tracefuse.ir.error_models import matrix_product_error
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ops import native_ufuncs, tangents, transposes
from tracefuse.ops.array_functions import linear_into, matmul_into
from tracefuse.ops.families import library
from tracefuse.ops.native_ufuncs import NativeUfuncs


def _matmul_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, b = shapes
    if not a or not b:
        raise ShapeError("matmul: an operand has no axes", hint="multiply by a scalar with *")
    inner: Extent = b[-2] if len(b) > 1 else b[0]
    require(
        a[-1],
        "==",
        inner,
        "inner extents differ: {left} and {right}",
        "the first operand needs as many columns as the second has rows",
    )
    batch = broadcast_shapes((a[:-2], b[:-2]), require)
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


def _matmul_slices(axis: int, shapes: Sequence[Shape], attributes: Attributes) -> dict[int, int | None]:
    a, b = shapes
    batch = max(len(a), len(b), 2) - 2
    if axis < batch:
        places = [axis - batch + max(len(shape) - 2, 0) for shape in (a, b)]
        return {k: p if p >= 0 and shapes[k][p] != 1 else None for k, p in enumerate(places)}
    return {0: len(a) - 2, 1: None} if len(a) > 1 and axis == batch else {0: None, 1: len(b) - 1}


matmul = library(
    "matmul", ALL, shape=_matmul_shape, slices=_matmul_slices, numpy=np.matmul, arity=2, in_halves=True, product="ab",
    error=matrix_product_error, into=matmul_into,
    derivative=Multilinear(transposes.matmul), doc="Matrix product, as NumPy's matmul.",
    native=lambda given: native_ufuncs.product(),
)  # fmt: skip


def _permuted_matmul_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    orders = (attributes["a_dims"], attributes["b_dims"])
    for name, dims, shape in zip(("a_dims", "b_dims"), orders, shapes, strict=True):
        if sorted(dims) != list(range(len(shape))):
            message = f"permuted_matmul: {name} {tuple(dims)} does not order {len(shape)} axes"
            raise ShapeError(message, hint="name each axis once")
    permuted = [tuple(shape[axis] for axis in dims) for shape, dims in zip(shapes, orders, strict=True)]
    return _matmul_shape(permuted, attributes, require)


def _native_permuted(given: Attributes) -> NativeUfuncs:
    a_dims, b_dims = given["a_dims"], given["b_dims"]
    return native_ufuncs.product(lambda a, b: (a.transpose(a_dims), b.transpose(b_dims)))


permuted_matmul = library(
    "permuted_matmul", ALL, shape=_permuted_matmul_shape, arity=2, in_halves=True, product="ab",
    orders=("a_dims", "b_dims"), attributes=(("a_dims", ()), ("b_dims", ())), error=matrix_product_error,
    numpy=lambda a, b, a_dims, b_dims: a.transpose(a_dims) @ b.transpose(b_dims), native=_native_permuted,
    doc="Matrix product, as NumPy's matmul, of operands whose axes are permuted first.",
)  # fmt: skip


def _contract_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, b = shapes
    a_dims, b_dims, stack_axes, summed_axes = (
        attributes[name] for name in ("a_dims", "b_dims", "stack_axes", "summed_axes")
    )
    for name, dims, shape in (("a_dims", a_dims, a), ("b_dims", b_dims, b)):
        if (
            sorted(dims) != list(range(len(shape)))
            or stack_axes + summed_axes > len(shape)
            or min(stack_axes, summed_axes) < 0
        ):
            message = f"contract_axes: {name} {tuple(dims)} does not order {len(shape)} axes, {stack_axes + summed_axes} of them shared"
            raise ShapeError(message, hint="name each axis once")
    left, right = tuple(a[axis] for axis in a_dims), tuple(b[axis] for axis in b_dims)
    rows, columns = left[stack_axes : len(left) - summed_axes], right[stack_axes + summed_axes :]
    for left_axis, right_axis in zip(
        (*left[:stack_axes], *left[len(left) - summed_axes :]), right[: stack_axes + summed_axes], strict=True
    ):
        require(
            left_axis,
            "==",
            right_axis,
            "extents differ: {left} and {right}",
            "axes of the stack and summed axes are shared",
        )
    return (*left[:stack_axes], *rows, *columns)


def _factors(
    a: Any, b: Any, a_dims: Sequence[int], b_dims: Sequence[int], stack_axes: int, summed_axes: int
) -> tuple[Any, Any]:
    """Returns stacks of matrices whose product has the elements of the result."""
    a, b = a.transpose(a_dims), b.transpose(b_dims)
    stack, rows, columns = (
        a.shape[:stack_axes],
        a.shape[stack_axes : a.ndim - summed_axes],
        b.shape[stack_axes + summed_axes :],
    )
    shared = math.prod(b.shape[stack_axes : stack_axes + summed_axes])
    left, right = (*stack, math.prod(rows), shared), (*stack, shared, math.prod(columns))
    return a.reshape(left), b.reshape(right)


def _contract(a: Any, b: Any, a_dims: Sequence[int], b_dims: Sequence[int], stack_axes: int, summed_axes: int) -> Any:
    """A product of stacks of matrices, whose rows, columns and summed axes are views where memory allows."""
    left, right = _factors(a, b, a_dims, b_dims, stack_axes, summed_axes)
    rows = [a.shape[axis] for axis in a_dims[stack_axes : a.ndim - summed_axes]]
    columns = [b.shape[axis] for axis in b_dims[stack_axes + summed_axes :]]
    return (left @ right).reshape((*left.shape[:stack_axes], *rows, *columns))


contract_axes = library(
    "contract_axes", ALL, shape=_contract_shape, arity=2, numpy=_contract, error=matrix_product_error,
    attributes=(("a_dims", ()), ("b_dims", ()), ("stack_axes", 0), ("summed_axes", 1)),
    contraction=("a_dims", "b_dims", "stack_axes", "summed_axes"),
    native=lambda given: native_ufuncs.product(lambda a, b: _factors(a, b, **given)),
    derivative=Multilinear(transposes.contract_axes),
    doc="Product of arrays over shared axes: operands whose axes are ordered as (stack, rows, summed) and "
    "(stack, summed, columns), with `stack_axes` and `summed_axes` of them.",
)  # fmt: skip


def _linear_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, weight = shapes[:2]
    if len(weight) not in (1, 2) or not a:
        raise ShapeError(f"linear: a weight with {len(weight)} axes", hint="the weight is (out, in) or (in,)")
    require(a[-1], "==", weight[-1], "inner extents differ: {left} and {right}", "the weight is (out, in)")
    if len(shapes) > 2 and len(weight) == 2:
        require(shapes[2][0], "==", weight[0], "bias has {left} elements, not {right}", "the bias is (out,)")
    return (*a[:-1], *weight[:-1])


def _linear(a: Any, weight: Any, bias: Any = None) -> Any:
    product = a @ weight.T
    return product if bias is None else product + bias


def _linear_slices(axis: int, shapes: Sequence[Shape], attributes: Attributes) -> dict[int, int | None]:
    return {0: axis} if axis < len(shapes[0]) - 1 else {0: None, 1: 0, 2: 0}


def _transposed(a: Any, weight: Any, bias: Any = None) -> tuple[Any, Any] | None:
    return (a, weight.T) if bias is None else None


linear = library(
    "linear", NUMBERS, shape=_linear_shape, slices=_linear_slices, numpy=_linear, arity=None, in_halves=True, product="ab'",
    error=matrix_product_error, into=linear_into, native=lambda given: native_ufuncs.product(_transposed),
    derivative=Tangent(tangents.linear), doc="a @ weight.T, plus bias where there is one.",
)  # fmt: skip


def _grouped_mm_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    a, b, offsets = shapes
    if {len(a), len(b)} - {2, 3} or len(a) == len(b) == 3 or len(offsets) != 1:
        raise ShapeError(
            f"grouped_mm: operands with {len(a)} and {len(b)} axes, offsets with {len(offsets)}",
            hint="give two matrices, or a matrix and a stack of them, and one offset a group",
        )
    require(
        a[-1],
        "==",
        b[-2],
        "inner extents differ: {left} and {right}",
        "the first operand needs as many columns as the second has rows",
    )
    if len(a) == len(b):
        return (offsets[0], a[0], b[1])
    stack = a if len(a) == 3 else b
    require(stack[0], "==", offsets[0], "{left} matrices and {right} offsets", "give one offset a group")
    return (a[-2], b[-1])


def _grouped_mm(a: Any, b: Any, offsets: Any) -> Any:
    """The offsets come to the host: where a group ends decides which product is asked for."""
    grouped = a.shape[-2] if a.ndim < b.ndim else b.shape[-1] if b.ndim < a.ndim else a.shape[-1]
    ends = [0, *offsets.astype(np.int64).tolist()]
    if sorted(ends) != ends or ends[-1] > grouped:
        raise IndexError(f"offsets {ends[1:]} are no ascending positions in an axis of {grouped} elements")
    outer = (len(ends) - 1,) if a.ndim == b.ndim else ()
    result = np.zeros_like(a, shape=(*outer, a.shape[-2], b.shape[-1]))
    for group, (start, end) in enumerate(itertools.pairwise(ends)):
        if a.ndim < b.ndim:
            result[start:end] = a[start:end] @ b[group]
        elif b.ndim < a.ndim:
            result[:, start:end] = a[group] @ b[:, start:end]
        else:
            result[group] = a[:, start:end] @ b[start:end]
    return result


grouped_mm = library(
    "grouped_mm", NUMBERS, shape=_grouped_mm_shape, numpy=_grouped_mm, arity=3, indices=(2,), in_halves=True,
    doc="Matrix products of groups: offsets say where each group of rows, columns or inner positions ends; 0 elsewhere.",
)  # fmt: skip
