"""Splits products of stacks of matrices into calls of a BLAS library for column-major matrices (GEMM).

A call multiplies a batch of matrices whose addresses are a fixed distance apart. Axes that lie in memory like one axis
are joined. For row-major arrays, a call swaps the operands: the transposed product of the transposed operands is the
product of the arrays.

Must not know: arrays, devices, segments, plans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace

Axes: TypeAlias = list[tuple[int, ...]]
"""The extent of each axis, and its stride in elements in each array that has it."""


@dataclass(frozen=True, slots=True)
class ProductForm:
    """The axes of a product of two arrays.

    left_order, right_order: the order of each operand's axes, as (stack, rows, terms) and (stack, terms, columns).
    rows, terms, columns: how many axes these are. The stacks broadcast. The result has the axes (stack, rows, columns).
    """

    left_order: tuple[int, ...]
    right_order: tuple[int, ...]
    rows: int
    terms: int
    columns: int

    @property
    def stacks(self) -> tuple[int, int]:
        """The number of axes of each operand's stack."""
        return len(self.left_order) - self.rows - self.terms, len(self.right_order) - self.terms - self.columns

    def result_shape(self, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the product of arrays of these shapes."""
        a, b = [left[axis] for axis in self.left_order], [right[axis] for axis in self.right_order]
        stack = _broadcast(a[: self.stacks[0]], b[: self.stacks[1]])
        rows, columns = a[self.stacks[0] : len(a) - self.terms], b[self.stacks[1] + self.terms :]
        return (*stack, *rows, *columns)


def matmul_form(left: int, right: int, transposed: bool) -> ProductForm:
    """Returns the form of NumPy's matmul of arrays with so many axes.

    transposed: the last two axes of the second are. Stacks of rows that meet one matrix are rows of one product.
    """
    left_order, right_order = tuple(range(left)), tuple(range(right))
    if transposed and right > 1:
        right_order = (*right_order[:-2], right - 1, right - 2)
    rows = left - 1 if right < 3 else min(left, 2) - 1
    return ProductForm(left_order, right_order, rows, 1, min(right, 2) - 1)


@dataclass(frozen=True, slots=True)
class GemmCall:
    """A batch of `count` products of m x k by k x n matrices.

    left, right: whether the library transposes the operand, its leading dimension, and the distance between matrices.
    row_length, distance: those of the result. offsets: of both operands and the result. All are in elements.
    """

    m: int
    n: int
    k: int
    left: tuple[bool, int, int]
    right: tuple[bool, int, int]
    count: int
    row_length: int
    distance: int
    offsets: tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a C-contiguous array, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def gemm_calls(
    form: ProductForm, left: Sequence[int], right: Sequence[int], left_strides: Sequence[int],
    right_strides: Sequence[int],
) -> list[GemmCall] | None:  # fmt: skip
    """Returns the calls that compute a product into a C-contiguous array, None if the library does not support it.

    left, right: the shapes. All strides are in elements. A product without elements needs no call. Sums without terms
    need calls with k = 0.
    """
    if 0 in form.result_shape(left, right):
        return []
    batch = first_batch(form, left, right, left_strides, right_strides)
    if batch is None:
        return None
    first, axes = batch
    return [
        replace(
            first, offsets=tuple(sum(i * axis[1 + k] for i, axis in zip(place, axes, strict=True)) for k in range(3))
        )
        for place in itertools.product(*(range(axis[0]) for axis in axes))
    ]


def first_batch(
    form: ProductForm, left: Sequence[int], right: Sequence[int], left_strides: Sequence[int],
    right_strides: Sequence[int],
) -> tuple[GemmCall, Axes] | None:  # fmt: skip
    """Returns the first call of a product, and the axes along which it is repeated: all but the longest of the stack.

    The parameters are those of `gemm_calls`, and so are the products that are not supported. The extents must be
    positive.
    """
    result = form.result_shape(left, right)
    a = [(left[axis], left_strides[axis]) for axis in form.left_order]
    b = [(right[axis], right_strides[axis]) for axis in form.right_order]
    own = contiguous_strides(result)
    left_stack, right_stack = form.stacks
    depth = len(result) - form.rows - form.columns
    right_terms, right_columns = b[right_stack : right_stack + form.terms], b[right_stack + form.terms :]
    terms = _joined([(e, s, t) for (e, s), (_, t) in zip(a[len(a) - form.terms :], right_terms, strict=True)])
    rows = _joined([(*axis, o) for axis, o in zip(a[left_stack:], own[depth : depth + form.rows], strict=False)])
    columns = _joined([(*axis, o) for axis, o in zip(right_columns, own[depth + form.rows :], strict=True)])
    strides = (_stack_strides(a[:left_stack], depth), _stack_strides(b[:right_stack], depth), own)
    stack = [*zip(result, *strides, strict=False)]
    k, left_term, right_term = terms.pop() if terms else (1, 1, 1)
    m, left_row, row_length = rows.pop() if rows else (1, 1, 1)
    n, right_column, column = columns.pop() if columns else (1, 1, 1)
    axes = _joined([*stack, *((e, s, 0, o) for e, s, o in rows), *((e, 0, t, o) for e, t, o in columns)])
    layouts = _layout(m, k, left_row, left_term), _layout(k, n, right_term, right_column)
    if terms or layouts[0] is None or layouts[1] is None or column != 1 or any(s < 0 for _, *x in axes for s in x):
        return None
    longest = max(range(len(axes)), key=lambda position: axes[position][0], default=None)
    count, left_distance, right_distance, distance = (1, 0, 0, 0) if longest is None else axes.pop(longest)
    operands = (*layouts[0], left_distance), (*layouts[1], right_distance)
    return GemmCall(m, n, k, *operands, count, max(row_length, n), distance, (0, 0, 0)), axes


def _broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    depth = max(len(left), len(right))
    a, b = [1] * (depth - len(left)) + [*left], [1] * (depth - len(right)) + [*right]
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _stack_strides(axes: Sequence[tuple[int, int]], depth: int) -> list[int]:
    """Returns the strides of an operand along a stack of `depth` axes; axes that broadcast have stride 0."""
    return [0] * (depth - len(axes)) + [0 if extent == 1 else stride for extent, stride in axes]


def _joined(axes: Sequence[tuple[int, ...]]) -> Axes:
    """Returns the axes without those of extent 1, and with neighbours joined that lie like one axis in every array."""
    joined: Axes = []
    for extent, *strides in axes:
        if extent == 1:
            continue
        if joined and joined[-1][1:] == tuple(extent * stride for stride in strides):
            joined[-1] = (joined[-1][0] * extent, *strides)
        else:
            joined.append((extent, *strides))
    return joined


def _layout(rows: int, columns: int, row_stride: int, column_stride: int) -> tuple[bool, int] | None:
    """Returns whether a library of column-major matrices transposes a row-major one, and its leading dimension.

    It reads the transposed matrix: rows that are contiguous need no transposition. None for unsupported strides.
    """
    if (columns == 1 or column_stride == 1) and (rows == 1 or row_stride >= columns):
        return False, max(columns, row_stride if rows > 1 else 1)
    if (rows == 1 or row_stride == 1) and (columns == 1 or column_stride >= rows):
        return True, max(rows, column_stride if columns > 1 else 1)
    return None
