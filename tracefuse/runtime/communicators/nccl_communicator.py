"""Exchanges of CuPy arrays through NCCL.

An exchange that other work overlaps runs on a stream of its own, which waits for the source; the current stream waits
for it at the end. Otherwise it runs on the current stream. NCCL decides the order of sums: the same bits on all ranks
and in all runs of one topology.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.caches import memoized
from tracefuse.errors import DeviceError, UnsupportedError, shown
from tracefuse.runtime.communicators.world import Communicator, ExchangeRequest, Start

if TYPE_CHECKING:
    from tracefuse.runtime.communicators.nccl_world import NcclWorld

_TYPES = {
    "int8": (0, 1), "uint8": (1, 1), "bool": (1, 1), "int32": (2, 1), "uint32": (3, 1), "int64": (4, 1),
    "uint64": (5, 1), "float16": (6, 1), "float32": (7, 1), "float64": (8, 1), "bfloat16": (9, 1),
    "complex64": (7, 2), "complex128": (8, 2),
}  # fmt: skip
"""NCCL's number of each element type, and how many of its elements are one of ours."""
_BYTES = 1
_COMBINE = {"sum": 0, "max": 2, "min": 3}


class _OnCurrentStream:
    """An exchange that runs on the current stream: later work comes after it."""

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def finish(self) -> Any:
        return self._target


class _OnOtherStream:
    """An exchange on the stream of exchanges. It keeps its memory alive until the current stream waits for it.

    done: the event after it; that of the whole group for an exchange that starts with others.
    """

    __slots__ = ("_source", "_stream_of", "_target", "done")

    def __init__(self, done: Any, source: Any, target: Any, stream_of: Callable[[], Any]) -> None:
        self.done, self._source, self._target, self._stream_of = done, source, target, stream_of

    def finish(self) -> Any:
        self._stream_of().wait_event(self.done)
        return self._target


class NcclRequests:
    """The exchanges that have begun since the start of a group, which NCCL starts at its end."""

    def __init__(self, event: Callable[..., Any], stream: Any) -> None:
        self._event, self._stream = event, stream
        self._begun: list[_OnOtherStream] = []

    def add(self, request: _OnOtherStream) -> None:
        """Adds an exchange on the stream of exchanges."""
        self._begun.append(request)

    def finish(self) -> None:
        """Records the event that the exchanges are done, after NCCL has started them."""
        if self._begun:
            done = self._event(disable_timing=True)
            done.record(self._stream)
            for request in self._begun:
                request.done = done


