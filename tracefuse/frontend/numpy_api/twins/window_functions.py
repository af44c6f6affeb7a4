"""NumPy's window functions of a size, which stays symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constant
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import iota
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import holds_traced


def _cosines(*factors: float) -> Callable[..., Any]:
    """A window that is the sum of factors times cosines of 0, 1, ... half turns from end to end."""

    def window(recorder: Recorder, count: Any) -> Any:
        places = iota(recorder, 1 - count, 2, count, dtypes.float64)
        total: Any = factors[0]
        for turns, factor in enumerate(factors[1:], 1):
            total = total + factor * np.cos(turns * math.pi * places / (count - 1))
        return total

    return window


def _triangle(recorder: Recorder, count: Any) -> Any:
    places = iota(recorder, 1 - count, 2, count, dtypes.float64)
    return np.where(places <= 0, 1 + places / (count - 1), 1 - places / (count - 1))


def _bessel(recorder: Recorder, count: Any, beta: Any) -> Any:
    middle = (count - 1) / 2.0
    places = iota(recorder, 0, 1, count, dtypes.float64)
    return np.i0(beta * np.sqrt(1 - ((places - middle) / middle) ** 2.0)) / np.i0(beta)


WINDOWS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    np.hanning: _cosines(0.5, 0.5), np.hamming: _cosines(0.54, 0.46), np.blackman: _cosines(0.42, 0.5, 0.08),
    np.bartlett: _triangle, np.kaiser: _bessel,
}  # fmt: skip
"""What records each window of more than one element."""


def recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what records a window for a size, or for a number of the call; other windows are constants."""

    def window(recorder: Recorder, M: Any, *parameters: Any) -> Any:
        count = as_size(M)
        if (isinstance(count, SymbolicSize) or holds_traced(parameters)) and count > 1:
            return WINDOWS[original](recorder, count, *parameters)
        return recorded_constant(recorder, original(M, *parameters))

    return window
