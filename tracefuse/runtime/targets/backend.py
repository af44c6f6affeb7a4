"""What a backend is: it compiles and launches kernels for a target, and allocates memory for it.

The same few calls for the CPU and for a GPU; a backend is also the device that a host program runs on.

Knows: arrays, memory, kernels. Must not know: which targets there are, segments, plans, frontends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from segments import Streams, run_on_threads
from tracefuse.dtypes import DType
from tracefuse.errors import UnsupportedError
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.runtime.devices import cpu_memory
from tracefuse.schedule.choose import Target

SMALL_LOOP = 1 << 20
"""Bytes of the arrays of a loop over slices below which it starts no threads: what they do meanwhile."""


class Backend(ABC):
    """A target with its compiler and its memory (segments.Device)."""

    target: Target
    array_type: type
    """What an argument is, exactly; `as_array` makes it so."""
    uses_alignment: bool = False
    """Whether kernels are made for arguments that start at a multiple of 16 bytes (`is_wide`)."""

    @abstractmethod
    def compile(self, kernel: Kernel, disk: DiskCache | None = None) -> Any:
        """The compiled kernel; equal kernels are compiled once, or taken from `disk`. Several threads may call it."""

    @abstractmethod
    def entry(self, function: Any) -> Callable[..., None]:
        """What launches a compiled kernel: called with the stream where there is one (`stream_text`), then tensors as
        `argument_text` writes them and numbers in the order of the kernel's parameters."""

    def require_graphs(self) -> None:
        """Raises UnsupportedError where kernels cannot be launched as a graph."""
        raise UnsupportedError(
            "graph=True launches kernels as one CUDA graph, and these run on the CPU",
            hint="pass CuPy arrays, or leave graph= out",
        )

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        """What launches several kernels at once: called with the stream and the arguments of each."""
        raise NotImplementedError

    def kept_room(self) -> Callable[[int], Any]:
        """What gives one memory at every call, for what graphs keep between their kernels; it grows as it must."""
        raise NotImplementedError

    def product(self, dtype: DType) -> Callable[[Any, Any, bool], Any] | None:
        """A function of two matrices of a type, and whether the second is transposed, that beats NumPy's or CuPy's.

        It gives None where it cannot take them.
        """
        return None

    def as_result(self, array: Any, dtype: DType) -> Any:
        """What a library made as a result: C-contiguous, as aligned as the arrays that `empty` gives."""
        return array if not hasattr(array, "flags") or array.flags.c_contiguous else array.copy(order="C")

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """A fresh array with unspecified content."""

    def standing_for(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
        """An array that nothing reads or writes, with strides in elements: it has one element's memory."""
        return cpu_memory.standing_for(shape, strides, dtype)

    def over(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """A new array in the memory of another, which is contiguous and has as many bytes."""
        return cpu_memory.over(array, shape, dtype)

    def owner_of(self, array: Any) -> Any:
        """What lives as long as the array or any view of it does, and can be referred to weakly."""
        return cpu_memory.owner_of(array)

    @abstractmethod
    def as_array(self, value: Any) -> Any:
        """An argument as an array of `array_type` that shares its memory. Raises DeviceError for what is none."""

    @abstractmethod
    def is_plain(self, array: Any) -> bool:
        """Whether an argument is C-contiguous, with aligned elements."""

    def here_text(self, name: str) -> str | None:
        """Whether the array called `name` is on this device, as a Python expression; None where it must be."""
        return None

    addresses: bool = False
    """Whether kernels are given addresses, not arrays."""

    def argument_text(self, name: str) -> str:
        """What a kernel is given for the array called `name`."""
        return name

    def stream_text(self) -> str | None:
        """The stream of a call, as a Python expression, where there are streams."""
        return None

    def plain_text(self, name: str, address: str, itemsize: int) -> str:
        """`is_plain` of the array called `name` as a Python expression, which calls pay for; it may call `is_plain`.

        address: the name of its address; itemsize: 1 where that is known to be a multiple of all that matters.
        """
        return f"is_plain({name})"

    def wide_text(self, name: str, address: str) -> str:
        """`is_wide` likewise."""
        return f"is_wide({name})"

    def writable_text(self, name: str) -> str | None:
        """`is_writable` likewise; None where every array is."""
        return f"{name}.flags.writeable"

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        """A fresh array, from texts of its shape, type and bytes."""
        return f"empty({shape}, {dtype})"

    def elsewhere_text(self) -> str | None:
        """Whether the current device of the thread is another one, as a Python expression; None where there is one."""
        return None

    @abstractmethod
    def is_wide(self, array: Any) -> bool:
        """Whether an argument starts at a multiple of 16 bytes, where that matters to the target."""

    @abstractmethod
    def is_aligned(self, array: Any) -> bool:
        """Whether an argument's elements are at multiples of their size."""

    @abstractmethod
    def is_writable(self, array: Any) -> bool:
        """Whether an array may be written."""

    def may_share(self, one: Any, two: Any) -> bool:
        """Whether two arrays may share bytes; it may say so of some that do not."""
        return np.may_share_memory(one, two)

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where element 0 of an array is."""

    def on_host(self, array: Any) -> Any:
        """The array as a NumPy array, when the work that makes it is done."""
        return np.asarray(array)

    def synchronize(self) -> None:  # noqa: B027  (on the CPU a launch returns when it is done)
        """Waits for all launches. Raises DeviceError where one failed."""

    def copy(self, source: Any, target: Any) -> None:
        """Writes the elements of `source` into `target`, of the same shape and type."""
        target[...] = source

    def select(self, buffer: Any, axis: int, index: int, size: int | None) -> Any:
        """A slice that shares memory: without the axis, or `size` elements of it from index * size on."""
        where = index if size is None else slice(index * size, (index + 1) * size)
        return buffer[(*(slice(None),) * axis, where, ...)]

    def host_op(self, label: Any, inputs: list[Any], output: Any | None) -> Any:
        """The result of an operation of the array library, in `output` or in a new array."""
        written = self.empty(label.shape(inputs), label.dtype) if output is None else output
        label(inputs, written)
        return written

    @abstractmethod
    def open_streams(self) -> Streams:
        """The streams of one run of a host program."""

    def lanes_of(self, size: int, streams: int) -> int:
        """How many of the streams get work of a loop whose arrays have `size` bytes together.

        Starting a thread takes longer than all of a small loop, which the caller's thread does then.
        """
        return streams if size >= SMALL_LOOP else 1

    def run_lanes(self, own: Any, lane: Callable[[Any, int], Callable[[int], None]], total: int, streams: int) -> None:
        """Runs `total` iterations over up to so many streams; what comes next on the caller's is after all of them.

        own: the caller's stream, as `stream_text` writes it. lane(stream, number): the function of an iteration.
        """
        run_on_threads([lane(None, k) for k in range(min(total, streams))], total)

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        """What copies memory like `source` into memory like `target`, from the address of a stream and both addresses.

        None where arrays are copied as they are.
        """
        return None

    def names(self) -> dict[str, Any]:
        """What the texts refer to."""
        return {
            "is_plain": self.is_plain, "is_wide": self.is_wide, "array_type": self.array_type, "empty": self.empty,
            "copy": self.copy,
        }  # fmt: skip

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        """call(arguments) with this backend's device as the current one."""
        return call(arguments)

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> Any:
        return self.empty(spec.shape(values), spec.dtype)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[Any] | None:
        return label.run(inputs, outputs)  # type: ignore[no-any-return]

    def release(self, buffer: Any) -> None:  # noqa: B027  (nothing to do is the right thing for both targets)
        """Memory goes back when the last reference does."""
