"""Differentiable functions as expressions of NumPy, and the arrays that they read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.uniform(0.2, 0.9, (4, 4)) + 2 * np.eye(4)
ARRAYS: dict[str, Any] = {
    "x": RANDOM.uniform(0.2, 0.9, (3, 4)),
    "y": RANDOM.uniform(0.2, 0.9, (3, 4)),
    "v": RANDOM.uniform(0.2, 0.9, 4),
    "m": MATRIX,
    "s": MATRIX @ MATRIX.T,
    "i": np.array([2, 0, 2, 1]),
}

UNARY = (
    "sin cos tan exp log sqrt tanh arcsin arccos arctan sinh cosh arcsinh arctanh exp2 expm1 log2 log10 log1p square "
    "reciprocal abs floor ceil rint sign cbrt deg2rad sinc nan_to_num real"
)

SMOOTH = [
    *(f"np.{name}(x)" for name in UNARY.split()),
    "x + y", "x - y", "x * y", "x / y", "x ** y", "x ** 2", "x ** 3", "x ** -1.5", "2 ** x", "x % y", "x // y", "-x",
    "np.maximum(x, y)", "np.arctan2(x, y)", "np.hypot(x, y)", "np.logaddexp(x, y)", "np.where(x > .5, x, y)",
    "np.clip(x, .3, .6)", "np.copysign(x, -y)", "np.fmod(x, y)", "np.arccosh(1 + x)", "np.fmin(x, y)",
    "x.sum()", "x.sum(0)", "x.sum(1, keepdims=True)", "x.mean()", "x.mean(0)", "x.max()", "x.min(1)", "x.prod()",
    "x.prod(0)", "x.var()", "x.std(0)", "x.var(1, ddof=1)", "np.ptp(x)", "np.linalg.norm(x)", "np.nansum(x)",
    "np.linalg.norm(x, axis=1)", "np.average(x, weights=y)", "np.median(x)", "np.median(x, 1)", "np.nanmean(x, 0)",
    "np.cumsum(x)", "np.cumsum(x, 1)", "np.cumprod(x, 1)", "np.sort(x, 1)", "np.sort(x, axis=None)", "np.diff(x)",
    "np.gradient(x, axis=1)", "np.trapezoid(x)", "np.maximum.accumulate(x, 1)", "np.minimum.accumulate(x, 0)",
    "np.percentile(x, 30)", "np.quantile(x, .7, axis=1)", "np.sum(x, where=x > .4)", "np.corrcoef(x)", "np.cov(x)",
    "x.T", "x.reshape(2, 6)", "x[1:]", "x[:, ::2]", "x[::-1]", "x[1]", "x[None]", "x[..., 0]", "x[[0, 2], [1, 1]]",
    "x[i % 3]", "np.take(x, i, 1)", "np.take_along_axis(x, np.argsort(y, 1), 1)", "x[x > .5].sum()", "np.pad(x, 1)",
    "np.pad(x, ((0, 1), (2, 0)), mode='edge')", "np.roll(x, 1, 0)", "np.flip(x, 1)", "np.concatenate([x, y])",
    "np.stack([x, y], 1)", "np.broadcast_to(v, (3, 4))", "np.tile(x, (2, 1))", "np.repeat(x, 2, 1)", "np.triu(x)",
    "np.tril(x)", "np.diag(m)", "np.trace(m)", "np.squeeze(x[:1])", "np.moveaxis(x, 0, 1)", "np.outer(v, v)",
    "np.kron(v, v)", "np.diagonal(m)", "np.rot90(x)", "np.split(x, 2, 1)[1]",
    "np.lib.stride_tricks.sliding_window_view(v, 2)",
    "x @ y.T", "m @ v", "v @ m", "v @ v", "m @ m", "np.einsum('ij,kj->ik', x, y)", "np.einsum('ij,ij->i', x, y)",
    "np.inner(x, y)", "np.tensordot(x, y, ((0,), (0,)))", "np.cross(x[:, :3], y[:, :3])", "np.convolve(v, x[0])",
    "np.convolve(v, x[0, :3], 'same')", "np.correlate(v, x[0, :2])", "np.stack([m, m]) @ m", "np.stack([x, x]) @ m",
    "np.linalg.inv(m)", "np.linalg.det(m)", "np.linalg.solve(m, v)", "np.linalg.solve(m, x.T)",
    "np.linalg.slogdet(m)[1]", "np.linalg.eigvalsh(s + s.T)", "np.linalg.eigh(s + s.T)[0]",
    "np.linalg.cholesky(s + s.T)", "np.abs(np.linalg.eigh(s + s.T)[1])", "np.linalg.svd(m, compute_uv=False)",
    "np.abs(np.linalg.svd(m, full_matrices=False)[0])", "np.linalg.pinv(m)", "np.linalg.pinv(m[:, :3])",
    "np.linalg.qr(m)[1]",
    "np.linalg.qr(m)[0]", "np.linalg.matrix_power(m, 3)", "np.linalg.multi_dot([m, m, v])",
    "np.fft.fft(x).real", "np.abs(np.fft.fft(x, 6)) ** 2", "np.fft.ifft(x, 3, 0).imag", "np.fft.rfft(x).imag",
    "np.fft.irfft(np.fft.rfft(x) * 2)", "np.fft.irfft(np.fft.rfft(x, 5), 5, norm='ortho')", "np.fft.fft2(x).imag",
    "np.fft.irfftn(np.fft.rfftn(x) * (1 + 2j), (3, 5), (0, 1))", "np.fft.fftshift(x)", "np.abs(np.exp(1j * x) + y)",
    "np.angle(x + 1j * y)", "(x + 1j * y).conj().imag", "np.real((x + 1j * y) ** 2)", "np.sign(x + 1j * y).real",
    "np.interp(x, v.cumsum(), v)", "np.polyval(v, x)", "np.unwrap(v)",
    "np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)",
]  # fmt: skip
"""Functions whose derivatives central differences give, at these arrays."""

CONVENTIONS = [
    "np.maximum(x, x)", "np.minimum(x, .5)", "np.max(np.where(x > .5, 1, x))", "np.abs(x * 0)", "x ** 0",
    "(x * 0) ** 2",
    "np.prod(np.where(x > .8, 0, x), 1)", "np.prod(np.where(x > .5, 0, x))", "np.cumprod(np.where(x > .8, 0, x), 1)",
    "np.sqrt(x) * np.sign(x)", "np.clip(x, x, .6)", "np.where(x > .5, x, 0 * x)", "np.floor(x) + x",
    "np.linalg.cholesky(s)", "np.linalg.eigvalsh(s)",
]  # fmt: skip
"""Functions at points where conventions decide; compared with jax."""


def names_in(expression: str) -> list[str]:
    """The arrays of floats that an expression reads."""
    return [name for name in "xyvms" if re.search(rf"\b{name}\b", expression)]


def function_of(expression: str, numpy: Any = np) -> tuple[Any, list[Any]]:
    """The function of an expression, and its arguments."""
    names = names_in(expression)
    text = f"lambda {', '.join(names)}: {expression}"
    return eval(text, {"np": numpy, "i": ARRAYS["i"]}), [ARRAYS[name] for name in names]
