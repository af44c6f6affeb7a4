"""Records of calls that are replayed (`kernel/llvm/replay_functions.py`), and the function object over a chain of them.

Must not know: plans.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, memoized, register
from tracefuse.errors import InternalError
from tracefuse.kernel.llvm import replay_arguments, replay_functions, shared_functions, worker_pool
from tracefuse.kernel.llvm.launch_functions import LaunchRecord, MethodDefinition, object_over, owner_of, record_of
from tracefuse.kernel.llvm.replay_functions import FIRST_RECORD, MOST_RECORDS, REPLAY

METH_O = 0x8


class CallValue(NamedTuple):
    """An argument of a kernel that a call has as a value: an argument of the call, or an array that it allocated.

    offset: the bytes from the first element of the array to the one that the kernel gets.
    """

    number: int
    offset: int = 0


class ErrorFlag(NamedTuple):
    """The flag that kernels set for an index out of range. A call that sets it is run again without a record."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A new array as the value `number`. owners: a sequence of (owner, offset), None to always call `make`.

    shape, kind: what `make` is called with. axes: those of the array within a contiguous one of that shape, None for
    all in order.
    """

    number: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owners: Sequence[Any] | None
    kind: object
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch of a kernel's function object, with its arguments."""

    function: Callable[..., Any]
    arguments: tuple[CallValue | ErrorFlag | int | float, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """The end of the value `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a contiguous array into another place. runs: see `replay_copies.runs_of`."""

    source: CallValue
    target: CallValue
    runs: tuple[int, ...]


class ArrayBytes(NamedTuple):
    """The bytes of an array from a place on. is_written: the call updates it."""

    place: CallValue
    size: int
    is_written: bool


@dataclass(frozen=True, slots=True)
class Apart:
    """Arrays of which those that a call updates share no memory with any other; else no record fits the call."""

    spans: tuple[ArrayBytes, ...]


Step: TypeAlias = Allocated | tuple[Allocated, ...] | Launched | Released | Copied | Apart
"""Several arrays are allocated together on a GPU."""


class ArrayArgument(NamedTuple):
    """What an array is that a call takes: type, shape and strides (None: contiguous), and whether the call updates it.

    remainder: of its address by the bytes of the widest access, 0 where kernels do not use alignment.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    is_updated: bool
    remainder: int


Argument: TypeAlias = ArrayArgument | int | None
"""What an argument of a call is: an array, an integer, a float (None)."""

register(Cache(
    "kernel.llvm.replay_records.ReplayChain._kept", "records of calls that are replayed", "sizes of arguments",
    f"{MOST_RECORDS}, then none", "the call of a plan", "with the plan",
))  # fmt: skip


class RecordWords:
    """Arrays of 64-bit words, and the objects whose addresses they hold."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def array(self, words: Sequence[int]) -> int:
        """Return the address of an array of words."""
        array = (ctypes.c_int64 * max(len(words), 1))(*words)
        self.kept.append(array)
        return ctypes.addressof(array)

    def object(self, value: object) -> int:
        """Return the address of an object."""
        self.kept.append(value)
        return id(value)


def _record(arguments: Sequence[Argument], steps: Sequence[Step], results: Sequence[int]) -> tuple[int, RecordWords]:
    """Return the address of a record and what keeps it."""
    words = RecordWords()
    table: list[int] = []
    for argument in arguments:
        if argument is None:
            table += (0, 0, 0, 0)
        elif isinstance(argument, int):
            table += (0, 1, argument, 0)
        else:
            dtype, shape, strides, is_updated, _ = argument
            steps_of = 0 if strides is None else words.array(strides)
            flags = replay_arguments.WRITABLE << replay_arguments.FLAGS_SHIFT if is_updated else 0
            table += (words.object(dtype), len(shape) | flags, words.array(shape), steps_of)
    launches = [record_of(step.function) for step in steps if isinstance(step, Launched)]
    code = [word for step in steps for word in _step(step, words)]
    code += (replay_functions.RETURN, len(results), words.array(results))
    values = len(arguments) + sum(isinstance(step, Allocated) for step in steps)
    slots = max((len(launch.facts.kinds) for launch in launches), default=0)
    depth = max((launch.facts.depth for launch in launches), default=0)
    return words.array(
        (
            len(arguments), words.array(table), words.array(code), values, max(slots, 1), max(depth, 1), len(results),
        )
    ), words  # fmt: skip


def _step(step: Step, words: RecordWords) -> tuple[int, ...]:
    match step:
        case Allocated(number, shape, dtype, owners, kind, axes):
            kept = 0 if owners is None else words.object(owners)
            order = axes or range(len(shape))
            extents = words.array([shape[axis] for axis in order])
            steps = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in order]
            strides = 0 if axes is None else words.array(steps)
            descr, made = words.object(dtype), (words.object(shape), words.object((kind, axes)))
            return (replay_functions.ALLOCATE, number, descr, len(shape), extents, kept, *made, strides)
        case Released(number):
            return (replay_functions.RELEASE, number)
        case Launched(function, arguments):
            return _launch(function, arguments, words)
        case Copied(source, target, runs):
            return (replay_functions.COPY, *source, *target, *runs)
        case Apart(spans):
            table = [word for span in spans for word in (*span.place, span.size, span.is_written)]
            return (replay_functions.APART, len(spans), words.array(table))
    raise InternalError(f"a record of the CPU cannot hold {step}")


