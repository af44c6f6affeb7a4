"""The interface of a target's kernel compiler, which compiles kernels and makes their launch functions.

Each target implements it: with LLVM on the CPU, and with NVRTC on GPUs.

Must not know: arrays, segments, plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cache.memory_cache import Statistics
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.llvm.device_records import DeviceChain
from tracefuse.kernel.llvm.replay_records import ReplayChain
from tracefuse.kernel.loop_driver import LoopDriver


class LaunchGraph(Protocol):
    """Launches that run as one, in order. A key determines all arguments; its first entry is the stream.

    size: the number of launches. changes: how many of them had other arguments than before, over all calls so far.
    """

    size: int
    changes: int

    def replay(self, key: tuple[Any, ...]) -> bool:
        """Launches the graph with the arguments of an earlier launch with an equal key; False if there is none."""
        ...

    def launch(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Launches the graph with these arguments of each launch, and may keep them by the key."""
        ...


class KernelCompiler(ABC):
    """Compiles and launches the kernels of a target."""

    @abstractmethod
    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        """Returns the compiled kernel; compiles equal kernels once, or loads them from `disk`. Thread-safe.

        work: of its first launch, in elements, if it may run quickly compiled code until the optimized code is there;
        by default it may not.
        """

    def progress(self, function: Any) -> str:
        """Returns how far a kernel that runs quickly compiled code first is compiled, "" for others."""
        return ""

    def renamed(self, function: Any, kernel: Kernel) -> Any:
        """Returns the compiled function of a kernel that is equal to that of `function` but for its name."""
        return self.compile(kernel)

    def identity(self, kernel: Kernel) -> str:
        """Returns a text that is equal for equal kernels, if possible whatever their names and comments are."""
        return str(kernel)

    def statistics(self) -> Statistics:
        """Returns how many kernels were compiled, loaded from disk and served from memory so far, by any function."""
        return Statistics(0, 0, 0)

    @abstractmethod
    def entry(self, function: Any) -> Callable[..., None]:
        """Returns the function that launches a compiled kernel.

        The function takes the stream, if there is one (`CallText.stream_text`), and then the kernel's arguments in
        parameter order: tensors as `CallText.argument_text` writes them, and numbers.
        """

    @property
    def compiles_loops(self) -> bool:
        """Whether `loop` compiles the driver of a loop; otherwise the host runs the steps."""
        return False

    def loop(
        self, driver: LoopDriver, functions: Sequence[Any], disk: DiskCache | None = None
    ) -> Callable[..., int]:  # fmt: skip
        """Returns the function of a driver, compiled or loaded from `disk`. It takes the driver's parameters in order.

        functions: the compiled kernels of the driver. Thread-safe.
        """
        raise NotImplementedError

    @property
    def has_graphs(self) -> bool:
        """Whether `graph` makes graphs that cost less than their launches one by one."""
        return False

    @abstractmethod
    def require_graphs(self) -> None:
        """Raises UnsupportedError if the target cannot launch kernels as a CUDA graph."""

    def graph(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]]) -> LaunchGraph:
        """Returns a graph that launches compiled kernels and functions of libraries that are launched like them.

        order: for each function, the positions of those that it follows.
        """
        raise NotImplementedError

    def replayable(self, function: Any) -> Any | None:
        """Returns what a record of a chain holds to launch a compiled kernel, None if none can."""
        return None

    def replayable_together(self, function: Any) -> Any | None:
        """Returns what a record holds to launch a kernel several times at once, None if none can."""
        return None

    replays_copies: bool = False
    """Whether records can hold copies."""

    def chain(
        self, missed: Callable[[Any], Any], make: Callable[[Any, Any], Any]
    ) -> ReplayChain | DeviceChain | None:  # fmt: skip
        """Returns an empty chain of records of calls, None if the target has none.

        missed: runs a call that no record fits. make: makes an array, from its shape and its type.
        """
        return None

    def can_join(self, function: Any) -> bool:
        """Whether the target can launch a kernel several times at once."""
        return False

    def joined(self, function: Any) -> Callable[..., None]:
        """Returns a function that launches a kernel several times at once.

        The function takes the stream, and the sequence of the arguments of each launch. The launches must be
        independent.
        """
        raise NotImplementedError
