"""Matrix products by direct calls of cuBLAS, prepared once for each set of sizes.

The library chooses its kernels from the sizes and from the memory that it may use, which is a buffer of the stream that
the products run on. So the bits of a product do not depend on what other streams do, and products on different streams
do not share memory. `ctypes` calls hold the GIL: none of the functions used here waits for the GPU. The constants are
values of cublasComputeType_t and cudaDataType_t.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tracefuse.caches import BoundedTable, Cache, memoized, register
from tracefuse.dtypes import DType, bfloat16, complex64, complex128, float16, float32, float64
from tracefuse.errors import DeviceError
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.devices.gemm_calls import GemmCall, ProductForm, contiguous_strides, gemm_calls, matmul_form

_TYPES = {float16: 2, bfloat16: 14, float32: 0, float64: 1, complex64: 4, complex128: 5}
_DOUBLE = (float64, complex128)
_COMPUTE_32, _COMPUTE_64, _DEFAULT_ALGORITHM = 68, 70, -1
_MAX_EXTENT = 2**31 - 1  # beyond it, the functions with 64-bit extents are called
_WORKSPACE_BYTES = {True: 32 << 20, False: 4 << 20}
"""The sizes that NVIDIA recommends, and cuBLAS takes by default, on Hopper and later GPUs and on earlier ones."""

MOST_SIZES = 64
"""The sizes that a product keeps its calls for."""
MOST_STREAMS = 16
"""The streams of a GPU that keep a workspace."""

_Prepared: TypeAlias = "list[tuple[Callable[..., int], tuple[Any, ...], int, int, int]]"


class _Library:
    """cuBLAS for one GPU, with one handle. `lock` guards the handle and the arguments of prepared calls."""

    def __init__(self, device: int) -> None:
        from cupy_backends.cuda.api import runtime
        from cupy_backends.cuda.libs import cublas  # noqa: F401  # loads the library that CuPy uses

        name = f"libcublas.so.{runtime.runtimeGetVersion() // 1000}"
        self.functions = ctypes.PyDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        self.driver = ctypes.PyDLL("libcuda.so.1")
        self.device, self.lock = device, threading.RLock()
        self.handle = ctypes.c_void_p()
        self.stream: int | None = None
        self._workspaces: OrderedDict[tuple[int, int], Any] = OrderedDict()
        architecture = int(cuda_arrays.architecture(device).removeprefix("sm_").rstrip("af"))
        self.workspace_bytes = _WORKSPACE_BYTES[architecture >= 90]
        with cuda_arrays.on_device(device):
            self.check(self.functions.cublasCreate_v2(ctypes.byref(self.handle)))
        self.pointers = tuple(ctypes.c_void_p() for _ in range(3))
        self.selected = ctypes.c_void_p()  # the stream, as an argument of prepared calls

    def check(self, status: int) -> None:
        if status:
            raise DeviceError(f"cuBLAS failed on device {self.device} with status {status} (cublasStatus_t)")

    def select(self, stream: int, workspace: Any | None) -> None:
        """Makes the library work on a stream, with this workspace; None: with its own, which a caller's graph keeps."""
        self.stream, self.selected.value = None, stream
        self.check(self.functions.cublasSetStream_v2(self.handle, self.selected))
        if workspace is None:
            return
        size = ctypes.c_size_t(self.workspace_bytes)
        self.check(self.functions.cublasSetWorkspace_v2(self.handle, ctypes.c_void_p(workspace.ptr), size))
        self.stream = stream

    def workspace(self, stream: int) -> Any:
        """Returns the memory that products on a stream may use. It lies outside of CuPy's pool."""
        key = cuda_arrays.stream_key(stream)
        memory = self._workspaces.get(key)
        if memory is None:
            memory = self._workspaces[key] = cuda_arrays.own_memory(self.workspace_bytes)
            if len(self._workspaces) > MOST_STREAMS:
                self._workspaces.popitem(last=False)
        else:
            self._workspaces.move_to_end(key)
        return memory

    def run(self, calls: _Prepared, a: int, b: int, result: int) -> None:
        """Makes prepared calls on the selected stream."""
        left, right, out = self.pointers
        for function, arguments, left_offset, right_offset, offset in calls:
            left.value, right.value, out.value = a + left_offset, b + right_offset, result + offset
            status = function(*arguments)
            if status:
                self.stream = None
                self.check(status)


