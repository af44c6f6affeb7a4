"""Programs over ranks give the results of one device, with ranks as threads and as MPI processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.rank_programs import PROGRAMS
from tests.session.samples import in_suite
from tracefuse.runtime.communicators.loopback import run_ranks

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")


def mpiexec(ranks: int, *command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs a Python script on MPI ranks."""
    beside_python = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    assert launcher is not None, "mpi4py is installed without mpiexec"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [launcher, "-n", str(ranks), sys.executable, "-m", "tests.session.optimized_tests", *command],
        env=environment, timeout=seconds, capture_output=True, text=True,
    )  # fmt: skip


NAMES = list(PROGRAMS)
BY_PROCESSES = {2: in_suite([*NAMES[::8], NAMES[9]], NAMES[::2]), 4: in_suite(NAMES[1:6:4], NAMES[1::2])}
"""The programs that run on MPI processes, by the number of ranks; on the other numbers they run on threads.

Four processes take twice as long as two, and more while they wait for one another on fewer processors.
"""


BY_THREADS = [(name, n) for name in PROGRAMS for n in (1, 2, 3, 4) if name not in BY_PROCESSES.get(n, ())]
IN_TURNS = [(name, (4, 2, 1)[k % 3]) for k, name in enumerate(PROGRAMS) if k % 4 == 0]
"""A number of ranks for every fourth program beside three, which no power of two hides."""


@pytest.mark.parametrize(
    ("name", "ranks"), in_suite([one for one in BY_THREADS if one[1] == 3 or one in IN_TURNS], BY_THREADS)
)
def test_ranks_that_are_threads_give_the_results_of_one_device(name: str, ranks: int) -> None:
    run_ranks(ranks, PROGRAMS[name], ranks)


@needs_mpi
@pytest.mark.parametrize("ranks", BY_PROCESSES)
def test_ranks_that_are_processes_give_the_results_of_one_device(ranks: int) -> None:
    result = mpiexec(ranks, str(HERE / "rank_programs.py"), *BY_PROCESSES[ranks])
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("ok ") == len(BY_PROCESSES[ranks])
