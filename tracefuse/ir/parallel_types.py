"""Parallelization of an axis: over the streams of a device, or over several devices."""

from __future__ import annotations

import enum

from segments.lazy_dataclasses import dataclass


class ParallelType(enum.Enum):
    """The ways to parallelize an axis.

    stream: the slices of the axis run on the streams of one device. mesh_x, mesh_y: each rank along the first or second
    axis of a mesh holds one part.
    """

    stream = "stream"
    mesh_x = "mesh_x"
    mesh_y = "mesh_y"

    def __repr__(self) -> str:
        return f"ParallelType.{self.name}"


@dataclass(frozen=True, slots=True)
class StreamAxis:
    """The axis of a value whose slices run on streams. chunks: the number of slices; None: one slice per index."""

    axis: int
    chunks: int | None = None
