"""Runs tests with all of their cases: `python -m tests.soaks.whole_suite [--times 10] [arguments of pytest ...]`.

Random tests draw `--times` as many cases as they name, other ones at every run; the suite draws half of what they name.
Parameter grids of which the suite takes a part run whole, and tests of all backends interpret the kernels of the CPU,
which one in four does in the suite (`tests/session/samples.py`). Every CPU kernel is optimized, of which the suite does
most without (`tests/session/optimized_tests.py`). Without further arguments the tests are those that take a part of
their cases; `python -m tests.soaks.whole_suite tests` runs all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.session.samples import ENVIRONMENT

ROOT = Path(__file__).parents[2]


def sampled() -> list[str]:
    """The files of tests that take a part of their cases in the suite."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if any(text in file.read_text() for text in ("session.samples", "@given"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    options, arguments = parser.parse_known_args()
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "soak", ENVIRONMENT: str(options.times)}
    command = [sys.executable, "-m", "pytest", "-q", *(arguments or sampled())]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
