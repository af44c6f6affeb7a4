"""Expressions of NumPy with the values of SciPy's linear filters, whose derivatives are those of the filters.

A filter of images is a sum of shifted copies of the extended array; recursive filters are their own transpose in
reversed time.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.ir.derivatives import Application, Derivative, Equivalent, Linear, Tangent

Results = Sequence[Any]

MOST_TAPS = 400
"""The elements of a kernel up to which a filter is a sum of shifted arrays."""
_PAD_MODES = {
    "reflect": "symmetric", "grid-mirror": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap",
    "grid-wrap": "wrap", "constant": "constant", "grid-constant": "constant",
}  # fmt: skip
"""The mode of np.pad that extends an array as a mode of SciPy's filters does."""

# ---------------------------------------------------------------------------------------------------------------------
# scipy.ndimage


def _for_axes(given: Any, axes: Sequence[int]) -> list[Any]:
    """Returns the value of a parameter for each axis, which may be one for all."""
    return list(given) if isinstance(given, (tuple, list)) else [given] * len(axes)


def _extended(node: Application, x: Any, widths: Sequence[tuple[int, int]], modes: Sequence[Any]) -> Any:
    for axis, (width, mode) in enumerate(zip(widths, modes, strict=True)):
        if any(width):
            inside = [width if k == axis else (0, 0) for k in range(len(widths))]
            named = {"constant_values": node.attributes["cval"]} if "constant" in mode else {}
            x = np.pad(x, inside, _PAD_MODES[mode], **named)  # type: ignore[call-overload]
    return x


