"""Scripts in fresh processes that start fast: forks of one process that has imported NumPy and tracefuse.

The process has traced and compiled nothing, so a fork of it is as fresh as a new one. It turns warnings into errors.
`optimized_tests.py` says which scripts have optimized kernels.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from tests.session import optimized_tests
from tracefuse import fuse  # noqa: F401 - so that a fork has imported all that a call needs
from tracefuse.kernel.llvm.machine_code import get_machine

ROOT = Path(__file__).parents[2]

SECONDS = 300
"""The longest time that a script may take."""


class Done(NamedTuple):
    """A script that has ended: its exit status (negative: a signal) and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_script(path: Path, *arguments: str) -> Done:
    """Runs a script as `python -W error path arguments` does, in the root of this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "stdout"), Path(folder, "stderr")
        process = _server()
        request = {"arguments": [str(path), *arguments], "stdout": str(output), "stderr": str(errors)}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], SECONDS)[0]:
            _end()
            raise TimeoutError(f"{path} runs for more than {SECONDS} s; so far:\n{errors.read_text()}")
        status = process.stdout.readline()
        assert status, f"the process that starts scripts has ended, at {path}"
        return Done(int(status), output.read_text(), errors.read_text())


@functools.cache
def _server() -> Any:
    own = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # whatever is installed
    command = [sys.executable, "-W", "error", "-m", "tests.session.script_processes"]
    atexit.register(_end)
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": own},
    )  # fmt: skip


def _end() -> None:
    """Ends the process and the script that it runs."""
    process = _server()
    _server.cache_clear()
    atexit.unregister(_end)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _serve() -> None:
    """Runs a script for each line of the standard input, and prints its exit status."""
    get_machine()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which NumPy's library of products has; it stops them before a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _become(request["arguments"], request["stdout"], request["stderr"])
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(arguments: list[str], stdout: str, stderr: str) -> None:
    """Runs a script in this process, which ends with it."""
    for descriptor, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    optimized_tests.run_script(arguments)


if __name__ == "__main__":
    _serve()
