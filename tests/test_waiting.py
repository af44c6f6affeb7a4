"""Tests the progress bar: it appears in a terminal, after a delay, and nowhere else."""

from __future__ import annotations

import importlib.util
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
import sys, threading, time
from tracefuse import waiting

waiting.DELAY = float(sys.argv[1])
with waiting.counted_steps("compiling kernels", 3) as count:
    with waiting.counted_steps("a second bar", 1) as inner:
        for name in ("first", "second", "third"):
            time.sleep(0.15)
            threading.Thread(target=count, args=(name,)).start()
        inner()
print("done", "rich" in sys.modules, threading.active_count())
"""


def run(delay: float, terminal: bool, hide_rich: bool = False) -> tuple[str, str]:
    """Runs the program; returns what it prints, and what it writes to standard error."""
    hidden = "import sys; sys.modules['rich'] = None\n" if hide_rich else ""
    command = [sys.executable, "-W", "error", "-c", hidden + textwrap.dedent(PROGRAM), str(delay)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    if not terminal:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout, done.stderr
    controller, standard_error = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=standard_error, text=True, env=environment)
    os.close(standard_error)
    written = []
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written.append(chunk.decode())
    os.close(controller)
    printed, _ = process.communicate()
    assert process.returncode == 0, "".join(written)
    return printed, "".join(written)


def test_without_a_terminal_nothing_is_shown_or_loaded() -> None:
    assert run(0.0, terminal=False) == ("done False 1\n", "")


def test_work_below_the_delay_shows_nothing() -> None:
    printed, written = run(60.0, terminal=True)
    assert printed.startswith("done False")
    assert written == ""


def test_without_rich_nothing_is_shown() -> None:
    printed, written = run(0.05, terminal=True, hide_rich=True)
    assert printed.startswith("done")
    assert written == ""


@pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed: pip install rich")
def test_a_terminal_shows_what_is_done_and_how_far_it_is_one_bar_at_a_time() -> None:
    printed, written = run(0.05, terminal=True)
    assert printed.startswith("done True")
    assert "tracefuse: " in written
    assert ("compiling kernels" in written) != ("a second bar" in written)
