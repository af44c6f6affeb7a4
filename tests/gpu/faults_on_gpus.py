"""Ends ranks with a GPU each at random points, and lets them differ: the job ends with an error within seconds."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

from launch_ranks import launch

LIMIT = 60.0
"""Seconds in which a job must end: start of the processes, NCCL, and the fault."""


def rank_program(fault: str, started: str) -> None:
    import cupy

    from tracefuse import collectives, make_mesh, shard_map
    from tracefuse.runtime.communicators.launch import current_world

    rank, size = current_world().rank, current_world().size
    mesh = make_mesh((size,), ("data",))
    step = shard_map(lambda x: collectives.psum(x * 0.5, "data"), mesh=mesh)
    x = cupy.ones((1024, 64), cupy.float32)
    step(x)
    cupy.cuda.get_current_stream().synchronize()
    pathlib.Path(started).touch()  # what fails before the first exchange is no fault of this program
    if fault == "killed" and rank == size - 1:
        delay = random.Random(os.getpid()).uniform(0.0, 2.0)
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if fault == "shape" and rank == size - 1:
        x = cupy.ones((1000, 64), cupy.float32)
    if fault == "count" and rank == size - 1:
        return
    while True:
        step(x)
        cupy.cuda.get_current_stream().synchronize()


def main() -> int:
    failed = 0
    for fault in ("killed", "killed", "shape", "count"):
        start = time.monotonic()
        started = os.path.join(tempfile.mkdtemp(), "exchanged")
        status = launch(2, [__file__, fault, started], LIMIT)
        seconds = time.monotonic() - start
        good = status not in (0, 124) and os.path.exists(started)
        failed += not good
        print(f"{'ok' if good else 'FAILED'} {fault}: status {status} after {seconds:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_program(sys.argv[1], sys.argv[2])
    else:
        sys.exit(main())
