"""Describes arrays of any library by their attributes: shape, strides, dtype, contiguity and stride order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, data_type_of
from tracefuse.errors import DtypeError, ShapeError, shown
from tracefuse.runtime.devices.arrays import dtype_of_array, entering, kind_of
from tracefuse.runtime.devices.shape_dtype import FOREIGN

# Relative and absolute tolerances, for results of a few hundred operations on numbers near 1.
_TOLERANCES = {
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float32": 1e-4,
    "float64": 1e-9,
    "complex64": 1e-4,
    "complex128": 1e-9,
}


def assert_close(actual: Any, expected: Any, dtype: DType, name: str, bound: Any = None) -> None:
    """Raises AssertionError if two arrays differ by more than a tolerance.

    bound: the largest error of each element; where it is None or infinite, the tolerance of `dtype` counts.
    """
    comparable = np.dtype(np.float64) if dtype.is_floating else dtype.numpy
    tolerance = _TOLERANCES.get(dtype.name, 0.0)
    try:
        computed, wanted = (on_host(array).astype(comparable) for array in (actual, expected))
    except (TypeError, ValueError):
        raise DtypeError(
            f"validate: reference_outputs cannot hold {shown(expected)}", hint=f"give an array for {name}"
        ) from None
    if bound is None or not (dtype.is_floating or dtype.is_complex) or computed.shape != wanted.shape:
        np.testing.assert_allclose(computed, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=name)
        return
    with np.errstate(all="ignore"):
        fallback = tolerance * (1 + np.abs(wanted))
        allowed = np.where(np.isfinite(bound), bound, fallback)
        near = (np.abs(computed - wanted) <= allowed) | (computed == wanted) | (np.isnan(computed) & np.isnan(wanted))
    if not np.all(near):
        place = tuple(int(axis) for axis in np.argwhere(~near)[0])
        limit = np.broadcast_to(allowed, near.shape)[place]
        raise AssertionError(
            f"{name}: {np.count_nonzero(~near)} of {near.size} differ by more than the error bound; at {place} "
            f"it is {computed[place]}, the reference {wanted[place]}, the bound {limit:.3g}"
        )


def on_host(array: Any) -> Any:
    """Returns an array of any library as a NumPy array."""
    kind = kind_of(array)
    if kind in FOREIGN:
        array = entering(kind)(array.detach() if kind == "torch" else array)
    return array.get() if kind_of(array) == "cupy" else np.asarray(array)


def description(array: Any) -> tuple[tuple[int, ...], tuple[int, ...], DType]:
    """Returns the sizes, the strides in elements and the dtype of an array of NumPy, CuPy, PyTorch or JAX."""
    sizes, dtype = tuple(map(int, array.shape)), dtype_of_array(array)
    if callable(getattr(array, "stride", None)):
        return sizes, tuple(array.stride()), dtype
    strides = getattr(array, "strides", None)
    if strides is None:
        inner = itertools.accumulate(reversed(sizes), lambda a, b: a * b, initial=1)
        return sizes, tuple(reversed(list(inner)[: len(sizes)])), dtype
    return sizes, tuple(s // dtype.itemsize for s in strides), dtype


def contiguity_of(shape: Sequence[int], contiguity: bool | Sequence[bool | None] | None) -> tuple[bool | None, ...]:
    """Returns the contiguity of each axis, None for an axis of extent 1.

    contiguity: one flag for all axes or one per axis; None means not contiguous. Raises ShapeError for a wrong count.
    """
    if contiguity is None or isinstance(contiguity, bool):
        return tuple(None if size == 1 else bool(contiguity) for size in shape)
    if len(contiguity) != len(shape):
        raise ShapeError(
            f"define_tensor: contiguity {list(contiguity)} for {len(shape)} axes", hint="give one entry per axis",
            where=source.user_line(),
        )  # fmt: skip
    return tuple(None if size == 1 else bool(flag) for size, flag in zip(shape, contiguity, strict=True))


def layout_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """Returns the contiguity of each axis and the stride order, which is empty for row-major arrays.

    An axis is contiguous if its stride equals the span of the next inner axis.
    """
    rank = len(sizes)
    outer_first = sorted(range(rank), key=lambda axis: (-strides[axis], axis))
    contiguity: list[bool | None] = [None] * rank
    expected = 1
    for axis in reversed(outer_first):
        if sizes[axis] != 1:
            contiguity[axis] = strides[axis] == expected
            expected = strides[axis] * sizes[axis]
    order = [rank - 1 - outer_first.index(axis) for axis in range(rank)]
    return contiguity, [] if order == list(reversed(range(rank))) else order


def input_texts(arguments: Sequence[Any]) -> list[str]:
    """Returns a Python expression for an argument of each shape and dtype.

    Integers, which may be positions, are less than every extent above 1.
    """
    shapes = [getattr(argument, "shape", None) for argument in arguments]
    extents = [extent for shape in shapes if isinstance(shape, tuple) for extent in shape if extent > 1]
    return [_input_text(argument, min([5, *extents])) for argument in arguments]


def _input_text(argument: Any, most: int) -> str:
    shape = getattr(argument, "shape", None)
    if not isinstance(shape, tuple):
        return repr(argument)
    dtype = dtype_of_array(argument)
    end = most if dtype.is_integer else 5
    return f"np.random.default_rng(0).uniform(0, {end}, {tuple(shape)}).astype({data_type_of(dtype).value!r})"
