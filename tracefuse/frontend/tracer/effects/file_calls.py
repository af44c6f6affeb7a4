"""Functions that open files, in a trace: what a file holds is no state that later calls compare, and writing one is an
effect of each call.

A call that opens a file runs the function itself. The first few do so without a warning, since a function that reads a
file when it is first called, and keeps what it held, opens none afterwards.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError

MODULES = (io, os)
"""Modules with such functions, beside NumPy."""


def _twin(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        file = arguments[0] if arguments else next(iter(keywords.values()), None)
        if isinstance(file, (str, bytes, int, os.PathLike)):  # other objects are files of the trace, or of the state
            refusal = UnsupportedError(
                f"{name} opens a file, which each call would have to do",
                hint="read the file outside of the fused function and pass what it holds; return what goes into one",
                where=source.user_line(),
            )  # fmt: skip
            refusal.is_of_first_calls = True
            raise refusal
        return original(*arguments, **keywords)

    return call


_OF_NUMPY = ("load", "loadtxt", "genfromtxt", "fromfile", "save", "savez", "savez_compressed", "savetxt")

FUNCTIONS: dict[int, Callable[..., Any]] = {
    id(open): _twin("open()", open), id(os.open): _twin("os.open()", os.open),
    **{id(function): _twin(f"np.{name}()", function) for name in _OF_NUMPY if (function := getattr(np, name))},
}  # fmt: skip
"""Twins of the functions, by the id of each."""
