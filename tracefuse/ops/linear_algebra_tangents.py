"""Tangents of linear algebra, as Giles (2008), "Collected matrix derivative results", gives them.

Where a function reads one triangle of a symmetric matrix, its derivative is that of the symmetric part, as in JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.ir.derivatives import Application

Tangents = Sequence[Any]


def _adjoint(node: Application, value: Any) -> Any:
    rank = len(value.extents)
    swapped = node.emit("permute", value, dims=(*range(rank - 2), rank - 1, rank - 2))
    return node.emit("conj", swapped) if value.value.dtype.is_complex else swapped


def _product(node: Application, *factors: Any) -> Any:
    result = factors[0]
    for factor in factors[1:]:
        result = node.emit("matmul", result, factor)
    return result


def _axis(node: Application, value: Any, position: int) -> Any:
    """Inserts an axis of extent 1 at a position counted from the end of the result."""
    rank = len(value.extents) + 1
    return node.emit("broadcast", value, is_broadcast_dim=tuple(k == rank + position for k in range(rank)))


def _diagonal(node: Application, value: Any) -> Any:
    """The main diagonal of each square matrix."""
    rows, columns = _indices(node, value)
    masked = node.emit("where", rows == columns, value, 0)
    return node.emit("sum", masked, dims=(len(value.extents) - 1,), keepdim=False)


def _indices(node: Application, value: Any) -> tuple[Any, Any]:
    rows, columns = value.extents[-2:]
    return (
        node.emit("broadcast", node.emit("iota", 0, 1, length=rows), is_broadcast_dim=(False, True)),
        node.emit("broadcast", node.emit("iota", 0, 1, length=columns), is_broadcast_dim=(True, False)),
    )


def _symmetric(node: Application, tangent: Any) -> Any:
    return (tangent + _adjoint(node, tangent)) * 0.5


def _real(node: Application, value: Any) -> Any:
    return node.emit("real", value) if value.value.dtype.is_complex else value


def inv(node: Application, tangents: Tangents) -> Tangents:
    (inverse,) = node.results
    return (-_product(node, inverse, tangents[0], inverse),)


def _trace_of_solution(node: Application, tangent: Any) -> Any:
    solution = node.emit("solve", node.operands[0], tangent)
    diagonal = _diagonal(node, solution)
    return node.emit("sum", diagonal, dims=(len(diagonal.extents) - 1,), keepdim=False)


def det(node: Application, tangents: Tangents) -> Tangents:
    return (node.results[0] * _trace_of_solution(node, tangents[0]),)


def slogdet(node: Application, tangents: Tangents) -> Tangents:
    trace = _trace_of_solution(node, tangents[0])
    if not trace.value.dtype.is_complex:
        return (None, trace)
    turn = node.emit("imag", trace)
    return (node.results[0] * node.emit("complex", turn * 0, turn), node.emit("real", trace))


def solve(node: Application, tangents: Tangents) -> Tangents:
    a, (x,) = node.operands[0], node.results
    right = tangents[1]
    if tangents[0] is not None:
        change = node.emit("matmul", tangents[0], x)
        right = -change if right is None else right - change
    if len(node.shapes[1]) == 1 and len(right.extents) > 1:  # a stack of matrices with one vector of right sides
        return (node.emit("squeeze", node.emit("solve", a, _axis(node, right, -1)), dims=(len(right.extents),)),)
    return (node.emit("solve", a, right),)


def solve_transpose(node: Application, tangents: Sequence[Any]) -> Sequence[Any]:
    """The cotangent of b solves the transposed equations; that of a is its product with the solution, negated."""
    (a, _), (x,), (cotangent,) = node.operands, node.results, tangents
    is_vector = len(node.shapes[1]) == 1
    rank = len(a.extents)
    swapped = node.emit("permute", a, dims=(*range(rank - 2), rank - 1, rank - 2))
    columns = _axis(node, cotangent, -1) if is_vector else cotangent
    of_b = node.emit("solve", swapped, columns)
    of_a = None
    if node.active[0]:
        solution = _axis(node, x, -1) if is_vector else x
        depth = len(solution.extents)
        turned = node.emit("permute", solution, dims=(*range(depth - 2), depth - 1, depth - 2))
        of_a = node.sum_to(-node.emit("matmul", of_b, turned), node.shapes[0])
    if not node.active[1]:
        return of_a, None
    if is_vector:
        of_b = node.emit("squeeze", of_b, dims=(len(of_b.extents) - 1,))
    return of_a, node.sum_to(of_b, node.shapes[1])


def cholesky(node: Application, tangents: Tangents) -> Tangents:
    (factor,) = node.results
    is_upper = node.attributes["upper"]
    lower = _adjoint(node, factor) if is_upper else factor
    inner = node.emit("solve", lower, _symmetric(node, tangents[0]))
    inner = _adjoint(node, node.emit("solve", lower, _adjoint(node, inner)))
    rows, columns = _indices(node, inner)
    share = node.emit("where", rows > columns, inner, node.emit("where", rows == columns, inner * 0.5, 0))
    tangent = node.emit("matmul", lower, share)
    return (_adjoint(node, tangent) if is_upper else tangent,)


def eigh(node: Application, tangents: Tangents) -> Tangents:
    values, vectors = node.results
    inner = _product(node, _adjoint(node, vectors), _symmetric(node, tangents[0]), vectors)
    rows, columns = _indices(node, inner)
    gaps = _axis(node, values, -2) - _axis(node, values, -1)
    weights = node.emit("where", rows == columns, 0, 1 / node.emit("where", rows == columns, 1, gaps))
    return _real(node, _diagonal(node, inner)), node.emit("matmul", vectors, weights * inner)


def eigvalsh(node: Application, tangents: Tangents) -> Tangents:
    _, vectors = node.emit("eigh", node.operands[0], UPLO=node.attributes["UPLO"])
    inner = _product(node, _adjoint(node, vectors), _symmetric(node, tangents[0]), vectors)
    return (_real(node, _diagonal(node, inner)),)


def _turned(node: Application, tangent: Any, vectors: Any) -> Any:
    """The change of a matrix in the basis of its eigenvectors."""
    return node.emit("solve", vectors, node.emit("matmul", tangent, vectors))


def eigvals(node: Application, tangents: Tangents) -> Tangents:
    _, vectors = node.emit("eig", node.operands[0])
    return (_diagonal(node, _turned(node, tangents[0], vectors)),)


def eig(node: Application, tangents: Tangents) -> Tangents:
    """Of different eigenvalues. As in JAX, the change of a vector has no part along the vector itself."""
    values, vectors = node.results
    inner = _turned(node, tangents[0], vectors)
    rows, columns = _indices(node, inner)
    gaps = _axis(node, values, -2) - _axis(node, values, -1)
    weights = node.emit("where", rows == columns, 0, 1 / node.emit("where", rows == columns, 1, gaps))
    return _diagonal(node, inner), node.emit("matmul", vectors, weights * inner)


def _singular_values(node: Application, tangent: Any) -> Any:
    """The tangent of the singular values: the diagonal of the change in the bases of the vectors."""
    left, _, right = node.emit("svd", node.operands[0], full_matrices=False, compute_uv=True, hermitian=False)
    turned = node.emit("matmul", tangent, _adjoint(node, right))
    rank = len(turned.extents)
    along = node.emit("conj", left) * turned if turned.value.dtype.is_complex else left * turned
    return _real(node, node.emit("sum", along, dims=(rank - 2,), keepdim=False))


def svdvals(node: Application, tangents: Tangents) -> Tangents:
    return (_singular_values(node, tangents[0]),)


def svd(node: Application, tangents: Tangents) -> Tangents:
    """Of the reduced decomposition; that of the complete bases is not determined."""
    if not node.attributes["compute_uv"]:
        return (_singular_values(node, tangents[0]),)
    node.require(not node.attributes["full_matrices"], "full_matrices=True", "pass full_matrices=False")
    (left, values, right), (tangent,) = node.results, tangents
    columns = _adjoint(node, right)
    inner = _product(node, _adjoint(node, left), tangent, columns)
    rows, places = _indices(node, inner)
    across, along = _axis(node, values, -2), _axis(node, values, -1)
    is_same = rows == places
    squares = node.emit("where", is_same, 1, across * across - along * along)
    weights = node.emit("where", is_same, 0, 1 / squares)
    of_left = weights * (inner * across + along * _adjoint(node, inner))
    of_right = weights * (along * inner + _adjoint(node, inner) * across)
    new_left, new_right = node.emit("matmul", left, of_left), node.emit("matmul", columns, of_right)
    rest = tangent - _product(node, left, _adjoint(node, left), tangent)
    new_left = new_left + node.emit("matmul", rest, columns) / across
    turned = _adjoint(node, tangent)
    rest = turned - _product(node, columns, _adjoint(node, columns), turned)
    new_right = new_right + node.emit("matmul", rest, left) / across
    return new_left, _real(node, _diagonal(node, inner)), _adjoint(node, new_right)


def qr(node: Application, tangents: Tangents) -> Tangents:
    """Of the reduced factors of a matrix with at least as many rows as columns."""
    node.require(node.attributes["mode"] == "reduced", f"mode={node.attributes['mode']!r}", "use mode='reduced'")
    (tangent,), (orthogonal, triangular) = tangents, node.results
    scaled = _adjoint(node, node.emit("solve", _adjoint(node, triangular), _adjoint(node, tangent)))
    inner = node.emit("matmul", _adjoint(node, orthogonal), scaled)
    below = node.emit("tril", inner, diagonal=-1)
    turn = below - _adjoint(node, below)
    return (
        node.emit("matmul", orthogonal, turn - inner) + scaled, node.emit("matmul", inner - turn, triangular),
    )  # fmt: skip


def pinv(node: Application, tangents: Tangents) -> Tangents:
    (a,), (inverse,), (tangent,) = node.operands, node.results, tangents
    adjoint, of_inverse = _adjoint(node, tangent), _adjoint(node, inverse)
    first = _product(node, inverse, of_inverse, adjoint)
    second = _product(node, adjoint, of_inverse, inverse)
    return (
        -_product(node, inverse, tangent, inverse) + first - _product(node, first, a, inverse)
        + second - _product(node, inverse, a, second),
    )  # fmt: skip
