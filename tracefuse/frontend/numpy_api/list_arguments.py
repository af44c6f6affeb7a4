"""Functions of arrays whose argument is a list that holds traced values, as in `np.max([a, b])`.

NumPy looks for traced values among the arguments and not inside of these lists, so its functions are replaced in the
clone that a trace runs; see `creation`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.traced_ops import as_traced

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    np.sum, np.prod, np.max, np.min, np.amax, np.amin, np.mean, np.std, np.var, np.median, np.any, np.all, np.argmax,
    np.argmin, np.cumsum, np.cumprod, np.ptp, np.average, np.count_nonzero, np.sort, np.argsort, np.diff, np.round,
    np.clip, np.dot, np.inner, np.outer, np.ravel, np.transpose, np.tile, np.roll, np.flip, np.diag, np.diagflat,
    np.trace, np.tril, np.triu, np.repeat, np.reshape, np.squeeze, np.expand_dims, np.moveaxis, np.swapaxes,
    np.broadcast_to, np.vdot, np.cross, np.kron, np.tensordot, np.gradient, np.ediff1d, np.percentile, np.quantile,
    np.nansum, np.nanmax, np.nanmin, np.nanmean, np.nanstd, np.interp, np.polyval, np.searchsorted, np.digitize,
    np.convolve, np.correlate, np.cov, np.corrcoef, np.allclose, np.array_equal, np.isclose, np.histogram,
    np.linalg.norm, np.linalg.det, np.linalg.inv, np.linalg.solve, np.linalg.eigvalsh, np.linalg.eigh, np.linalg.svd,
    np.linalg.pinv, np.linalg.lstsq, np.linalg.cholesky, np.linalg.matrix_rank, np.linalg.qr, np.linalg.matrix_power,
    np.linalg.eig, np.linalg.eigvals, np.linalg.slogdet, np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft,
)  # fmt: skip

_OF_ONE_ARRAY = frozenset({
    np.sum, np.prod, np.max, np.min, np.amax, np.amin, np.mean, np.std, np.var, np.median, np.any, np.all, np.argmax,
    np.argmin, np.cumsum, np.cumprod, np.ptp, np.sort, np.argsort, np.diff, np.round, np.ravel, np.transpose, np.tile,
    np.roll, np.flip, np.diag, np.diagflat, np.trace, np.tril, np.triu, np.reshape, np.squeeze, np.expand_dims,
    np.moveaxis, np.swapaxes, np.broadcast_to, np.nansum, np.nanmax, np.nanmin, np.nanmean, np.nanstd,
    np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft,
})  # fmt: skip
"""Functions whose second parameter is no array: a shape, axes, counts, a size."""


def _holds_traced(values: Any) -> bool:
    """Whether nested lists hold traced values; sizes alone are numbers of a shape."""
    waiting = [values] if isinstance(values, (list, tuple)) else []
    while waiting:
        for value in waiting.pop():
            if isinstance(value, Traced):
                return True
            if isinstance(value, (list, tuple)):
                waiting.append(value)
    return False


def _taking_lists(original: Callable[..., Any]) -> Callable[..., Any]:
    taken = 1 if original in _OF_ONE_ARRAY else 2

    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        if any(map(_holds_traced, arguments[:taken])):
            arguments = (*(as_traced(a) if _holds_traced(a) else a for a in arguments[:taken]), *arguments[taken:])
        return original(*arguments, **keywords)

    functools.update_wrapper(call, original, assigned=("__name__", "__doc__", "__module__"))
    return call


TAKING_LISTS: dict[int, Callable[..., Any]] = {id(function): _taking_lists(function) for function in _FUNCTIONS}
"""Functions that stack such lists, by the id of NumPy's function that each replaces."""
