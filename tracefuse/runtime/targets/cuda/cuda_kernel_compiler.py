"""The kernel compilers of CUDA targets.

One compiles kernels for a GPU and launches them. The other emits the source of kernels without a GPU.

Must not know: segments, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.cuda.cuda_compiler import CudaCompiler
from tracefuse.kernel.cuda.cuda_functions import CudaFunction
from tracefuse.kernel.cuda.cuda_graph import CudaGraph
from tracefuse.kernel.cuda.cuda_table import CudaTable
from tracefuse.kernel.cuda.emit_cuda import canonical_cuda, emit_cuda
from tracefuse.kernel.cuda.emit_table import fits_table
from tracefuse.kernel.cuda.graph_nodes import GraphNode, KernelNode, RecordedNode
from tracefuse.kernel.cuda.replayed_launches import ReplayedKernel, ReplayedTable
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm.device_records import DeviceChain
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.devices.cuda_layout import device_calls
from tracefuse.runtime.targets.cuda.absent_gpu import refuse_to_run
from tracefuse.runtime.targets.kernel_compiler import KernelCompiler


class CudaKernelCompiler(KernelCompiler):
    """Compiles CUDA kernels for the architecture of one GPU and launches them there."""

    def __init__(self, device: int, architecture: str) -> None:
        self.device = device
        self.compiler = CudaCompiler(architecture)
        self._disk: DiskCache | None = None

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        self._disk = disk
        return self.compiler.compile(kernel, disk)

    def renamed(self, function: Any, kernel: Kernel) -> Any:
        return function  # equal kernels share a function, which has the name of the first

    def identity(self, kernel: Kernel) -> str:
        return self.compiler.key(kernel)

    def statistics(self) -> Statistics:
        return self.compiler.statistics()

    def entry(self, function: Any) -> Callable[..., None]:
        with cuda_arrays.on_device(self.device):
            return function.launcher(self.device)  # type: ignore[no-any-return]

    def can_join(self, function: Any) -> bool:
        return fits_table(function.kernel)

    def joined(self, function: Any) -> Callable[..., None]:
        with cuda_arrays.on_device(self.device):
            return CudaTable(function, self.compiler.compile_table(function), self.device)

    def replayable(self, function: Any) -> Any | None:
        return ReplayedKernel(function, self.device) if isinstance(function, CudaFunction) else None

    def replayable_together(self, function: Any) -> Any | None:
        return ReplayedTable(function, self.compiler.compile_table(function), self.device)

    def chain(self, missed: Callable[[Any], Any], make: Callable[[Any, Any], Any]) -> DeviceChain | None:
        calls = device_calls(self.device)
        return None if calls is None else DeviceChain(missed, calls, self._disk)

    @property
    def has_graphs(self) -> bool:
        return True

    def require_graphs(self) -> None:
        """Does nothing: every GPU supports CUDA graphs."""

    def graph(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]]) -> CudaGraph:
        nodes: dict[int, GraphNode] = {}
        with cuda_arrays.on_device(self.device):
            for function in functions:
                if id(function) not in nodes:
                    nodes[id(function)] = self._node(function)
        return CudaGraph([nodes[id(function)] for function in functions], order)

    def _node(self, function: Any) -> GraphNode:
        if isinstance(function, CudaFunction):
            return KernelNode(function, self.device)
        return RecordedNode(function.recorder(self.device), self.device)


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """A CUDA kernel that was emitted but not compiled."""

    kernel: Kernel
    source: str


class AbsentGraph:
    """Stands in for a graph. Launching it raises DeviceError."""

    size = changes = 0

    def replay(self, key: tuple[Any, ...]) -> bool:
        refuse_to_run()

    def launch(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> None:
        refuse_to_run()


class CudaTextCompiler(KernelCompiler):
    """Emits CUDA kernels as source text for inspection, without a GPU. Launching one raises DeviceError."""

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        return EmittedKernel(kernel, emit_cuda(kernel))

    def identity(self, kernel: Kernel) -> str:
        return canonical_cuda(kernel)

    def entry(self, function: Any) -> Callable[..., NoReturn]:
        return refuse_to_run

    def require_graphs(self) -> None:
        """Does nothing: the emitted kernels do not depend on graphs."""

    def graph(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]]) -> AbsentGraph:
        return AbsentGraph()