class NcclGroup(Communicator):
    """The exchanges of one rank with a group, through one communicator of NCCL."""

    def __init__(self, communicator: Any, rank: int, size: int, world: NcclWorld) -> None:
        import cupy
        from cupy.cuda import nccl

        self.rank, self.size = rank, size
        self._made, self._world, self._nccl = communicator, world, nccl
        self._array, self._event, self._stream_of = cupy.ndarray, cupy.cuda.Event, cupy.cuda.get_current_stream
        self._exchanges: dict[str, Callable[..., None]] = {
            "all_reduce": self._all_reduce, "reduce_scatter": self._reduce_scatter, "all_gather": self._all_gather,
            "all_to_all": self._all_to_all, "send_receive": self._send_receive,
            "broadcast_from": self._broadcast_from,
        }  # fmt: skip

    def exchange(self, kind: str, parameters: Mapping[str, Any]) -> Start:
        """Returns what starts an exchange. It raises DeviceError for arrays that are not CuPy's."""
        exchange, array, stream_of = self._exchanges[kind], self._array, self._stream_of
        if parameters:
            exchange = functools.partial(exchange, **parameters)

        def start(source: Any, target: Any, overlaps: bool) -> ExchangeRequest:
            if not isinstance(source, array):
                raise DeviceError(
                    f"{kind} of {shown(source)} between ranks that exchange GPU memory", hint="pass CuPy arrays"
                )
            if overlaps:
                return self._overlapped(exchange, source, target)
            exchange(source, target, stream_of().ptr)
            return _OnCurrentStream(target)

        return start

    def _overlapped(self, exchange: Callable[..., None], source: Any, target: Any) -> ExchangeRequest:
        """Starts an exchange on the stream of exchanges, after the work so far."""
        stream, ready = self._world.exchange_stream, self._event(disable_timing=True)
        ready.record(self._stream_of())
        stream.wait_event(ready)
        exchange(source, target, stream.ptr)
        request = _OnOtherStream(None, source, target, self._stream_of)
        if self._world.begun is None:
            request.done = self._event(disable_timing=True)
            request.done.record(stream)
        else:
            self._world.begun.add(request)
        return request

    def _stream_at(self, address: int) -> Any:
        other = self._world.exchange_stream
        return other if address == other.ptr else self._stream_of()

    def asynchronous_error(self) -> str | None:
        """Returns NCCL's error since the last look, None if there is none."""
        try:
            self._made.check_async_error()
        except self._nccl.NcclError as error:
            return str(error)
        return None

    def abort(self) -> None:
        """Ends the exchanges in progress; the communicator cannot be used afterwards."""
        self._made.abort()

    def _all_reduce(self, source: Any, target: Any, stream: int, *, combine: str) -> None:
        number, width = _reduced_type(source, combine)
        self._made.allReduce(
            source.data.ptr, target.data.ptr, source.size * width, number, _COMBINE[combine], stream
        )  # fmt: skip

    def _reduce_scatter(self, source: Any, target: Any, stream: int, *, combine: str) -> None:
        number, width = _reduced_type(source, combine)
        self._made.reduceScatter(
            source.data.ptr, target.data.ptr, target.size * width, number, _COMBINE[combine], stream
        )  # fmt: skip

    def _all_gather(self, source: Any, target: Any, stream: int) -> None:
        self._made.allGather(source.data.ptr, target.data.ptr, source.nbytes, _BYTES, stream)

    def _broadcast_from(self, source: Any, target: Any, stream: int, *, root: int) -> None:
        self._made.broadcast(source.data.ptr, target.data.ptr, source.nbytes, _BYTES, root, stream)

    def _all_to_all(self, source: Any, target: Any, stream: int) -> None:
        part = source.nbytes // self.size
        self._nccl.groupStart()
        for rank in range(self.size):
            self._made.send(source.data.ptr + rank * part, part, _BYTES, rank, stream)
            self._made.recv(target.data.ptr + rank * part, part, _BYTES, rank, stream)
        self._nccl.groupEnd()

    def _send_receive(self, source: Any, target: Any, stream: int, *, pairs: Sequence[tuple[int, int]]) -> None:
        senders = [sender for sender, receiver in pairs if receiver == self.rank]
        if not senders:
            target.data.memset_async(0, target.nbytes, self._stream_at(stream))
        self._nccl.groupStart()
        for sender, receiver in pairs:
            if sender == self.rank:
                self._made.send(source.data.ptr, source.nbytes, _BYTES, receiver, stream)
            if receiver == self.rank:
                self._made.recv(target.data.ptr, target.nbytes, _BYTES, sender, stream)
        self._nccl.groupEnd()


@memoized("NCCL's numbers of element types", key="element type", most=64)
def _number_of(dtype: Any) -> tuple[int, int] | None:
    """Returns NCCL's number; the text of a dtype takes as long as a call of NCCL."""
    return _TYPES.get(str(dtype))


def _reduced_type(array: Any, combine: str) -> tuple[int, int]:
    """Returns NCCL's type for a reduction. Raises UnsupportedError for a type that NCCL does not combine."""
    nccl_type = _number_of(array.dtype)
    if nccl_type is None:
        raise UnsupportedError(
            f"NCCL does not combine {array.dtype} elements", hint="convert them first, as in x.astype(np.int32)"
        )
    return nccl_type
