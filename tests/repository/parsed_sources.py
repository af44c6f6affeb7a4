"""The syntax trees of the modules of this repository, parsed when a test first asks for one, and once a process."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def sources(package: str) -> tuple[Path, ...]:
    """The paths of a package's modules, sorted."""
    return tuple(sorted((ROOT / package).rglob("*.py")))


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module; callers leave it as it is."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text_of(path))
    finally:
        gc.freeze()  # the trees live to the end
        if collects:
            gc.enable()


def mentioning(package: str, pattern: str) -> Iterator[Path]:
    """The modules of a package whose text a pattern occurs in: others need not be parsed."""
    return (path for path in sources(package) if re.search(pattern, text_of(path)))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements below a node, at any depth. Expressions are several times as many nodes."""
    waiting = [node]
    while waiting:
        for _, field in ast.iter_fields(waiting.pop()):
            for child in field if isinstance(field, list) else ():
                if isinstance(child, ast.stmt):
                    yield child
                if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    waiting.append(child)
