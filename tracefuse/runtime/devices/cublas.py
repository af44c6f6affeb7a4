"""Matrix products by direct calls of cuBLAS, which take a third of the host time of CuPy's own function.

cuBLAS matrices are column-major. For row-major arrays, this module swaps the operands: the transposed product of the
transposed operands is the product of the arrays. The constants are values of cublasComputeType_t and cudaDataType_t.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse.caches import memoized
from tracefuse.dtypes import DType, bfloat16, float16, float32, float64
from tracefuse.runtime.devices import cuda_arrays

_TYPES = {float16: 2, bfloat16: 14, float32: 0, float64: 1}
_COMPUTE_32, _COMPUTE_64, _DEFAULT_ALGORITHM = 68, 70, -1
_MAX_EXTENT = 2**31 - 1  # cuBLAS takes extents and strides as 32-bit integers


@dataclass(frozen=True, slots=True)
class _Library:
    gemm: Callable[..., None]
    batched: Callable[..., None]
    handle: Callable[[], int]


@memoized("CuPy's cuBLAS functions", key="none", most=1, clears=False)
def _library() -> _Library:
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    return _Library(cublas.gemmEx, cublas.gemmStridedBatchedEx, get_cublas_handle)


def _gemm_layout(matrix: Any, itemsize: int, transposed: bool) -> tuple[int, int] | None:
    """Returns whether cuBLAS has to transpose the last two axes, and their leading dimension.

    Returns None for strides that cuBLAS does not support.
    """
    (rows, columns), (first, second) = matrix.shape[-2:], matrix.strides[-2:]
    if second == itemsize and first >= columns * itemsize and first % itemsize == 0:
        return int(transposed), first // itemsize
    if first == itemsize and second >= rows * itemsize and second % itemsize == 0:
        return int(not transposed), second // itemsize
    return None


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
    """Returns a function that multiplies two CuPy matrices of `dtype`, or stacks of matrices, as NumPy's matmul.

    None for an unsupported dtype. The function's third argument says whether the last two axes of the second operand
    are transposed. It returns a new C-contiguous array, computed on the current stream, or None if cuBLAS does not
    support the strides or sizes. Sums accumulate in float32, and in float64 for float64.
    """
    if dtype not in _TYPES:
        return None
    kind, itemsize = _TYPES[dtype], dtype.itemsize
    wide = dtype is float64
    scale = np.array([1.0, 0.0], np.float64 if wide else np.float32)
    unit_scale, zero_scale = int(scale.ctypes.data), int(scale.ctypes.data) + scale.itemsize
    compute = _COMPUTE_64 if wide else _COMPUTE_32

    def product(a: Any, b: Any, transposed: bool, _keepalive: Any = scale) -> Any:
        (m, k), n = a.shape[-2:], b.shape[-2 if transposed else -1]
        left, right = _gemm_layout(a, itemsize, False), _gemm_layout(b, itemsize, transposed)
        if left is None:
            a = a.copy(order="C")
            left = _gemm_layout(a, itemsize, False)
        if right is None:
            b = b.copy(order="C")
            right = _gemm_layout(b, itemsize, transposed)
        if left is None or right is None or not (0 < m <= _MAX_EXTENT and 0 < n <= _MAX_EXTENT):
            return None
        if not 0 < k <= _MAX_EXTENT or left[1] > _MAX_EXTENT or right[1] > _MAX_EXTENT:
            return None
        library = _library()
        if b.ndim == 2 and (a.ndim == 2 or (not left[0] and _is_one_matrix(a))):
            result = cuda_arrays.new((*a.shape[:-1], n), dtype, math.prod(a.shape[:-1]) * n * itemsize)
            m = math.prod(a.shape[:-1])
            library.gemm(
                library.handle(), right[0], left[0], n, m, k, unit_scale, b.data.ptr, kind, right[1], a.data.ptr, kind,
                left[1], zero_scale, result.data.ptr, kind, n, compute, _DEFAULT_ALGORITHM,
            )  # fmt: skip
            return result
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        calls = _strided_calls(shape, a, b, m * n * itemsize)
        if calls is None:
            return None
        result = cuda_arrays.new((*shape, m, n), dtype, math.prod(shape) * m * n * itemsize)
        for count, (stride_a, stride_b), (offset_a, offset_b, offset) in calls:
            library.batched(
                library.handle(), right[0], left[0], n, m, k, unit_scale,
                b.data.ptr + offset_b, kind, right[1], stride_b // itemsize,
                a.data.ptr + offset_a, kind, left[1], stride_a // itemsize,
                zero_scale, result.data.ptr + offset, kind, n, m * n, count, compute, _DEFAULT_ALGORITHM,
            )  # fmt: skip
        return result

    return product


def _is_one_matrix(a: Any) -> bool:
    """Whether the axes before the last can be joined into one with a single stride, of a supported extent."""
    shape, strides = a.shape[:-1], a.strides[:-1]
    is_joined = all(strides[k] == shape[k + 1] * strides[k + 1] for k in range(len(shape) - 1))
    return is_joined and 0 < math.prod(shape) <= _MAX_EXTENT


_Call: TypeAlias = tuple[int, tuple[int, int], tuple[int, int, int]]
MOST_CALLS = 64
"""Calls for one product; CuPy copies an operand instead if its stacks take more."""


def _strided_calls(shape: tuple[int, ...], a: Any, b: Any, matrix_bytes: int) -> list[_Call] | None:
    """Splits the batch axes into calls with one stride for each operand.

    Returns for each call the number of products, the operands' strides, and the offsets of both operands and of the
    result, in bytes. A broadcast axis has stride 0. Returns None for an empty batch and for more than MOST_CALLS calls.
    """
    if 0 in shape:
        return None
    strides = [
        (0,) * (len(shape) - x.ndim + 2)
        + tuple(0 if e == 1 else s for e, s in zip(x.shape[:-2], x.strides[:-2], strict=True))
        for x in (a, b)
    ]
    axes = [
        (extent, left, right) for extent, left, right in zip(shape, strides[0], strides[1], strict=True) if extent != 1
    ]
    joined: list[tuple[int, int, int]] = []
    for extent, left, right in axes:
        if joined and joined[-1][1:] == (extent * left, extent * right):
            joined[-1] = (joined[-1][0] * extent, left, right)
        else:
            joined.append((extent, left, right))
    if not joined:
        return [(1, (0, 0), (0, 0, 0))]
    outer, (count, left, right) = joined[:-1], joined[-1]
    if math.prod(extent for extent, _, _ in outer) > MOST_CALLS or count > _MAX_EXTENT:
        return None
    if left < 0 or right < 0:
        return None
    calls = []
    for number, position in enumerate(itertools.product(*(range(extent) for extent, _, _ in outer))):
        offset_a = sum(k * axis[1] for k, axis in zip(position, outer, strict=True))
        offset_b = sum(k * axis[2] for k, axis in zip(position, outer, strict=True))
        calls.append((count, (left, right), (offset_a, offset_b, number * count * matrix_bytes)))
    return calls
