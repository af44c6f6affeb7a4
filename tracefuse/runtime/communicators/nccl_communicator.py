"""Exchanges of CuPy arrays through NCCL.

An exchange that other work overlaps runs on a stream of its own, which waits for the source; the current stream waits
for it at the end. Otherwise it runs on the current stream. NCCL decides the order of sums: the same bits on all ranks
and in all runs of one topology.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.errors import DeviceError, UnsupportedError, shown
from tracefuse.runtime.communicators.world import Communicator

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
    """An exchange on the stream of exchanges. It keeps its memory alive until the current stream waits for it."""

    __slots__ = ("_done", "_source", "_stream_of", "_target")

    def __init__(self, done: Any, source: Any, target: Any, stream_of: Callable[[], Any]) -> None:
        self._done, self._source, self._target, self._stream_of = done, source, target, stream_of

    def finish(self) -> Any:
        self._stream_of().wait_event(self._done)
        return self._target


class NcclGroup(Communicator):
    """The exchanges of one rank with a group, through one communicator of NCCL."""

    def __init__(self, made: Any, rank: int, size: int, world: NcclWorld) -> None:
        import cupy
        from cupy.cuda import nccl

        self.rank, self.size = rank, size
        self._made, self._world, self._nccl = made, world, nccl
        self._array, self._event, self._stream_of = cupy.ndarray, cupy.cuda.Event, cupy.cuda.get_current_stream
        self._exchanges: dict[str, Callable[..., None]] = {
            "all_reduce": self._all_reduce, "reduce_scatter": self._reduce_scatter, "all_gather": self._all_gather,
            "all_to_all": self._all_to_all, "send_receive": self._send_receive,
        }  # fmt: skip

    def start(self, kind: str, source: Any, target: Any, *, overlaps: bool = False, **parameters: Any) -> Any:
        """Starts an exchange. Raises DeviceError for arrays that are not CuPy's."""
        if not isinstance(source, self._array):
            raise DeviceError(
                f"{kind} of {shown(source)} between ranks that exchange GPU memory", hint="pass CuPy arrays"
            )
        exchange, current = self._exchanges[kind], self._stream_of()
        if not overlaps:
            exchange(source, target, current.ptr, **parameters)
            return _OnCurrentStream(target)
        stream, ready, done = self._world.exchange_stream, self._event(disable_timing=True), None
        ready.record(current)
        stream.wait_event(ready)
        exchange(source, target, stream.ptr, **parameters)
        done = self._event(disable_timing=True)
        done.record(stream)
        return _OnOtherStream(done, source, target, self._stream_of)

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


def _reduced_type(array: Any, combine: str) -> tuple[int, int]:
    """Returns NCCL's type for a reduction. Raises UnsupportedError for a type that NCCL does not combine."""
    found = _TYPES.get(str(array.dtype))
    if found is None:
        raise UnsupportedError(
            f"NCCL does not combine {array.dtype} elements", hint="convert them first, as in x.astype(np.int32)"
        )
    return found
