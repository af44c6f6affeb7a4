"""Programs over ranks, each compared with NumPy on one device. `mpiexec -n 4 python rank_programs.py` runs them all.

Where ranks exchange GPU memory, the arrays are CuPy's. Names as arguments choose programs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from tests.runtime import rank_collectives, rank_control_flow, rank_shardings
from tests.runtime.rank_registry import PROGRAMS
from tracefuse import CommunicationError, DeviceError
from tracefuse.runtime.communicators.launch import current_world

SUBJECTS = (rank_collectives, rank_control_flow, rank_shardings)
"""The modules that put their programs into the table."""


def run_all(names: Sequence[str]) -> int:
    """Runs programs by name and returns the number of those that failed on this rank."""
    world, failed = current_world(), 0
    for name in names:
        try:
            PROGRAMS[name](world.size)
        except (CommunicationError, DeviceError):
            raise
        except Exception:
            failed += 1
            print(f"FAILED {name} on rank {world.rank}\n{traceback.format_exc()}", flush=True)
        else:
            if world.rank == 0:
                print(f"ok {name}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(run_all(sys.argv[1:] or list(PROGRAMS))))
