"""Parallelization of an axis: over the streams of a device, or over several devices."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ParallelType(enum.Enum):
    """The ways to parallelize an axis.

    stream: the slices of the axis run on the streams of one device. mesh_x: each device of a mesh holds one shard.
    """

    stream = "stream"
    mesh_x = "mesh_x"

    def __repr__(self) -> str:
        return f"ParallelType.{self.name}"


@dataclass(frozen=True, slots=True)
class Sharding:
    """The placement of a value. devices: device numbers. axis: the sharded axis; None: every device holds all of it."""

    devices: tuple[int, ...]
    axis: int | None = None

    def __str__(self) -> str:
        where = "all of it" if self.axis is None else f"parts of axis {self.axis}"
        return f"{where} on devices {', '.join(map(str, self.devices))}"


@dataclass(frozen=True, slots=True)
class StreamAxis:
    """The axis of a value whose slices run on streams. chunks: the number of slices; None: one slice per index."""

    axis: int
    chunks: int | None = None
