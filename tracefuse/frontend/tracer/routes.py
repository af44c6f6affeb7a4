"""Routes: how a value that a function reads is found again at a later call, as data.

A route begins at an object or at the `self` of the call, and goes on by attributes, entries, cells and calls. As data
it is followed here, one step after another, or written into the code of a call, where routes share their beginnings.

Knows: attributes, entries, cells. Must not know: functions, names, arrays.
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
    """One step of a route. before: the step that it goes on from, or None at the beginning.

    kind: "object" (key is it), "self", or after another step "attribute" (key: its name), "entry" (key: its index),
    "cell" (what it holds) or "call" (key: the function of what was found).
    """

    before: Route | None
    kind: str
    key: Any = None

    def then(self, kind: str, key: Any = None) -> Route:
        return Route(self, kind, key)

    @property
    def beginning(self) -> Route:
        """Its first step."""
        step = self
        while step.before is not None:
            step = step.before
        return step

    def follow(self, bound: Any) -> Any:
        """What is there now. bound: the object that a method is bound to, or None."""
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
    """The route to this very object."""
    return Route(None, "object", value)


SELF = Route(None, "self")
"""The route to the object that a method is bound to."""
