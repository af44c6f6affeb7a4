"""Runs the computation of one slice on the slices that a stream-parallel loop selects.

A slice at an index lacks the cut axis, while the computation expects it with extent 1, so a view restores it. Chunks
keep the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.fusion import Op
from tracefuse.partition.slicing import Sliced
from tracefuse.runtime.host_ops import HostCall


@dataclass(frozen=True, slots=True)
class StreamWorker:
    """Computes slices of one layout, one after the other, on a stream.

    start: called with the address of a stream (None on the CPU), it allocates the scratch memory of the stream and
    returns the function of one slice. That function takes the input tensors, the output tensors and the scalars that
    are not integers. by_address: the function takes tensors as addresses, otherwise as arrays. scratch_bytes: the bytes
    of that scratch memory. plan: the plan of a slice, None if the array library computes it.
    """

    by_address: bool
    start: Callable[[Any], Callable[..., None]]
    scratch_bytes: int = 0
    plan: Any = None


class Computation(Protocol):
    """Computes one slice."""

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Writes the results of a fusion into `outputs`."""
        ...

    def stream_worker(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool) -> StreamWorker:
        """Returns the worker for slices with these shapes, strides, alignments and integers, without running anything.

        arrays: the worker takes arrays, not addresses.
        """
        ...


def restore_axes(arrays: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Inserts an axis of extent 1 into each array at the given position, or returns the array unchanged for None."""
    return [
        array if axis is None else array[(*(slice(None),) * axis, None, ...)]
        for array, axis in zip(arrays, axes, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class OnSlices:
    """A launch on slices. read, written: the axes to restore, of the inputs and of the outputs, in order."""

    computation: Computation
    read: tuple[int | None, ...]
    written: tuple[int | None, ...]

    @classmethod
    def of(cls, computation: Computation, sliced: Sliced) -> OnSlices:
        """Returns the launch of `computation`, which computes `sliced.fusion`."""
        return cls(computation, *cut_axes(sliced))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Fills the slices `outputs`."""
        self.computation(restore_axes(inputs, self.read), restore_axes(outputs, self.written))


@dataclass(frozen=True, slots=True, eq=False)
class HostCallOnSlices:
    """A host operation on slices. `str` returns its name."""

    call: HostCall
    read: tuple[int | None, ...]
    written: int | None

    @property
    def op(self) -> Op:
        """The op that each call computes for one slice."""
        return self.call.op

    def __call__(self, inputs: list[Any], output: Any) -> None:
        """Writes the slice `output`."""
        (target,) = restore_axes([output], [self.written])
        self.call(restore_axes(inputs, self.read), target)

    def __str__(self) -> str:
        return str(self.call)


def cut_axes(sliced: Sliced) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Returns the axes to restore, of each input and of each output."""
    if sliced.chunks is not None:
        return (None,) * len(sliced.fusion.inputs), (None,) * len(sliced.fusion.outputs)
    return tuple(map(sliced.axes.get, sliced.fusion.inputs)), tuple(map(sliced.axes.get, sliced.fusion.outputs))
