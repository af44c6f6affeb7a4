"""What a host program runs on, as protocols. Buffers, specifications and labels pass through unlooked at.

Knows: what instructions ask of a device. Must not know: programs, any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Device(Protocol):
    """What a program runs on.

    A device must not depend on `release` to get its memory back: when a launch raises, buffers are dropped by
    reference alone, since work that was begun may still write to them.
    """

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        """Return a fresh buffer for `spec`; `values` are all live values by original number, extents among them."""
        ...

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object] | None:
        """Run a segment. `outputs` are the allocated ones, in order; the others are returned, in order."""
        ...

    def release(self, buffer: object) -> None:
        """Take back what `allocate` or `launch` returned; never called for an input of the program.

        Memory with several names is taken back with the last of them.
        """
        ...


class CopyingDevice(Device, Protocol):
    """What a program with Copy instructions runs on."""

    def copy(self, source: object, target: object) -> None:
        """Write what `source` holds into `target`."""
        ...


class SlicingDevice(Device, Protocol):
    """What a program with Select instructions runs on."""

    def select(self, buffer: object, axis: int, index: int, size: int | None) -> object:
        """Return a slice that shares the memory of `buffer`; see `Select`."""
        ...


class HostOpDevice(Device, Protocol):
    """What a program with HostOp instructions runs on."""

    def host_op(self, label: object, inputs: list[object], output: object | None) -> object:
        """Run an operation into `output`, or into a new buffer; return where the result is."""
        ...


class CommunicatingDevice(Device, Protocol):
    """What a program with Communicate instructions runs on."""

    def communicate(self, label: object, source: object, target: object | None) -> object:
        """Exchange `source` among ranks, into `target` or a new buffer; return where the result is."""
        ...