def _correlated(
    node: Application, x: Any, taps: Sequence[tuple[tuple[int, ...], Any]], sizes: Sequence[int],
    origins: Sequence[int], modes: Sequence[Any],
) -> Any:  # fmt: skip
    """Returns the sum of the array shifted by each tap's place in the kernel, times the tap.

    sizes: of the kernel. origins, modes: for each axis.
    """
    node.require(len(taps) <= MOST_TAPS, f"{len(taps)} weights", f"use a kernel of at most {MOST_TAPS}")
    before = [size // 2 + origin for size, origin in zip(sizes, origins, strict=True)]
    widths = [(low, size - 1 - low) for low, size in zip(before, sizes, strict=True)]
    wide, shape = _extended(node, x, widths, modes), x.shape
    result: Any = 0
    for place, tap in taps:
        shifted = wide[tuple(slice(start, start + extent) for start, extent in zip(place, shape, strict=True))]
        result = result + shifted * tap
    return result


def _along(node: Application, x: Any, weights: Sequence[Any], axis: int, origin: int = 0, mode: Any = None) -> Any:
    """Correlates along one axis. weights: numbers or traced values."""
    rank = len(x.extents)
    places = [tuple(k if one == axis % rank else 0 for one in range(rank)) for k in range(len(weights))]
    taps = [
        (place, weight)
        for place, weight in zip(places, weights, strict=True)
        if not isinstance(weight, float) or weight != 0
    ]
    sizes = [len(weights) if one == axis % rank else 1 for one in range(rank)]
    origins = [origin if one == axis % rank else 0 for one in range(rank)]
    return _correlated(node, x, taps, sizes, origins, [mode or node.attributes["mode"]] * rank)


def _with_weights(is_convolution: bool, is_of_axis: bool) -> Equivalent:
    """The correlation or convolution with a kernel, an operand."""

    def rule(node: Application) -> Results:
        (x, weights), given = node.operands, node.attributes
        node.require(given.get("axes") is None, f"axes={given.get('axes')}", "leave axes out")
        rank = len(node.shapes[0])
        sizes = list(map(int, weights.shape))  # the trace is for kernels of these extents
        origins = _for_axes(given["origin"], sizes)
        modes = _for_axes(given["mode"], range(rank))
        if is_convolution:
            weights = np.flip(weights)
            origins = [-origin - (size % 2 == 0) for origin, size in zip(origins, sizes, strict=True)]
        if is_of_axis:
            return (_along(node, x, [weights[k] for k in range(sizes[0])], given["axis"], origins[0], modes[0]),)
        taps = [(place, weights[place]) for place in itertools.product(*map(range, sizes))]
        return (_correlated(node, x, taps, sizes, origins, modes),)

    return Equivalent(rule)


def _gaussian_weights(sigma: float, order: int, truncate: float, radius: int | None) -> list[float]:
    """The weights of a Gaussian filter: its response to an impulse, reversed."""
    reach = int(truncate * float(sigma) + 0.5) if radius is None else int(radius)
    impulse = np.zeros(2 * reach + 1)
    impulse[reach] = 1
    filtered = importlib.import_module("scipy.ndimage").gaussian_filter1d(
        impulse, sigma, order=order, mode="constant", truncate=truncate, radius=radius
    )
    return [float(weight) for weight in filtered[::-1]]


def _gaussian(node: Application, x: Any, order: Any) -> Any:
    given, rank = node.attributes, len(node.shapes[0])
    axes = [axis % rank for axis in given["axes"]] if given["axes"] is not None else list(range(rank))
    parameters = [_for_axes(one, axes) for one in (given["sigma"], order, given["mode"], given.get("radius"))]
    for axis, sigma, one_order, mode, radius in zip(axes, *parameters, strict=True):
        if sigma > 1e-15:
            weights = _gaussian_weights(sigma, one_order, given.get("truncate", 4.0), radius)
            x = _along(node, x, weights, axis, 0, mode)
    return x


def _gaussian_filter(node: Application) -> Results:
    return (_gaussian(node, node.operands[0], node.attributes["order"]),)


def _gaussian_filter_of_axis(node: Application) -> Results:
    given = node.attributes
    weights = _gaussian_weights(given["sigma"], given["order"], given["truncate"], given["radius"])
    return (_along(node, node.operands[0], weights, given["axis"]),)


def _gaussian_derivatives(node: Application, order: int) -> list[Any]:
    """The Gaussian filter of an order along one axis, for each axis."""
    count = len(node.shapes[0] if node.attributes["axes"] is None else node.attributes["axes"])
    orders = [tuple(order if k == axis else 0 for k in range(count)) for axis in range(count)]
    return [_gaussian(node, node.operands[0], one) for one in orders]


def _gaussian_laplace(node: Application) -> Results:
    return (functools.reduce(lambda a, b: a + b, _gaussian_derivatives(node, 2)),)


def _gaussian_gradient_magnitude(node: Application) -> Results:
    squares = [one * one for one in _gaussian_derivatives(node, 1)]
    return (np.sqrt(functools.reduce(lambda a, b: a + b, squares)),)


def _uniform_filter(node: Application) -> Results:
    given, x, rank = node.attributes, node.operands[0], len(node.shapes[0])
    axes = [axis % rank for axis in given["axes"]] if given["axes"] is not None else list(range(rank))
    parameters = [_for_axes(given[name], axes) for name in ("size", "origin", "mode")]
    for axis, size, origin, mode in zip(axes, *parameters, strict=True):
        if size > 1:
            x = _along(node, x, [1 / size] * size, axis, origin, mode)
    return (x,)


def _uniform_filter_of_axis(node: Application) -> Results:
    given = node.attributes
    return (_along(node, node.operands[0], [1 / given["size"]] * given["size"], given["axis"], given["origin"]),)


def _edges(smooth: Sequence[float]) -> Equivalent:
    """A difference along `axis`, smoothed along the others."""

    def rule(node: Application) -> Results:
        x, rank = node.operands[0], len(node.shapes[0])
        axis = node.attributes["axis"] % rank
        modes = _for_axes(node.attributes["mode"], range(rank))
        x = _along(node, x, [-1.0, 0.0, 1.0], axis, 0, modes[axis])
        for other in range(rank):
            if other != axis:
                x = _along(node, x, smooth, other, 0, modes[other])
        return (x,)

    return Equivalent(rule)


def _laplace(node: Application) -> Results:
    given, x, rank = node.attributes, node.operands[0], len(node.shapes[0])
    axes = [axis % rank for axis in given["axes"]] if given["axes"] is not None else list(range(rank))
    modes = _for_axes(given["mode"], axes)
    terms = [_along(node, x, [1.0, -2.0, 1.0], axis, 0, mode) for axis, mode in zip(axes, modes, strict=True)]
    return (functools.reduce(lambda a, b: a + b, terms),)


# ---------------------------------------------------------------------------------------------------------------------
# scipy.signal


def _recursive(name: str) -> Tangent:
    """A filter that is linear in its last operand; in reversed time it is its transpose."""

    def filtered(node: Application, signal: Any) -> Any:
        node.require(not any(node.active[:-1]), "coefficients with a derivative", "compute the coefficients outside")
        return node.emit(f"scipy_signal_{name}", *node.operands[:-1], signal, axis=node.attributes["axis"])

    def transposed(node: Application, given: Results) -> Results:
        axis = node.attributes["axis"]
        result = np.flip(filtered(node, np.flip(given[0], axis)), axis)
        return [*[None] * (len(node.operands) - 1), result]

    return Tangent(lambda node, given: (filtered(node, given[-1]),), transposed)


def _detrend(node: Application, given: Results) -> Results:
    """A projection, which is symmetric."""
    return (node.emit("scipy_signal_detrend", given[0], **node.attributes),)


def _hilbert(node: Application) -> Results:
    """The positive frequencies, doubled."""
    (x,), given = node.operands, node.attributes
    axis = given["axis"] % len(node.shapes[0])
    count = x.shape[axis] if given["N"] is None else given["N"]
    twice = 2 * np.arange(count)
    weights = np.where(twice == 0, 1.0, np.where(twice < count, 2.0, np.where(twice == count, 1.0, 0.0)))
    along = weights.reshape(tuple(-1 if k == axis else 1 for k in range(len(node.shapes[0]))))
    return (np.fft.ifft(np.fft.fft(x, count, axis) * along, axis=axis),)


def _of(rule: Callable[[Application], Results]) -> Equivalent:
    return Equivalent(rule)


DERIVATIVES: dict[str, Derivative] = {
    "ndimage.correlate": _with_weights(False, False), "ndimage.convolve": _with_weights(True, False),
    "ndimage.correlate1d": _with_weights(False, True), "ndimage.convolve1d": _with_weights(True, True),
    "ndimage.gaussian_filter": _of(_gaussian_filter), "ndimage.gaussian_filter1d": _of(_gaussian_filter_of_axis),
    "ndimage.gaussian_laplace": _of(_gaussian_laplace),
    "ndimage.gaussian_gradient_magnitude": _of(_gaussian_gradient_magnitude),
    "ndimage.uniform_filter": _of(_uniform_filter), "ndimage.uniform_filter1d": _of(_uniform_filter_of_axis),
    "ndimage.sobel": _edges([1.0, 2.0, 1.0]), "ndimage.prewitt": _edges([1.0, 1.0, 1.0]),
    "ndimage.laplace": _of(_laplace), "signal.lfilter": _recursive("lfilter"),
    "signal.sosfilt": _recursive("sosfilt"), "signal.detrend": Linear(_detrend), "signal.hilbert": _of(_hilbert),
}  # fmt: skip
"""The derivative rules of linear filters, by path."""
