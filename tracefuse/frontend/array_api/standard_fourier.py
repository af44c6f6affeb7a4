"""The `fft` extension of the array API: NumPy's functions with the standard's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.frontend.array_api.standard_calls import standard
from tracefuse.frontend.array_api.standard_creation import fftfreq, rfftfreq

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip


def _along_axis(transform: Any) -> Callable[..., Any]:
    def along_axis(x: Any, /, *, n: Any = None, axis: int = -1, norm: str = "backward") -> Any:
        return transform(x, n=n, axis=axis, norm=norm)

    return _named(along_axis, transform)


def _over_axes(transform: Any) -> Callable[..., Any]:
    def over_axes(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return transform(x, s=s, axes=axes, norm=norm)

    return _named(over_axes, transform)


def _shifted(shift: Any) -> Callable[..., Any]:
    def shifted(x: Any, /, *, axes: Any = None) -> Any:
        return shift(x, axes=axes)

    return _named(shifted, shift)


def _named(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = original.__name__
    function.__doc__ = original.__doc__
    return standard(function, by_library=True)


fft, ifft = _along_axis(np.fft.fft), _along_axis(np.fft.ifft)
rfft, irfft = _along_axis(np.fft.rfft), _along_axis(np.fft.irfft)
hfft, ihfft = _along_axis(np.fft.hfft), _along_axis(np.fft.ihfft)
fftn, ifftn = _over_axes(np.fft.fftn), _over_axes(np.fft.ifftn)
rfftn, irfftn = _over_axes(np.fft.rfftn), _over_axes(np.fft.irfftn)
fftshift, ifftshift = _shifted(np.fft.fftshift), _shifted(np.fft.ifftshift)
