"""Each example runs and prints what its file in examples/expected says, times and rounding errors aside.

After a change of what they print:

    python tests/repository/test_examples.py    # writes the new files
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
# Times, ratios, rounding errors, and XLA's own counts: they differ between machines and versions of jax.
_VARYING = re.compile(r"\b\d+(\.\d+)? (us|ms|s|times)\b|\b\d\.\de[-+]\d\d\b|jax\.jit \d+(?= \(XLA)")


def printed_by(script: Path) -> str:
    command = [sys.executable, "-W", "error", str(script)]
    own = os.pathsep.join([str(EXAMPLES.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": own}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, f"{script.name}:\n{done.stderr}"
    return "\n".join(line.rstrip() for line in _VARYING.sub("#", done.stdout).splitlines()) + "\n"


def expected(script: Path) -> Path:
    return EXAMPLES / "expected" / f"{script.stem}.txt"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_an_example_prints_what_is_expected(script: Path) -> None:
    assert printed_by(script) == expected(script).read_text()


def test_each_expected_text_has_its_example() -> None:
    assert {p.stem for p in (EXAMPLES / "expected").glob("*.txt")} == {p.stem for p in SCRIPTS}


if __name__ == "__main__":
    expected(SCRIPTS[0]).parent.mkdir(exist_ok=True)
    for one in SCRIPTS:
        expected(one).write_text(printed_by(one))
