"""The device of a CUDA target without a GPU: it inspects NumPy arrays, and nothing runs.

The target emits kernels for inspection (`CudaTextCompiler`).

Must not know: kernels, plans.
"""

from __future__ import annotations

from typing import Any, NoReturn

from segments import Streams
from tracefuse.dtypes import DType
from tracefuse.errors import DeviceError
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.targets.numpy_device import NumpyDevice


def refuse_to_run(*arguments: Any) -> NoReturn:
    """Raises DeviceError, since there is no usable GPU."""
    raise DeviceError(
        f"CUDA kernels cannot run here: {str(cuda_arrays.unavailable()).splitlines()[0]}",
        hint="f.segments(*args) shows them; target='cpu' or 'auto' runs NumPy arrays on the CPU",
    )


class AbsentGpu(NumpyDevice):
    """Stands in for a GPU: tests NumPy arrays, and refuses to allocate or run."""

    uses_alignment = True

    def as_array(self, value: Any) -> Any:
        refuse_to_run()

    def is_wide(self, array: Any) -> bool:
        return bool(array.ctypes.data % 16 == 0)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        refuse_to_run()

    def open_streams(self) -> Streams:
        refuse_to_run()
