"""How an axis of a value is spread: over the streams of a device, or over several devices.

Knows: the words for it. Must not know: values, how anything is spread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ParallelType(enum.Enum):
    """What an axis can be spread over.

    stream: its slices are computed on the streams of one device. mesh_x: each device of a mesh holds one part of it.
    """

    stream = "stream"
    mesh_x = "mesh_x"

    def __repr__(self) -> str:
        return f"ParallelType.{self.name}"


@dataclass(frozen=True, slots=True)
class Sharding:
    """The devices that hold a value, by number, and the axis of which each holds one part; None: each holds it all."""

    devices: tuple[int, ...]
    axis: int | None = None

    def __str__(self) -> str:
        where = "all of it" if self.axis is None else f"parts of axis {self.axis}"
        return f"{where} on devices {', '.join(map(str, self.devices))}"


@dataclass(frozen=True, slots=True)
class StreamAxis:
    """The axis of a value whose slices go to streams. pieces: into how many parts it is cut; None is one an index."""

    axis: int
    pieces: int | None = None
