"""Starts ranks with the environment variables that torchrun sets: launch_ranks.py RANKS SCRIPT [ARGUMENT ...].

Ends with the first status that is not 0, after the other ranks ended or a grace time has passed.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time

GRACE = 30.0
"""Seconds that the other ranks have to end after one that failed."""


def launch(ranks: int, command: list[str], seconds: float = 500.0) -> int:
    """Runs a Python script on ranks of this host. Returns 0, or the first status of a rank that is not 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        **os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TRACEFUSE_JOB_SECRET": secrets.token_hex(16),
    }  # fmt: skip
    running = [
        subprocess.Popen([sys.executable, *command], env={**common, "RANK": str(k), "LOCAL_RANK": str(k)})
        for k in range(ranks)
    ]
    end, status = time.monotonic() + seconds, 0
    while any(one.poll() is None for one in running):
        failed = [one.returncode for one in running if one.returncode not in (None, 0)]
        if failed and not status:
            status, end = failed[0], min(end, time.monotonic() + GRACE)
        if time.monotonic() > end:
            for one in running:
                one.kill()
            return status or 124
        time.sleep(0.05)
    return status or next((one.returncode for one in running if one.returncode), 0)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
