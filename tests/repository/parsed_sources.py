"""The syntax trees of the modules of this repository, parsed when a test first asks for one, and once a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def sources(package: str) -> tuple[Path, ...]:
    """The paths of a package's modules, sorted."""
    return tuple(sorted((ROOT / package).rglob("*.py")))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module; callers leave it as it is."""
    return ast.parse(path.read_text())
