"""Differentiable functions as expressions of NumPy, and the arrays that they read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import scipy
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.special

import tracefuse as tf
from tracefuse.frontend.tracer.array_ops.recorded_ops import emit

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
    "np.linspace(x, y, 5)",
    "np.clip(x, .3, .6)", "np.copysign(x, -y)", "np.fmod(x, y)", "np.arccosh(1 + x)", "np.fmin(x, y)",
    "x.sum()", "x.sum(0)", "x.sum(1, keepdims=True)", "x.mean()", "x.mean(0)", "x.max()", "x.min(1)", "x.prod()",
    "x.prod(0)", "x.var()", "x.std(0)", "x.var(1, ddof=1)", "np.ptp(x)", "np.linalg.norm(x)", "np.nansum(x)",
    "np.linalg.norm(x, axis=1)", "np.average(x, weights=y)", "np.median(x)", "np.median(x, 1)", "np.nanmean(x, 0)",
    "np.cumsum(x)", "np.cumsum(x, 1)", "np.cumprod(x, 1)", "np.sort(x, 1)", "np.sort(x, axis=None)", "np.diff(x)",
    "np.gradient(x, axis=1)", "np.trapezoid(x)", "np.maximum.accumulate(x, 1)", "np.minimum.accumulate(x, 0)",
    "np.percentile(x, 30)", "np.quantile(x, .7, axis=1)", "np.sum(x, where=x > .4)", "np.corrcoef(x)", "np.cov(x)",
    "x.T", "x.reshape(2, 6)", "x[1:]", "x[:, ::2]", "x[::-1]", "x[1]", "x[None]", "x[..., 0]", "x[[0, 2], [1, 1]]",
    "x[i % 3]", "np.take(x, i, 1)", "np.take_along_axis(x, np.argsort(y, 1), 1)", "x[x > .5].sum()",
    "x[x > .3].max()", "np.pad(x, 1)",
    "np.pad(x, ((0, 1), (2, 0)), mode='edge')", "np.roll(x, 1, 0)", "np.flip(x, 1)", "np.concatenate([x, y])",
    "np.stack([x, y], 1)", "np.broadcast_to(v, (3, 4))", "np.tile(x, (2, 1))", "np.repeat(x, 2, 1)", "np.triu(x)",
    "np.tril(x)", "np.diag(m)", "np.trace(m)", "np.squeeze(x[:1])", "np.moveaxis(x, 0, 1)", "np.outer(v, v)",
    "np.kron(v, v)", "np.diagonal(m)", "np.rot90(x)", "np.split(x, 2, 1)[1]",
    "np.lib.stride_tricks.sliding_window_view(v, 2)",
    "x @ y.T", "m @ v", "v @ m", "v @ v", "m @ m", "np.einsum('ij,kj->ik', x, y)", "np.einsum('ij,ij->i', x, y)",
    "np.inner(x, y)", "np.tensordot(x, y, ((0,), (0,)))", "np.cross(x[:, :3], y[:, :3])", "np.convolve(v, x[0])",
    "np.convolve(np.tile(v, 4), np.tile(v, 3))", "np.correlate(np.tile(v, 4), np.tile(v, 3), 'same')",
    "np.convolve(v, x[0, :3], 'same')", "np.correlate(v, x[0, :2])", "np.stack([m, m]) @ m", "np.stack([x, x]) @ m",
    "np.linalg.inv(m)", "np.linalg.det(m)", "np.linalg.solve(m, v)", "np.linalg.solve(m, x.T)",
    "np.linalg.slogdet(m)[1]", "np.linalg.eigvalsh(s + s.T)", "np.linalg.eigh(s + s.T)[0]",
    "np.linalg.cholesky(s + s.T)", "np.abs(np.linalg.eigh(s + s.T)[1])", "np.linalg.svd(m, compute_uv=False)",
    "np.abs(np.linalg.svd(m, full_matrices=False)[0])", "np.linalg.pinv(m)", "np.linalg.pinv(m[:, :3])",
    "np.linalg.qr(m)[1]",
    "np.linalg.qr(m)[0]", "np.linalg.matrix_power(m, 3)", "np.linalg.multi_dot([m, m, v])",
    "np.fft.fft(x).real", "np.abs(np.fft.fft(x, 6)) ** 2", "np.fft.ifft(x, 3, 0).imag", "np.fft.rfft(x).imag",
    "np.fft.irfft(np.fft.rfft(x) * 2)", "np.fft.irfft(np.fft.rfft(x, 5), 5, norm='ortho')", "np.fft.fft2(x).imag",
    "np.fft.fftn(x).real", "np.fft.ifft2(x).imag", "np.fft.ifftn(x).imag", "np.fft.irfft2(np.fft.rfft2(x) ** 2)",
    "np.fft.irfftn(np.fft.rfftn(x) * (1 + 2j), (3, 5), (0, 1))", "np.fft.fftshift(x)", "np.abs(np.exp(1j * x) + y)",
    "np.angle(x + 1j * y)", "(x + 1j * y).conj().imag", "np.real((x + 1j * y) ** 2)", "np.sign(x + 1j * y).real",
    "np.interp(x, v.cumsum(), v)", "np.polyval(v, x)", "np.unwrap(v)",
    "np.linalg.norm(x, 'nuc')", "np.linalg.norm(x, 2)", "np.linalg.norm(x, -2)", "np.linalg.norm(x, 1)",
    "np.linalg.norm(m, np.inf, axis=(0, 1), keepdims=True)", "np.linalg.norm(x, 3, axis=1)", "np.linalg.cond(m)",
    "np.linalg.cond(m, -2)", "np.linalg.cond(m, 1)", "np.linalg.lstsq(m[:, :3], v)[0]",
    "np.linalg.lstsq(m[:, :3], x.T)[1]", "np.linalg.lstsq(m[:3], x[:, 0])[0]", "np.linalg.lstsq(m, v)[3]",
    "np.linalg.tensorinv(m.reshape(4, 2, 2), 1)", "np.linalg.tensorsolve(m.reshape(4, 2, 2), v)",
    "np.linalg.eigvals(m).real", "np.linalg.svdvals(x)",
    "((e := np.linalg.eig(m))[1] @ np.diag(e[0] ** 2) @ np.linalg.inv(e[1])).real", "np.linalg.matrix_norm(x)",
    "np.fft.hfft(x + 1j * y)", "np.fft.ihfft(x).imag", "np.fft.hfft(x, 5, 0, 'ortho')", "np.partition(x, 2, 1)",
    "np.nanmedian(np.where(y > .7, np.nan, x), 1)", "np.nanpercentile(np.where(y > .7, np.nan, x), 30)",
    "np.nanquantile(np.where(y > .7, np.nan, x), .3, axis=0, keepdims=True)", "np.polyfit(v.cumsum(), x.T, 2)",
    "np.polyfit(v.cumsum(), v, 1, w=x[0])", "np.bincount(i, v, minlength=4)", "np.bincount(i > 1, v, minlength=4)",
    "np.i0(x)", "np.where(i > 1, x, y)",
    "np.put_along_axis(z := x * 2, i[None] % 4, y[:1], 1) or z", "np.linalg.matrix_transpose(x)", "np.ldexp(x, i)",
    "np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)",
]  # fmt: skip
"""Functions whose derivatives central differences give, at these arrays."""

SCIPY = [
    "sp.erf(x)", "sp.erfc(x)", "sp.erfinv(x)", "sp.erfcinv(x)", "sp.gammaln(x * 4 - 1)", "sp.psi(x + 1)", "sp.ndtr(x)",
    "sp.xlogy(x, y)", "sp.xlog1py(x, y)", "sp.entr(x)", "sp.rel_entr(x, y)", "sp.kl_div(x, y)", "sp.logit(x)",
    "sp.expit(x)", "sp.log_expit(x)", "sp.logsumexp(x, 1)", "sp.softmax(x, 1)", "sp.log_softmax(x, 1)", "sp.gamma(x)",
    "sp.digamma(x)", "sp.beta(x, y)", "sp.betaln(x, y)", "sp.poch(x, y)",
    "sp.gammainc(1.5, x)", "sp.gammaincc(1.5, x)", "sp.betainc(1.5, 2.5, x)", "sp.i0(x)", "sp.i1(x)", "sp.i0e(x)",
    "sp.i1e(x)", "sp.iv(1.5, x)", "sp.ive(1.5, x)", "sp.j0(x)", "sp.j1(x)", "sp.jv(2.0, x)", "sp.y0(x)", "sp.y1(x)",
    "sp.yv(2.0, x)", "sp.k0(x)", "sp.k1(x)", "sp.kv(2.0, x)", "sp.erfcx(x)", "sp.erfi(x)", "sp.dawsn(x)", "sp.ndtri(x)",
    "sp.log_ndtr(x)", "sp.expi(x)", "sp.exp1(x)", "sp.expn(3, x)", "sp.exprel(x)", "sp.cosm1(x)", "sp.spence(x)",
    "sp.ellipk(x)", "sp.ellipe(x)", "sp.wrightomega(x)", "sp.boxcox(x, 1.5)", "sp.owens_t(x, y)", "sp.rgamma(x)",
    "scipy.fft.fft(x).real", "scipy.fft.irfft2(scipy.fft.rfft2(x) * 2, (3, 4))", "scipy.fft.ifftn(x + 1j * y).imag",
    "scipy.fft.hfft(x)", "scipy.fft.fft2(x).real", "scipy.fft.fftn(x, (3, 3)).real", "scipy.fft.ifft(x, axis=0).imag",
    "scipy.fft.ifft2(x).imag", "scipy.fft.irfft(scipy.fft.rfft(x))",
    "scipy.fft.irfftn(scipy.fft.rfftn(x) ** 2, (3, 4))",
    "scipy.fft.ihfft(x).imag",
    "scipy.fft.dct(x, norm='ortho') + scipy.fft.idct(x, 3, axis=0, norm='ortho')",
    "scipy.fft.dst(x, 4, norm='ortho') + scipy.fft.idst(x, norm='ortho')",
    "scipy.fft.dctn(x, norm='ortho') + scipy.fft.idctn(x, axes=(0,), norm='ortho')",
    "scipy.fft.dstn(x, norm='ortho') + scipy.fft.idstn(x, norm='ortho')",
    "scipy.linalg.solve(m, v)", "scipy.linalg.inv(m)", "scipy.linalg.det(m)", "scipy.linalg.cholesky(s + s.T)",
    "scipy.linalg.cho_solve(scipy.linalg.cho_factor(s + s.T), v)", "scipy.linalg.solve_triangular(m, v, lower=True)",
    "scipy.linalg.solve_triangular(m, v, trans=1)", "scipy.linalg.expm(m * .3)", "scipy.linalg.svdvals(m)",
    "scipy.linalg.eigh(s + s.T, eigvals_only=True)", "scipy.linalg.eigvalsh(s + s.T)", "scipy.linalg.pinv(m)",
    "scipy.linalg.qr(m, mode='economic')[1]", "scipy.linalg.lu(m)[1]", "scipy.linalg.lu(m)[2]",
    "np.abs(scipy.linalg.svd(m, full_matrices=False)[2])",
    "scipy.signal.convolve(x, y)", "scipy.signal.correlate(x, y, 'same')", "scipy.signal.fftconvolve(x, y[:2, :2])",
    "scipy.signal.fftconvolve(x, y[:2, :2], 'valid')", "scipy.signal.oaconvolve(x, y)",
    "scipy.ndimage.correlate1d(x, y[0, :3], 0, mode='mirror') + scipy.ndimage.convolve1d(x, y[:2, 0], mode='nearest')",
    "scipy.ndimage.correlate(x, y[:2, :2], mode='wrap') + scipy.ndimage.convolve(x, y[:2, :3], mode='constant')",
    "scipy.ndimage.gaussian_filter(x, .3) + scipy.ndimage.gaussian_filter1d(x, .4, order=1)",
    "scipy.ndimage.gaussian_laplace(x, .3) + scipy.ndimage.gaussian_gradient_magnitude(x, .3)",
    "scipy.ndimage.uniform_filter(x, (1, 2)) + scipy.ndimage.uniform_filter1d(x, 3, axis=0)",
    "scipy.ndimage.sobel(x) + scipy.ndimage.prewitt(x, 0) + scipy.ndimage.laplace(x)",
    "scipy.signal.lfilter(np.ones(2), np.array([1, .5]), x) + scipy.signal.detrend(x, axis=0)",
    "scipy.signal.sosfilt(np.array([[1, .5, .2, 1, .3, .1]]), x) + scipy.signal.hilbert(x, axis=0).imag",
]  # fmt: skip
"""The same, with functions of SciPy."""

OF_OPS = [
    "op('silu', x)", "op('softplus', x - .5)", "scipy.special.softplus(x)",
    "op('relu', x - .5)", "op('rsqrt', x)", "op('reciprocal', x)", "op('lerp', x, y, .3)",
    "op('addcmul', x, y, y, 2.)", "op('clamp', x, .3, .6)", "op('threshold', x, .5, .1)", "op('frac', x * 3)",
    "op('take', x, i[:2], dim=1)", "op('sum_of_squares', x, dims=(1,), keepdim=False)", "op('nextafter', x, y)",
    "op('sum_of_exponentials', x, dims=(1,), keepdim=False)", "op('linear', x, m, v)", "op('tril', x, diagonal=0)",
    "op('triu', x, diagonal=1)", "op('complex', x, y).real", "op('angle', op('complex', x, y))",
    "op('slice_scatter', x, y[:, :2], start_indices=(0, 1), end_indices=(3, 3), strides=(1, 1))",
    "op('diagonal', x, start_indices=(0, 1), end_indices=(2, 3), strides=(1, 1), dims=(0, 1))",
    "op('diagonal_scatter', x, y[0, :2], start_indices=(0, 1), end_indices=(2, 3), strides=(1, 1), dims=(0, 1))",
    "op('segment_set', x * 2)",
    "op('ordered_set', x * 2)",
    "op('index_put', x, i[1:3], y[:2], how='add')", "op('index_put_accumulate', x, i[:3], y)",
    "op('contract_axes', x, m, a_dims=(0, 1), b_dims=(0, 1))",
]  # fmt: skip
"""Ops by name that no function of NumPy above records."""

CONVENTIONS = [
    "np.maximum(x, x)", "np.minimum(x, .5)", "np.max(np.where(x > .5, 1, x))", "np.abs(x * 0)", "x ** 0",
    "(x * 0) ** 2",
    "np.prod(np.where(x > .8, 0, x), 1)", "np.prod(np.where(x > .5, 0, x))", "np.cumprod(np.where(x > .8, 0, x), 1)",
    "np.sqrt(x) * np.sign(x)", "np.clip(x, x, .6)", "np.where(x > .5, x, 0 * x)", "np.floor(x) + x",
    "np.linalg.cholesky(s)", "np.linalg.eigvalsh(s)",
]  # fmt: skip
"""Functions at points where conventions decide; compared with jax."""


def op(name: str, *operands: Any, **attributes: Any) -> Any:
    """Records an op by its name; computes it on arrays without a traced one."""
    traced = [one for one in operands if hasattr(one, "recorder")]
    if traced:
        return emit(traced[0].recorder, name, *operands, **attributes)
    return tf.fuse(lambda *given: emit(given[0].recorder, name, *given, **attributes))(*operands)


def names_in(expression: str) -> list[str]:
    """The arrays of floats that an expression reads."""
    return [name for name in "xyvms" if re.search(rf"\b{name}\b", expression)]


def function_of(expression: str, numpy: Any = np, place: Any = np.asarray) -> tuple[Any, list[Any]]:
    """The function of an expression, and its arguments. place: makes arrays that the function reads besides."""
    names = names_in(expression)
    text = f"lambda {', '.join(names)}: {expression}"
    known = {"np": numpy, "i": place(ARRAYS["i"]), "sp": scipy.special, "scipy": scipy, "op": op}
    return eval(text, known), [ARRAYS[name] for name in names]
