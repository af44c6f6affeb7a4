"""np.packbits and np.unpackbits on traced values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import DtypeError
from tracefuse.frontend.numpy_api.arrangement.inserted_elements import axis_of
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def _with_axis(a: Any) -> Any:
    """An array without axes as one with an axis, which NumPy packs."""
    x = traced_ops.as_tensor(a)
    return x if x.extents else shaping.reshape(x, (1,))


@implements(np.unpackbits)
def unpackbits(a: Any, axis: Any = None, count: Any = None, bitorder: str = "big") -> Any:
    x, dim = axis_of(_with_axis(a), axis)
    if x.value.dtype is not dtypes.uint8:
        raise DtypeError(f"np.unpackbits of {x.value.dtype}", hint="cast it with astype(np.uint8)")
    shifts = traced_ops.iota(x.recorder, 0, 1, 8, dtypes.uint8)
    shifts = 7 - shifts if bitorder == "big" else shifts
    moved = shaping.moveaxis(x, dim, -1)
    bits = (shaping.expand_dims(moved, -1) >> shifts) & 1
    sizes = x.recorder.sizes(moved.extents)
    result = shaping.reshape(bits, (*sizes[:-1], sizes[-1] * 8))
    if count is not None:
        result = _of_length(result, operator.index(count))
    return traced_ops.copy(shaping.moveaxis(result, -1, dim))  # a new array, in row-major order


def _of_length(bits: Any, count: int) -> Any:
    """Returns the first bits of the last axis, with zeros after them; a negative count is that of bits to drop."""
    recorder, length = bits.recorder, bits.extents[-1]
    if count < 0:
        message, hint = f"-count larger than number of elements: {-count} and {{right}}", "drop fewer bits"
        recorder.builder.require(-count, "<=", length, message, hint, source.user_line())
        return bits[..., :count]
    if recorder.decide(count, "<=", length, "the number of bits"):
        return bits[..., :count]
    return np.pad(bits, [(0, 0)] * (len(bits.extents) - 1) + [(0, count - bits.shape[-1])])


@implements(np.packbits)
def packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Any:
    x, dim = axis_of(_with_axis(a), axis)
    if x.value.dtype.kind not in ("bool", "int", "uint"):
        raise DtypeError(f"np.packbits of {x.value.dtype}", hint="pass x != 0")
    moved: Any = shaping.moveaxis(apply("ne", x, 0), dim, -1)
    count, decide = moved.extents[-1], x.recorder.decide
    if decide(count % 8, "==", 0, "whether np.packbits fills bytes"):
        packed = _packed(moved, bitorder)
    else:
        whole = moved.shape[-1] // 8 * 8
        last = moved if decide(count, "<", 8, "whether np.packbits fills a byte") else moved[..., whole:]
        missing = [(0, 0)] * (len(moved.extents) - 1) + [(0, whole + 8 - moved.shape[-1])]
        packed = _packed(np.pad(last, missing), bitorder)
        if last is not moved:
            packed = shaping.concatenate([_packed(moved[..., :whole], bitorder), packed], -1)
    return traced_ops.copy(shaping.moveaxis(packed, -1, dim))


def _packed(bits: Any, bitorder: str) -> Any:
    """Returns a byte of each eight bits of the last axis, whose extent is a multiple of eight."""
    sizes = bits.recorder.sizes(bits.extents)
    eights = shaping.reshape(bits, (*sizes[:-1], sizes[-1] // 8, 8))
    total: Any = None
    for k in range(8):
        bit = traced_ops.astype(eights[..., k], np.uint8) << (7 - k if bitorder == "big" else k)
        total = bit if total is None else total | bit
    return total
