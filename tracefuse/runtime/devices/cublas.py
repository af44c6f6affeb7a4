"""Matrix products by direct calls of cuBLAS, which take a third of the host time of CuPy's own function.

cuBLAS matrices are column-major. For row-major arrays, this module swaps the operands: the transposed product of the
transposed operands is the product of the arrays. The constants are values of cublasComputeType_t and cudaDataType_t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    handle: Callable[[], int]


@memoized("CuPy's cuBLAS functions", key="none", most=1, clears=False)
def _library() -> _Library:
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    return _Library(cublas.gemmEx, get_cublas_handle)


def _gemm_layout(matrix: Any, itemsize: int, transposed: bool) -> tuple[int, int] | None:
    """Returns whether cuBLAS has to transpose a matrix, and its leading dimension. Returns None for other strides."""
    (rows, columns), (first, second) = matrix.shape, matrix.strides
    if second == itemsize and first >= columns * itemsize and first % itemsize == 0:
        return int(transposed), first // itemsize
    if first == itemsize and second >= rows * itemsize and second % itemsize == 0:
        return int(not transposed), second // itemsize
    return None


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
    """Returns a function that multiplies two CuPy matrices of `dtype`, None for an unsupported dtype.

    Its third argument says whether the second matrix is transposed. It returns a new C-contiguous matrix, computed on
    the current stream, or None if cuBLAS does not support the strides or sizes. Sums accumulate in float32, and in
    float64 for float64.
    """
    if dtype not in _TYPES:
        return None
    kind, itemsize = _TYPES[dtype], dtype.itemsize
    wide = dtype is float64
    scale = np.array([1.0, 0.0], np.float64 if wide else np.float32)
    one, zero = int(scale.ctypes.data), int(scale.ctypes.data) + scale.itemsize
    compute = _COMPUTE_64 if wide else _COMPUTE_32

    def product(a: Any, b: Any, transposed: bool, _keepalive: Any = scale) -> Any:
        (m, k), n = a.shape, b.shape[0 if transposed else 1]
        left, right = _gemm_layout(a, itemsize, False), _gemm_layout(b, itemsize, transposed)
        if (
            left is None
            or right is None
            or not (0 < m <= _MAX_EXTENT and 0 < n <= _MAX_EXTENT and 0 < k <= _MAX_EXTENT)
        ):
            return None
        if left[1] > _MAX_EXTENT or right[1] > _MAX_EXTENT:
            return None
        result = cuda_arrays.new((m, n), dtype, m * n * itemsize)
        library = _library()
        library.gemm(
            library.handle(), right[0], left[0], n, m, k, one, b.data.ptr, kind, right[1], a.data.ptr, kind, left[1],
            zero, result.data.ptr, kind, n, compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        return result

    return product
