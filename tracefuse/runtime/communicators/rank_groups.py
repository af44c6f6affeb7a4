"""The exchanges of the current rank along a mesh axis: what collectives in a fusion and calls on arrays both run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse.errors import TracefuseError
from tracefuse.ir.shardings import MeshAxis
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.world import ExchangeRequest


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks along a mesh axis. The same object serves every rank: it finds the communicator of the current one."""

    axis: MeshAxis

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.axis.size

    def start(
        self,
        kind: str,
        source: Any,
        target: Any,
        parameters: Mapping[str, Any],
        where: str | None,
        overlaps: bool = False,
    ) -> ExchangeRequest:
        """Starts an exchange of an array into a contiguous one. where: the user's line. overlaps: see `Communicator`.

        Raises CommunicationError if the job has failed.
        """
        world = current_world()
        if world.failure is not None:
            world.check()
        if not source.flags.c_contiguous:
            source = source.copy(order="C")
        world.records.append((kind, self.axis, parameters, source.shape, source.dtype, where))
        return world.communicator(self.axis).start(kind, source, target, overlaps=overlaps, **parameters)

    def run(
        self, kind: str, source: Any, shape: tuple[int, ...], parameters: Mapping[str, Any], where: str | None = None
    ) -> Any:
        """Runs an exchange and returns its result, a new array of this shape."""
        target = np.empty_like(source, shape=shape, order="C")
        try:
            return self.start(kind, source, target, parameters, where).finish()
        except TracefuseError as error:
            error.locate(where)
            raise

    def __str__(self) -> str:
        return str(self.axis)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeLabel:
    """An exchange of a host program. where: the user's line. shape_of: the shape of the result, from the source's.

    overlaps: whether the program does other work before it waits.
    """

    kind: str
    group: RankGroup
    parameters: Mapping[str, Any]
    where: str | None
    shape_of: Any
    overlaps: bool = False

    def start(self, source: Any, target: Any | None) -> ExchangeRequest:
        """Starts the exchange, into a new array if `target` is None."""
        if target is None:
            target = np.empty_like(source, shape=self.shape_of(source.shape), order="C")
        try:
            return self.group.start(self.kind, source, target, self.parameters, self.where, self.overlaps)
        except TracefuseError as error:
            error.locate(self.where)
            raise

    def finish(self, request: ExchangeRequest) -> Any:
        """Returns the result once it is complete."""
        try:
            return request.finish()
        except TracefuseError as error:
            error.locate(self.where)
            raise

    def __str__(self) -> str:
        parameters = "".join(f".{value}" for value in self.parameters.values() if isinstance(value, str))
        return f"{self.kind}.{self.group}{parameters}"
