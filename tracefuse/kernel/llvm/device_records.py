"""Records of calls that launch kernels on a GPU and are replayed (`kernel/llvm/device_replay.py`), and their chain.

Must not know: plans.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tracefuse.caches import Cache, register
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.llvm import device_arrays, device_replay
from tracefuse.kernel.llvm.device_arrays import ArrayLayout
from tracefuse.kernel.llvm.device_replay import FIRST_RECORD, REPLAY, replay_code
from tracefuse.kernel.llvm.launch_functions import MethodDefinition, object_over
from tracefuse.kernel.llvm.replay_functions import MOST_RECORDS
from tracefuse.kernel.llvm.replay_records import (
    METH_O,
    Allocated,
    Apart,
    Argument,
    ArrayArgument,
    Launched,
    RecordWords,
    Released,
    Step,
)

register(Cache(
    "kernel.llvm.device_records.DeviceChain._kept", "records of calls that are replayed on a GPU",
    "sizes of arguments", f"{MOST_RECORDS}, then none", "the call of a plan", "with the plan",
))  # fmt: skip


class DeviceLaunch(NamedTuple):
    """A launch of one kernel of the driver.

    function: its handle. grid: blocks in x, y, z. parameters: the place of each in the slots. contents: of the slots.
    patches: what a call writes there, as words (see `device_replay`). kept: what keeps the kernel loaded.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    parameters: tuple[int, ...]
    contents: bytes
    patches: tuple[tuple[int, int, int, int], ...]
    kept: object


class DeviceKernel(Protocol):
    """What a step `Launched` of a device holds as its function."""

    def launches(self, arguments: tuple[Any, ...]) -> Sequence[DeviceLaunch] | None:
        """Returns what it launches for the arguments of a step, None if a record cannot hold it."""


class DeviceCalls(NamedTuple):
    """The functions that replayed calls use, and the arrays of their device.

    current_device: None if there is only one. failed: raises for the error of a launch. allocate: takes bytes. new:
    makes an array without fields of a type; initialize: sets its fields from shape, dtype and memory. sharing: for the
    bytes of arrays that are made together, the distance between them in one allocation, 0 if each has its own; None
    as a whole if calls of Python have to make arrays.
    """

    layout: ArrayLayout
    array_type: type
    launch_kernel: int
    current_stream: Callable[[], Any]
    current_device: Callable[[], int] | None
    device: int
    failed: Callable[[int], Any]
    allocate: Callable[[int], Any]
    new: Callable[[type], Any]
    initialize: Callable[..., Any]
    sharing: Callable[[Sequence[int]], int] | None


class _Call:
    """The call over a chain: machine code from the first record on, the function of Python before."""

    __slots__ = ("__weakref__", "chain", "run")

    def __init__(self, run: Callable[[Any], Any], chain: DeviceChain) -> None:
        self.run, self.chain = run, chain

    def __call__(self, arguments: Any) -> Any:
        return self.run(arguments)


class DeviceChain:
    """The records of a call. missed: runs a call that fits none. disk: keeps the machine code that all chains share."""

    def __init__(self, missed: Callable[[Any], Any], calls: DeviceCalls, disk: DiskCache | None = None) -> None:
        self._missed, self._calls, self._disk = missed, calls, disk
        objects = {
            device_replay.STREAM: calls.current_stream, device_replay.POINTER: "ptr",
            device_replay.CURRENT_DEVICE: calls.current_device, device_replay.FAILED: calls.failed,
            device_arrays.ALLOCATOR: calls.allocate, device_arrays.NEW: calls.new,
            device_arrays.ARRAY_TYPE: calls.array_type, device_arrays.INITIALIZE: calls.initialize,
        }  # fmt: skip
        self._kept: list[object] = [missed, *objects.values()]
        self._words = (ctypes.c_int64 * (FIRST_RECORD + MOST_RECORDS))(0, id(missed))
        for place, value in objects.items():
            self._words[place] = 0 if value is None else id(value)
        self._words[device_replay.DEVICE] = calls.device
        self._definition: MethodDefinition | None = None
        self._call: Callable[[], _Call | None] = lambda: None

    @property
    def count(self) -> int:
        """The number of records."""
        return self._words[0]

    @property
    def is_full(self) -> bool:
        return self.count == MOST_RECORDS

    def add(self, arguments: Sequence[Argument], steps: Sequence[Step], results: Sequence[int]) -> bool:
        """Add a record; return False for steps that none can hold. A full chain stays as it is."""
        call = self._call()
        if self.is_full or call is None:
            return True
        record = _Record(self._calls, len(arguments))
        address = record.write(arguments, steps, results)
        if address is None:
            return False
        self._kept.append(record.words)
        count = self.count
        self._words[FIRST_RECORD + count] = address
        self._words[0] = count + 1  # last, since another thread may read the chain
        if self._definition is None:
            code = replay_code(self._calls.layout, self._calls.array_type, self._calls.launch_kernel, self._disk)
            self._definition = MethodDefinition(b"call", code.addresses[REPLAY], METH_O, None)
            call.run = object_over(ctypes.addressof(self._words), self._definition, self)
        return True

    def function(self) -> Callable[[Any], Any]:
        """Return the call, which keeps the chain."""
        call = _Call(self._missed, self)
        self._call = weakref.ref(call)
        return call


