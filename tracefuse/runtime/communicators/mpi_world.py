"""Ranks that are processes of an MPI job and exchange NumPy arrays through mpi4py."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from tracefuse.errors import CommunicationError, DeviceError
from tracefuse.kernel.llvm.worker_pool import available_threads, share_processors
from tracefuse.runtime.communicators.control_channel import ConnectedWorld, ControlClient, ControlServer
from tracefuse.runtime.communicators.host_communicator import HostCommunicator
from tracefuse.runtime.communicators.messenger import Messenger
from tracefuse.runtime.communicators.world import CROWDED, Communicator


def import_mpi() -> Any:
    """Returns mpi4py's module, with MPI initialized. Raises DeviceError if it is not installed."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise DeviceError(
            f"ranks that exchange host memory need mpi4py: {error}", hint="pip install 'tracefuse[mpi]'"
        ) from None
    return MPI


def _bytes_of(array: Any) -> Any:
    """Returns the memory of a contiguous array as bytes; MPI does not know every element type."""
    return array.reshape(-1).view(np.uint8)


class _MpiMessages:
    """Messages in progress. expected: the bytes of each that is received, None for those that are sent."""

    __slots__ = ("_arrays", "_expected", "_mpi", "_requests")

    def __init__(self, mpi: Any, requests: list[Any], expected: list[int | None], arrays: list[Any]) -> None:
        self._mpi, self._requests, self._expected, self._arrays = mpi, requests, expected, arrays

    def is_done(self) -> bool:
        if not self._requests:
            return True
        statuses = [self._mpi.Status() for _ in self._requests]
        try:
            done = self._mpi.Request.Testall(self._requests, statuses)
        except self._mpi.Exception as error:
            raise CommunicationError(
                f"MPI: {error.Get_error_string()}", hint="see whether a rank ended or exchanged another size"
            ) from None
        if done:
            for status, expected in zip(statuses, self._expected, strict=True):
                if expected is not None and status.Get_count(self._mpi.BYTE) != expected:
                    raise CommunicationError(
                        f"a rank sent {status.Get_count(self._mpi.BYTE)} bytes where {expected} are received",
                        hint="every rank must pass arrays of the same shape and type",
                    )
            self._requests = []
        return bool(done)


class MpiMessenger(Messenger):
    """Messages of a group of an MPI communicator."""

    def __init__(self, communicator: Any, ranks: Sequence[int], mpi: Any) -> None:
        self._communicator, self._ranks, self._mpi = communicator, tuple(ranks), mpi
        self.rank, self.size = self._ranks.index(communicator.Get_rank()), len(self._ranks)

    def post(self, sends: Mapping[int, Any], receives: Mapping[int, Any]) -> _MpiMessages:
        byte = self._mpi.BYTE
        requests, expected, arrays = [], [], [*sends.values(), *receives.values()]
        for rank, target in receives.items():
            memory = _bytes_of(target)
            requests.append(self._communicator.Irecv([memory, byte], self._ranks[rank]))
            expected.append(memory.nbytes)
        for rank, content in sends.items():
            requests.append(self._communicator.Isend([_bytes_of(content), byte], self._ranks[rank]))
            expected.append(None)
        return _MpiMessages(self._mpi, requests, expected, arrays)


class MpiWorld(ConnectedWorld):
    """A rank of an MPI job."""

    def __init__(self, mpi: Any, client: ControlClient) -> None:
        super().__init__(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), client)
        self._mpi = mpi
        ranks_here = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED).Get_size()
        self.pause = CROWDED if ranks_here > available_threads() else 0.0
        share_processors(ranks_here)
        self._abort_after_uncaught_errors()

    def make_communicator(self, ranks: Sequence[int], groups: Sequence[Sequence[int]]) -> Communicator:
        """Makes the communicator of a group. Groups along one axis share a duplicate of MPI's: they are disjoint."""
        duplicate = self._mpi.COMM_WORLD.Dup()
        return HostCommunicator(MpiMessenger(duplicate, ranks or (self.rank,), self._mpi), self)

    def abort(self) -> None:
        """Ends the whole job with a status that is not 0."""
        self._mpi.COMM_WORLD.Abort(1)

    def _abort_after_uncaught_errors(self) -> None:
        """Ends the whole job when this rank ends with an error: the other ranks would wait for it forever."""
        before, abort = sys.excepthook, self._mpi.COMM_WORLD.Abort

        def report_and_abort(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            before(kind, error, traceback)
            sys.stderr.flush()
            self.client.leave_with_error(f"raised {kind.__name__}: {error}")
            abort(1)

        sys.excepthook = report_and_abort


def make_mpi_world() -> MpiWorld:
    """Returns the world of a process that `mpiexec` started; every rank calls it at the same time."""
    mpi = import_mpi()
    everyone = mpi.COMM_WORLD
    server = ControlServer.on_free_port(everyone.Get_size()) if everyone.Get_rank() == 0 else None
    address = everyone.bcast(None if server is None else server.address)
    return MpiWorld(mpi, ControlClient(address, everyone.Get_rank(), server))