@memoized("cuBLAS", key="device", most=None, bound="GPUs", clears=False)
def library_of(device: int) -> _Library:
    """Returns cuBLAS for a GPU."""
    return _Library(device)


register(Cache(
    "runtime.devices.cublas._Library._workspaces", "the memory that products on a stream use", "stream, thread",
    f"{MOST_STREAMS}, least recently used", "cuBLAS of a GPU",
))  # fmt: skip
register(Cache(
    "runtime.devices.cublas.CublasProduct._prepared", "the cuBLAS calls of a product", "sizes and strides",
    f"{MOST_SIZES}, for each GPU", "a prepared product",
))  # fmt: skip


class CublasProduct:
    """A product of two arrays of one dtype into a C-contiguous array, which a call launches like a kernel. Thread-safe.

    Its arguments are the addresses of the left and right operand and of the result, the shapes of the operands, and
    for each operand that is not C-contiguous its strides in elements. Sums accumulate in float32, and in float64 for
    float64 and complex128.
    """

    def __init__(self, dtype: DType, form: ProductForm, strided: tuple[bool, bool] = (False, False)) -> None:
        self.dtype, self.form, self.strided = dtype, form, strided
        self._prepared: dict[int, BoundedTable[tuple[int, ...], _Prepared]] = {}

    def __str__(self) -> str:
        return f"cuBLAS: {self.form}"

    def launcher(self, device: int) -> Callable[..., None]:
        """Returns a function that launches the product on a stream; the GPU must be current when it is called."""
        library, prepared, prepare = library_of(device), self._table(device), self._prepare
        lock, run, is_recording = library.lock, library.run, cuda_arrays.recording_function()

        def launch(stream: int, a: int, b: int, result: int, *sizes: int) -> None:
            with lock:
                calls = prepared.get(sizes)
                if calls is None:
                    calls = prepare(library, prepared, sizes)
                if stream > cuda_arrays.PER_THREAD_STREAM and is_recording(stream):
                    library.select(stream, None)
                elif stream != library.stream or stream == cuda_arrays.PER_THREAD_STREAM:
                    library.select(stream, library.workspace(stream))
                run(calls, a, b, result)

        return launch

    def recorder(self, device: int) -> Callable[..., Any]:
        """Returns a function that launches the product on a stream whose work is recorded.

        The function takes that stream, the stream that the record will run on, and the arguments of the product. It
        returns the memory that must live as long as the record.
        """
        library, prepared = library_of(device), self._table(device)

        def record(recording: int, stream: int, a: int, b: int, result: int, *sizes: int) -> Any:
            with library.lock:
                calls = prepared.get(sizes)
                if calls is None:
                    calls = self._prepare(library, prepared, sizes)
                workspace = library.workspace(stream)
                library.select(recording, workspace)
                try:
                    library.run(calls, a, b, result)
                finally:
                    library.stream = None
                return workspace

        return record

    def _table(self, device: int) -> BoundedTable[tuple[int, ...], _Prepared]:
        return self._prepared.setdefault(device, BoundedTable(MOST_SIZES))

    def _prepare(
        self, library: _Library, prepared: BoundedTable[tuple[int, ...], _Prepared], sizes: tuple[int, ...]
    ) -> _Prepared:
        ranks = len(self.form.left_order), len(self.form.right_order)
        left, right = sizes[: ranks[0]], sizes[ranks[0] : sum(ranks)]
        strides, rest = [contiguous_strides(left), contiguous_strides(right)], sizes[sum(ranks) :]
        for position, rank in enumerate(ranks):
            if self.strided[position]:
                strides[position], rest = rest[:rank], rest[rank:]
        calls = gemm_calls(self.form, left, right, *strides)
        if calls is None:
            raise DeviceError(f"cuBLAS does not multiply arrays of shapes {left} and {right} with strides {strides}")
        if calls and calls[0].k == 0:  # sums without terms
            size = math.prod(self.form.result_shape(left, right)) * self.dtype.itemsize
            fill = (library.pointers[2], ctypes.c_ubyte(0), ctypes.c_size_t(size), library.selected)
            made: _Prepared = [(library.driver.cuMemsetD8Async, fill, 0, 0, 0)]
        else:
            made = [self._call(library, call) for call in calls]
        prepared[sizes] = made
        return made

    def _call(self, library: _Library, call: GemmCall) -> tuple[Callable[..., int], tuple[Any, ...], int, int, int]:
        """Returns a function of cuBLAS and its arguments, among them the pointers that `_Library.run` sets."""
        left_offset, right_offset, offset = (position * self.dtype.itemsize for position in call.offsets)
        functions, (left, right, out) = library.functions, library.pointers
        (flip_left, left_length, left_distance), (flip_right, right_length, right_distance) = call.left, call.right
        extents = (call.n, call.m, call.k, left_length, right_length, call.row_length, call.count)
        is_wide = max(extents) > _MAX_EXTENT
        number: Any = ctypes.c_int64 if is_wide else ctypes.c_int
        kind, enum, distance = ctypes.c_int(_TYPES[self.dtype]), ctypes.c_int, ctypes.c_longlong
        n, m, k, left_length_, right_length_, row_length, count = map(number, extents)
        one, zero = (ctypes.c_void_p(address) for address in _scales(self.dtype))
        head = (library.handle, enum(flip_right), enum(flip_left), n, m, k, one)
        compute = (enum(_COMPUTE_64 if self.dtype in _DOUBLE else _COMPUTE_32), enum(_DEFAULT_ALGORITHM))
        if call.count == 1:
            function = functions.cublasGemmEx_64 if is_wide else functions.cublasGemmEx
            tail: tuple[Any, ...] = (
                right, kind, right_length_, left, kind, left_length_, zero, out, kind, row_length, *compute,
            )  # fmt: skip
        else:
            batched = "cublasGemmStridedBatchedEx"
            function = getattr(functions, f"{batched}_64" if is_wide else batched)
            tail = (
                right, kind, right_length_, distance(right_distance), left, kind, left_length_,
                distance(left_distance), zero, out, kind, row_length, distance(call.distance), count, *compute,
            )  # fmt: skip
        return function, (*head, *tail), left_offset, right_offset, offset


