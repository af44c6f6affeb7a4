"""Rules of factorizations and triangular solutions: of matrices of a few rows by elementwise steps, else by a library.

A library call costs more than such a matrix takes, and a loop with one in its steps cannot be compiled as a driver.
The steps are those of LAPACK: partial pivoting, and NaN where a matrix is not positive definite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import int32, int64
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.jax_api.movement_primitives import as_tensor
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted
from tracefuse.ir.extents import Extent

MOST_ROWS = 4
"""The rows of matrices that are factored or solved elementwise."""


def _small_size(e: Equation) -> int | None:
    """Returns the rows of the square matrices in the first operand; None if they are many, or of a symbolic number."""
    rows, columns = e.extents(e.operands[0].shape)[-2:]
    return rows if isinstance(rows, int) and rows == columns and 0 < rows <= MOST_ROWS else None


class _Matrices:
    """Emits ops on stacks of matrices of `rank` axes; rows and columns are the last two."""

    def __init__(self, e: Equation, rank: int) -> None:
        self.e, self.rank = e, rank

    def block(self, x: Any, rows: tuple[int, Extent] | None, columns: tuple[int, Extent] | None) -> Any:
        """The rows and the columns from a first to before a last one; None for all."""
        extents = x.extents
        starts, ends = [0] * self.rank, list(extents)
        for axis, part in ((self.rank - 2, rows), (self.rank - 1, columns)):
            if part is not None:
                starts[axis], ends[axis] = part
        return self.e.emit("slice", x, start_indices=tuple(starts), end_indices=tuple(ends), strides=(1,) * self.rank)

    def row(self, x: Any, k: int) -> Any:
        return self.block(x, (k, k + 1), None)

    def column(self, x: Any, k: int) -> Any:
        return self.block(x, None, (k, k + 1))

    def element(self, x: Any, i: int, k: int) -> Any:
        return self.block(x, (i, i + 1), (k, k + 1))

    def numbers(self, count: Extent, axis: int) -> Any:
        """0, 1, ... along the rows (-2) or the columns (-1)."""
        flags = tuple(k != self.rank + axis for k in range(self.rank))
        return self.e.emit("broadcast", self.e.emit("iota", 0, 1, length=count), is_broadcast_dim=flags)

    def conjugate(self, x: Any) -> Any:
        return self.e.emit("conj", x) if x.value.dtype.is_complex else x

    def transposed(self, x: Any) -> Any:
        return self.e.emit("permute", x, dims=(*range(self.rank - 2), self.rank - 1, self.rank - 2))


@primitive("cholesky")
def _cholesky(e: Equation) -> Any:
    """Right-looking: each column is divided by the root of its pivot, and its square is subtracted from the rest."""
    a = as_tensor(e.inputs[0])
    rank, count = len(a.extents), _small_size(e)
    if count is None:
        return e.by_libraries()
    m = _Matrices(e, rank)
    result, is_positive = None, None
    i, k = m.numbers(count, -2), m.numbers(count, -1)
    for j in range(count):
        pivot = m.element(a, j, j)
        pivot = e.emit("real", pivot) if pivot.value.dtype.is_complex else pivot
        holds = e.emit("gt", pivot, 0)
        is_positive = holds if is_positive is None else is_positive & holds
        column = e.emit("div", m.column(a, j), e.emit("sqrt", pivot))
        column = e.emit("where", i >= j, column, _zero(a))
        a = e.emit("sub", a, e.emit("mul", column, m.conjugate(m.transposed(column)))) if j < count - 1 else a
        result = e.emit("where", k == j, column, _zero(a) if result is None else result)
    return e.emit("where", is_positive, result, a.value.dtype.numpy.type(np.nan))


def _zero(x: Any) -> Any:
    return x.value.dtype.numpy.type(0)


@primitive("lu")
def _lu(e: Equation) -> Any:
    """LU with partial pivoting of square matrices: the factors, the pivots and the permutation of rows."""
    a = as_tensor(e.inputs[0])
    rank, count = len(a.extents), _small_size(e)
    if count is None:
        return e.by_libraries()
    m = _Matrices(e, rank)
    i, k = m.numbers(count, -2), m.numbers(count, -1)
    order = e.emit("expand", i, shape=(*a.extents[:-1], 1))
    pivots = []
    for j in range(count):
        size = _size(e, m.column(a, j))
        chosen = e.emit(
            "argmax", e.emit("where", i >= j, size, size.value.dtype.numpy.type(-1)), dims=(rank - 2,), keepdim=True
        )
        chosen = e.emit("cast", chosen, dtype=int64)
        exchanged = e.emit("where", i == j, chosen, e.emit("where", e.emit("eq", i, chosen), j, i))
        pivots.append(chosen)
        if j < count - 1:
            order = e.emit("take_along_axis", order, exchanged, dim=rank - 2)
            rows = e.emit("expand", exchanged, shape=a.extents)
            a = e.emit("take_along_axis", a, rows, dim=rank - 2)
        pivot = m.element(a, j, j)
        column = m.column(a, j)
        column = e.emit("where", e.emit("eq", pivot, 0), column, e.emit("div", column, pivot))
        rest = e.emit("sub", a, e.emit("mul", column, m.row(a, j)))
        below = i > j
        a = e.emit("where", below & (k > j), rest, e.emit("where", below & (k == j), column, a))
    stack = a.extents[:-2]
    positions = e.emit("cat", *pivots, dim=rank - 2) if count > 1 else pivots[0]
    flat = [
        e.emit("reshape", array, new_shape=(*stack, count), groups=(), inferable=()) for array in (positions, order)
    ]
    return [a, *(converted(e.recorder, array, int32) for array in flat)]


def _size(e: Equation, x: Any) -> Any:
    """The size by which LAPACK chooses a pivot: |re| + |im|."""
    if not x.value.dtype.is_complex:
        return e.emit("abs", x)
    return e.emit("add", e.emit("abs", e.emit("real", x)), e.emit("abs", e.emit("imag", x)))


@primitive("triangular_solve")
def _triangular_solve(e: Equation) -> Any:
    """Substitution, row by row: x with op(a) @ x == b, or x @ op(a) == b."""
    a, b = map(as_tensor, e.inputs)
    rank, count = len(a.extents), _small_size(e)
    if count is None:
        return e.by_libraries()
    m, parameters = _Matrices(e, rank), e.parameters
    from_left, is_lower = bool(parameters["left_side"]), bool(parameters["lower"])
    a = m.conjugate(a) if parameters["conjugate_a"] else a
    is_transposed = bool(parameters["transpose_a"]) is from_left
    at: Callable[[int, int], Any] = (
        (lambda i, k: m.element(a, k, i)) if is_transposed else (lambda i, k: m.element(a, i, k))
    )
    part = m.row if from_left else m.column
    order = range(count) if is_lower is not is_transposed else range(count)[::-1]
    solved: dict[int, Any] = {}
    for i in order:
        total = part(b, i)
        for k, known in solved.items():
            total = e.emit("sub", total, e.emit("mul", at(i, k), known))
        solved[i] = total if parameters["unit_diagonal"] else e.emit("div", total, at(i, i))
    return e.emit("cat", *(solved[i] for i in range(count)), dim=rank - 2 if from_left else rank - 1)
