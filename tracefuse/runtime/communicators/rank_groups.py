"""The exchanges of the current rank along a mesh axis: what collectives in a fusion and calls on arrays both run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.errors import TracefuseError
from tracefuse.ir.shardings import MeshAxis
from tracefuse.runtime.communicators.current_world import known_world
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.world import ExchangeRequest, Start


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
        return self.bound(kind, parameters, where)(source, target, overlaps)

    def bound(self, kind: str, parameters: Mapping[str, Any], where: str | None) -> Start:
        """Returns what starts an exchange on the current rank; see `start`."""
        world = current_world()
        start, records = world.communicator(self.axis).exchange(kind, parameters), world.records
        axis = self.axis

        def exchange(source: Any, target: Any, overlaps: bool) -> ExchangeRequest:
            if world.failure is not None:
                world.check()
            if not source.flags.c_contiguous:
                source = source.copy(order="C")
            records.append((kind, axis, parameters, source.shape, source.dtype, where))
            return start(source, target, overlaps)

        return exchange

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


@dataclass(slots=True, eq=False)
class ExchangeLabel:
    """An exchange of a host program. where: the user's line. shape_of: the shape of the result, from the source's.

    overlaps: whether the program does other work before it waits. waits: whether the host waits for the end.
    """

    kind: str
    group: RankGroup
    parameters: Mapping[str, Any]
    where: str | None
    shape_of: Any
    overlaps: bool = False
    waits: bool = False
    _bound: tuple[Any, Any] = field(default=(None, None), init=False)  # the last world, and what starts the exchange

    def start(self, source: Any, target: Any | None) -> ExchangeRequest:
        """Starts the exchange, into a new array if `target` is None."""
        if target is None:
            target = np.empty_like(source, shape=self.shape_of(source.shape), order="C")
        world, start = self._bound
        if world is not known_world() or world is None:
            start = self.group.bound(self.kind, self.parameters, self.where)
            self._bound = known_world(), start
        try:
            return start(source, target, self.overlaps)  # type: ignore[no-any-return]
        except TracefuseError as error:
            error.locate(self.where)
            raise

    def finish(self, request: ExchangeRequest) -> Any:
        """Returns the result once it is complete."""
        try:
            result = request.finish()
            if self.waits:
                current_world().finish_work(str(self))
            return result
        except TracefuseError as error:
            error.locate(self.where)
            raise

    def __str__(self) -> str:
        parameters = "".join(f".{value}" for value in self.parameters.values() if isinstance(value, str))
        return f"{self.kind}.{self.group}{parameters}"
