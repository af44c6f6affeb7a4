"""The kernel compiler of the CPU target: compiles LLVM kernels for this machine's processor and launches them.

A launch returns when its work has finished.

Must not know: arrays, segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.kernel.llvm.cpu_functions import compile_cpu, compile_driver
from tracefuse.kernel.llvm.replay_records import ReplayChain, can_launch, can_replay
from tracefuse.kernel.loop_driver import LoopDriver
from tracefuse.runtime.targets.kernel_compiler import KernelCompiler


class CpuKernelCompiler(KernelCompiler):
    """Compiles and launches LLVM kernels."""

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        return compile_cpu(kernel, disk, work)

    def progress(self, function: Any) -> str:
        return function.progress  # type: ignore[no-any-return]

    def renamed(self, function: Any, kernel: Kernel) -> Any:
        return function.renamed(kernel)

    def identity(self, kernel: Kernel) -> str:
        return cpu_functions.identity(kernel)

    def statistics(self) -> Statistics:
        return cpu_functions.statistics()

    def entry(self, function: Any) -> Callable[..., None]:
        return function.launch  # type: ignore[no-any-return]

    def loop(
        self, driver: LoopDriver, functions: Sequence[Any], disk: DiskCache | None = None
    ) -> Callable[..., int]:  # fmt: skip
        return compile_driver(driver, functions, disk)

    @property
    def compiles_loops(self) -> bool:
        return True

    def replayable(self, function: Any) -> Any | None:
        entry = self.entry(function)
        return entry if can_launch(entry) else None

    replays_copies = True

    def chain(self, missed: Callable[[Any], Any], make: Callable[[Any, Any], Any]) -> ReplayChain | None:
        return ReplayChain(missed, make) if can_replay() else None

    def require_graphs(self) -> None:
        raise UnsupportedError(
            "graph=True launches kernels as one CUDA graph, and these run on the CPU",
            hint="pass CuPy arrays, or leave graph= out",
        )
