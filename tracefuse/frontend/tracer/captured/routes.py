"""Routes: data that describes how a later call reads a captured value again.

A route begins at an object, at the `self` of the call or at an argument, and continues through attributes, entries,
cells and calls.
This module follows a route step by step. Generated call code can also inline routes and share their common prefixes.

Must not know: arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from segments.lazy_dataclasses import dataclass

CHANGED = (AttributeError, KeyError, IndexError, ValueError, TypeError, NameError)
"""What following a route raises where it leads nowhere any more."""

_FOLLOW: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    "entry": lambda found, key: found[key],
    "cell": lambda found, key: found.cell_contents,
    "call": lambda found, key: key(found),
}


class CallRoots(NamedTuple):
    """What the routes of one call may begin at: the object that a method is bound to, or None, and the arguments."""

    bound: Any = None
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class ComputedStep:
    """A step of a route that depends on numbers of the call: `function(object, *numbers)`.

    routes: to the numbers. identity: equal for computations of the same value.
    """

    function: Callable[..., Any]
    routes: tuple[Route, ...]
    identity: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One step of a route. before: the previous step, or None for the first.

    kind: "object" (key is the object), "self", "argument" (key: its position), "keyword" (key: its name), or after
    another step "attribute" (key: its name), "entry" (key: its index), "cell" (the cell's contents), "call" (key: the
    function to apply to the current object) or "computed" (key: a ComputedStep on the current object).
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

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for routes of the same steps from the same object."""
        steps: list[Any] = []
        step: Route | None = self
        while step is not None:
            key = step.key
            if step.kind in ("attribute", "entry", "argument", "keyword"):
                steps.append((step.kind, type(key), key))
            elif step.kind == "computed":
                steps.append((step.kind, key.identity, *(route.identity for route in key.routes)))
            elif step.kind == "call" and isinstance(key, functools.partial):
                steps.append((step.kind, key.func, key.args))
            else:
                steps.append((step.kind, id(key)))
            step = step.before
        return tuple(steps)

    def follow(self, roots: CallRoots) -> Any:
        """Returns the current value at the route, for a call with these roots."""
        steps: list[Route] = []
        step = self
        while step.before is not None:
            steps.append(step)
            step = step.before
        match step.kind:
            case "self":
                value = roots.bound
            case "argument":
                value = roots.arguments[step.key]
            case "keyword":
                value = roots.keywords[step.key]
            case _:
                value = step.key
        for step in reversed(steps):
            if step.kind == "computed":
                value = step.key.function(value, *[route.follow(roots) for route in step.key.routes])
            else:
                value = _FOLLOW[step.kind](value, step.key)
        return value


def to(value: Any) -> Route:
    """Returns the route to this object itself."""
    return Route(None, "object", value)


SELF = Route(None, "self")
"""The route to the object that a method is bound to."""
