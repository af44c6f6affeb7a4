"""A session in two processes reports every test once and fails when one of them does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTING = """
import os
import sys
sys.path.insert(0, {folder!r})
from tests.session import two_processes
two_processes.WORTH_IT = 2
os.sched_getaffinity = lambda process: {{0, 1}}
def pytest_configure(config):
    config.pluginmanager.register(two_processes.plugin(alone=False))
"""


def session(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """A session over one file of tests in a folder of its own."""
    (folder / "conftest.py").write_text(SETTING.format(folder=str(Path(__file__).parents[2])))
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-W", "error", str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take longer to load than the tests
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


TESTS = """
import os, pathlib, time, pytest
first = int(os.environ.setdefault("FIRST", str(os.getpid())))

def note(k):
    with open("ran", "a") as file:
        file.write(f"{k} {os.getpid()}\\n")

def others():
    lines = pathlib.Path("ran").read_text().splitlines()
    return [line for line in lines if line.split()[-1] != str(os.getpid())]

@pytest.mark.parametrize("k", range(200))
def test_it(k):
    note(k)
    # Whoever takes the first test waits until the other process has one too.
    while k == 0 and not others():
        time.sleep(0.01)
"""


def test_each_test_runs_once_in_one_of_the_processes(tmp_path: Path) -> None:
    done = session(tmp_path, TESTS + "    if k % 16 == 3: pytest.skip('not now')\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "187 passed, 13 skipped" in done.stdout
    assert "SKIPPED [13] test_it.py" in done.stdout
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(k) for k, _ in ran) == list(range(200))
    assert len({process for _, process in ran}) == 2


def test_a_failure_in_either_process_fails_the_session_with_its_traceback(tmp_path: Path) -> None:
    done = session(tmp_path, TESTS + "    assert k not in (0, 150), f'number {k}'\n")
    assert done.returncode == 1
    assert "2 failed, 198 passed" in done.stdout
    assert "AssertionError: number 0" in done.stdout
    assert "AssertionError: number 150" in done.stdout


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.abort()"])
def test_a_second_process_that_ends_early_fails_the_session(tmp_path: Path, ending: str) -> None:
    done = session(tmp_path, TESTS + f"    if os.getpid() != first: {ending}\n")
    assert done.returncode not in (0, 1)
    assert "the second process of tests ended with" in done.stdout + done.stderr
