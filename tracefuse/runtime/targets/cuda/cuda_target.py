"""The CUDA targets: one for each GPU, and one that emits kernels without a GPU.

A target without a GPU defaults to the architecture of an H100 or H200.

Must not know: segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import memoized
from tracefuse.dtypes import DType
from tracefuse.passes.product_epilogues import Epilogue
from tracefuse.runtime.devices import cublas, cublas_lt, cuda_arrays, row_updates
from tracefuse.runtime.devices.gemm_calls import ProductForm
from tracefuse.runtime.targets.array_library import ArrayLibrary
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cuda.absent_gpu import AbsentGpu
from tracefuse.runtime.targets.cuda.cuda_call_text import CudaCallText
from tracefuse.runtime.targets.cuda.cuda_device import CudaDevice
from tracefuse.runtime.targets.cuda.cuda_kernel_compiler import CudaKernelCompiler, CudaTextCompiler
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.gpu.gpu_templates import gpu_templates

CUDA = "cuda"


class CupyLibrary(ArrayLibrary):
    """CuPy, cuBLAS for matrix products, and kernels for updates of rows."""

    has_halves = has_epilogues = True

    def __init__(self, device: int) -> None:
        self.device = device
        self.array_type = cuda_arrays.array_type()

    def as_result(self, array: Any, dtype: DType) -> Any:
        is_plain = array.flags.c_contiguous and cuda_arrays.alignment(array) == cuda_arrays.ALIGNMENT
        return array if is_plain else array.copy(order="C")

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        return cublas.product_of(dtype)

    def prepared_product(self, dtype: DType, form: ProductForm) -> Any | None:
        return cublas.CublasProduct(dtype, form) if cublas.supports(dtype) else None

    def epilogue_refusal(
        self, dtype: DType, form: ProductForm, epilogue: Epilogue, left: Sequence[int], right: Sequence[int]
    ) -> str | None:  # fmt: skip
        return cublas_lt.refusal(dtype, form, epilogue, left, right, self.device)

    def epilogue_product(self, dtype: DType, form: ProductForm, epilogue: Epilogue) -> Any:
        return cublas_lt.EpilogueProduct(dtype, form, epilogue)

    def row_update(self, combine: str, dtype: DType) -> Callable[[Any, Any, Any], Any] | None:
        return row_updates.row_update(combine, dtype.numpy)


class AbsentLibrary(ArrayLibrary):
    """Stands in for CuPy without a GPU; it is never called."""

    has_halves = has_epilogues = True

    def prepared_product(self, dtype: DType, form: ProductForm) -> Any | None:
        return cublas.CublasProduct(dtype, form) if cublas.supports(dtype) else None

    def epilogue_refusal(
        self, dtype: DType, form: ProductForm, epilogue: Epilogue, left: Sequence[int], right: Sequence[int]
    ) -> str | None:  # fmt: skip
        return cublas_lt.refusal(dtype, form, epilogue, left, right, None)

    def epilogue_product(self, dtype: DType, form: ProductForm, epilogue: Epilogue) -> Any:
        return cublas_lt.EpilogueProduct(dtype, form, epilogue)


@memoized("the target of a GPU", key="device", most=None, bound="GPUs", clears=False)
def cuda_target(device: int) -> Target:
    """Returns the target of a GPU; raises DeviceError if there is none."""
    architecture = cuda_arrays.architecture(device)
    templates = gpu_templates(architecture, cuda_arrays.multiprocessor_count(device))
    gpu = CudaDevice(device)
    return Target(
        CUDA, templates, CudaKernelCompiler(device, architecture), gpu, CupyLibrary(device), CudaCallText(gpu)
    )


@memoized("a target that writes CUDA kernels without a GPU", key="architecture, multiprocessors", most=16)
def cuda_text_target(architecture: str = "sm_90", multiprocessors: int = 132) -> Target:
    """Returns a target that emits CUDA source; by default for an H100 or H200 (compute capability 9.0, 132 SMs)."""
    gpu = AbsentGpu()
    templates = gpu_templates(architecture, multiprocessors)
    return Target(CUDA, templates, CudaTextCompiler(), gpu, AbsentLibrary(), CallText(gpu))


def cuda_target_here(device: int) -> Target:
    """Returns the target of a GPU, or one that only emits kernels if no GPU is usable."""
    return cuda_target(device) if cuda_arrays.unavailable() is None else cuda_text_target()


def cuda_device_here(device: int | None) -> int | None:
    """Returns the GPU that holds the arrays, else the current GPU; None if no GPU is usable."""
    return cuda_arrays.current_device() if device is None and cuda_arrays.unavailable() is None else device
