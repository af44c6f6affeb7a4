"""The interpreter's buffers, their race detection, and the binding of call arguments to them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, cast

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.primitives import convert

WIDEST_ACCESS = 16  # bytes that one instruction can move


class InterpreterError(InternalError):
    """A kernel violated a rule of the kernel IR. The message names the kernel, buffer, index and lane."""


@dataclass(slots=True)
class InterpreterBuffer:
    """The elements of one buffer.

    data: global buffers are flat, with element i at data[origin + i]; shared data[block, i]; local data[i, lane].
    writer, reader (shared): the thread that accessed each element since the last barrier; -1 none, -2 several.
    own, remote (shared): whether the block itself, or another block of the cluster, accessed each element since the
        last cluster barrier.
    """

    buffer: ir.Buffer
    data: Any
    origin: int = 0
    writer: Any = None
    reader: Any = None
    own: Any = None
    remote: Any = None

    @classmethod
    def shared(cls, buffer: ir.Buffer, data: Any) -> InterpreterBuffer:
        """Return a shared buffer without recorded accesses."""
        nobody, untouched = np.full(data.shape, -1, np.int32), np.zeros(data.shape, bool)
        return cls(buffer, data, 0, nobody, nobody.copy(), untouched, untouched.copy())

    @property
    def length(self) -> int:
        return int(self.data.shape[1] if self.buffer.space == "shared" else self.data.shape[0])

    def record_access(self, place: Any, thread: Any, *, writes: bool) -> Any:
        """Record accesses by the block's own threads; return where another thread conflicts since the last barrier."""
        writer, reader = self.writer[place], self.reader[place]
        conflict = (writer != -1) & (writer != thread) | self.remote[place]
        if writes:
            conflict |= (reader != -1) & (reader != thread)
        self.own[place] = True
        last_thread = self.writer if writes else self.reader
        before = last_thread[place]
        last_thread[place] = np.where((before == -1) | (before == thread), thread, -2)
        # If several lanes of this statement access one element, the last lane was recorded and the others differ.
        is_shared = last_thread[place] != thread
        last_thread[place[0][is_shared], place[1][is_shared]] = -2
        return conflict

    def record_remote_write(self, place: Any) -> Any:
        """Record writes from other blocks; return where any thread accessed the element since the cluster barrier."""
        conflict = self.own[place] | self.remote[place]
        self.remote[place] = True
        return conflict

    def synchronize(self, blocks: Any, *, of_cluster: bool) -> None:
        """Clear the recorded accesses after a barrier of `blocks`, or of their clusters."""
        self.writer[blocks] = self.reader[blocks] = -1
        if of_cluster:
            self.own[blocks] = self.remote[blocks] = False


def _flatten(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """Return a flat view of the memory that `array` spans, and the index of the array's first element in it."""
    if array.flags.c_contiguous:
        return array.reshape(-1), 0
    if any(stride % array.itemsize for stride in array.strides):
        raise InterpreterError(f"strides {array.strides} are not multiples of the item size {array.itemsize}")
    if array.size == 0:
        return np.empty(0, array.dtype), 0
    last = [(extent - 1) * stride // array.itemsize for extent, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(x, 0) for x in last), sum(max(x, 0) for x in last)
    lowest = array[tuple(slice(None, None, -1) if x < 0 else slice(None) for x in last)]
    strided = np.lib.stride_tricks.as_strided
    flat = strided(lowest, (high - low + 1,), (array.itemsize,), writeable=array.flags.writeable)
    return flat, -low


def _matches(array_dtype: np.dtype[Any], dtype: DType) -> bool:
    """Return whether an array can bind to a buffer of `dtype`; a complex array binds as pairs of real elements."""
    return array_dtype == dtype.numpy or (array_dtype.kind == "c" and dtype_of(array_dtype).real is dtype)


def unspecified(dtype: DType) -> Any:
    """Return the value that fills new memory: NaN, the smallest signed or the largest unsigned integer, or True."""
    if dtype.kind in ("float", "complex"):
        return dtype.numpy.type(float("nan"))
    if dtype.kind == "int":
        return np.iinfo(cast(Any, dtype.numpy)).min
    return True if dtype.kind == "bool" else np.iinfo(cast(Any, dtype.numpy)).max


def bind(kernel: ir.Kernel, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, InterpreterBuffer]]:
    """Return the scalar parameters' values and the buffers, by name. Raises InterpreterError for a mismatch."""
    if len(arguments) != len(kernel.parameters):
        raise InterpreterError(f"kernel {kernel.name} takes {len(kernel.parameters)} arguments, got {len(arguments)}")
    values: dict[str, Any] = {}
    buffers: dict[str, InterpreterBuffer] = {}
    arrays: list[tuple[ir.Buffer, Any]] = []
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        if isinstance(parameter, ir.Variable):
            values[parameter.name] = convert(np.asarray(argument).astype(parameter.dtype.numpy), parameter.dtype)[()]
            continue
        if not isinstance(argument, np.ndarray) or not _matches(argument.dtype, parameter.dtype):
            kind = f"{argument.dtype} array" if isinstance(argument, np.ndarray) else type(argument).__name__
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is of {parameter.dtype}, got {kind}")
        if parameter.written and not argument.flags.writeable:
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is written, the array is read-only")
        alignment = min(parameter.alignment, WIDEST_ACCESS)  # NumPy guarantees no more for small arrays
        if argument.size and argument.ctypes.data % alignment:
            raise InterpreterError(f"kernel {kernel.name}: {parameter.name} is not aligned to {alignment} bytes")
        flat, origin = _flatten(argument)
        if flat.dtype != parameter.dtype.numpy:
            flat, origin = flat.view(parameter.dtype.numpy), 2 * origin
        buffers[parameter.name] = InterpreterBuffer(parameter, flat, origin)
        arrays.append((parameter, flat))
    for (left, first), (right, second) in combinations(arrays, 2):
        must_differ = (left.exclusive or right.exclusive) and (left.written or right.written)
        if must_differ and np.may_share_memory(first, second):
            raise InterpreterError(
                f"kernel {kernel.name}: {left.name} and {right.name} share memory, but are exclusive"
            )
    return values, buffers
