"""The texts of a call that launches CUDA kernels.

Kernels take the addresses of CuPy arrays, and run on the current stream.

Must not know: plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.dtypes import DType
from tracefuse.runtime.devices import cuda_arrays, new_cuda_arrays
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cuda.cuda_device import CudaDevice


class CudaCallText(CallText):
    """Writes expressions about CuPy arrays of one GPU."""

    addresses = True

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.number = device.number
        # With one GPU, every array is on it and it is always current, so a call needs no test.
        self._several = cuda_arrays.device_count() > 1

    def names(self) -> dict[str, Any]:
        construct = new_cuda_arrays.constructor()
        return {
            **super().names(),
            "current_device": cuda_arrays.current_device_function(),
            "allocate": cuda_arrays.allocate_bytes,
            "new_array": construct,
            "new_arrays": new_cuda_arrays.several(construct),
            "memory_of": cuda_arrays.allocator(),
            "new": cuda_arrays.empty,
            "current_stream": cuda_arrays.current_stream_function(),
        }

    def here_text(self, name: str) -> str | None:
        return f"{name}.data.device_id == {self.number}" if self._several else None

    def elsewhere_text(self) -> str | None:
        return f"current_device() != {self.number}" if self._several else None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        return f"{name}._c_contiguous" + (f" and {address} % {itemsize} == 0" if itemsize > 1 else "")

    def wide_text(self, name: str, address: str) -> str:
        return f"{address} % 16 == 0"

    def all_wide_text(self, arrays: Sequence[tuple[str, str]]) -> str:
        addresses = " | ".join(address for _, address in arrays)
        return f"({addresses}) % 16 == 0" if len(arrays) > 1 else super().all_wide_text(arrays)

    def writable_text(self, name: str) -> str | None:
        return None

    def address_text(self, name: str, address: str) -> str:
        return address

    def apart_text(self, first: str, first_address: str, second: str, second_address: str) -> str:
        ends = f"{first_address} + {first}.nbytes", f"{second_address} + {second}.nbytes"
        return f"{ends[0]} <= {second_address} or {ends[1]} <= {first_address}"

    def argument_text(self, name: str) -> str:
        return f"{name}.data.ptr"

    def stream_text(self) -> str | None:
        return "current_stream().ptr"

    def empty_text(self, shape: str, dtype: DType, name: str, size: str) -> str:
        return f"new_array({shape}, {name}.numpy, memory_of({size}))" if _is_own(dtype) else f"new({shape}, {name})"

    most_together = new_cuda_arrays.MOST_TOGETHER

    def several_text(self, asked: Sequence[tuple[str, DType, str, str]]) -> str | None:
        if not all(_is_own(dtype) for _, dtype, _, _ in asked):
            return None
        return f"new_arrays({', '.join(f'({shape}, {name}.numpy, {size})' for shape, _, name, size in asked)})"


def _is_own(dtype: DType) -> bool:
    """Whether a type is NumPy's own. Others may raise the error of a CuPy that does not support them."""
    return dtype.numpy.isbuiltin == 1
