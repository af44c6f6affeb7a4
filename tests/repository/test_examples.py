"""Each example runs and prints what its file in examples/expected says, times and rounding errors aside.

After a change of what they print:

    python -m tests.repository.test_examples    # writes the new files
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.session.script_processes import ROOT, run_script

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
# Times, ratios, rounding errors, and XLA's own counts: they differ between machines and versions of jax.
_VARYING = re.compile(r"\b\d+(\.\d+)? (us|ms|s|times)\b|\b\d\.\de[-+]\d\d\b|jax\.jit \d+(?= \(XLA)")


def printed_by(script: Path) -> str:
    done = run_script(script)
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
