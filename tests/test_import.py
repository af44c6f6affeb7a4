"""Tests which modules `import tracefuse` loads, and what it exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tracefuse

HEAVY = ("cupy", "jax", "torch", "llvmlite", "rich", "platformdirs")


@pytest.mark.parametrize("statement", ["import tracefuse", "from tracefuse import *"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_every_public_name_exists() -> None:
    for name in tracefuse.__all__:
        assert getattr(tracefuse, name) is not None, name
