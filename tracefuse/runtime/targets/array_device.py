"""What a device is: memory, the arrays in it, and the streams on which work runs.

A device is also what a host program runs on.

Knows: arrays, memory. Must not know: which targets there are, kernels, segments, plans, frontends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from segments import Streams, run_on_threads
from tracefuse.dtypes import DType
from tracefuse.runtime.devices import cpu_memory

SMALL_LOOP = 1 << 20
"""Bytes of the arrays of a stream-parallel loop below which it starts no threads: what they do meanwhile."""


class ArrayDevice(ABC):
    """The memory of a target and the arrays in it (segments.Device).

    array_type: what an argument is, exactly; `as_array` makes it so. uses_alignment: whether kernels are made for
    arguments that start at a multiple of 16 bytes (`is_wide`).
    """

    array_type: type
    uses_alignment: bool = False

    # -- arrays --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def as_array(self, value: Any) -> Any:
        """An argument as an array of `array_type` that shares its memory. Raises DeviceError for what is none."""

    @abstractmethod
    def is_plain(self, array: Any) -> bool:
        """Whether an argument is C-contiguous, with aligned elements."""

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

    def owner_of(self, array: Any) -> Any:
        """What lives as long as the array or any view of it does, and can be referred to weakly."""
        return cpu_memory.owner_of(array)

    def reuse_buffer(self, array: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """A new array in the memory of another, which is contiguous and has as many bytes."""
        return cpu_memory.reuse_buffer(array, shape, dtype)

    def standing_for(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Any:
        """An array that nothing reads or writes, with strides in elements: it has one element's memory."""
        return cpu_memory.standing_for(shape, strides, dtype)

    def on_host(self, array: Any) -> Any:
        """The array as a NumPy array, when the work that makes it is done."""
        return np.asarray(array)

    # -- what host programs ask of a device (segments.Device) ----------------------------------------------------------

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """A fresh array with unspecified content."""

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> Any:
        return self.empty(spec.shape(values), spec.dtype)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[Any] | None:
        return label.run(inputs, outputs)  # type: ignore[no-any-return]

    def release(self, buffer: Any) -> None:  # noqa: B027  (nothing to do is the right thing for both targets)
        """Memory goes back when the last reference does."""

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

    # -- streams and graphs --------------------------------------------------------------------------------------------

    def synchronize(self) -> None:  # noqa: B027  (on the CPU a launch returns when it is done)
        """Waits for all launches. Raises DeviceError where one failed."""

    def on_device(self, call: Callable[[Any], Any], arguments: Any) -> Any:
        """call(arguments) with this device as the current one."""
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

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        """What copies memory like `source` into memory like `target`, from the address of a stream and both addresses.

        None where arrays are copied as they are.
        """
        return None

    def persistent_arena(self) -> Callable[[int], Any]:
        """Returns an allocator of one arena for all launches of a CUDA graph, which grows to the largest request."""
        raise NotImplementedError
