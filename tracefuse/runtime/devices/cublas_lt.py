"""Matrix products whose results pass through an epilogue, by cublasLtMatmul: one call in place of a call and a kernel.

The library chooses an algorithm by a heuristic from the sizes, the types, the alignment of the addresses and the memory
that it may use. It is kept with the product for each set of sizes, so the bits of a result depend on nothing else. The
memory is that of cuBLAS on the same stream. The constants are values of cublasLtMatmulDescAttributes_t,
cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t, cublasLtEpilogue_t and cublasComputeType_t.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import BoundedTable, Cache, memoized, register
from tracefuse.dtypes import DType, bfloat16, float16, float32
from tracefuse.errors import DeviceError
from tracefuse.passes.product_epilogues import GELU, RELU, Epilogue
from tracefuse.runtime.devices import cublas, cuda_arrays
from tracefuse.runtime.devices.gemm_calls import GemmCall, ProductForm, contiguous_strides, gemm_calls

_TYPES = {float16: 2, bfloat16: 14, float32: 0}  # cudaDataType_t
_COMPUTE_32, _FLOAT = 68, 0
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_BATCH_COUNT, _BATCH_DISTANCE = 5, 6
_MOST_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)
_ACTIVATIONS = {"": 0, RELU: 2, GELU: 32}
_BIAS, _DEFAULT = 4, 1
_RESULT_BYTES, _ALGORITHM_BYTES = 96, 64
MOST_ALIGNMENT = 256
"""The alignment in bytes from which the library distinguishes no greater ones."""
BIAS_ALIGNMENT = 16
"""The alignment in bytes of a bias that the library reads where it is; another one is copied to the workspace."""
MOST_ALGORITHMS = 8
"""The number of algorithms that are tried in the order of the heuristic, which does not know what each can read."""
_NOT_SUPPORTED = 15  # cublasStatus_t


class _LtLibrary:
    """cuBLASLt for one GPU. The lock of cuBLAS on the same GPU guards the arguments of prepared calls."""

    def __init__(self, device: int) -> None:
        from cupy_backends.cuda.api import runtime

        self.cublas = cublas.library_of(device)
        name = f"libcublasLt.so.{runtime.runtimeGetVersion() // 1000}"
        self.functions = ctypes.PyDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        self.device, self.handle = device, ctypes.c_void_p()
        self.left, self.right, self.residual, self.out, self.bias = (ctypes.c_void_p() for _ in range(5))
        self.workspace, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        with cuda_arrays.on_device(device):
            self.check(self.functions.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")
            # Memory for work that callers record: it lives as long as the library, which may not allocate meanwhile.
            self.recorded = cuda_arrays.own_memory(self.cublas.workspace_bytes)

    def check(self, status: int, function: str) -> None:
        if status:
            raise DeviceError(f"{function} failed on device {self.device} with status {status} (cublasStatus_t)")

    def made(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """Returns a new object of the library, which is destroyed with the Python object."""
        handle = ctypes.c_void_p()
        create = f"cublasLt{kind}Create"
        self.check(getattr(self.functions, create)(ctypes.byref(handle), *arguments), create)
        destroy = getattr(self.functions, f"cublasLt{kind}Destroy")
        weakref.finalize(handle, destroy, ctypes.c_void_p(handle.value)).atexit = False
        return handle

    def set(self, kind: str, handle: ctypes.c_void_p, attribute: int, value: Any) -> None:
        function, size = f"cublasLt{kind}SetAttribute", ctypes.c_size_t(ctypes.sizeof(value))
        status = getattr(self.functions, function)(handle, ctypes.c_int(attribute), ctypes.byref(value), size)
        self.check(status, function)


@memoized("cuBLASLt", key="device", most=None, bound="GPUs", clears=False)
def _library(device: int) -> _LtLibrary:
    return _LtLibrary(device)


register(Cache(
    "runtime.devices.cublas_lt.EpilogueProduct._prepared", "the cuBLASLt calls of a product",
    "alignment, sizes", f"{cublas.MOST_SIZES}, for each GPU", "a prepared product with an epilogue",
))  # fmt: skip


@dataclass(slots=True)
class _LtCall:
    """A prepared call. algorithms: what is left to try, the one in use first. offsets: of the operands and the result,
    in bytes. bias_bytes: of the bias that is copied to the end of the workspace, 0 for one that is read where it is."""

    description: ctypes.c_void_p
    arguments: Callable[[Any], tuple[Any, ...]]
    algorithms: list[Any]
    offsets: tuple[int, ...]
    bias_bytes: int
    bias: int = field(default=0)

    def run(self, library: _LtLibrary) -> None:
        """Runs the first algorithm that the library accepts for the addresses, and keeps it."""
        while True:
            status = library.functions.cublasLtMatmul(*self.arguments(self.algorithms[0]))
            if status != _NOT_SUPPORTED or len(self.algorithms) == 1:
                return library.check(status, "cublasLtMatmul")
            del self.algorithms[0]


class EpilogueProduct:
    """A product of two C-contiguous arrays of one dtype with an epilogue, which a call launches like a kernel.

    Its arguments are the addresses of the left and right operand, of the bias and the residual if there are any, and of
    the result, and the shapes of the operands. The result is C-contiguous. The bias has one element for each column,
    the residual the shape of the result. Sums accumulate in float32, and so does the epilogue. Thread-safe.
    """

    def __init__(self, dtype: DType, form: ProductForm, epilogue: Epilogue) -> None:
        self.dtype, self.form, self.epilogue = dtype, form, epilogue
        self.pointers = 3 + epilogue.bias + epilogue.residual
        self._prepared: dict[int, BoundedTable[tuple[int, ...], list[_LtCall]]] = {}
        self._scales = np.array([epilogue.scale, float(epilogue.residual)], np.float32)

    def __str__(self) -> str:
        return f"cuBLASLt: {self.epilogue} of {self.form}"

    def launcher(self, device: int) -> Callable[..., None]:
        """Returns a function that launches the product on a stream; the GPU must be current when it is called."""
        library, is_recording = _library(device), cuda_arrays.recording_function()

        def launch(stream: int, *arguments: int) -> None:
            with library.cublas.lock:
                if stream > cuda_arrays.PER_THREAD_STREAM and is_recording(stream):
                    workspace = library.recorded
                else:
                    workspace = library.cublas.workspace(stream)
                self._run(library, device, stream, workspace, arguments)

        return launch

    def recorder(self, device: int) -> Callable[..., Any]:
        """Returns a function that launches the product on a stream whose work is recorded.

        The function takes that stream, the stream that the record will run on, and the arguments of the product. It
        returns the memory that must live as long as the record.
        """
        library = _library(device)

        def record(recording: int, stream: int, *arguments: int) -> Any:
            with library.cublas.lock:
                workspace = library.cublas.workspace(stream)
                self._run(library, device, recording, workspace, arguments)
                return workspace

        return record

    def has_algorithm(self, device: int, left: Sequence[int], right: Sequence[int]) -> bool:
        """Whether the library has an algorithm for operands of these shapes at addresses of any alignment."""
        library = _library(device)
        with library.cublas.lock, cuda_arrays.on_device(device):
            return all(
                self._calls(library, device, alignment, copies_bias, (*left, *right)) is not None
                for alignment, copies_bias in ((MOST_ALIGNMENT, False), (self.dtype.itemsize, self.epilogue.bias))
            )

    def _run(self, library: _LtLibrary, device: int, stream: int, workspace: Any, arguments: tuple[int, ...]) -> None:
        addresses, sizes = arguments[: self.pointers], arguments[self.pointers :]
        left, right, *added, out = addresses
        bits = MOST_ALIGNMENT | left | right | out | (added[-1] if self.epilogue.residual else 0)
        copies_bias = self.epilogue.bias and added[0] % BIAS_ALIGNMENT > 0
        calls = self._calls(library, device, bits & -bits, copies_bias, sizes)
        if calls is None:
            raise DeviceError(f"cuBLASLt has no algorithm for {self} of operands of sizes {sizes}")
        library.workspace.value, library.stream.value = workspace.ptr, stream
        if copies_bias and calls:
            size = calls[0].bias_bytes
            end = workspace.ptr + library.cublas.workspace_bytes - _aligned(size)
            cuda_arrays.copier(size)(stream)(added[0], end)
            added[0] = end
        for call in calls:
            left_offset, right_offset, offset = call.offsets
            library.left.value, library.right.value = left + left_offset, right + right_offset
            library.out.value = out + offset
            if self.epilogue.residual:
                library.residual.value = added[-1] + offset
            if self.epilogue.bias and call.bias != added[0]:
                library.bias.value = call.bias = added[0]
                library.set("MatmulDesc", call.description, _BIAS_POINTER, library.bias)
            call.run(library)

    def _calls(
        self, library: _LtLibrary, device: int, alignment: int, copies_bias: bool, sizes: tuple[int, ...]
    ) -> list[_LtCall] | None:  # fmt: skip
        """Returns the prepared calls, None if the library has no algorithm. alignment: of all arrays but the bias."""
        table = self._prepared.get(device)
        if table is None:
            table = self._prepared[device] = BoundedTable(cublas.MOST_SIZES)
        key = (alignment, copies_bias, *sizes)
        made: list[_LtCall] | None = table.get(key)
        if made is None:
            rank = len(self.form.left_order)
            left, right = sizes[:rank], sizes[rank:]
            calls = gemm_calls(self.form, left, right, contiguous_strides(left), contiguous_strides(right))
            prepared = [self._call(library, call, alignment, copies_bias) for call in calls or ()]
            if calls is None or any(call is None for call in prepared):
                return None
            made = table[key] = [call for call in prepared if call is not None]
        return made

    def _call(self, library: _LtLibrary, call: GemmCall, alignment: int, copies_bias: bool) -> _LtCall | None:
        """Prepares a call; None if the library has no algorithm for it.

        Matrices of the library are column-major: it computes the transposed result from the transposed operands, the
        right one first. So an element of the bias belongs to a row of its result.
        """
        description = library.made("MatmulDesc", ctypes.c_int(_COMPUTE_32), ctypes.c_int(_FLOAT))
        (flip_left, left_length, left_distance), (flip_right, right_length, right_distance) = call.left, call.right
        epilogue = _ACTIVATIONS[self.epilogue.activation] | (_BIAS if self.epilogue.bias else 0) or _DEFAULT
        for attribute, value in (
            (_TRANSPOSE_A, int(flip_right)), (_TRANSPOSE_B, int(flip_left)), (_EPILOGUE, epilogue)
        ):  # fmt: skip
            library.set("MatmulDesc", description, attribute, ctypes.c_int32(value))
        m, n, k = call.m, call.n, call.k
        layouts = [
            self._layout(library, *((k, n) if flip_right else (n, k)), right_length, call.count, right_distance),
            self._layout(library, *((m, k) if flip_left else (k, m)), left_length, call.count, left_distance),
            self._layout(library, n, m, call.row_length, call.count, call.distance),
        ]
        bias_bytes = n * self.dtype.itemsize if copies_bias else 0
        workspace_bytes = library.cublas.workspace_bytes - _aligned(bias_bytes)
        if workspace_bytes < 0:
            return None
        alignment = min(alignment, *self._alignments(call))
        algorithms = self._algorithms(library, description, layouts, alignment, workspace_bytes)
        if not algorithms:
            return None
        scales = self._scales.ctypes.data
        added = library.residual if self.epilogue.residual else library.out

        def arguments(algorithm: Any) -> tuple[Any, ...]:
            return (
                library.handle, description, ctypes.c_void_p(scales), library.right, layouts[0], library.left,
                layouts[1], ctypes.c_void_p(scales + 4), added, layouts[2], library.out, layouts[2],
                ctypes.c_void_p(ctypes.addressof(algorithm)), library.workspace, ctypes.c_size_t(workspace_bytes),
                library.stream,
            )  # fmt: skip

        offsets = tuple(offset * self.dtype.itemsize for offset in call.offsets)
        return _LtCall(description, arguments, algorithms, offsets, bias_bytes)

    def _alignments(self, call: GemmCall) -> list[int]:
        """Returns the powers of two in bytes that the offsets of a call from the start of its arrays are multiples of.

        The library knows the distances between the matrices of a batch.
        """
        return [(offset * self.dtype.itemsize & -(offset * self.dtype.itemsize)) or 256 for offset in call.offsets]

    def _layout(
        self, library: _LtLibrary, rows: int, columns: int, length: int, count: int, distance: int
    ) -> ctypes.c_void_p:  # fmt: skip
        extents = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(max(length, rows))
        layout = library.made("MatrixLayout", ctypes.c_int(_TYPES[self.dtype]), *extents)
        if count > 1:
            library.set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(count))
            library.set("MatrixLayout", layout, _BATCH_DISTANCE, ctypes.c_int64(distance))
        return layout

    def _algorithms(
        self, library: _LtLibrary, description: ctypes.c_void_p, layouts: Sequence[ctypes.c_void_p], alignment: int,
        workspace_bytes: int,
    ) -> list[Any]:  # fmt: skip
        """Returns the algorithms that the library's heuristic names, the first one first."""
        preference = library.made("MatmulPreference")
        library.set("MatmulPreference", preference, _MOST_WORKSPACE, ctypes.c_uint64(workspace_bytes))
        for attribute in _ALIGNMENTS:
            library.set("MatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
        if self.epilogue.bias:  # the library chooses by its presence
            library.bias.value = MOST_ALIGNMENT
            library.set("MatmulDesc", description, _BIAS_POINTER, library.bias)
        results, found = (ctypes.c_char * (_RESULT_BYTES * MOST_ALGORITHMS))(), ctypes.c_int()
        right, left, out = layouts
        status = library.functions.cublasLtMatmulAlgoGetHeuristic(
            library.handle, description, right, left, out, out, preference, ctypes.c_int(MOST_ALGORITHMS), results,
            ctypes.byref(found),
        )  # fmt: skip
        number = 0 if status else found.value
        starts = range(0, number * _RESULT_BYTES, _RESULT_BYTES)
        return [(ctypes.c_char * _RESULT_BYTES).from_buffer_copy(results, start) for start in starts]


def _aligned(size: int) -> int:
    return -(-size // MOST_ALIGNMENT) * MOST_ALIGNMENT


def refusal(
    dtype: DType, form: ProductForm, epilogue: Epilogue, left: Sequence[int], right: Sequence[int], device: int | None
) -> str | None:  # fmt: skip
    """Returns why a product of operands of these shapes has no epilogue, None if it has; device: None without a GPU."""
    if dtype not in _TYPES:
        return f"cuBLASLt has no epilogues in {dtype.name}"
    if device is None:
        return None
    try:
        is_known = EpilogueProduct(dtype, form, epilogue).has_algorithm(device, left, right)
    except OSError as error:
        return f"cuBLASLt is not loaded: {error}"
    return None if is_known else f"cuBLASLt has no algorithm for {epilogue} in {dtype.name} at these sizes"
