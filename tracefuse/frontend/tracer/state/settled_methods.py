"""Special methods of the user's classes whose results Python takes only as numbers of its own, as `__bool__`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracefuse.frontend.tracer.values.symbolic_size import plain_key

_OF_NUMBERS = frozenset({"__bool__", "__int__", "__float__", "__complex__", "__index__"})


def settled(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method for Python to call: it asks the call for a computed number that the user's method returns."""
    if name not in _OF_NUMBERS:
        return method

    def call(*arguments: Any, **keywords: Any) -> Any:
        return plain_key(method(*arguments, **keywords))

    call.recorded = method  # type: ignore[attr-defined]
    return call


def recorded_method(value: Any, name: str) -> Callable[..., Any] | None:
    """Returns the user's method of a name without these questions; None for an object whose class has none."""
    return getattr(getattr(type(value), name, None), "recorded", None)