class _Record:
    """Writes a record. words: what keeps it."""

    def __init__(self, calls: DeviceCalls, arguments: int) -> None:
        self.words, self._calls, self._count = RecordWords(), calls, arguments
        self._slots = self._parameters = 1

    def write(self, arguments: Sequence[Argument], steps: Sequence[Step], results: Sequence[int]) -> int | None:
        """Return the address of the record, None if it cannot hold the steps."""
        table = [word for argument in arguments for word in self._argument(argument)]
        code: list[int] = []
        for step in steps:
            written = self._step(step)
            if written is None:
                return None
            code += written
        code += (device_replay.RETURN, len(results), self.words.array(results))
        table_address, code_address = self.words.array(table), self.words.array(code)
        counts = (self._count, self._slots, self._parameters)
        return self.words.array((len(arguments), table_address, code_address, *counts))

    def _argument(self, argument: Argument) -> tuple[int, int, int, int]:
        if isinstance(argument, ArrayArgument):
            dtype, extents = self.words.object(argument.dtype), self.words.array(argument.shape)
            return dtype, len(argument.shape), extents, argument.remainder
        return (0, 0, 0, 0) if argument is None else (0, 1, argument, 0)

    def _step(self, step: Step) -> list[int] | None:
        match step:
            case Allocated():
                return self._allocate([step])
            case Released(number):
                return [device_replay.RELEASE, number]
            case Launched(function, arguments):
                kernel: Any = function
                launches: Sequence[DeviceLaunch] | None = kernel.launches(arguments)
                return None if launches is None else [word for one in launches for word in self._launch(one)]
            case Apart(spans):
                table = [word for span in spans for word in (*span.place, span.size, span.is_written)]
                return [device_replay.APART, len(spans), self.words.array(table)]
        return self._allocate(step) if isinstance(step, tuple) else None

    def _allocate(self, arrays: Sequence[Allocated]) -> list[int] | None:
        if self._calls.sharing is None or not all(one.dtype.isbuiltin == 1 for one in arrays):
            return None  # CuPy's array type may refuse others
        sizes = [one.dtype.itemsize for one in arrays]
        for k, one in enumerate(arrays):
            for extent in one.shape:
                sizes[k] *= extent
        distance = self._calls.sharing(sizes) if len(arrays) > 1 else 0
        whole = self.words.object(distance * len(arrays)) if distance else 0
        entries: list[int] = []
        for k, one in enumerate(arrays):
            offset = self.words.object(distance * k)
            objects = (self.words.object(one.shape), self.words.object(one.dtype), self.words.object(sizes[k]), offset)
            entries += (one.number, *objects)
        self._count += len(arrays)
        return [device_replay.ALLOCATE, len(arrays), self.words.array(entries), whole]

    def _launch(self, launch: DeviceLaunch) -> list[int]:
        contents = ctypes.create_string_buffer(launch.contents, len(launch.contents))
        self.words.kept += [contents, launch.kept]
        self._slots = max(self._slots, len(launch.contents))
        self._parameters = max(self._parameters, len(launch.parameters))
        patches = self.words.array([word for patch in launch.patches for word in patch])
        return [
            device_replay.LAUNCH, launch.function, *launch.grid, launch.threads, launch.shared_bytes,
            len(launch.parameters), self.words.array(launch.parameters), len(launch.contents),
            ctypes.addressof(contents), len(launch.patches), patches,
        ]  # fmt: skip
