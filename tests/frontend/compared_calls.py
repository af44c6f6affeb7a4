"""Calls of fused functions beside the plain ones: results, updated arguments, types of errors."""

from __future__ import annotations

import linecache
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.programs.comparison import difference
from tracefuse import fuse
from tracefuse.errors import TracefuseError

OPTIONS: dict[str, Any] = {"target": "reference", "contract": False, "exact_half": True}


def function_of(text: str) -> Callable[..., Any]:
    """A function of x and s: statements that leave a result in `r`, or an expression."""
    lines = text.split("; ")
    lines[-1] = lines[-1] if " = " in lines[-1].partition("(")[0] else f"r = {lines[-1]}"
    source = "\n".join(["def program(x, s):", *(f"    {line}" for line in lines), "    return r", ""])
    filename = f"<program {text}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"np": np, "math": math}
    exec(compile(source, filename, "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*arguments), None
        except Exception as error:
            return None, error


def check(text: str, x: Any, *numbers: Any) -> None:
    """Calls one fused function with each number, and compares results, types, written arguments and errors."""
    plain = function_of(text)
    fused = fuse(function_of(text), **OPTIONS)
    for s in numbers or (None,):
        right, mine = (x.copy() if isinstance(x, np.ndarray) else x for _ in range(2))
        expected, expected_error = outcome(plain, (right, s))
        result, error = outcome(fused, (mine, s))
        if expected_error is not None:
            kind = next(one for one in type(expected_error).__mro__ if one.__module__ == "builtins")
            assert isinstance(error, kind), (text, s, error or result, expected_error)
            assert not isinstance(error, TracefuseError) or "<program" in str(error), (text, s, error)
            continue
        assert error is None, (text, s, error)
        why = difference(result, expected, "result") or difference(mine, right, "argument")
        assert why is None, (text, s, why)


def why_different(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> str | None:
    """How a fused call differs from the plain one: its result, its arguments or the class of its error."""
    right, mine = make(), make()
    expected, expected_error = outcome(function, right)
    result, error = outcome(fuse(function, **OPTIONS), mine)
    if expected_error is not None:
        kind = next(one for one in type(expected_error).__mro__ if one.__module__ == "builtins")
        return None if isinstance(error, kind) else f"{error!r} or {result!r}, NumPy raises {expected_error!r}"
    if error is not None:
        return f"{error!r}, NumPy returns {expected!r}"
    return difference(result, expected, "result") or difference(mine, right, "arguments")
