"""Containers and instances among the arguments of a call, which the traced function may change."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.state.computed_keys import note_routes
from tracefuse.frontend.tracer.state.container_records import CONTAINERS
from tracefuse.frontend.tracer.state.object_layout import own_attributes
from tracefuse.frontend.tracer.state.overlays import Overlays


class ArgumentContainer:
    """A container or a dataclass among the arguments, as the traced function received it.

    received: the object that the function received. original: the caller's. before: its contents.
    """

    def __init__(self, received: Any, original: Any, place: Place) -> None:
        self.received, self.original, self.place = received, original, place
        self.before: Any = contents_of(received)


def contents_of(value: Any) -> Any:
    """Returns a copy of the contents of a container, or the fields of a dataclass by name."""
    if type(value) in CONTAINERS:
        return dict(value) if isinstance(value, dict) else [*value]
    names = pytrees.field_names(type(value))
    return own_attributes(value) if names is None else {name: getattr(value, name) for name in names}


def argument_containers(
    overlays: Overlays, arguments: Sequence[Any], keywords: Mapping[str, Any], received: Sequence[Any],
    received_keywords: Mapping[str, Any], names: Sequence[str],
) -> list[ArgumentContainer]:  # fmt: skip
    """Returns the containers among the arguments of a call, which the function may change.

    received: the same arguments with traced leaves. names: of the positional arguments. An instance of a class of the
    user becomes one of its shadow class.
    """
    waiting = [
        (Place(name, routes.Route(None, "argument", k), value), value, other)
        for k, (value, other, name) in enumerate(zip(arguments, received, names, strict=True))
    ]
    waiting += [
        (Place(name, routes.Route(None, "keyword", name), value), value, received_keywords[name])
        for name, value in keywords.items()
    ]
    containers: list[ArgumentContainer] = []
    while waiting:
        place, value, other = waiting.pop(0)
        note_routes(other, place, overlays.reads.routes)
        if other is value or type(other) is not type(value):
            continue
        fields: Sequence[str] | None = pytrees.field_names(type(value))
        if fields is None and pytrees.is_registered(type(value)) and overlays.objects.has_shadow(type(value)):
            fields = [*(own_attributes(value).keys() & own_attributes(other).keys())]
        if type(value) in CONTAINERS or (fields is not None and not isinstance(value, tuple)):
            if overlays.original_overlay(value) is None:
                overlays.remember(value, other, place)
            containers.append(ArgumentContainer(other, value, place))
        waiting += _parts(place, value, other, fields)
        is_instance = fields is not None or pytrees.is_registered(type(value))
        if is_instance and type(value) not in CONTAINERS and not isinstance(value, (dict, tuple)):
            overlays.follow_methods(other, place)
    return containers


def _parts(place: Place, value: Any, other: Any, fields: Sequence[str] | None) -> list[tuple[Place, Any, Any]]:
    """Returns the entries, attributes or children of a container with their places, and the received ones."""
    if isinstance(value, dict):
        return [(place.entry(key, part), part, other[key]) for key, part in value.items()]
    if type(value) in CONTAINERS or isinstance(value, tuple):
        pairs = enumerate(zip(value, other, strict=True))
        return [(place.entry(k, part), part, received_part) for k, (part, received_part) in pairs]
    if fields is not None:
        return [(place.attribute(f, getattr(value, f)), getattr(value, f), getattr(other, f)) for f in fields]
    if not pytrees.is_registered(type(value)):
        return []
    parts = enumerate(zip(pytrees.children(value), pytrees.children(other), strict=True))
    return [(place.derived(f"{{}}.child{k}", functools.partial(_child, k), a), a, b) for k, (a, b) in parts]


def _child(position: int, node: Any) -> Any:
    return pytrees.children(node)[position]