_SCALES: dict[DType, np.ndarray[Any, Any]] = {
    dtype: np.array([1, 0], np.float32 if dtype.is_half else dtype.numpy) for dtype in _TYPES
}


def _scales(dtype: DType) -> tuple[int, int]:
    """Returns the addresses of 1 and 0 in the type of the sums."""
    scales = _SCALES[dtype]
    return int(scales.ctypes.data), int(scales.ctypes.data) + scales.itemsize


def supports(dtype: DType) -> bool:
    """Whether cuBLAS multiplies matrices of a dtype."""
    return dtype in _TYPES


# ---------------------------------------------------------------------------------------------------------------------
# products of arrays


@memoized("products of arrays", key="dtype, form, which operands are not contiguous", most=64)
def _product(dtype: DType, form: ProductForm, strided: tuple[bool, bool]) -> CublasProduct:
    return CublasProduct(dtype, form, strided)


def product_of(dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
    """Returns a function that multiplies two CuPy matrices of `dtype`, or stacks of matrices, as NumPy's matmul.

    None for an unsupported dtype. The function's third argument says whether the last two axes of the second operand
    are transposed. It returns a new C-contiguous array, computed on the current stream. It copies operands with strides
    that cuBLAS does not support.
    """
    return (lambda a, b, transposed: _multiply(dtype, a, b, transposed)) if supports(dtype) else None


def _multiply(dtype: DType, a: Any, b: Any, transposed: bool) -> Any:
    form = matmul_form(a.ndim, b.ndim, transposed)
    operands = [a, b]
    strides = [[stride // dtype.itemsize for stride in x.strides] for x in operands]
    sizes_fit = all(stride % dtype.itemsize == 0 for x in operands for stride in x.strides)
    if not sizes_fit or gemm_calls(form, a.shape, b.shape, *strides) is None:
        operands = [x if x.flags.c_contiguous else x.copy(order="C") for x in operands]
        strides = [[*contiguous_strides(x.shape)] for x in operands]
    strided = tuple(not x.flags.c_contiguous for x in operands)
    shape = form.result_shape(a.shape, b.shape)
    result = cuda_arrays.empty(shape, dtype)
    launch = _product(dtype, form, strided).launcher(cuda_arrays.current_device())  # type: ignore[arg-type]
    sizes = (
        *a.shape,
        *b.shape,
        *(s for own, is_strided in zip(strides, strided, strict=True) if is_strided for s in own),
    )
    launch(cuda_arrays.current_stream().ptr, *(x.data.ptr for x in (*operands, result)), *sizes)
    return result
