"""Changes of the state that a trace made, and how the overlays of containers differ from their originals.

Must not know: recording, calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import Route
from tracefuse.frontend.tracer.state.container_records import MISSING, ContainerOverlay


@dataclasses.dataclass(slots=True, eq=False)
class Change:
    """One difference. kind, target, key: as of a Write. value: what the overlay holds now. at: a computed place."""

    kind: str
    target: Place
    key: Any
    value: Any
    at: Route | None = None

    @property
    def path(self) -> str:
        match self.kind:
            case "attribute" | "plain attribute" | "class attribute" | "no attribute" | "no class attribute":
                return f"{self.target.path}.{self.key}"
            case "computed entry" | "no computed entry":
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


def changes_of_container(record: ContainerOverlay) -> Iterator[Change]:
    """Yields the changes of a container of the captured state."""
    if record.family is dict:
        new_keys = {} if record.is_reordered else record.removed
        contents = (record.before, record.loaded, record.overlay, record.base, record.stored, new_keys)
        for change in changes_of_dict(record.place, *contents):
            change.key = record.original_key(change.key)
            yield change
        yield from _of_computed(record)
    elif record.family is set:
        now = set(set.__iter__(record.overlay))
        added = now - record.before if record.has_read_all else (now - record.before) | record.stored.keys()
        removed = (*(record.before - now), *(slot.key for slot in record.computed.removals()))
        added = (*added, *(slot.key for slot in record.computed.stores()), *(value for value, _ in record.waiting))
        yield from (Change("discard", record.place, None, value) for value in removed)
        yield from (Change("add", record.place, None, value) for value in added)
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
        yield from _of_computed(record)
        yield from changes_of_list(record.place, record.before, record.loaded, now_entries, is_appended, record.stored)


def _of_computed(record: ContainerOverlay) -> Iterator[Change]:
    """Yields the changes of a container under keys that the call computes."""
    for slot in record.computed.removals():
        yield Change("no computed entry", record.place, slot.key, None)
    for slot in record.computed.stores():
        route = None if slot.place is None else slot.place.route
        yield Change("computed entry", record.place, slot.key, slot.now, route)
    yield from (Change("computed entry", record.place, key, value) for key, value in record.waiting)


def _expected(key: Any, value: Any, loaded: Mapping[Any, Any], stored: Mapping[Any, None]) -> Any:
    """What an overlay holds where the trace changed nothing: a value that was stored unread counts as a change."""
    return loaded.get(key, MISSING if key in stored else value)


def changes_of_list(
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


def changes_of_dict(
    place: Place, before: Mapping[Any, Any], loaded: Mapping[Any, Any], overlay: Any, base: Any,
    stored: Mapping[Any, None] = MappingProxyType({}), removed: Mapping[Any, None] = MappingProxyType({}),
) -> Iterator[Change]:  # fmt: skip
    """Yields the changes of a dict. removed: keys whose entries were removed; if they are there again, they are new."""
    now = dict(dict.items(overlay)) if base is not list else {}
    order = list(base.__iter__(overlay))
    remaining = [key for key in before if key in now and key not in removed]
    if order[: len(remaining)] != remaining:
        yield Change("contents", place, None, {key: now[key] for key in order})
        return
    yield from (Change("no entry", place, key, None) for key in before if key not in now or key in removed)
    order = [*(key for key in order if key not in stored), *(key for key in stored if key in now)]
    for key in order:
        if key not in before or key in removed or now[key] is not _expected(key, before[key], loaded, stored):
            yield Change("entry", place, key, now[key])
