"""Assertions of `np.testing` on traced values: they run between two stages of a call, on the elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.frontend.numpy_api.protocols.python_functions import holds_arrays
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages


def _twin(original: Callable[..., Any]) -> Callable[..., Any]:
    name = f"np.testing.{original.__name__}"

    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not holds_arrays(arguments, keywords):
            return original(*arguments, **keywords)
        result = call_on_state(original, arguments, keywords, name=name)
        return call_between_stages(original, name, arguments, keywords) if result is NOT_OF_STATE else result

    functools.update_wrapper(call, original, assigned=("__name__", "__doc__", "__module__"))
    return call


def recording_functions() -> dict[int, Callable[..., Any]]:
    """Returns the twins of the assertions about arrays, by the id of each."""
    named = (getattr(np.testing, name) for name in dir(np.testing) if name.startswith("assert_"))
    return {id(function): _twin(function) for function in named if function.__name__ not in _ABOUT_CALLS}


_ABOUT_CALLS = frozenset(
    {"assert_raises", "assert_raises_regex", "assert_warns", "assert_no_warnings", "assert_no_gc_cycles"}
)
"""Assertions that call a function."""
