"""A device of NumPy arrays for host programs, and a program that computes rows on streams."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segments import (
    GetStream,
    HostLoop,
    Instruction,
    Integer,
    Launch,
    NamedStream,
    PoolStream,
    Select,
    SetStream,
    Streams,
    Synchronize,
    ThreadStreams,
    integer_of,
)

OWN = NamedStream(0)


class ArrayDevice:
    """NumPy arrays; labels are functions. allocations: how many arrays it made."""

    def __init__(self) -> None:
        self.allocations = 0
        self.threads: set[int] = set()
        self.released = 0

    def allocate(self, spec: Any, values: Mapping[int, Any]) -> object:
        self.allocations += 1
        return np.full(spec(values) if callable(spec) else spec, np.nan)

    def launch(self, step: int, label: Any, inputs: list[Any], outputs: list[Any]) -> Sequence[object] | None:
        self.threads.add(threading.get_ident())
        result = label(*inputs)
        if not outputs:
            return (result,)
        outputs[0][...] = result
        return None

    def release(self, buffer: object) -> None:
        assert isinstance(buffer, np.ndarray)
        self.released += 1

    def copy(self, source: Any, target: Any) -> None:
        target[...] = source

    def select(self, buffer: Any, axis: int, index: int, size: int | None) -> object:
        where = index if size is None else slice(index * size, (index + 1) * size)
        return buffer[(*(slice(None),) * axis, where, ...)]

    def host_op(self, label: Any, inputs: list[Any], output: Any) -> object:
        return label(*inputs, out=output)

    def communicate(self, label: Any, sources: list[Any], targets: list[Any]) -> object:
        return [label(source) for source in sources]

    def finish_request(self, handle: Any) -> Any:
        return handle

    def open_streams(self) -> Streams:
        return ThreadStreams()


def twice(x: Any) -> Any:
    return 2 * x


def index_stream(index: int, count: int = 3) -> PoolStream:
    return PoolStream(Integer(f"t{index} % {count}", (index,), lambda values: values[index] % count))  # type: ignore[operator]


def on_streams(index: int, stop: Any, body: Sequence[Instruction]) -> HostLoop:
    """A loop whose iterations go to the streams of the pool."""
    stream = index_stream(index)
    begin = [GetStream(0), SetStream(stream), Synchronize(OWN)]
    return HostLoop(index, 0, stop, 1, (*begin, *body, SetStream(OWN), Synchronize(stream)))


EXTENT = integer_of(-1)
ROWS = [Select(4, 0, 0, integer_of(3)), Select(5, 1, 0, integer_of(3)), Launch(0, (4,), (5,), twice)]
