"""The bits of elements: `x.view(dtype)` of types of the same and of another size, and `x.byteswap()`.

A view of another size takes or gives several elements for one: they are the parts of its bits, as integers, in the
order of a little-endian memory. A write through such a view puts the parts together again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType, dtype_of, float16, float32, float64
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError
from tracefuse.frontend.numpy_api.registration.array_memory import refuse_bytes
from tracefuse.frontend.tracer.array_ops import arithmetic, assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, missing
from tracefuse.frontend.tracer.libraries.stage_calls import call_or_refuse
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced, ViewStep
from tracefuse.ir.extents import Extent, floordiv, product
from tracefuse.ir.fusion import Shape

_PARTS = {dtypes.complex64: float32, dtypes.complex128: float64}
"""The types of the parts of complex numbers."""


def view(x: Traced, dtype: Any = None, type: Any = None) -> Any:
    """Returns another name for the same memory, also with the elements read as another type.

    Raises UnsupportedError for numbers as truth values, bfloat16 and other types of arrays, and ShapeError where the
    bytes of the last axis do not fill elements of another size.
    """
    classes = [one for one in (dtype, type) if isinstance(one, _TYPE) and issubclass(one, np.ndarray)]
    if any(one is not np.ndarray for one in classes):
        name = classes[-1].__name__
        raise UnsupportedError(
            f"x.view({name}): a traced array is a plain ndarray",
            hint=f"return the array and write result.view({name}) outside; @ is the product of matrices",
            where=source.user_line(),
        )
    if isinstance(dtype, int):
        raise DtypeError(f"x.view({dtype}, ...): view takes a type", hint="write x.reshape(shape)")
    target = x.value.dtype if dtype is None or classes else dtype_of(dtype)
    return views.alias(x) if target is x.value.dtype else _view_as(x, target)


_TYPE = type


def _view_as(x: Traced, target: DType) -> Any:
    own = x.value.dtype
    if not ((_has_bits(own) or own.kind == "bool") and _has_bits(target)) or (
        own.itemsize != target.itemsize and sys.byteorder != "little"
    ):
        refuse_bytes(f"view({target})", f"x.astype(np.{target}) converts numbers; reinterpret bytes outside")
    if own.itemsize != target.itemsize:
        _check_last_axis(x, target)
    step = ViewStep(
        ("view", target), lambda base: _reinterpreted(base, target), lambda base, values: _reinterpreted(values, own)
    )

    def strides(given: Shape) -> Shape:
        if own.itemsize == target.itemsize:
            return given
        return (*(_scaled(one, own, target, x) for one in given[:-1]), 1)

    return views.attach(_reinterpreted(as_tensor(x), target), x, step, strides)


def _scaled(stride: Extent, own: DType, target: DType, x: Traced) -> Extent:
    """A stride in elements of another size."""
    if own.itemsize > target.itemsize:
        return stride * (own.itemsize // target.itemsize)
    count = target.itemsize // own.itemsize
    if not x.recorder.decide(stride % count, "==", 0, "the strides of a view of another type"):
        raise UnsupportedError(
            f"x.view({target}) of rows that begin inside of such an element",
            hint=f"view a copy: np.ascontiguousarray(x).view(np.{target})", where=source.user_line(),
        )  # fmt: skip
    return floordiv(stride, count)


def _check_last_axis(x: Traced, target: DType) -> None:
    """Raises where the bytes of the last axis do not follow one another, or do not fill elements of a larger type."""
    if not x.extents:
        raise ShapeError(
            "Changing the dtype of a 0d array is only supported if the itemsize is unchanged",
            hint="write x.reshape(1) first", where=source.user_line(),
        )  # fmt: skip
    recorder, itemsize = x.recorder, x.value.dtype.itemsize
    x.settle()
    reason = "whether the last axis of a view of another type is contiguous"
    facts = ((product(x.extents), 0), (x.extents[-1], 1), (views.strides_of(x)[-1], 1))
    if not any(recorder.decide(value, "==", fitting, reason) for value, fitting in facts):
        raise ShapeError(
            "To change to a dtype of a different size, the last axis must be contiguous",
            hint="view a copy: np.ascontiguousarray(x)", where=source.user_line(),
        )  # fmt: skip
    count = max(target.itemsize // itemsize, 1)
    if not recorder.decide(x.extents[-1] % count, "==", 0, reason):
        raise ShapeError(
            "When changing to a larger dtype, its size must be a divisor of the total size in bytes of the last axis "
            "of the array.", hint=f"cut the last axis to a multiple of {count} elements", where=source.user_line(),
        )  # fmt: skip


def byteswap(x: Traced, inplace: bool = False) -> Any:
    """Returns the elements with their bytes in the opposite order; the array itself, changed, with `inplace`."""
    own = x.value.dtype
    if not _has_bits(own) and own.itemsize > 1:
        refuse_bytes("byteswap", "swap the bytes outside the fused function")
    swapped = traced_ops.copy(x) if own.itemsize == 1 else _swapped(as_tensor(x))
    if inplace:
        assignment.setitem(x, ..., swapped)
        return x
    return views.in_order(swapped, "A", [x]) if x.extents else swapped


def _swapped(x: Any) -> Any:
    own = x.value.dtype
    if own in _PARTS:
        parts = [_swapped(part) for part in (arithmetic.real(x), arithmetic.imag(x))]
        return apply("complex", *parts)
    size, bits = own.itemsize, _unsigned(own.itemsize)
    given = _of_same_size(x, bits)
    parts = [apply("bitwise_and", _shifted(given, 8 * k, "right"), bits.numpy.type(255)) for k in range(size)]
    moved = [_shifted(part, 8 * (size - 1 - k), "left") for k, part in enumerate(parts)]
    return _of_same_size(_joined(moved), own)


def _has_bits(dtype: DType) -> bool:
    """Whether the bits of numbers of a type can be read, and numbers be made of bits."""
    return dtype.is_integer or dtype in (float16, float32, float64) or dtype in _PARTS


def _unsigned(itemsize: int) -> DType:
    return dtype_of(f"uint{8 * itemsize}")


def _reinterpreted(x: Traced, target: DType) -> Any:
    """Returns numbers of the type `target` with the bits of others; the last axis changes with the size of a number."""
    own = x.value.dtype
    if not x.extents and (own in _PARTS or target in _PARTS):
        return shaping.squeeze(_reinterpreted(shaping.expand_dims(x, 0), target), 0)
    if own.kind == "bool":
        return _reinterpreted(traced_ops.astype(x, dtypes.uint8), target)
    if target.kind == "bool":
        refuse_bytes("view of truth values that is written", "write x[...] = values.astype(bool)")
    if own in _PARTS:
        return _reinterpreted(_interleaved([arithmetic.real(x), arithmetic.imag(x)]), target)
    if target in _PARTS:
        first, second = _split(_reinterpreted(x, _PARTS[target]), 2)
        return apply("complex", first, second)
    if own is target:
        return x
    bits = _of_same_size(x, _unsigned(own.itemsize))
    if own.itemsize > target.itemsize:
        part, count = _unsigned(target.itemsize), own.itemsize // target.itemsize
        step = 8 * target.itemsize
        bits = _interleaved([traced_ops.astype(_shifted(bits, step * k, "right"), part) for k in range(count)])
    elif own.itemsize < target.itemsize:
        larger, count = _unsigned(target.itemsize), target.itemsize // own.itemsize
        parts = [traced_ops.astype(part, larger) for part in _split(bits, count)]
        bits = _joined([_shifted(part, 8 * own.itemsize * k, "left") for k, part in enumerate(parts)])
    return _of_same_size(bits, target)


def _shifted(bits: Any, by: int, direction: str) -> Any:
    return apply(f"{direction}_shift", bits, bits.value.dtype.numpy.type(by)) if by else bits


def _joined(parts: Sequence[Any]) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = apply("bitwise_or", result, part)
    return result


def _interleaved(parts: Sequence[Any]) -> Any:
    """Returns an array whose last axis takes one element of each part in turn."""
    *outer, last = parts[0].extents
    stacked = shaping.stack(parts, -1)
    return traced_ops.recorder_of([stacked]).movement("reshape", [stacked], new_shape=(*outer, last * len(parts)))


def _split(x: Any, count: int) -> list[Any]:
    """Returns `count` arrays that take one element of the last axis in turn."""
    return [shaping.getitem(x, (..., slice(k, None, count))) for k in range(count)]


def _of_same_size(x: Any, target: DType) -> Any:
    """Returns numbers of the type `target` with the bits of others of the same size."""
    own = x.value.dtype
    if own is target:
        return x
    if own.is_integer and target.is_integer:
        return traced_ops.astype(x, target)
    if float16 in (own, target):
        return _halves_between_stages(x, target)
    if own.is_integer:
        return apply(f"{target}_of_bits", x)
    bits = apply(f"bits_of_{own}", x)
    return bits if target is bits.value.dtype else traced_ops.astype(bits, target)


def _halves_between_stages(x: Any, target: DType) -> Any:
    """Reinterprets halves between two stages of a call: kernels compute with them as float32, which changes a NaN."""
    name = f"x.view(np.{target})"
    refusal = missing(f"{name} of {x.value.dtype} here", "reinterpret the elements outside the fused function")
    result = call_or_refuse(_in_other_type, name, (x, target.numpy), {}, refusal)
    return traced_ops.recorder_of([x]).movement("reshape", [result], new_shape=x.extents)


def _in_other_type(array: Any, dtype: Any) -> Any:
    return np.ascontiguousarray(array).view(dtype)
