"""Routes: data that describes how a later call reads a captured value again.

A route begins at an object or at the `self` of the call, and continues through attributes, entries, cells and calls.
This module follows a route step by step. Generated call code can also inline routes and share their common prefixes.

Must not know: arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHANGED = (AttributeError, KeyError, IndexError, ValueError, TypeError, NameError)
"""What following a route raises where it leads nowhere any more."""

_FOLLOW: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    "entry": lambda found, key: found[key],
    "cell": lambda found, key: found.cell_contents,
    "call": lambda found, key: key(found),
}


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One step of a route. before: the previous step, or None for the first.

    kind: "object" (key is the object), "self", or after another step "attribute" (key: its name), "entry" (key: its
    index), "cell" (the cell's contents) or "call" (key: the function to apply to the current object).
    """

    before: Route | None
    kind: str
    key: Any = None

    def then(self, kind: str, key: Any = None) -> Route:
        return Route(self, kind, key)

    @property
    def beginning(self) -> Route:
        """Returns the first step."""
        step = self
        while step.before is not None:
            step = step.before
        return step

    def follow(self, bound: Any) -> Any:
        """Returns the current value at the route. bound: the object that a method is bound to, or None."""
        steps: list[Route] = []
        step = self
        while step.before is not None:
            steps.append(step)
            step = step.before
        found = bound if step.kind == "self" else step.key
        for step in reversed(steps):
            found = _FOLLOW[step.kind](found, step.key)
        return found


def to(value: Any) -> Route:
    """Returns the route to this object itself."""
    return Route(None, "object", value)


SELF = Route(None, "self")
"""The route to the object that a method is bound to."""
