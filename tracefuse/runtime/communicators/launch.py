"""The world of a process, by how it was started.

`mpiexec` starts ranks that exchange host memory through MPI, `torchrun` (or anything that sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT) ranks that exchange GPU memory through NCCL. A process that no launcher started is a job of
one rank. The option `communicator` overrides this.
"""

from __future__ import annotations

import os

from tracefuse import config
from tracefuse.errors import DeviceError
from tracefuse.runtime.communicators.current_world import known_world, world_of_process
from tracefuse.runtime.communicators.loopback import single_world
from tracefuse.runtime.communicators.mpi_world import make_mpi_world
from tracefuse.runtime.communicators.nccl_world import make_nccl_world
from tracefuse.runtime.communicators.world import World

_OF_MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def current_world() -> World:
    """Returns the world of the current thread or process, made at the first use."""
    return known_world() or world_of_process(_make)


def _make() -> World:
    kind = config.resolve().communicator
    if kind == "auto":
        kind = "nccl" if all(name in os.environ for name in _OF_TORCHRUN) else "mpi" if _is_mpi() else "loopback"
    if kind == "mpi":
        return make_mpi_world()
    if kind == "nccl":
        return make_nccl_world(through_mpi=_is_mpi() and "RANK" not in os.environ)
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        raise DeviceError(
            f"communicator='loopback' in a job of {count} processes", hint="leave the option out, or give 'nccl'"
        )
    return single_world()


def _is_mpi() -> bool:
    return any(name in os.environ for name in _OF_MPI)
