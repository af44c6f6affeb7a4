"""What compiles kernels of a target, and what launches them.

Knows: kernels, the cache on disk. Must not know: arrays, which targets there are, segments, plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.kernel_ir import Kernel


class KernelCompiler(ABC):
    """Compiles and launches the kernels of a target."""

    @abstractmethod
    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        """The compiled kernel; equal kernels are compiled once, or taken from `disk`. Several threads may call it."""

    @abstractmethod
    def entry(self, function: Any) -> Callable[..., None]:
        """What launches a compiled kernel.

        It is called with the stream where there is one (`CallText.stream_text`), then tensors as
        `CallText.argument_text` writes them and numbers in the order of the kernel's parameters.
        """

    @abstractmethod
    def require_graphs(self) -> None:
        """Raises UnsupportedError where kernels cannot be launched as a graph."""

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        """What launches several kernels at once: called with the stream and the arguments of each."""
        raise NotImplementedError
