"""Protocols of the devices that run host programs. Buffers, specifications and labels are opaque to the runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Device(Protocol):
    """The interface that every program needs.

    A device must not rely on `release` to reclaim memory: when a launch raises, buffers are only dereferenced, since
    work already submitted may still write to them.
    """

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        """Return a new buffer for `spec`. `values` maps original numbers to all live values, including extents."""
        ...

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object] | None:
        """Run segment `step`: fill `outputs`, the allocated ones in order, and return the others in order."""
        ...

    def release(self, buffer: object) -> None:
        """Reclaim a buffer that `allocate` or `launch` returned; never called for an input of the program.

        A buffer with several names is released once, with the last of them.
        """
        ...


class CopyingDevice(Device, Protocol):
    """The interface that programs with CopyBuffer instructions need."""

    def copy(self, source: object, target: object) -> None:
        """Copy the content of `source` into `target`."""
        ...


class SlicingDevice(Device, Protocol):
    """The interface that programs with Select instructions need."""

    def select(self, buffer: object, axis: int, index: int, size: int | None) -> object:
        """Return a view of `buffer`; see `Select`."""
        ...


class HostOpDevice(Device, Protocol):
    """The interface that programs with HostOp instructions need."""

    def host_op(self, label: object, inputs: list[object], output: object | None) -> object:
        """Run an operation into `output`, or into a new buffer if None; return the buffer with the result."""
        ...


class CommunicatingDevice(Device, Protocol):
    """The interface that programs with Communicate instructions need."""

    def communicate(self, label: object, sources: list[object], targets: list[object | None]) -> object:
        """Start an exchange of `sources`, into `targets` or new buffers where None; return its handle."""
        ...

    def finish_request(self, handle: object) -> Sequence[object]:
        """Wait until an exchange is complete; return the buffers of its targets, in order."""
        ...

    def start_coalescing(self) -> None:
        """Begin a group of exchanges, which start together."""
        ...

    def end_coalescing(self) -> None:
        """Start the exchanges of the group."""
        ...
