"""Ranks that differ, raise or are killed end the job with an error on every rank, within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_ranks_run import HERE, mpiexec, needs_mpi
from tracefuse import CommunicationError, Sharding, collectives, fuse, make_mesh, shard_map
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.loopback import run_ranks

SCRIPT = """
import os, random, signal, sys, threading, time
import numpy as np
from tracefuse import collectives, make_mesh, shard_map
from tracefuse.runtime.communicators.launch import current_world

rank, size, fault = current_world().rank, current_world().size, sys.argv[1]
mesh = make_mesh((size,), ("data",))
step = shard_map(lambda x: collectives.psum(x * 0.5, "data"), mesh=mesh)
x = np.ones((8, 4), np.float32)
step(x)
if rank == size - 1:
    if fault == "killed":
        threading.Timer(random.uniform(0, 0.5), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if fault == "raises":
        raise ValueError("of one rank")
    if fault == "shape":
        x = x[:7]
    if fault == "count":
        sys.exit(0)
end = time.monotonic() + 60
while time.monotonic() < end:
    step(x)
print("still running")
"""


@needs_mpi
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("killed", ""),
        ("raises", "of one rank"),
        ("shape", "ranks differ at exchange 1: rank 0 starts all_reduce over 'data'"),
        ("count", "rank 1 the end of the program"),
    ],
)
def test_a_fault_of_one_process_ends_the_job(fault: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    start = time.monotonic()
    result = mpiexec(2, str(script), fault, seconds=60)
    assert result.returncode != 0
    assert "still running" not in result.stdout
    assert message in result.stderr
    assert time.monotonic() - start < 50  # the loop alone runs for 60 s


def part(rank_length: Callable[[int], int]) -> Any:
    return np.ones((rank_length(current_world().rank), 4), np.float32)


def differ_in_shape() -> None:
    mesh = make_mesh((2,), ("data",))
    shard_map(lambda x: collectives.psum(x, "data"), mesh=mesh)(part(lambda rank: 4 + rank))


def differ_in_function() -> None:
    mesh = make_mesh((2,), ("data",))
    functions = (lambda x: collectives.psum(x, "data"), lambda x: collectives.pmax(x, "data"))
    shard_map(functions[current_world().rank], mesh=mesh)(part(lambda rank: 4))


def differ_in_count() -> None:
    mesh = make_mesh((2,), ("data",))
    step = shard_map(lambda x: collectives.psum(x, "data"), mesh=mesh)
    for _ in range(1 + current_world().rank):
        step(part(lambda rank: 4))


def differ_in_type() -> None:
    mesh = make_mesh((2,), ("data",))
    x = part(lambda rank: 4).astype((np.float32, np.float64)[current_world().rank])
    shard_map(lambda x: collectives.psum(x, "data"), mesh=mesh)(x)


@pytest.mark.parametrize("program", [differ_in_shape, differ_in_function, differ_in_count, differ_in_type])
def test_ranks_that_differ_raise_with_both_lines(program: Callable[[], None]) -> None:
    with pytest.raises(CommunicationError, match=r"ranks differ at exchange \d+: rank 0 .*, rank 1 .*") as caught:
        run_ranks(2, program)
    assert "test_rank_faults.py:" in str(caught.value)


def test_an_error_of_one_rank_ends_the_others() -> None:
    def one_raises() -> None:
        mesh = make_mesh((2,), ("data",))
        if current_world().rank == 1:
            raise ValueError("of rank 1")
        shard_map(lambda x: collectives.psum(x, "data"), mesh=mesh)(part(lambda rank: 4))

    with pytest.raises(ValueError, match="of rank 1"):
        run_ranks(2, one_raises)


def refusals() -> dict[str, Callable[[], Any]]:
    mesh = make_mesh((1,), ("data",))
    rows, x = Sharding(mesh, ("data",)), np.ones((4, 3), np.float32)
    return {
        "has no axis 'model'": lambda: shard_map(lambda x: collectives.psum(x, "model"), mesh=mesh)(x),
        "no mesh": lambda: fuse(lambda x: collectives.psum(x, "data"))(x),
        "psum of bool elements": lambda: shard_map(lambda x: collectives.psum(x > 0, "data"), mesh=mesh)(x),
        "perm cannot be": lambda: shard_map(lambda x: collectives.ppermute(x, "data", [(0, 3)]), mesh=mesh)(x),
        "has rank 1, and the job has 1 ranks": lambda: make_mesh((2,), ("data",)),
        "cannot have the shape": lambda: make_mesh((0,), ("data",)),
        "splits two axes": lambda: Sharding(mesh, ("data", "data")),
        "the specification of a sharding": lambda: Sharding(mesh, "data"),
        "in_specs and takes": lambda: shard_map(lambda x: x, mesh=mesh, in_specs=(rows, rows))(x),
        "changes an argument in place": lambda: fuse(_update, in_shardings=rows)(x),
        "the shardings name 0 meshes": lambda: fuse(_update, in_shardings=(None,), out_shardings=()),
    }


def _update(x: Any) -> Any:
    x += 1
    return x


@pytest.mark.parametrize("message", refusals())
def test_what_is_refused_names_the_values(message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        refusals()[message]()
    assert "hint:" in str(caught.value)


assert HERE.name == "runtime"
