"""The world of a process, by how it was started.

`mpiexec` starts ranks that exchange host memory through MPI, `torchrun` (or anything that sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT) ranks that exchange GPU memory through NCCL. A process that no launcher started is a job of
one rank. The option `communicator` overrides this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tracefuse import config
from tracefuse.errors import DeviceError
from tracefuse.runtime.communicators.current_world import known_world, world_of_process
from tracefuse.runtime.communicators.loopback import run_ranks, single_world
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


def run_job(function: Callable[[], Any], threads: int = 4) -> Any:
    """Calls `function` on every rank of the job, and returns its result on rank 0, None on the others.

    threads: the ranks, as threads, of a process that no launcher started.
    """
    if current_world().size == 1:
        return run_ranks(threads, function)[0]
    result = function()
    return result if current_world().rank == 0 else None


def _is_mpi() -> bool:
    return any(name in os.environ for name in _OF_MPI)
