"""Running what computes one slice on the slices that a loop selects.

A slice at an index lacks the axis, which the computation has with extent 1: it is put back as a view. Pieces have it.

Knows: slices, what a computation is called with. Must not know: programs, kernels, streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracefuse.partition.slicing import Sliced
from tracefuse.runtime.host_ops import HostCall


@dataclass(frozen=True, slots=True)
class Lane:
    """How slices of one kind are computed one after the other on a stream.

    make: called with the address of a stream (None where there is none), gives the function of one slice: it takes the
    tensors that are read, those that are written, and the scalars that are no integers; as addresses if `by_address`,
    else as arrays. It has memory of its own for what a slice needs: room, in bytes. plan: what a slice runs, None where
    the array library computes it.
    """

    by_address: bool
    make: Callable[[Any], Callable[..., None]]
    room: int = 0
    plan: Any = None


class Computation(Protocol):
    """What computes a slice."""

    def __call__(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Writes the results for the arguments of a fusion into `outputs`."""
        ...

    def lane(self, arguments: Sequence[Any], outputs: Sequence[Any], arrays: bool) -> Lane:
        """How slices like these (of the same shapes, strides, alignment and integers) are computed; nothing runs.

        arrays: by what takes arrays.
        """
        ...


def with_axes(arrays: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """The arrays with an axis of extent 1 where one was cut; None leaves an array as it is."""
    return [
        array if axis is None else array[(*(slice(None),) * axis, None, ...)]
        for array, axis in zip(arrays, axes, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class OnSlices:
    """A launch on slices. made, read: the axes to put back, of the outputs and of the inputs, in order."""

    computation: Computation
    read: tuple[int | None, ...]
    made: tuple[int | None, ...]

    @classmethod
    def of(cls, computation: Computation, sliced: Sliced) -> OnSlices:
        """What runs `computation`, which is of `sliced.fusion`."""
        return cls(computation, *cut_axes(sliced))

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Fills the slices `outputs`."""
        self.computation(with_axes(inputs, self.read), with_axes(outputs, self.made))


@dataclass(frozen=True, slots=True, eq=False)
class HostCallOnSlices:
    """A host operation on slices. `str` is its name."""

    call: HostCall
    read: tuple[int | None, ...]
    made: int | None

    def __call__(self, inputs: list[Any], output: Any) -> None:
        """Writes the slice `output`."""
        (target,) = with_axes([output], [self.made])
        self.call(with_axes(inputs, self.read), target)

    def __str__(self) -> str:
        return str(self.call)


def cut_axes(sliced: Sliced) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """The axes to put back: of each input and of each output."""
    if sliced.pieces is not None:
        return (None,) * len(sliced.fusion.inputs), (None,) * len(sliced.fusion.outputs)
    return tuple(map(sliced.axes.get, sliced.fusion.inputs)), tuple(map(sliced.axes.get, sliced.fusion.outputs))
