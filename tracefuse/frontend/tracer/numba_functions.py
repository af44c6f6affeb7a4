"""Functions that numba compiled, called with traced arrays: they run between two stages of a call.

Such a function gets copies of its arrays. Those that it changes are written into the traced arrays after the call, so
that `update(u, new)` does what it does without a trace.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer import library_objects
from tracefuse.frontend.tracer.stage_calls import call_between_stages
from tracefuse.frontend.tracer.traced import Traced, holds_traced

_ARGUMENT = "argument "


class NumbaFunction:
    """The twin of a function that numba compiled."""

    def __init__(self, original: Any, name: str) -> None:
        self._original, self._name = original, name

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not holds_traced((arguments, keywords)):
            return self._original(*arguments, **keywords)
        result, changed = call_between_stages(_on_copies(self._original), self._name, arguments, keywords)
        given = pytrees.flatten((arguments, keywords))[0]
        if changed:
            _check_memory(self._name, given)
        for position, values in changed.items():
            given[int(position)][...] = values
        is_argument = isinstance(result, str) and result.startswith(_ARGUMENT)
        return given[int(result.removeprefix(_ARGUMENT))] if is_argument else result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def object_twin(value: Any, name: str) -> Any:
    """Returns the twin of a function of numba or of an object of SciPy; any other value as it is.

    name: the value as the user writes it.
    """
    is_compiled = type(value).__module__.startswith("numba.") and callable(value) and not isinstance(value, type)
    return NumbaFunction(value, name) if is_compiled else library_objects.object_twin(value, name)


def _on_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls another on copies of arrays, and returns its result and the arrays that changed."""

    def call(*arguments: Any, **keywords: Any) -> tuple[Any, Mapping[str, Any]]:
        leaves, structure = pytrees.flatten((arguments, keywords))
        copies = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        given, more = pytrees.unflatten(structure, copies)
        result = function(*given, **more)
        pairs = [(k, leaf, one) for k, (leaf, one) in enumerate(zip(leaves, copies, strict=True))]
        arrays = [(k, leaf, one) for k, leaf, one in pairs if isinstance(leaf, np.ndarray)]
        changed = {str(k): one for k, leaf, one in arrays if leaf.tobytes() != one.tobytes()}
        position = next((k for k, _, one in arrays if one is result), None)
        return result if position is None else f"{_ARGUMENT}{position}", changed

    return call


def _check_memory(name: str, given: Sequence[Any]) -> None:
    """Raises UnsupportedError if two of the arrays share memory, which copies do not."""
    memories = [id(one.memory) for one in given if isinstance(one, Traced) and one.extents and one.memory is not None]
    if len(set(memories)) < len(memories):
        raise UnsupportedError(
            f"{name} writes into an array that shares memory with another of its arguments",
            hint=f"pass {name} a copy of the other array, or call it outside the fused function",
            where=source.user_line(),
        )
