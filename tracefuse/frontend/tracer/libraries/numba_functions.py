"""Functions that Numba compiles, in a trace: they run between two stages of a call, and may write their arguments.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced


def is_numba_function(value: Any) -> bool:
    """Whether a value is a function of `numba.njit`, `numba.vectorize` or `numba.guvectorize`."""
    return type(value).__module__.startswith("numba.") and callable(value) and not isinstance(value, type)


class NumbaFunction:
    """The twin of a function that Numba compiles. name: as the user writes it."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name, self._run = function, name, WritingCall(function)
        functools.update_wrapper(self, function, updated=())

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return self._function(*arguments, **keywords)
        result = call_on_state(self._function, arguments, keywords, name=self._name)
        if result is not NOT_OF_STATE:
            return result
        (result, returned), written = call_between_stages(self._run, self._name, arguments, keywords)
        memories = [
            id(argument.memory)
            for argument in arguments
            if isinstance(argument, Traced) and argument.extents and argument.memory
        ]
        if written and len(set(memories)) < len(memories):
            raise UnsupportedError(
                f"{self._name} writes into an array that shares memory with another of its arguments",
                hint=f"pass {self._name} a copy of the other array, or call it outside the fused function",
                where=source.user_line(),
            )
        for position, elements in written.items():
            arguments[position][...] = elements
        return result if returned is None else arguments[returned]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)


class WritingCall:
    """Calls a function, which may write arrays that it is given.

    Numba's types tell read-only arrays apart: a function that writes one does not compile for them. Such a function
    gets copies, from then on.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._writes = function, False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns (result, None), or (None, position of the argument that is the result), and the arrays written."""
        if not self._writes:
            try:
                return (self._function(*arguments, **keywords), None), {}
            except Exception as error:  # Numba raises several for an update of a read-only array
                _drop_tracebacks(error)
        copies = [argument.copy(order="K") if isinstance(argument, np.ndarray) else argument for argument in arguments]
        result = self._function(*copies, **keywords)
        self._writes = True
        written = {
            k: copy
            for k, (copy, before) in enumerate(zip(copies, arguments, strict=True))
            if isinstance(copy, np.ndarray) and copy.tobytes() != before.tobytes()
        }
        for k, copy in enumerate(copies):
            if result is copy and isinstance(copy, np.ndarray):
                return (None, k), written
        return (result, None), written


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drops the frames that an exception, which Numba may keep, refers to: they hold the values of the trace."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
