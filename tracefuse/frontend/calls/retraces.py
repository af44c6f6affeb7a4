"""Explains why a call is traced again: how it differs from the nearest existing trace.

Must not know: options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.dynamic.guard_failures import GuardFailure
from tracefuse.errors import TraceError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.trace_entry import Entry, are_apart, fits, fusion_arguments
from tracefuse.frontend.recorded_trace import Captured, Trace
from tracefuse.frontend.tracer.captured.bypassed_arrays import BypassedArray
from tracefuse.frontend.tracer.captured.captures import Place, is_array
from tracefuse.frontend.tracer.captured.routes import CHANGED, CallRoots
from tracefuse.frontend.tracer.record.captured_inputs import is_number
from tracefuse.runtime.argument_leaves import array_key
from tracefuse.runtime.devices import arrays

MOST_NUMBERS = 64
"""Numbers of the state that become inputs of a trace at once, since they differ. More stay constants."""
_LONGEST = 60
"""Most characters of a value in a message."""
_GONE = object()


def explain_retrace(entries: Sequence[Entry], call: CallArguments) -> GuardFailure | None:
    """How a call differs from the nearest of the traces with its key. entries: the newest first."""
    differences = [changes for changes in (_changes(entry, call) for entry in entries) if changes]
    return _join(min(differences, key=len)) if differences else None


def explain_new_key(entries: Sequence[Entry], call: CallArguments) -> GuardFailure | None:
    """How a call differs from the nearest trace with another key and the same argument paths."""
    differences = []
    for entry in entries:
        known = dict(entry.keys)
        changes = [
            GuardFailure(None, f"{path} was {_key_text(known[path])}, now {_key_text(key)}", path, None)
            for path, key in keys_of(call) if known.get(path, key) != key
        ]  # fmt: skip
        if changes and known.keys() == dict(keys_of(call)).keys():
            differences.append(changes)
    return _join(min(differences, key=len)) if differences else None


def changed_numbers(trace: Trace, roots: CallRoots) -> frozenset[Any]:
    """The routes to numbers of the state that a trace compares and that differ in a call; none if they are many."""
    places = [place for place in trace.statics if is_number(place.value) and (place.is_part or place.route.key is len)]
    changed = [place for place in places if not place.unchanged(roots) and is_number(_now(place, roots))]
    return frozenset(place.route.identity for place in changed) if len(changed) <= MOST_NUMBERS else frozenset()


def keys_of(call: CallArguments) -> tuple[tuple[str, Any], ...]:
    """The part of the trace key that belongs to each argument, by path; for static arguments, by parameter."""
    statics = [(name if isinstance(name, str) else f"argument {name}", key) for name, key in call.key[1]]
    return (*((leaf.path, leaf.key) for leaf in call.leaves), *statics)


def _join(changes: Sequence[GuardFailure]) -> GuardFailure:
    """The first guard failure, with the text of up to three."""
    first = changes[0]
    if len(changes) == 1:
        return first
    text = "; ".join(change.text for change in changes[:3]) + ("; ..." if len(changes) > 3 else "")
    return GuardFailure(first.guard, text, first.argument, first.where)


def _changes(entry: Entry, call: CallArguments) -> list[GuardFailure]:
    """How a call differs from a trace with its key: in state and captures, else in the guards that fail."""
    trace, roots = entry.trace, call.roots
    changes = [_place_change(place, roots) for place in trace.statics if not place.unchanged(roots)]
    changes += [_bypassed_change(array, roots) for array in trace.bypassed if not array.unchanged(roots)]
    for first, second in trace.pairs:
        if _now(first, roots) is not _now(second, roots):
            type_name = "array" if is_array(first.value) else type(first.value).__name__
            text = f"{first.path} and {second.path} were one {type_name}, now they are two"
            changes.append(_located(text, second))
    for group in trace.apart:
        if not are_apart(group, roots):
            text = f"{', '.join(place.path for place in group)} were different objects, now two of them are one"
            changes.append(_located(text, group[0]))
    changes += [
        _capture_change(capture, roots) for capture in trace.captured if not fits(capture, _read(capture, roots))
    ]
    changes = changes or _prologue_change(entry, roots)
    if changes:
        return changes
    arguments = fusion_arguments(entry, call)
    if arguments is None:
        return []
    failure = trace.guard_failure(arguments, entry.before)
    if failure is not None:
        return [failure]
    facts = trace.facts(arguments)
    return [
        GuardFailure(None, _with_line(f"a number was {g.expected!r}, now {g.read(facts)!r}", g.where), "", g.where)
        for g in trace.scalar_guards
        if not g.holds(facts)
    ]


def _read(capture: Captured, roots: CallRoots) -> Any:
    return capture.array if capture.place is None else _now(capture.place, roots)


def _now(place: Place, roots: CallRoots) -> Any:
    try:
        return place.read(roots)
    except CHANGED:
        return _GONE


def _place_change(place: Place, roots: CallRoots) -> GuardFailure:
    now = _now(place, roots)
    return _located(f"{place.path} was {_text(place.value)}, now {_text(now)}", place)


def _bypassed_change(array: BypassedArray, roots: CallRoots) -> GuardFailure:
    place = array.place
    if not is_array(_now(place, roots)):
        return _place_change(place, roots)
    return _located(f"the contents of {place.path} differ, which code that is not traced may have read", place)


def _prologue_change(entry: Entry, roots: CallRoots) -> list[GuardFailure]:
    """What the prologue computes for the captured arrays of this call and the trace did not."""
    prologue, captured = entry.trace.prologue, entry.trace.captured
    if prologue is None:
        return []
    step = prologue.first_change([_read(captured[position], roots) for position in prologue.captured])
    return [] if step is None else [GuardFailure(None, f"no longer so: {prologue.text_of(step)}", "", step.where)]


def _capture_change(capture: Captured, roots: CallRoots) -> GuardFailure:
    now = _read(capture, roots)
    shown = _text(now) if arrays.kind_of(now) is None else _key_text(array_key(now, arrays.dtype_of_argument(now, "")))
    before = capture.key.__name__ if capture.scalar else _key_text(capture.key)
    text = f"{capture.path} was {before}, now {shown}"
    return GuardFailure(None, text, capture.path, None) if capture.place is None else _located(text, capture.place)


def _located(text: str, place: Place) -> GuardFailure:
    return GuardFailure(None, _with_line(text, place.where), place.path, place.where)


def _with_line(text: str, where: str | None) -> str:
    return text if where is None else f"{text} ({where})"


def _text(value: Any) -> str:
    if value is _GONE:
        return "not there"
    text = getattr(value, "__qualname__", None) or repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _key_text(key: Any) -> str:
    """A part of a trace key as text: the element type and axes of an array, the value of a static argument."""
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], tuple) and not isinstance(key[0], (str, type)):
        return f"{key[0]}[{', '.join('1' if is_one else '-1' for is_one in key[1])}]"
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], (type, str)):
        return _text(key[1])
    return _text(key)


def unstable_state(function: str, entry: Entry, call: CallArguments) -> TraceError:
    """Returns the error for state that changes between two consecutive reads. function: its qualified name."""
    change = explain_retrace([entry], call)
    changed = "" if change is None else f": {change}"
    return TraceError(f"state that {function} reads changes between two reads{changed}", hint="pass it as an argument")
