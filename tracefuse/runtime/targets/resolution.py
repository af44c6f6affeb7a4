"""Resolves the target and the device of a call, from the option `target` and the arrays of the call.

This is the only module that lists the targets.

Must not know: segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from segments.lazy_dataclasses import dataclass
from tracefuse.runtime.targets.cpu.cpu_target import CPU, cpu_target
from tracefuse.runtime.targets.cuda.cuda_target import CUDA, cuda_device_here, cuda_target_here
from tracefuse.runtime.targets.target import Target


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of target. make: returns the target of a device. device: maps the arrays' device to the call's device."""

    make: Callable[[int], Target]
    device: Callable[[int | None], int | None]


_KINDS: Mapping[str, _Kind] = {
    CPU: _Kind(lambda device: cpu_target(), lambda device: None),
    CUDA: _Kind(cuda_target_here, cuda_device_here),
}


def resolve_target(option: str, device: int | None) -> tuple[str, int | None]:
    """Returns (target, GPU) for the option `target` and the GPU that holds the arrays, None for the host.

    An option that names no target ("auto", "reference") selects the target of the arrays.
    """
    if option not in _KINDS:
        return (CPU, None) if device is None else (CUDA, device)
    return option, _KINDS[option].device(device)


def target_for(name: str, device: int = 0) -> Target:
    """Returns the target of a name and a device. Without a usable GPU, CUDA kernels are emitted but not compiled."""
    return _KINDS[name].make(device)
