"""Targets: which backend serves an option and the arrays of a call.

Knows: which backends there are. Must not know: segments, plans, frontends.
"""

from __future__ import annotations

from tracefuse.caches import memoized
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.targets.backend import Backend
from tracefuse.runtime.targets.cpu_backend import CpuBackend
from tracefuse.runtime.targets.cuda_backend import CudaBackend, CudaTextBackend


@memoized("the backend of the processor", key="none", most=1, clears=False)
def cpu_backend() -> CpuBackend:
    """The backend of this machine's processor."""
    return CpuBackend()


@memoized("the backend of a GPU", key="device", most=None, bound="GPUs", clears=False)
def cuda_backend(device: int) -> CudaBackend:
    """The backend of one GPU. Raises DeviceError where there is none."""
    return CudaBackend(device)


@memoized("a backend that writes CUDA kernels without a GPU", key="architecture, multiprocessors", most=16)
def cuda_text_backend(architecture: str = "sm_90", multiprocessors: int = 132) -> CudaTextBackend:
    """CUDA kernels as texts; by default for an H100 or H200 (compute capability 9.0, 132 multiprocessors)."""
    return CudaTextBackend(architecture, multiprocessors)


def resolve_target(target: str, device: int | None) -> tuple[str, int | None]:
    """(target, GPU) for the option `target` and the GPU that holds the arrays, None for the host."""
    if target in ("auto", "reference"):
        return ("cpu", None) if device is None else ("cuda", device)
    if target == "cpu":
        return target, None
    return target, (cuda_arrays.current_device() if device is None and cuda_arrays.unavailable() is None else device)


def backend_for(target: str, device: int = 0) -> Backend:
    """The backend of a target ("cpu" or "cuda"); CUDA kernels are only written where no GPU can be used."""
    if target == "cpu":
        return cpu_backend()
    return cuda_backend(device) if cuda_arrays.unavailable() is None else cuda_text_backend()
