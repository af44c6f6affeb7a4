"""Calls of every function of the array API that computes, and NumPy's answer to each.

A call takes the namespace and arrays of one shape; `reference` is NumPy under the names and parameters of the standard.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

Call = Callable[..., Any]


class Calls(NamedTuple):
    """Calls for arrays of some kinds of types, of a least number of axes, and with elements if `filled`."""

    kinds: str
    calls: dict[str, Call]
    least_axes: int = 0
    filled: bool = False


ALL, NUMBERS, REAL, FLOATS, COMPLEX, INTEGERS, BITS, TRUTHS = "biufc", "iufc", "iuf", "fc", "c", "iu", "biu", "b"


def _by_name(names: str, call: Callable[[Any], Call]) -> dict[str, Call]:
    return {name: call(name) for name in names.split()}


def _of_one(names: str) -> dict[str, Call]:
    return _by_name(names, lambda name: lambda n, x, y: getattr(n, name)(x))


def _of_two(names: str) -> dict[str, Call]:
    return _by_name(names, lambda name: lambda n, x, y: getattr(n, name)(x, y))


def _reduced(names: str) -> dict[str, Call]:
    return {
        **_of_one(names),
        **{f"{name} keepdims": lambda n, x, y, f=name: getattr(n, f)(x, keepdims=True) for name in names.split()},
    }


def _along(names: str) -> dict[str, Call]:
    return {f"{name} axis": lambda n, x, y, f=name: getattr(n, f)(x, axis=-1) for name in names.split()}


ELEMENTWISE = (
    Calls(ALL, _of_one("isfinite isinf isnan real logical_not") | _of_two("equal not_equal logical_and logical_or")),
    Calls(ALL, _of_two("logical_xor less less_equal greater greater_equal maximum minimum")),
    Calls(NUMBERS, _of_one("abs conj imag negative positive sign square") | _of_two("add multiply subtract")),
    Calls(REAL, _of_one("ceil floor trunc round") | _of_two("floor_divide remainder")),
    Calls(FLOATS, _of_one("""
        acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 reciprocal sin sinh sqrt tan tanh
    """) | _of_two("divide pow")),
    Calls("f", _of_one("signbit") | _of_two("atan2 copysign hypot logaddexp nextafter")),
    Calls(BITS, _of_one("bitwise_invert") | _of_two("bitwise_and bitwise_or bitwise_xor")),
    Calls(INTEGERS, {
        "bitwise_left_shift": lambda n, x, y: n.bitwise_left_shift(x, abs(y) % 5),
        "bitwise_right_shift": lambda n, x, y: n.bitwise_right_shift(x, abs(y) % 5),
    }),
    Calls(REAL, {
        "clip": lambda n, x, y: n.clip(x, 1, 3), "clip min": lambda n, x, y: n.clip(x, min=2),
        "clip max": lambda n, x, y: n.clip(x, max=y), "clip none": lambda n, x, y: n.clip(x),
        "clip beyond": lambda n, x, y: n.clip(x, -(2**40), 2**40),
        "clip array": lambda n, x, y: n.clip(x, y, n.astype(y + 1, x.dtype)),
    }),
    Calls(ALL, {
        "where": lambda n, x, y: n.where(x != 0, x, y), "where scalar": lambda n, x, y: n.where(x != 0, x, 1),
        "astype float": lambda n, x, y: n.astype(n.real(x), np.float64),
        "astype same": lambda n, x, y: n.astype(x, x.dtype, copy=False),
        "full_like": lambda n, x, y: n.full_like(x, 1), "zeros_like": lambda n, x, y: n.zeros_like(x),
        "ones_like": lambda n, x, y: n.ones_like(x, dtype=np.int16),
    }),
)  # fmt: skip

REDUCTIONS = (
    Calls(ALL, _reduced("all any count_nonzero")),
    Calls(ALL, _along("all any count_nonzero"), 1),
    Calls(NUMBERS, _reduced("sum prod")), Calls(NUMBERS, _along("sum prod"), 1),
    Calls(NUMBERS, _along("cumulative_sum cumulative_prod"), 1),
    Calls(NUMBERS, {
        "cumulative_sum initial": lambda n, x, y: n.cumulative_sum(x, axis=0, include_initial=True),
        "cumulative_prod initial": lambda n, x, y: n.cumulative_prod(x, axis=0, include_initial=True),
        "diff": lambda n, x, y: n.diff(x), "diff twice": lambda n, x, y: n.diff(x, axis=0, n=2, prepend=y),
    }, 1),
    Calls(NUMBERS, _reduced("max min"), 0, True), Calls(NUMBERS, _along("max min"), 1, True),
    Calls(FLOATS, _reduced("mean std var"), 0, True), Calls(FLOATS, _along("mean std var"), 1, True),
    Calls(FLOATS, {"std correction": lambda n, x, y: n.std(x, axis=-1, correction=0.5)}, 1, True),
    Calls(REAL, _of_one("argmax argmin") | _along("argmax argmin"), 1, True),
)  # fmt: skip

MOVEMENT = (
    Calls(ALL, {
        "broadcast_arrays": lambda n, x, y: n.broadcast_arrays(x, y),
        "broadcast_to": lambda n, x, y: n.broadcast_to(x, (2, *x.shape)),
        "concat": lambda n, x, y: n.concat([x, y], axis=None), "expand_dims": lambda n, x, y: n.expand_dims(x, axis=0),
        "flip": lambda n, x, y: n.flip(x), "reshape": lambda n, x, y: n.reshape(x, (-1,)),
        "roll": lambda n, x, y: n.roll(x, 2), "squeeze": lambda n, x, y: n.squeeze(n.expand_dims(x, axis=0), axis=0),
        "stack": lambda n, x, y: n.stack([x, y]), "tile": lambda n, x, y: n.tile(x, (2, 1)),
        "permute_dims": lambda n, x, y: n.permute_dims(x, tuple(range(x.ndim))[::-1]),
        "unstack": lambda n, x, y: n.unstack(n.stack([x, y])),
        "meshgrid": lambda n, x, y: n.meshgrid(n.reshape(x, (-1,)), n.reshape(y, (-1,)), indexing="ij"),
    }),
    Calls(ALL, {
        "concat axis": lambda n, x, y: n.concat([x, y], axis=-1), "moveaxis": lambda n, x, y: n.moveaxis(x, 0, -1),
        "repeat": lambda n, x, y: n.repeat(x, 3, axis=0), "roll axis": lambda n, x, y: n.roll(x, -1, axis=0),
        "flip axis": lambda n, x, y: n.flip(x, axis=-1), "stack axis": lambda n, x, y: n.stack([x, y], axis=-1),
    }, 1),
    Calls(ALL, {
        "take": lambda n, x, y: n.take(x, n.asarray([0, 0, -1]), axis=0),
        "take_along_axis": lambda n, x, y: n.take_along_axis(x, n.zeros(x.shape, dtype=np.int64), axis=-1),
    }, 1, True),
    Calls(ALL, {
        "matrix_transpose": lambda n, x, y: n.matrix_transpose(x), "tril": lambda n, x, y: n.tril(x, k=-1),
        "triu": lambda n, x, y: n.triu(x, k=1), "linalg.diagonal": lambda n, x, y: n.linalg.diagonal(x, offset=1),
        "linalg.matrix_transpose": lambda n, x, y: n.linalg.matrix_transpose(x),
    }, 2),
)  # fmt: skip

ORDER = (
    Calls(REAL, {
        "sort": lambda n, x, y: n.sort(x), "sort descending": lambda n, x, y: n.sort(x, axis=0, descending=True),
        "argsort": lambda n, x, y: n.argsort(x), "sort unstable": lambda n, x, y: n.sort(x, stable=False),
        "argsort descending": lambda n, x, y: n.argsort(x, axis=0, descending=True),
        "searchsorted": lambda n, x, y: n.searchsorted(n.sort(n.reshape(x, (-1,))), n.reshape(y, (-1,)), side="right"),
    }, 1),
    Calls(ALL, {"isin": lambda n, x, y: n.isin(x, y), "isin not": lambda n, x, y: n.isin(x, y, invert=True)}),
    Calls(COMPLEX, {"sort": lambda n, x, y: n.sort(x), "sort down": lambda n, x, y: n.sort(x, descending=True)}, 1),
)  # fmt: skip

DATA_DECIDED = (
    Calls(ALL, _by_name("unique_all unique_counts unique_inverse", lambda f: lambda n, x, y: getattr(n, f)(x))),
    Calls(ALL, {"unique_values": lambda n, x, y: n.sort(n.unique_values(x))}),
    Calls(ALL, {"nonzero": lambda n, x, y: n.nonzero(x)}, 1),
)

PRODUCTS = (
    Calls(NUMBERS, {
        "matmul": lambda n, x, y: n.matmul(n.matrix_transpose(x), y), "vecdot": lambda n, x, y: n.vecdot(x, y),
        "tensordot": lambda n, x, y: n.tensordot(x, y, axes=((0,), (0,))),
        "linalg.trace": lambda n, x, y: n.linalg.trace(x),
        "linalg.matmul": lambda n, x, y: n.linalg.matmul(x, n.linalg.matrix_transpose(y)),
        "linalg.vecdot": lambda n, x, y: n.linalg.vecdot(x, y, axis=0),
        "linalg.tensordot": lambda n, x, y: n.linalg.tensordot(x, y),
        "linalg.outer": lambda n, x, y: n.linalg.outer(n.reshape(x, (-1,)), n.reshape(y, (-1,))),
        "linalg.cross": lambda n, x, y: n.linalg.cross(n.stack([x, y, x + y]), n.stack([y, x, x]), axis=0),
    }, 2),
)  # fmt: skip


def _square(n: Any, x: Any) -> Any:
    """A positive definite matrix."""
    return n.matmul(n.conj(n.matrix_transpose(x)), x) + n.eye(x.shape[-1], dtype=x.dtype) * 4


LINEAR_ALGEBRA = (
    Calls(FLOATS, {
        "cholesky": lambda n, x, y: n.linalg.cholesky(_square(n, x)),
        "cholesky upper": lambda n, x, y: n.linalg.cholesky(_square(n, x), upper=True),
        "det": lambda n, x, y: n.linalg.det(_square(n, x)), "slogdet": lambda n, x, y: n.linalg.slogdet(_square(n, x)),
        "eigvalsh": lambda n, x, y: n.linalg.eigvalsh(_square(n, x)),
        "eigvals": lambda n, x, y: n.abs(n.linalg.eigvals(_square(n, x))),
        "eig": lambda n, x, y: n.sort(n.real(n.linalg.eig(_square(n, x)).eigenvalues)),
        "eigh": lambda n, x, y: n.abs(n.linalg.eigh(_square(n, x)).eigenvectors),
        "inv": lambda n, x, y: n.linalg.inv(_square(n, x)),
        "matrix_norm": lambda n, x, y: n.linalg.matrix_norm(x),
        "matrix_norm nuc": lambda n, x, y: n.linalg.matrix_norm(x, ord="nuc", keepdims=True),
        "matrix_power": lambda n, x, y: n.linalg.matrix_power(_square(n, x), 3),
        "matrix_rank": lambda n, x, y: n.linalg.matrix_rank(x),
        "matrix_rank rtol": lambda n, x, y: n.linalg.matrix_rank(x, rtol=0.5),
        "pinv": lambda n, x, y: n.linalg.pinv(x), "pinv rtol": lambda n, x, y: n.linalg.pinv(x, rtol=1e-3),
        "qr": lambda n, x, y: n.linalg.qr(x), "qr complete": lambda n, x, y: n.linalg.qr(x, mode="complete").Q,
        "solve": lambda n, x, y: n.linalg.solve(_square(n, x), n.matrix_transpose(y)),
        "svd": lambda n, x, y: n.linalg.svd(x).S,
        "svd reduced": lambda n, x, y: n.abs(n.linalg.svd(x, full_matrices=False).S),
        "svdvals": lambda n, x, y: n.linalg.svdvals(x), "vector_norm": lambda n, x, y: n.linalg.vector_norm(x),
        "vector_norm axis": lambda n, x, y: n.linalg.vector_norm(x, axis=(0,), ord=3, keepdims=True),
    }, 2, True),
)  # fmt: skip


def _transforms(names: str, real: str) -> dict[str, Call]:
    """Transforms of complex arrays, and those of the real part."""
    return {
        **_by_name(names, lambda f: lambda n, x, y: getattr(n.fft, f)(x)),
        **_by_name(real, lambda f: lambda n, x, y: getattr(n.fft, f)(n.real(x))),
    }


FOURIER = (
    Calls(COMPLEX, _transforms("fft ifft fftn ifftn irfft irfftn hfft fftshift ifftshift", "rfft rfftn ihfft") | {
        "fft n": lambda n, x, y: n.fft.fft(x, n=5, axis=0, norm="ortho"),
        "irfft n": lambda n, x, y: n.fft.irfft(x, n=6, norm="forward"),
        "fftn axes": lambda n, x, y: n.fft.fftn(x, s=(4,), axes=(0,)),
        "fftfreq": lambda n, x, y: n.real(x) + n.fft.fftfreq(3, d=0.5, dtype=np.float32),
        "rfftfreq": lambda n, x, y: n.real(x) + n.fft.rfftfreq(4),
    }, 1, True),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# the reference


def _sort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    ordered = np.sort(x, axis=axis)
    return np.flip(ordered, axis=axis) if descending else ordered


def _argsort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return np.argsort(-x.astype(np.float64) if descending else x, axis=axis, kind="stable")


def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    result = x.copy() if min is None else np.where(x < min, np.asarray(min), x)
    return (result if max is None else np.where(result > max, np.asarray(max), result)).astype(x.dtype)


def _count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.asarray(np.count_nonzero(x, axis=axis, keepdims=keepdims))


def _fftfreq(n: int, d: float = 1.0, dtype: Any = np.float64) -> Any:
    return np.fft.fftfreq(n, d).astype(dtype)


def _complex(x: Any) -> Any:
    return x.astype(np.result_type(x.dtype, np.complex64))


def _eig(x: Any) -> Any:
    result = np.linalg.eig(x)
    return type(result)(*map(_complex, result))


_LINALG = {
    **vars(np.linalg), "eig": _eig, "eigvals": lambda x: _complex(np.linalg.eigvals(x)),
    "pinv": lambda x, rtol=None: np.linalg.pinv(x, rtol=rtol),
}  # fmt: skip
reference = SimpleNamespace(**{
    **vars(np), "sort": _sort, "argsort": _argsort, "clip": _clip, "count_nonzero": _count_nonzero,
    "linalg": SimpleNamespace(**_LINALG), "fft": SimpleNamespace(**{**vars(np.fft), "fftfreq": _fftfreq}),
})  # fmt: skip
