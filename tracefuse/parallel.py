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
class StreamAxis:
    """The axis of a value whose slices go to streams. pieces: into how many parts it is cut; None is one an index."""

    axis: int
    pieces: int | None = None
