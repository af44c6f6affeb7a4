"""Fourier transforms along one or more axes, by NumPy's or CuPy's FFT.

An error grows with the logarithm of the number of elements, relative to the norm of what is transformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ShapeError
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.derivatives import Derivative, Equivalent, Linear
from tracefuse.ir.extents import Extent, floordiv
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import equivalent_expressions
from tracefuse.ops.families import register
from tracefuse.ops.fourier_transposes import complex_to_real, complex_transform, real_to_complex
from tracefuse.ops.native_ufuncs import NativeUfuncs, fourier
from tracefuse.ops.result_types import of_sample


def same_length(length: Extent) -> Extent:
    return length


def half_length(length: Extent) -> Extent:
    return floordiv(length, 2) + 1


def along_axis(default: Callable[[Extent], Extent], of_length: Callable[[Extent], Extent]) -> Any:
    """The shape rule of a transform along one axis.

    default: the transformed length for the extent of the axis. of_length: the extent of the result for that length.
    """

    def shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        result = list(shapes[0])
        axis = normalize_axis(attributes["axis"], len(result))
        length = default(result[axis]) if attributes["n"] is None else attributes["n"]
        require(1, "<=", length, "Invalid number of FFT data points ({right}) specified.", "transform at least one")
        result[axis] = of_length(length)
        return (tuple(result),)

    return shape


def transformed_axes(rank: int, attributes: Attributes) -> list[int]:
    """The axes of a transform along several axes: all, or as many of the last as `s` has entries."""
    axes, lengths = attributes["axes"], attributes["s"]
    if axes is None:
        axes = range(rank) if lengths is None else range(rank - len(lengths), rank)
    if lengths is not None and len(lengths) != len(axes):
        raise ShapeError("Shape and axes have different lengths.", hint="give one length for each axis")
    return [normalize_axis(axis, rank) for axis in axes]


def along_axes(default: Callable[[Extent], Extent], of_length: Callable[[Extent], Extent]) -> Any:
    """The shape rule of a transform along several axes. default, of_length: as above, for the last of them."""

    def shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        result = list(shapes[0])
        axes = transformed_axes(len(result), attributes)
        lengths = [None] * len(axes) if attributes["s"] is None else list(attributes["s"])
        for position, (axis, length) in enumerate(zip(axes, lengths, strict=True)):
            is_last = position == len(axes) - 1
            if length is None or length == -1:
                length = default(result[axis]) if is_last else result[axis]
            require(1, "<=", length, "Invalid number of FFT data points ({right}) specified.", "transform at least one")
            result[axis] = of_length(length) if is_last else length
        return (tuple(result),)

    return shape


def fourier_error(
    numpy: Callable[..., Any], operands: list[tuple[Any, Any]], attributes: Mapping[str, Any], unit: float
) -> Any:
    """Bounds each element by the sum of magnitudes, times the depth of the transform."""
    ((x, error),) = operands
    total = float(np.sum(np.abs(x) + error))
    depth = 4 * math.log2(max(x.size, 2)) + 8
    scale = float(np.max(np.abs(numpy(np.ones_like(x), **attributes)), initial=1.0)) / max(x.size, 1)
    return max(scale, 1.0) * 2 * (depth * unit * total + float(np.sum(error)))


_DERIVATIVES: dict[str, Derivative] = {
    **{f"fft{rank}": Linear(complex_transform("fft")) for rank in ("", "2", "n")},
    **{f"ifft{rank}": Linear(complex_transform("ifft")) for rank in ("", "2", "n")},
    **{f"rfft{rank}": Linear(real_to_complex) for rank in ("", "2", "n")},
    **{f"irfft{rank}": Linear(complex_to_real) for rank in ("", "2", "n")},
    "hfft": Equivalent(equivalent_expressions.hermitian_transform),
    "ihfft": Equivalent(equivalent_expressions.inverse_hermitian_transform),
}


def _native(name: str, attributes: Attributes) -> NativeUfuncs | None:
    """Returns a transform as passes of NumPy's ufuncs."""
    if "n" in attributes:
        return fourier(name, attributes["norm"], (attributes["axis"],), (attributes["n"],))
    axes, lengths = attributes["axes"], attributes["s"]
    return None if axes is None else fourier(name.rstrip("2n"), attributes["norm"], axes, lengths or ())


def _transform(name: str, shape: Any, attributes: tuple[tuple[str, Any], ...], doc: str) -> WholeArrayOp:
    function = getattr(np.fft, name)

    def sample(types: Sequence[Any], sampled: Attributes) -> Any:
        given = sampled.get("axes") if sampled.get("s") is None else sampled["s"]
        rank = 1 if "n" in sampled else 2 if given is None else len(given)
        along = {} if "n" in sampled else {"axes": tuple(range(rank))}
        return function(np.ones((2,) * rank, types[0]), norm=sampled["norm"], **along)

    op = WholeArrayOp(
        name=name, doc=doc, numpy=function, function=function, attributes=(*attributes, ("norm", None)), shape=shape,
        dtypes=of_sample(sample), raises=False, error=fourier_error, derivative=_DERIVATIVES[name],
        native=lambda given: _native(name, given),
    )  # fmt: skip
    return register(op)  # type: ignore[no-any-return]


def double_length(extent: Extent) -> Extent:
    return 2 * (extent - 1)


_ONE = (("n", None), ("axis", -1))
_ALL = (("s", None), ("axes", None))
_TWO = (("s", None), ("axes", (-2, -1)))

for _name, _default, _of_length, _doc in (
    ("fft", same_length, same_length, "The discrete Fourier transform"),
    ("ifft", same_length, same_length, "The inverse of `fft`"),
    ("rfft", same_length, half_length, "The Fourier transform of real numbers, its nonnegative frequencies only"),
    ("irfft", double_length, same_length, "The inverse of `rfft`"),
    ("hfft", double_length, same_length, "The Fourier transform of a signal that is Hermitian, from half of it"),
    ("ihfft", same_length, half_length, "The inverse of `hfft`"),
):  # fmt: skip
    _transform(_name, along_axis(_default, _of_length), _ONE, f"{_doc}, along `axis`, of length `n`.")
for _name, _default, _of_length, _doc in (
    ("fftn", same_length, same_length, "The Fourier transform along `axes`"),
    ("ifftn", same_length, same_length, "The inverse of `fftn`"),
    ("rfftn", same_length, half_length, "The Fourier transform of real numbers along `axes`, half of the last one"),
    ("irfftn", double_length, same_length, "The inverse of `rfftn`"),
):  # fmt: skip
    _transform(_name, along_axes(_default, _of_length), _ALL, f"{_doc}, of lengths `s`.")
    _transform(_name.replace("n", "2") if _name != "irfftn" else "irfft2", along_axes(_default, _of_length), _TWO,
               f"{_doc}, of lengths `s`, by default the last two axes.")  # fmt: skip
