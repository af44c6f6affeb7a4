"""The ranks of a job as one of them sees it, and the communicators of its meshes.

A world knows its own rank, the number of ranks, and how to make a communicator for a group. It records every exchange
that it starts, so that the job can compare the ranks, and holds the failure that any of them reported.

Must not know: fusions, plans.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from tracefuse import config
from tracefuse.errors import CommunicationError, DeviceError
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.runtime.communicators.messenger import Pending

SPINS = 50
"""Polls before a wait starts to yield its core to other ranks."""

REPORTS = 16
"""Polls between two reports of a rank that waits."""

CROWDED = 50e-6
"""Seconds between two polls where ranks share cores: a rank that only yields takes as much time as one that works."""


class ExchangeRequest(Protocol):
    """An exchange in progress."""

    def finish(self) -> Any:
        """Returns the target once it is complete; on a GPU, later work on the current stream waits for it."""
        ...


Start: TypeAlias = Callable[[Any, Any, bool], ExchangeRequest]
"""Starts an exchange from one contiguous array to another; the last argument says whether other work comes before its
end."""


class Communicator(ABC):
    """The exchanges of one rank with a group. rank: its place in the group. size: the number of ranks."""

    rank: int
    size: int

    @abstractmethod
    def exchange(self, kind: str, parameters: Mapping[str, Any]) -> Start:
        """Returns what starts an exchange of EXCHANGES."""


class World(ABC):
    """The job as one rank sees it. records: the exchanges started since the last report. failure: see `Agreement`.

    pause: the seconds between two polls of a rank that waits; with 0 it yields its core.
    """

    pause: float = 0.0
    rank: int
    size: int

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.failure: str | None = None
        self.records: deque[tuple[Any, ...]] = deque()
        self._communicators: dict[MeshAxis, Communicator] = {}

    @abstractmethod
    def make_communicator(self, ranks: Sequence[int], groups: Sequence[Sequence[int]]) -> Communicator:
        """Makes the communicator of the group `ranks`. Every rank calls this at the same time with the same `groups`.

        groups: all groups along the same mesh axis, `ranks` among them; a rank outside of all groups passes ().
        """

    @abstractmethod
    def report(self) -> None:
        """Reports the recorded exchanges, and updates `failure`."""

    def connect(self, mesh: DeviceMesh) -> None:
        """Makes the communicators of a mesh, one for each axis. Every rank calls this in the same order.

        Raises DeviceError for a mesh with a rank that does not exist.
        """
        if max(mesh.ranks) >= self.size:
            raise DeviceError(
                f"{mesh} has rank {max(mesh.ranks)}, and the job has {self.size} ranks",
                hint=f"start it with more, such as mpiexec -n {max(mesh.ranks) + 1} python script.py",
            )
        for name in mesh.names:
            if MeshAxis(mesh, name) in self._communicators:
                continue
            groups = list(mesh.groups(name))
            members = next((group for group in groups if self.rank in group), ())
            self._communicators[MeshAxis(mesh, name)] = self.make_communicator(members, groups)

    def communicator(self, axis: MeshAxis) -> Communicator:
        """Returns the communicator of this rank along a mesh axis."""
        connected = self._communicators.get(axis)
        if connected is None:
            self.connect(axis.mesh)
            connected = self._communicators[axis]
        return connected

    def start_group(self) -> None:  # noqa: B027  (exchanges of host memory start one by one)
        """Begins a group of exchanges that start together."""

    def end_group(self) -> None:  # noqa: B027
        """Starts the exchanges of the group."""

    def finish_work(self, text: str) -> None:  # noqa: B027  (exchanges of host memory are complete at their end)
        """Waits until the exchanges so far are complete. Raises CommunicationError if the job fails."""

    def take_records(self) -> Iterator[tuple[Any, ...]]:
        """Yields and removes the recorded exchanges; another thread may add some meanwhile."""
        while self.records:
            yield self.records.popleft()

    def check(self) -> None:
        """Raises CommunicationError if the job failed."""
        if self.failure is not None:
            raise CommunicationError(f"{self.failure} (this is rank {self.rank})", hint=HINT)

    def wait(self, pending: Pending, text: str) -> None:
        """Waits for messages. Raises CommunicationError if the job fails or they do not arrive."""
        spins, start = 0, 0.0
        while not self._is_done(pending):
            spins += 1
            if spins < SPINS:
                continue
            now = time.monotonic()
            start = start or now
            if spins % REPORTS == 0:
                self.report()
                self.check()
            longest = config.resolve().exchange_timeout
            if now - start > longest:
                raise CommunicationError(
                    f"{text} has not finished after {longest} s (rank {self.rank})",
                    hint="the option exchange_timeout sets the seconds",
                )
            time.sleep(self.pause if now - start < 0.01 else 0.0002)

    def _is_done(self, pending: Pending) -> bool:
        """Returns whether messages are complete. If they failed, raises the difference between ranks, if any."""
        try:
            return pending.is_done()
        except CommunicationError:
            end = time.monotonic() + _EXPLAINS
            while self.failure is None and time.monotonic() < end:
                time.sleep(0.01)
                self.report()
            self.check()
            raise

    def close(self) -> None:  # noqa: B027
        """Tells the job that this rank ends."""


_EXPLAINS = 2.0
"""Seconds for which a rank whose messages failed waits for the comparison of the ranks."""
HINT = "every rank must call the same functions, with the same shapes, in the same order"
