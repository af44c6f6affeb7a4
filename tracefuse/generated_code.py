"""Compiles generated Python source; no other module calls `exec`.

Each source has its own file name, such as `<tracefuse call 12>`, and its lines are in `linecache`, so that tracebacks,
profilers and debuggers show them. The lines are dropped with the function.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable
from typing import Any

from tracefuse.caches import Cache, register

_PREFIX = "<tracefuse "

MOST_TEXTS = 8192
"""Sources whose lines are kept; the oldest are dropped first. Their functions keep working."""

_texts: dict[str, None] = {}
"""The file names of the sources in linecache, oldest first."""

register(Cache(
    "generated_code._texts", "lines of generated Python, for tracebacks", "file name", f"{MOST_TEXTS}, the oldest go",
    "the generated functions", "garbage collection",
))  # fmt: skip

_numbers = itertools.count()


def is_generated(filename: str) -> bool:
    """Whether the file name of a code object is that of generated code."""
    return filename.startswith(_PREFIX)


def compile_function(text: str, name: str, scope: dict[str, Any], purpose: str) -> Any:
    """Compiles `text` and returns the function `name` that it defines.

    scope: the globals of the function, to which its name is added. purpose: part of the file name, such as "call".
    """
    filename = f"{_PREFIX}{purpose} {next(_numbers)}>"
    exec(compile(text, filename, "exec"), scope)
    function = scope[name]
    _keep_lines(filename, text)
    weakref.finalize(function, _forget_lines, filename).atexit = False
    return function


def compile_expression(parameter: str, text: str, purpose: str) -> Callable[..., Any]:
    """Compiles a function of one parameter that returns the expression `text`, which may use `min` and `max`."""
    body = f"def evaluate({parameter}):\n    return {text}\n"
    return compile_function(body, "evaluate", {"min": min, "max": max}, purpose)  # type: ignore[no-any-return]


def made_when_called(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that `make` returns at its first call: compiling what is never called takes time as well."""
    made: Callable[..., Any] | None = None

    def call(*arguments: Any) -> Any:
        nonlocal made
        if made is None:
            made = make()
        return made(*arguments)

    return call


def generated_texts() -> dict[str, str]:
    """The sources whose lines are kept, by file name, oldest first."""
    return {filename: "".join(linecache.getlines(filename)) for filename in list(_texts)}


def _keep_lines(filename: str, text: str) -> None:
    _texts[filename] = None
    # linecache never compares an entry without a modification time with a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    while len(_texts) > MOST_TEXTS:
        oldest = next(iter(_texts), None)
        if oldest is not None:
            _forget_lines(oldest)


def _forget_lines(filename: str) -> None:
    _texts.pop(filename, None)
    linecache.cache.pop(filename, None)
