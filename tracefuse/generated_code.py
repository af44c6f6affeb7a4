"""Generated Python: the one place where text becomes functions.

Each text is a file of its own, `<tracefuse call 12>`, whose lines `linecache` knows, so that tracebacks, profilers and
debuggers show them. The lines are dropped with the function.

Knows: text, code objects, linecache. Must not know: what the text computes.
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
"""Texts whose lines are kept; the oldest go first. Their functions go on working."""

_texts: dict[str, None] = {}
"""The file names of the texts whose lines linecache has, oldest first."""

register(Cache(
    "generated_code._texts", "lines of generated Python, for tracebacks", "file name", f"{MOST_TEXTS}, the oldest go",
    "the generated functions", "garbage collection",
))  # fmt: skip

_numbers = itertools.count()


def is_generated(filename: str) -> bool:
    """Whether a code object's file name is that of generated code."""
    return filename.startswith(_PREFIX)


def compile_function(text: str, name: str, scope: dict[str, Any], purpose: str) -> Any:
    """The function `name` that `text` defines.

    scope: the globals of the function; it gets the name. purpose: what the file name says, such as "call".
    """
    filename = f"{_PREFIX}{purpose} {next(_numbers)}>"
    exec(compile(text, filename, "exec"), scope)
    function = scope[name]
    _keep_lines(filename, text)
    weakref.finalize(function, _forget_lines, filename).atexit = False
    return function


def compile_expression(parameter: str, text: str, purpose: str) -> Callable[..., Any]:
    """The function of one parameter that returns the value of `text`, which may use `min` and `max`."""
    body = f"def evaluate({parameter}):\n    return {text}\n"
    return compile_function(body, "evaluate", {"min": min, "max": max}, purpose)  # type: ignore[no-any-return]


def generated_texts() -> dict[str, str]:
    """The texts whose lines are kept, by file name, oldest first."""
    return {filename: "".join(linecache.getlines(filename)) for filename in list(_texts)}


def _keep_lines(filename: str, text: str) -> None:
    _texts[filename] = None
    # An entry without a time of modification is never compared with a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    while len(_texts) > MOST_TEXTS:
        oldest = next(iter(_texts), None)
        if oldest is not None:
            _forget_lines(oldest)


def _forget_lines(filename: str) -> None:
    _texts.pop(filename, None)
    linecache.cache.pop(filename, None)
