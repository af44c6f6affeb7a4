"""Ranks that are processes with one GPU each and exchange CuPy arrays through NCCL.

The watch ends a job that failed: it aborts the communicators, so that kernels that wait for other ranks end, and exits
the process if it does not end by itself.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tracefuse.errors import DeviceError
from tracefuse.runtime.communicators.control_channel import ConnectedWorld, ControlClient, ControlServer
from tracefuse.runtime.communicators.mpi_world import import_mpi
from tracefuse.runtime.communicators.nccl_communicator import NcclGroup, NcclRequests
from tracefuse.runtime.communicators.world import Communicator

GRACE = 10.0
"""Seconds after which a rank of a failed job exits if it has not ended."""


class _StreamEvent:
    """The work of a stream before an event, as something to wait for."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.done)


class NcclWorld(ConnectedWorld):
    """A rank with a GPU of its own."""

    def __init__(self, rank: int, size: int, client: ControlClient) -> None:
        cupy = _import_cupy()
        local = int(os.environ.get("LOCAL_RANK", rank % cupy.cuda.runtime.getDeviceCount()))
        self.device = cupy.cuda.Device(local)
        self.device.use()
        self._cupy = cupy
        self.exchange_stream = cupy.cuda.Stream(non_blocking=True)
        self.begun: NcclRequests | None = None
        self._groups: list[NcclGroup] = []
        self._made = 0
        self._failed_at: float | None = None
        super().__init__(rank, size, client)
        self._check_devices()

    def _check_devices(self) -> None:
        """Raises DeviceError if two ranks have the same GPU, which NCCL would wait on forever."""
        uuid = self._cupy.cuda.runtime.getDeviceProperties(self.device.id)["uuid"]
        self.client.put(f"gpu {self.rank}", f"{socket.gethostname()} {bytes(uuid).hex()}")
        of_rank: dict[str, int] = {}
        for rank in range(self.size):
            name = self.client.get(f"gpu {rank}")
            other = of_rank.setdefault(name, rank)
            if other != rank:
                raise DeviceError(
                    f"ranks {other} and {rank} use the same GPU", hint="set LOCAL_RANK, or start one rank a GPU"
                )

    def make_communicator(self, ranks: Sequence[int], groups: Sequence[Sequence[int]]) -> Communicator:
        """Makes the communicator of a group; its first rank publishes NCCL's identifier."""
        from cupy.cuda import nccl

        self._made += 1
        group = tuple(ranks) or (self.rank,)
        key = f"nccl {self._made} {group[0]}"
        if self.rank == group[0]:
            self.client.put(key, list(nccl.get_unique_id()))
        with self.device:
            # A tuple of integers before CuPy 14, bytes since.
            identifier = type(nccl.get_unique_id())(self.client.get(key))
            communicator = nccl.NcclCommunicator(len(group), identifier, group.index(self.rank))
        self._groups.append(NcclGroup(communicator, group.index(self.rank), len(group), self))
        return self._groups[-1]

    def start_group(self) -> None:
        """Begins a group of exchanges that NCCL starts together."""
        self.begun = NcclRequests(self._cupy.cuda.Event, self.exchange_stream)
        self._cupy.cuda.nccl.groupStart()

    def end_group(self) -> None:
        """Starts the exchanges of the group."""
        begun, self.begun = self.begun, None
        self._cupy.cuda.nccl.groupEnd()
        if begun is not None:
            begun.finish()

    def finish_work(self, text: str) -> None:
        """Waits until the work of the current stream is done. Raises CommunicationError if the job fails meanwhile."""
        done = self._cupy.cuda.Event(disable_timing=True)
        done.record()
        self.wait(_StreamEvent(done), text)

    def on_poll(self) -> None:
        """Looks for errors of NCCL and for the failure of the job."""
        if self._failed_at is not None:
            if time.monotonic() - self._failed_at > GRACE:
                os._exit(1)
            return
        for group in self._groups:
            error = group.asynchronous_error()
            if error is not None and self.client.failure is None:
                self.client.failure = f"NCCL on rank {self.rank}: {error}"
        if self.client.failure is not None:
            self._failed_at = time.monotonic()
            sys.stderr.write(f"tracefuse: rank {self.rank}: {self.client.failure}\n")
            sys.stderr.flush()
            for group in self._groups:
                threading.Thread(target=group.abort, daemon=True).start()


def _import_cupy() -> Any:
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(
            f"ranks that exchange GPU memory need CuPy with NCCL: {error}", hint="pip install 'tracefuse[cuda13]'"
        ) from None
    if not nccl.available:
        raise DeviceError("CuPy finds no NCCL", hint="pip install nvidia-nccl-cu13")
    return cupy


def make_nccl_world(through_mpi: bool) -> NcclWorld:
    """Returns the world of a process with one GPU. through_mpi: `mpiexec` started it; else RANK and the like say where.

    Raises DeviceError without CuPy or NCCL, for a missing environment variable, and if rank 0 does not answer.
    """
    _import_cupy()
    if through_mpi:
        everyone = import_mpi().COMM_WORLD
        rank, size = everyone.Get_rank(), everyone.Get_size()
        server = ControlServer.on_free_port(size) if rank == 0 else None
        address = everyone.bcast(None if server is None else server.address)
    else:
        rank, size, host, port, secret = _from_environment()
        server = ControlServer(host, port, size, secret) if rank == 0 else None
        address = host, port, secret
    return NcclWorld(rank, size, ControlClient(address, rank, server))


def _from_environment() -> tuple[int, int, str, int, str]:
    """Returns the rank, the number of ranks, and the address, port and secret of the control channel."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise DeviceError(
            f"communicator='nccl' without {', '.join(missing)}", hint="start the ranks with torchrun or mpiexec"
        )
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens on the first
    secret = os.environ.get("TRACEFUSE_JOB_SECRET", "")
    if not secret and not _is_this_host(host):
        raise DeviceError(
            f"the ranks reach rank 0 at {host} without a secret", hint="set TRACEFUSE_JOB_SECRET to one text on all"
        )
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), host, port, secret


def _is_this_host(host: str) -> bool:
    """Whether an address is that of the loop-back interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of a host
        return False
