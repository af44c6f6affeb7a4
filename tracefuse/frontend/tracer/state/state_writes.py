"""The writes of a trace: how its overlays differ from what they were when it read them.

Each difference becomes a write that every call makes after its segments have succeeded.

Must not know: recording, calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import WrapperDescriptorType
from typing import Any

import numpy as np

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import Route
from tracefuse.frontend.tracer.record.captured_inputs import is_number
from tracefuse.frontend.tracer.state.argument_containers import ArgumentContainer
from tracefuse.frontend.tracer.state.container_changes import (
    Change,
    changes_of_container,
    changes_of_dict,
    changes_of_list,
)
from tracefuse.frontend.tracer.state.container_records import CONTAINERS, MISSING, has
from tracefuse.frontend.tracer.state.function_clones import EMPTY
from tracefuse.frontend.tracer.state.object_layout import (
    ABSENT,
    is_special,
    lacks_all,
    native_dict,
    own_attributes,
    slots_of,
)
from tracefuse.frontend.tracer.state.overlays import Overlays
from tracefuse.frontend.tracer.state.shadow_objects import ShadowInstance
from tracefuse.frontend.tracer.values.result_leaves import COMPUTED, ResultLeaf, Write

Leaf = Callable[[Any, str], ResultLeaf]
_WITHOUT_VALUE = ("no attribute", "no class attribute", "no entry", "no computed entry", "no cell contents")
_AT_COMPUTED_KEYS = ("computed entry", "no computed entry", "add", "discard")


def changes_of(overlays: Overlays, containers: Sequence[ArgumentContainer]) -> list[Change]:
    """Returns every difference between the overlays and what they were."""
    changes: list[Change] = []
    for container in containers:
        changes += _of_argument(container)
    _refuse_shared_arguments(containers, changes)
    for record in overlays.objects.instances.values():
        changes += _of_instance(record)
    for cls, shadow in overlays.objects.classes.items():
        changes += _of_class(cls, shadow, overlays.objects.loaded[cls], overlays)
    _compare_owners({change.key for change in changes if change.kind.endswith("class attribute")}, overlays)
    for view in overlays.scopes.views.values():
        target = Place("globals()", routes.to(view.table), view.table)
        bound, deleted = view.changes()
        changes += [Change("plain entry", target, k, v) for k, v in bound.items()]
        changes += [Change("no entry", target, name, None) for name in deleted]
    for cell in overlays.functions.cells.values():
        if cell.contents is not cell.loaded:
            target = Place(cell.name, routes.to(cell.original), cell.original)
            kind = "no cell contents" if cell.contents is EMPTY else "cell"
            changes.append(Change(kind, target, None, None if cell.contents is EMPTY else cell.contents))
    for function, twin, loaded in overlays.functions.attributes():
        target = Place(function.__qualname__, routes.to(function), function)
        new = [name for name in twin.__dict__ if name not in function.__dict__]
        if new:  # the trace may have looked for them before
            at = target.attribute("__dict__", function.__dict__)
            text = f"{target.path} lacks {', '.join(new)}"
            overlays.reads.add_value(at.derived(text, functools.partial(lacks_all, frozenset(new)), True))
        changes += _of_table("plain attribute", target, loaded, twin.__dict__)
    for contents in overlays.containers.records:
        changes += changes_of_container(contents)
    return changes


def _compare_owners(names: set[str], overlays: Overlays) -> None:
    """Makes every call compare that instances, not only classes, have the attributes that the trace sets on classes."""
    for record in overlays.objects.instances.values() if names else ():
        instance_dict = native_dict(record.original)
        for name in names & instance_dict.keys() & record.loaded.keys():
            at = record.place.attribute("__dict__", instance_dict)
            text = f"{name!r} in vars({record.place.path})"
            overlays.reads.add_value(at.derived(text, functools.partial(has, name), True))


def _of_table(kind: str, target: Place, loaded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for name, value in now.items():
        if value is not loaded.get(name, MISSING):
            yield Change(kind, target, name, value)
    for name in loaded:
        if name not in now and loaded[name] is not ABSENT:
            yield Change("no attribute", target, name, None)


def _of_instance(record: ShadowInstance) -> Iterator[Change]:
    """Yields the attributes of a shadow instance that the trace bound or deleted."""
    now = own_attributes(record.overlay)
    cls = type(record.original)
    slots = dict(slots_of(cls))
    kind = "plain attribute" if _is_stored_by_python(cls) else "attribute"
    for change in _of_table(kind, record.place, record.loaded, now):
        owner = _owner_of(cls, change.key)
        if owner is not None and change.key not in slots and hasattr(type(vars(owner)[change.key]), "__set__"):
            # A property has this name: the value is in the __dict__ of the object.
            change.target = record.place.attribute("__dict__", native_dict(record.original))
            change.kind = "no entry" if change.kind == "no attribute" else "plain entry"
        yield change


def _is_stored_by_python(cls: type) -> bool:
    """Whether no method of the user stores attributes of an instance: such a method has run in the trace."""
    store = vars(_owner_of(cls, "__setattr__"))["__setattr__"]
    return type(store) is WrapperDescriptorType and store.__name__ == "__setattr__"


def _owner_of(cls: type, name: str) -> Any:
    return next((owner for owner in cls.__mro__ if name in vars(owner)), None)


def _of_class(cls: type, shadow: type, loaded: Mapping[str, Any], overlays: Overlays) -> Iterator[Change]:
    """Yields the attributes of a class that the trace bound."""
    target = Place(cls.__qualname__, routes.to(cls), cls)
    initial = overlays.objects.initial[cls]
    for name, value in vars(shadow).items():
        if not is_special(name) and value is not loaded.get(name, MISSING) and value is not initial.get(name, MISSING):
            yield Change("class attribute", target, name, value)
    for name in loaded:
        if name not in vars(shadow):
            yield Change("no class attribute", target, name, None)


def _of_argument(container: ArgumentContainer) -> Iterator[Change]:
    """Yields the changes of a container among the arguments."""
    before, place, received = container.before, container.place, container.received
    now = own_attributes(received) if not isinstance(received, tuple(CONTAINERS)) else None
    if now is not None:
        yield from (Change("attribute", place, k, v) for k, v in now.items() if v is not before.get(k, MISSING))
        yield from (Change("no attribute", place, k, None) for k in before if k not in now)
    elif isinstance(received, dict):
        yield from changes_of_dict(place, before, {}, received, dict)
    else:
        yield from changes_of_list(place, before, {}, list(received), is_appended=len(received) >= len(before))


def _refuse_shared_arguments(containers: Sequence[ArgumentContainer], changes: Sequence[Change]) -> None:
    """Raises UnsupportedError if one container is passed twice and changed."""
    first: dict[int, ArgumentContainer] = {}
    changed = {id(change.target) for change in changes}
    for container in containers:
        other = first.setdefault(id(container.original), container)
        if other is not container and {id(other.place), id(container.place)} & changed:
            type_name = type(container.original).__name__
            raise UnsupportedError(
                f"{other.place.path} and {container.place.path} are one {type_name}, which the function changes",
                hint=f"pass it once, or pass a copy as {container.place.path}",
            )


def _may_lengthen(change: Change) -> bool:
    if change.kind == "entry":
        return isinstance(change.target.value, dict) and change.key not in change.target.value
    return change.kind in ("append", "computed entry", "no computed entry", "add", "discard", "no entry")


def numbers_changed(changes: Sequence[Change], overlays: Overlays) -> frozenset[Any]:
    """Returns the routes to numbers that the trace read and replaced, other than inputs of the trace.

    A place is replaced if it is written, or any place on the route to it. The length of a list is if entries are added.
    """
    lengthened = {change.target.route.identity for change in changes if _may_lengthen(change)}
    replaced = _replaced(changes)
    routes_read: set[Any] = set()
    for place in overlays.reads.values if replaced or lengthened else ():
        before = place.route.before
        if place.route.key is len and before is not None and before.identity in lengthened:
            routes_read.add(place.route.identity)
        if is_number(place.value) and place.is_part and _is_within(place.route, replaced):
            routes_read.add(place.route.identity)
    return frozenset(routes_read)


def arrays_changed(changes: Sequence[Change], recorder: Any) -> frozenset[Any]:
    """Returns the routes to captured arrays that the function changes, and whose elements decided what it does.

    Each call finds other elements in them: they are read as those of arguments are.
    """
    captures = [capture for capture in recorder.captures.values() if capture.place is not None]
    read_captures = [capture for capture in captures if capture.number in recorder.contents.numbers_read]
    replaced = _replaced(changes) if read_captures else set()
    return frozenset(
        capture.place.route.identity
        for capture in read_captures
        if capture.number in recorder.updated or _is_within(capture.place.route, replaced)
    )


def _replaced(changes: Sequence[Change]) -> set[Any]:
    """Returns the routes to what is written."""
    # (Which number a computed key replaces is known in a call: a number that the trace read is compared.)
    changes = [change for change in changes if not isinstance(change.value, (bool, str))]
    routes = [change.at or (None if change.kind in _AT_COMPUTED_KEYS else change.route) for change in changes]
    return {route.identity for route in routes if route is not None}


def _is_within(route: Route, replaced: set[Any]) -> bool:
    """Whether a route, or a part of it from its beginning, is one of these."""
    step: Route | None = route
    while step is not None and step.identity not in replaced:
        step = step.before
    return step is not None


def apart(changes: Sequence[Change], overlays: Overlays) -> tuple[tuple[Place, ...], ...]:
    """Returns groups of places that must lead to different objects.

    They are those of the type of an object that is changed, and those of arrays if one is updated in place.
    """
    changed = {type(change.target.value) for change in changes if change.target.route.kind != "object"}
    groups: dict[type, list[Place]] = {}
    for original, place in overlays.originals():
        if type(original) in changed:
            groups.setdefault(type(original), []).append(place)
    recorder = overlays.recorder
    captured = {capture.number: capture.place for capture in recorder.captures.values() if capture.number is not None}
    if not recorder.updated.keys().isdisjoint(captured):
        groups[np.ndarray] = [place for place in captured.values() if place is not None]
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def writes_of(changes: Sequence[Change], leaf: Leaf) -> tuple[Write, ...]:
    """Returns the writes that every call makes. leaf: records where a value comes from."""
    return tuple(
        Write(
            change.kind, change.target,
            leaf(change.key, f"a key of {change.target.path}") if change.kind in COMPUTED else change.key,
            None if change.kind in _WITHOUT_VALUE else leaf(change.value, change.path),
        )
        for change in changes
    )  # fmt: skip
