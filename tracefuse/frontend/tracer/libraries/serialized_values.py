"""`json.dumps` and `json.dump` in a trace: the text of computed numbers is made between two stages of the call.

A number of Python that a call computes is no instance that the encoder of `json` takes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tracefuse import pytrees, source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced


def _is_computed(value: Any) -> bool:
    return isinstance(value, (Traced, SymbolicSize))


def _twin(original: Callable[..., Any]) -> Callable[..., Any]:
    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not any(map(_is_computed, pytrees.flatten((arguments, keywords))[0])):
            return original(*arguments, **keywords)
        if original is json.dumps:
            return call_between_stages(original, "json.dumps", arguments, keywords)
        raise UnsupportedError(
            "json.dump of numbers that a call computes",
            hint="write the text of json.dumps, or return the values and call json.dump outside of the fused function",
            where=source.user_line(), runs_function=True,
        )  # fmt: skip

    return call


def json_functions() -> Mapping[int, Callable[..., Any]]:
    """Returns the twins of the functions, by the id of each."""
    return {id(function): _twin(function) for function in (json.dumps, json.dump)}
