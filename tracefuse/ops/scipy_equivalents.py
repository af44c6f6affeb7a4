"""Expressions of NumPy with the values of SciPy's functions, whose derivatives are those of the functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.ir.derivatives import Application, Derivative, Equivalent, Linear, Multilinear, Tangent
from tracefuse.ops import equivalent_expressions, fourier_transposes

Results = Sequence[Any]

# ---------------------------------------------------------------------------------------------------------------------
# scipy.fft


def _along_axis(name: str) -> Equivalent:
    def rule(node: Application) -> Results:
        attributes = node.attributes
        return (getattr(np.fft, name)(node.operands[0], attributes["n"], attributes["axis"], attributes["norm"]),)

    return Equivalent(rule)


def _along_axes(name: str) -> Equivalent:
    def rule(node: Application) -> Results:
        attributes, rank = node.attributes, len(node.shapes[0])
        axes, lengths = attributes["axes"], attributes["s"]
        if axes is None:
            axes = range(rank) if lengths is None else range(rank - len(lengths), rank)
        return (getattr(np.fft, name)(node.operands[0], lengths, tuple(axes), attributes["norm"]),)

    return Equivalent(rule)


# ---------------------------------------------------------------------------------------------------------------------
# scipy.linalg


def _swapped(a: Any) -> Any:
    return np.swapaxes(a, -2, -1)


def _solve(node: Application) -> Results:
    a, b = node.operands
    kind = node.attributes["assume_a"]
    node.require(kind in (None, "gen", "general"), f"assume_a={kind!r}", "leave assume_a out")
    return (np.linalg.solve(_swapped(a) if node.attributes["transposed"] else a, b),)


def _cholesky(node: Application) -> Results:
    return (np.linalg.cholesky(node.operands[0], upper=not node.attributes["lower"]),)


def _cho_factor(node: Application) -> Results:
    """The other triangle of the result is that of the operand."""
    (a,) = node.operands
    (factor,) = _cholesky(node)
    return (factor + np.triu(a, 1) if node.attributes["lower"] else factor + np.tril(a, -1),)


def _cho_solve(node: Application) -> Results:
    factor, b = node.operands
    lower = np.tril(factor) if node.attributes["lower"] else np.conj(_swapped(np.triu(factor)))
    return (np.linalg.solve(np.conj(_swapped(lower)), np.linalg.solve(lower, b)),)


def _solve_triangular(node: Application) -> Results:
    a, b = node.operands
    attributes = node.attributes
    node.require(not attributes["unit_diagonal"], "unit_diagonal=True", "write ones on the diagonal of the matrix")
    a = np.tril(a) if attributes["lower"] else np.triu(a)
    if attributes["trans"] in (1, "T", 2, "C"):
        a = _swapped(a)
    return (np.linalg.solve(np.conj(a) if attributes["trans"] in (2, "C") else a, b),)


def _svd(node: Application) -> Results:
    attributes = node.attributes
    result = np.linalg.svd(
        node.operands[0], full_matrices=attributes["full_matrices"], compute_uv=attributes["compute_uv"]
    )
    return tuple(result) if attributes["compute_uv"] else (result,)


def _eigh(node: Application) -> Results:
    triangle: Any = "L" if node.attributes["lower"] else "U"
    if node.attributes.get("eigvals_only", True):
        return (np.linalg.eigvalsh(node.operands[0], UPLO=triangle),)
    return tuple(np.linalg.eigh(node.operands[0], UPLO=triangle))


def _qr(node: Application) -> Results:
    attributes = node.attributes
    holds = attributes["mode"] == "economic" and not attributes["pivoting"]
    node.require(
        holds, f"mode={attributes['mode']!r}, pivoting={attributes['pivoting']}", "use mode='economic', no pivoting"
    )
    return tuple(np.linalg.qr(node.operands[0], mode="reduced"))


def _expm(node: Application, direction: Any, a: Any) -> Any:
    """The derivative of the exponential along a direction: a block of the exponential of twice the size."""
    zero = np.zeros_like(a)
    blocks = np.concatenate([np.concatenate([a, direction], -1), np.concatenate([zero, a], -1)], -2)
    size = a.shape[-1]
    return node.emit("scipy_linalg_expm", blocks)[..., :size, size:]


def _lu(node: Application, tangents: Sequence[Any]) -> Results:
    """Of square matrices; the permutation is constant."""
    node.require(not node.attributes["permute_l"], "permute_l=True", "multiply by the permutation")
    permutation, lower, upper = node.results
    inner = np.linalg.solve(lower, _swapped(permutation) @ tangents[0])
    inner = _swapped(np.linalg.solve(_swapped(upper), _swapped(inner)))
    return None, lower @ np.tril(inner, -1), np.triu(inner) @ upper


# ---------------------------------------------------------------------------------------------------------------------
# scipy.signal


def _reversed(x: Any) -> Any:
    return np.flip(x, tuple(range(len(x.extents))))


def _convolved(node: Application, first: Any, second: Any) -> Any:
    return node.emit("scipy_signal_oaconvolve", first, second, mode="full")


def _part(value: Any, starts: Sequence[Any], shape: Sequence[Any]) -> Any:
    sizes = value.recorder.sizes((*starts, *shape))
    rank = len(shape)
    return value[tuple(slice(k, k + size) for k, size in zip(sizes[:rank], sizes[rank:], strict=True))]


def _convolution(is_correlation: bool) -> Equivalent:
    """The complete convolution, cut to the requested part."""

    def rule(node: Application) -> Results:
        (first, second), mode = node.operands, node.attributes["mode"]
        if is_correlation:
            is_swapped = mode == "valid" and any(b != a for a, b in zip(*node.shapes, strict=True))
            node.require(not is_swapped, "mode='valid' of other extents", "use mode='full' and a slice")
            second = np.conj(_reversed(second)) if second.value.dtype.is_complex else _reversed(second)
        full = _convolved(node, first, second)
        if mode == "full":
            return (full,)
        shape = node.result_shapes[0]
        starts = [(extent - result) // 2 for extent, result in zip(full.extents, shape, strict=True)]
        return (_part(full, starts, shape),)

    return Equivalent(rule)


def _transposed_convolution(node: Application, cotangents: Sequence[Any]) -> Sequence[Any]:
    """The other operand, reversed, with the cotangent of the complete convolution."""
    mode = node.attributes["mode"]
    node.require(mode == "full", f"mode={mode!r}", "use mode='full' and a slice")
    first, second = node.operands
    results = []
    for operand, other, is_active in zip((first, second), (second, first), node.active, strict=True):
        starts = [extent - 1 for extent in other.extents]
        complete = _convolved(node, cotangents[0], _reversed(other)) if is_active else None
        results.append(None if complete is None else _part(complete, starts, operand.extents))
    return results


_CONVOLUTION, _CORRELATION = _convolution(False), _convolution(True)


def _of_one(function: Callable[[Any], Any]) -> Equivalent:
    return Equivalent(lambda node: (function(node.operands[0]),))


DERIVATIVES: dict[str, Derivative] = {
    **{f"fft.{name}": _along_axis(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{
        f"fft.{name}{rank}": _along_axes(f"{name}n")
        for name in ("fft", "ifft", "rfft", "irfft") for rank in ("n", "2")
    },
    **{
        f"fft.{name}": Linear(functools.partial(fourier_transposes.by_inverse, f"scipy_fft_{inverse}"))
        for forward in ("dct", "dst", "dctn", "dstn")
        for name, inverse in ((forward, f"i{forward}"), (f"i{forward}", forward))
    },
    "linalg.solve": Equivalent(_solve), "linalg.inv": _of_one(np.linalg.inv), "linalg.det": _of_one(np.linalg.det),
    "linalg.cholesky": Equivalent(_cholesky), "linalg.cho_factor": Equivalent(_cho_factor),
    "linalg.cho_solve": Equivalent(_cho_solve), "linalg.solve_triangular": Equivalent(_solve_triangular),
    "linalg.svd": Equivalent(_svd), "linalg.svdvals": _of_one(equivalent_expressions.singular_values),
    "linalg.eigh": Equivalent(_eigh), "linalg.eigvalsh": Equivalent(_eigh), "linalg.qr": Equivalent(_qr),
    "linalg.pinv": _of_one(np.linalg.pinv), "linalg.lu": Tangent(_lu),
    "linalg.expm": Tangent(
        lambda node, given: (_expm(node, given[0], node.operands[0]),),
        lambda node, given: (_expm(node, given[0], _swapped(node.operands[0])),),
    ),
    "signal.convolve": _CONVOLUTION, "signal.fftconvolve": _CONVOLUTION, "signal.correlate": _CORRELATION,
    "signal.oaconvolve": Multilinear(_transposed_convolution),
}  # fmt: skip
"""The derivative rules of functions of SciPy, by path."""
