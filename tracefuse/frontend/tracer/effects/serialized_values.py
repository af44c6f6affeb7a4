"""`json.dumps` and `json.dump` in a trace: of computed numbers they are refused, with what to write instead.

A number of Python that a call computes is no instance that the encoder of `json` takes; its own message would name a
type that it does take.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tracefuse import source
from tracefuse.errors import UnsupportedError

_SERIALIZED = ("bool", "int", "float", "float64")
"""Names of the types of numbers of which `json` writes a text."""


def _twin(original: Callable[..., Any]) -> Callable[..., Any]:
    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return original(*arguments, **keywords)
        except TypeError as error:
            if not any(str(error).startswith(f"Object of type {name} is not") for name in _SERIALIZED):
                raise
        name = f"json.{original.__name__}"
        raise UnsupportedError(
            f"{name} of numbers that a call computes",
            hint=f"return the values and call {name} outside of the fused function", where=source.user_line(),
        )  # fmt: skip

    return call


def json_functions() -> Mapping[int, Callable[..., Any]]:
    """Returns the twins of the functions, by the id of each."""
    return {id(function): _twin(function) for function in (json.dumps, json.dump)}
