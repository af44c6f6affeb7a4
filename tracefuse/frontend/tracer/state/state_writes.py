"""The writes of a trace: how its overlays differ from what they were when it read them.

Each difference becomes a write that every call makes after its segments have succeeded.

Must not know: recording, calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, WrapperDescriptorType
from typing import Any

import numpy as np

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import Route
from tracefuse.frontend.tracer.record.captured_inputs import is_number
from tracefuse.frontend.tracer.state.argument_containers import ArgumentContainer
from tracefuse.frontend.tracer.state.container_records import CONTAINERS, ContainerOverlay, has
from tracefuse.frontend.tracer.state.function_clones import EMPTY
from tracefuse.frontend.tracer.state.native_layout import (
    ABSENT,
    is_special,
    lacks_all,
    native_dict,
    own_attributes,
    slots_of,
)
from tracefuse.frontend.tracer.state.overlays import Overlays
from tracefuse.frontend.tracer.state.shadow_objects import ShadowInstance
from tracefuse.frontend.tracer.values.result_leaves import ResultLeaf, Write

Leaf = Callable[[Any, str], ResultLeaf]
_MISSING = object()
_WITHOUT_VALUE = ("no attribute", "no class attribute", "no entry", "no cell contents")


@dataclasses.dataclass(slots=True, eq=False)
class Change:
    """One difference. kind, target, key: as of a Write. value: what the overlay holds now."""

    kind: str
    target: Place
    key: Any
    value: Any

    @property
    def path(self) -> str:
        match self.kind:
            case "attribute" | "plain attribute" | "class attribute" | "no attribute" | "no class attribute":
                return f"{self.target.path}.{self.key}"
            case "computed entry":
                return f"{self.target.path}[...]"
            case "entry" | "plain entry" | "no entry":
                is_global = self.target.path == "globals()"
                return str(self.key) if is_global else f"{self.target.path}[{self.key!r}]"
        return self.target.path

    @property
    def route(self) -> Route:
        """The route to what is replaced: an attribute, an entry, or the contents of the target."""
        if self.kind in ("attribute", "plain attribute", "class attribute"):
            return self.target.attribute(self.key, None).route
        if self.kind in ("entry", "plain entry"):
            return self.target.entry(self.key, None).route
        return self.target.route.then("cell") if self.kind == "cell" else self.target.route


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
        changes += _of_container(contents)
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
        if value is not loaded.get(name, _MISSING):
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
        if (
            not is_special(name)
            and value is not loaded.get(name, _MISSING)
            and value is not initial.get(name, _MISSING)
        ):
            yield Change("class attribute", target, name, value)
    for name in loaded:
        if name not in vars(shadow):
            yield Change("no class attribute", target, name, None)


def _of_argument(container: ArgumentContainer) -> Iterator[Change]:
    """Yields the changes of a container among the arguments."""
    before, place, received = container.before, container.place, container.received
    now = own_attributes(received) if not isinstance(received, tuple(CONTAINERS)) else None
    if now is not None:
        yield from (Change("attribute", place, k, v) for k, v in now.items() if v is not before.get(k, _MISSING))
        yield from (Change("no attribute", place, k, None) for k in before if k not in now)
    elif isinstance(received, dict):
        yield from _of_dict(place, before, {}, received, dict)
    else:
        yield from _of_list(place, before, {}, list(received), is_appended=len(received) >= len(before))


def _of_container(record: ContainerOverlay) -> Iterator[Change]:
    """Yields the changes of a container of the captured state."""
    if record.family is dict:
        contents = (record.before, record.loaded, record.overlay, record.base, record.stored)
        for change in _of_dict(record.place, *contents):
            change.key = record.original_key(change.key)
            yield change
        yield from (Change("computed entry", record.place, key, value) for key, value in record.waiting)
    elif record.family is set:
        now = set(set.__iter__(record.overlay))
        added = now - record.before if record.has_read_all else (now - record.before) | record.stored.keys()
        yield from (Change("discard", record.place, None, value) for value in record.before - now)
        yield from (Change("add", record.place, None, value) for value in added)
        yield from (Change("add", record.place, None, value) for value, _ in record.waiting)
    else:
        now_entries = list(record.base.__iter__(record.overlay))
        if record.was_changed_in_c:
            record.read_as_before()
            yield Change("contents", record.place, None, now_entries)
            return
        if record.shift and not record.is_reordered:  # a bounded deque drops entries as entries are appended
            new = now_entries[max(0, len(now_entries) - record.appended) :]
            yield from (Change("append", record.place, None, value) for value in new)
            return
        is_appended = not record.is_reordered
        yield from _of_list(record.place, record.before, record.loaded, now_entries, is_appended, record.stored)


def _expected(key: Any, value: Any, loaded: Mapping[Any, Any], stored: Mapping[Any, None]) -> Any:
    """What an overlay holds where the trace changed nothing: a value that was stored unread counts as a change."""
    return loaded.get(key, _MISSING if key in stored else value)


def _of_list(
    place: Place, before: Sequence[Any], loaded: Mapping[int, Any], now: Sequence[Any], is_appended: bool,
    stored: Mapping[int, None] = MappingProxyType({}),
) -> Iterator[Change]:  # fmt: skip
    expected = [_expected(k, value, loaded, stored) for k, value in enumerate(before)]
    if len(now) == len(expected) and all(a is b for a, b in zip(now, expected, strict=True)):
        return
    if not is_appended:
        yield Change("contents", place, None, list(now))
        return
    for k, (value, old) in enumerate(zip(now, expected, strict=False)):
        if value is not old:
            yield Change("entry", place, k, value)
    for value in now[len(before) :]:
        yield Change("append", place, None, value)


def _of_dict(
    place: Place, before: Mapping[Any, Any], loaded: Mapping[Any, Any], overlay: Any, base: Any,
    stored: Mapping[Any, None] = MappingProxyType({}),
) -> Iterator[Change]:  # fmt: skip
    now = dict(dict.items(overlay)) if base is not list else {}
    order = list(base.__iter__(overlay))
    remaining = [key for key in before if key in now]
    if order[: len(remaining)] != remaining:
        yield Change("contents", place, None, {key: now[key] for key in order})
        return
    yield from (Change("no entry", place, key, None) for key in before if key not in now)
    for key in order:
        if key not in before or now[key] is not _expected(key, before[key], loaded, stored):
            yield Change("entry", place, key, now[key])


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
    return change.kind in ("append", "computed entry", "add", "discard", "no entry")


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
    parts = [change for change in changes if change.kind not in ("computed entry", "add", "discard")]
    return {change.route.identity for change in parts if not isinstance(change.value, (bool, str))}


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
            leaf(change.key, f"a key of {change.target.path}") if change.kind == "computed entry" else change.key,
            None if change.kind in _WITHOUT_VALUE else leaf(change.value, change.path),
        )
        for change in changes
    )  # fmt: skip