def _launch(
    function: Callable[..., Any], arguments: Sequence[CallValue | ErrorFlag | float], words: RecordWords
) -> tuple[int, ...]:
    launch = record_of(function)
    words.object(function)
    slots, patches = list[int](), list[int]()
    for slot, (kind, argument) in enumerate(zip(launch.facts.kinds, arguments, strict=True)):
        if isinstance(argument, CallValue):
            slots.append(0)
            patches += (slot, argument.number, _PATCHES[kind], argument.offset)
        elif isinstance(argument, ErrorFlag):
            slots.append(0)
            patches += (slot, 0, replay_functions.PATCH_FLAG, 0)
        else:
            slots.append(_bits(kind, argument))
    template, table = words.array(slots), words.array(patches)
    return (replay_functions.LAUNCH, launch.address, len(slots), template, len(patches) // 4, table)


_PATCHES = {
    shared_functions.ADDRESS: replay_functions.PATCH_ADDRESS,
    shared_functions.FLOAT: replay_functions.PATCH_DOUBLE,
    shared_functions.SINGLE: replay_functions.PATCH_SINGLE,
}


def _bits(kind: str, number: float) -> int:
    """Return a number as the word of a slot, as `tracefuse_convert` writes it."""
    if kind in (shared_functions.FLOAT, shared_functions.SINGLE):
        is_single = kind == shared_functions.SINGLE
        return int.from_bytes(struct.pack("<fxxxx" if is_single else "<d", number), "little", signed=True)
    return ctypes.c_int64(int(number)).value


class ReplayChain:
    """The records of a call. missed: runs a call that fits none. make: makes an array of a shape and a kind."""

    def __init__(self, missed: Callable[[Any], Any], make: Callable[[Any, Any], Any]) -> None:
        def allocate(shape: Any, kind: Any) -> Any:
            array, axes = make(shape, kind[0]), kind[1]
            return array if axes is None else array.transpose(axes)

        self._kept: list[object] = [missed, allocate]
        self._words = (ctypes.c_int64 * (FIRST_RECORD + MOST_RECORDS))(0, id(missed), id(allocate))
        entry = worker_pool.get_pool().launches[REPLAY]
        self._definition = MethodDefinition(b"call", entry, METH_O, None)

    @property
    def count(self) -> int:
        """The number of records."""
        return self._words[0]

    @property
    def is_full(self) -> bool:
        return self.count == MOST_RECORDS

    def add(self, arguments: Sequence[Argument], steps: Sequence[Step], results: Sequence[int]) -> bool:
        """Add a record and return True. The results are numbers of allocated values, each once.

        A full chain stays as it is.
        """
        if self.is_full:
            return True
        address, words = _record(arguments, steps, results)
        self._kept.append(words)
        count = self.count
        self._words[FIRST_RECORD + count] = address
        self._words[0] = count + 1  # last, since another thread may read the chain
        return True

    def function(self) -> Callable[[Any], Any]:
        """Return the function object, which keeps the chain."""
        return object_over(ctypes.addressof(self._words), self._definition, self)


def can_launch(function: object) -> bool:
    """Return whether a function is a function object of a kernel."""
    return isinstance(owner_of(function), LaunchRecord)


def counts_references() -> bool:
    """Return whether references are counted as records expect, by threads that hold a lock."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)()) and sys.byteorder == "little"


@memoized("whether calls can be replayed", key="none", most=1, clears=False)
def can_replay() -> bool:
    """Return whether arrays have the expected layout, and references are counted as records expect."""
    return counts_references() and replay_arguments.reads_fields()
