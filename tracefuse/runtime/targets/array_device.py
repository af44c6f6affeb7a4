"""The interface of a device: its memory, the arrays in it, and the streams that run work.

Host programs run on a device as well: it implements `segments.Device`.

Must not know: kernels, plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from segments import Streams, run_on_threads
from tracefuse.dtypes import DType
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.devices import cpu_memory

SMALL_LOOP = 1 << 20
"""Least total bytes of arrays for which a stream-parallel loop starts threads; starting one outlasts a smaller loop."""


class ArrayDevice(ABC):
    """The memory of a target and the arrays in it (segments.Device).

    array_type: the exact type of arguments, to which `as_array` converts. uses_alignment: whether kernels are
    specialized for arguments that start at a multiple of 16 bytes (`is_wide`).
    """

    array_type: type
    uses_alignment: bool = False

    # -- arrays --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def as_array(self, value: Any) -> Any:
        """Returns an argument as an array of `array_type` that shares its memory, or raises DeviceError."""

    @abstractmethod
    def is_plain(self, array: Any) -> bool:
        """Whether an argument is C-contiguous with aligned elements."""

    @abstractmethod
    def is_wide(self, array: Any) -> bool:
        """Whether an argument starts at a multiple of 16 bytes; False if the target does not use alignment."""

    @abstractmethod
    def is_aligned(self, array: Any) -> bool:
        """Whether an argument's elements are aligned to their size."""

    @abstractmethod
    def is_writable(self, array: Any) -> bool:
        """Whether an array is writable."""

    def may_share(self, first: Any, second: Any) -> bool:
        """Whether two arrays may overlap in memory; a conservative test, with false positives."""
        return np.may_share_memory(first, second)

    @abstractmethod
    def address(self, array: Any) -> int:
        """Returns the address of element 0 of an array."""

    def owner_of(self, array: Any) -> Any:
        """Returns the object that lives as long as the array or any view of it, and supports weak references."""
        return cpu_memory.owner_of(array)

    def reuse_buffer(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """Returns a new array in the memory of a contiguous array of the same number of bytes."""
        return cpu_memory.reuse_buffer(array, shape, dtype)

    def standing_for(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
        """Returns a placeholder array with strides in elements and the memory of one element; it is never accessed."""
        return cpu_memory.standing_for(shape, strides, dtype)

    def on_host(self, array: Any) -> Any:
        """Returns the array as a NumPy array, after the work that computes it has finished."""
        return np.asarray(array)

    # -- the interface of host programs (segments.Device) --------------------------------------------------------------

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Returns a new array with uninitialized content."""

    def free_owners(self, shape: tuple[int, ...], dtype: DType) -> Sequence[Any] | None:
        """Returns pairs of an owner of memory for such an array and an offset; those not in use are free.

        None if the device keeps no freed memory, or none of that size.
        """
        return None

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> Any:
        return self.empty(spec.shape(values), spec.dtype)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[Any] | None:
        return label.run(inputs, outputs)  # type: ignore[no-any-return]

    def release(self, buffer: Any) -> None:  # noqa: B027  (both targets have nothing to do)
        """Does nothing: memory is freed with the last reference to it."""

    def copy(self, source: Any, target: Any) -> None:
        """Copies the elements of `source` into `target`, which has the same shape and dtype."""
        target[...] = source

    def select(self, buffer: Any, axis: int, index: int, size: int | None) -> Any:
        """Returns a view: index `index` of the axis, or the `size` elements from index * size on."""
        where = index if size is None else slice(index * size, (index + 1) * size)
        return buffer[(*(slice(None),) * axis, where, ...)]

    def host_op(self, label: Any, inputs: list[Any], output: Any | None) -> Any:
        """Returns the result of an operation of the array library, in `output` or in a new array."""
        written = self.empty(label.shape(inputs), label.dtype) if output is None else output
        label(inputs, written)
        return written

    def communicate(self, label: Any, sources: list[Any], targets: list[Any]) -> Any:
        """Starts an exchange between ranks; returns its handle."""
        return label, label.start(sources[0], targets[0] if targets else None), len(targets)

    def finish_request(self, handle: Any) -> Sequence[Any]:
        """Waits for an exchange; returns the arrays that it wrote."""
        label, request, count = handle
        return (label.finish(request),)[:count]

    def start_coalescing(self) -> None:
        """Begins a group of exchanges."""
        current_world().start_group()

    def end_coalescing(self) -> None:
        """Starts the exchanges of the group."""
        current_world().end_group()

    @abstractmethod
    def open_streams(self) -> Streams:
        """Returns the streams of one run of a host program."""

    # -- streams and graphs --------------------------------------------------------------------------------------------

    def synchronize(self) -> None:  # noqa: B027  (on the CPU, launches are synchronous)
        """Waits for all launches; raises DeviceError if one failed."""

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        """Returns call(arguments), called with this device as the current device."""
        return call(arguments)

    def stream_worker_count(self, size: int, streams: int) -> int:
        """Returns the number of streams that get work of a stream-parallel loop. size: the total bytes of its arrays.

        Starting a thread takes longer than a small loop, which therefore runs on the caller's thread.
        """
        return streams if size >= SMALL_LOOP else 1

    def run_stream_workers(
        self, caller: Any, start_worker: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
    ) -> None:
        """Runs `total` iterations on up to `streams` streams. Later work on the caller's stream runs after all of them.

        caller: the caller's stream, as `stream_text` writes it. start_worker: called with a stream and its index,
        returns the function of an iteration on that stream.
        """
        run_on_threads([start_worker(None, k) for k in range(min(total, streams))], total)

    def integers(self, start: int, count: int) -> Any:
        """Returns the int64 array start, start + 1, ... of `count` elements."""
        return np.arange(start, start + count, dtype=np.int64)

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        """Returns a function from a stream's address to a function that copies memory laid out like these arrays.

        The copy function takes the addresses of source and target. Returns None if arrays are copied by `copy`.
        """
        return None

    def is_recording(self) -> bool:
        """Whether the caller records the work on the current stream into a graph of its own."""
        return False

    def persistent_arena(self) -> Callable[[int, int], Any]:
        """Returns an allocator of an arena for all launches of a CUDA graph on a stream: of the stream and a size."""
        raise NotImplementedError
