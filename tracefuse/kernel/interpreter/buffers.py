"""The interpreter's memory: what stands for a kernel's buffers, and how a call's arguments become them.

Knows: buffers, NumPy arrays and the memory that they span. Must not know: statements, lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

import numpy as np

from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.primitives import convert

WIDEST_ACCESS = 16  # bytes that one instruction moves


class InterpreterError(InternalError):
    """A kernel did what the kernel IR does not allow; says kernel, statement or buffer, index and lane."""


@dataclass(slots=True)
class Memory:
    """One buffer's elements.

    global: `data` is flat, element i of the buffer is data[origin + i]. shared: data[block, i]. local: data[i, lane].
    writer, reader (shared): the thread that touched the element since the last barrier; -1 none, -2 several.
    own, foreign (shared): whether threads of the block itself, and those that name the block they write to, touched the
    element since the last barrier of the cluster.
    """

    buffer: ir.Buffer
    data: Any
    origin: int = 0
    writer: Any = None
    reader: Any = None
    own: Any = None
    foreign: Any = None

    @classmethod
    def shared(cls, buffer: ir.Buffer, data: Any) -> Memory:
        """Memory of blocks that nobody has touched."""
        nobody, untouched = np.full(data.shape, -1, np.int32), np.zeros(data.shape, bool)
        return cls(buffer, data, 0, nobody, nobody.copy(), untouched, untouched.copy())

    @property
    def length(self) -> int:
        return int(self.data.shape[1] if self.buffer.space == "shared" else self.data.shape[0])

    def touch(self, place: Any, thread: Any, *, writes: bool) -> Any:
        """Records that threads of the blocks themselves touch elements; where another one did since they met."""
        writer, reader = self.writer[place], self.reader[place]
        clash = (writer != -1) & (writer != thread) | self.foreign[place]
        if writes:
            clash |= (reader != -1) & (reader != thread)
        self.own[place] = True
        touched = self.writer if writes else self.reader
        before = touched[place]
        touched[place] = np.where((before == -1) | (before == thread), thread, -2)
        # Several lanes on one element in this very statement: the last one stands there, the others differ from it.
        several = touched[place] != thread
        touched[place[0][several], place[1][several]] = -2
        return clash

    def touch_foreign(self, place: Any) -> Any:
        """Records writes to the memory of named blocks; where any thread touched it since the cluster met."""
        clash = self.own[place] | self.foreign[place]
        self.foreign[place] = True
        return clash

    def part(self, blocks: Any, *, of_cluster: bool) -> None:
        """Notes that the threads of some blocks met, or those of their whole clusters."""
        self.writer[blocks] = self.reader[blocks] = -1
        if of_cluster:
            self.own[blocks] = self.foreign[blocks] = False


def _flat(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """The memory that `array` spans, as a flat array, and where in it the first element lies."""
    if array.flags.c_contiguous:
        return array.reshape(-1), 0
    if any(stride % array.itemsize for stride in array.strides):
        raise InterpreterError(f"strides {array.strides} are no multiples of the item size {array.itemsize}")
    if array.size == 0:
        return np.empty(0, array.dtype), 0
    last = [(extent - 1) * stride // array.itemsize for extent, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(x, 0) for x in last), sum(max(x, 0) for x in last)
    lowest = array[tuple(slice(None, None, -1) if x < 0 else slice(None) for x in last)]
    strided = np.lib.stride_tricks.as_strided
    flat = strided(lowest, (high - low + 1,), (array.itemsize,), writeable=array.flags.writeable)
    return flat, -low


def _is_of(given: np.dtype[Any], wanted: DType) -> bool:
    """Whether an array is one of a buffer's elements; complex numbers are two elements of their parts' type."""
    return given == wanted.numpy or (given.kind == "c" and dtype_of(given).real is wanted)


def unspecified(dtype: DType) -> Any:
    if dtype.kind in ("float", "complex"):
        return dtype.numpy.type(float("nan"))
    if dtype.kind == "int":
        return np.iinfo(cast(Any, dtype.numpy)).min
    return True if dtype.kind == "bool" else np.iinfo(cast(Any, dtype.numpy)).max


def bind(kernel: ir.Kernel, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Memory]]:
    """Values of the scalar parameters and memory of the buffers. Raises InterpreterError for what does not fit."""
    if len(arguments) != len(kernel.parameters):
        raise InterpreterError(f"kernel {kernel.name} takes {len(kernel.parameters)} arguments, got {len(arguments)}")
    values: dict[str, Any] = {}
    memories: dict[str, Memory] = {}
    arrays: list[tuple[ir.Buffer, Any]] = []
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(parameter, ir.Variable):
            values[parameter.name] = convert(np.asarray(argument).astype(parameter.dtype.numpy), parameter.dtype)[()]
            continue
        if not isinstance(argument, np.ndarray) or not _is_of(argument.dtype, parameter.dtype):
            kind = f"{argument.dtype} array" if isinstance(argument, np.ndarray) else type(argument).__name__
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is of {parameter.dtype}, got {kind}")
        if parameter.written and not argument.flags.writeable:
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is written, the array is read-only")
        alignment = min(parameter.alignment, WIDEST_ACCESS)  # NumPy's own small arrays have no more
        if argument.size and argument.ctypes.data % alignment:
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is not aligned to {alignment} bytes")
        flat, origin = _flat(argument)
        if flat.dtype != parameter.dtype.numpy:
            flat, origin = flat.view(parameter.dtype.numpy), 2 * origin
        memories[parameter.name] = Memory(parameter, flat, origin)
        arrays.append((parameter, flat))
    for (one, first), (two, second) in combinations(arrays, 2):
        claimed = (one.exclusive or two.exclusive) and (one.written or two.written)
        if claimed and np.may_share_memory(first, second):
            raise InterpreterError(f"kernel {kernel.name}: {one.name} and {two.name} share memory, but are exclusive")
    return values, memories
