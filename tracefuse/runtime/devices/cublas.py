"""Products of two matrices by cuBLAS itself, at a third of the host time that CuPy's own function takes.

cuBLAS reads matrices column by column: of row-major arrays it computes the transposed product of the transposed
factors, which is the product of the arrays. The constants are those of cuBLAS's cublasComputeType_t and of CUDA's
cudaDataType_t.

Knows: CuPy's interface to cuBLAS. Must not know: fusions, rows.
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
_MOST = 2**31 - 1  # cuBLAS takes extents and strides as 32-bit integers


@dataclass(frozen=True, slots=True)
class _Library:
    gemm: Callable[..., None]
    handle: Callable[[], int]


@memoized("CuPy's cuBLAS functions", key="none", most=1, clears=False)
def _library() -> _Library:
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    return _Library(cublas.gemmEx, get_cublas_handle)


def _placed(matrix: Any, itemsize: int, transposed: bool) -> tuple[int, int] | None:
    """(whether cuBLAS has to transpose it, elements from one row or column to the next); None for other strides."""
    (rows, columns), (first, second) = matrix.shape, matrix.strides
    if second == itemsize and first >= columns * itemsize and first % itemsize == 0:
        return int(transposed), first // itemsize
    if first == itemsize and second >= rows * itemsize and second % itemsize == 0:
        return int(not transposed), second // itemsize
    return None


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
    """A function of two CuPy matrices of a type and whether the second is transposed; None for other types.

    It gives a fresh C-contiguous matrix, made on the current stream, or None where the strides or sizes are not
    cuBLAS's. Sums accumulate in float32, of float64 in float64.
    """
    if dtype not in _TYPES:
        return None
    kind, itemsize = _TYPES[dtype], dtype.itemsize
    wide = dtype is float64
    scale = np.array([1.0, 0.0], np.float64 if wide else np.float32)
    one, zero = int(scale.ctypes.data), int(scale.ctypes.data) + scale.itemsize
    compute = _COMPUTE_64 if wide else _COMPUTE_32

    def product(a: Any, b: Any, transposed: bool, _kept: Any = scale) -> Any:
        (m, k), n = a.shape, b.shape[0 if transposed else 1]
        left, right = _placed(a, itemsize, False), _placed(b, itemsize, transposed)
        if left is None or right is None or not (0 < m <= _MOST and 0 < n <= _MOST and 0 < k <= _MOST):
            return None
        if left[1] > _MOST or right[1] > _MOST:
            return None
        made = cuda_arrays.new((m, n), dtype, m * n * itemsize)
        library = _library()
        library.gemm(
            library.handle(), right[0], left[0], n, m, k, one, b.data.ptr, kind, right[1], a.data.ptr, kind, left[1],
            zero, made.data.ptr, kind, n, compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        return made

    return product
