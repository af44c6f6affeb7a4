"""Slices of a recorded loop whose bounds an iteration computes: `v[rows[i]:rows[i + 1]]`, `x[:k[i]]`.

The iteration computes where the slice begins and how long it is, as NumPy clamps bounds to the axis, and reads both as
sizes. So the slice is one at symbolic bounds, and a view as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracefuse.dtypes import int64, uint64
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent


def is_computed(bound: Any) -> bool:
    """Whether a bound of a slice is an integer that depends on elements."""
    if not isinstance(bound, Traced) or bound.on_host or bound.value.shape:
        return False
    return bound.value.dtype.is_integer and bound.value.dtype is not uint64


def reads_bounds(part: slice, recorder: Recorder) -> bool:
    """Whether an iteration that is being recorded reads the bounds of a slice as sizes."""
    if recorder.device is not None or part.step not in (None, 1):
        return False
    computed = [bound for bound in (part.start, part.stop) if is_computed(bound)]
    if recorder.body is not None:
        return recorder.body.integers is not None and len(computed) > 0
    if recorder.control_flow is not None and any(b.number not in recorder.builder.independent for b in computed):
        recorder.control_flow.needs_recording(recorder)
    return False


def computed_bounds(start: Any, stop: Any, extent: Extent, recorder: Recorder) -> tuple[Extent, Extent]:
    """Returns the first position and the end of a slice of an axis. start, stop: computed, or inside of the axis."""
    assert recorder.body is not None
    known = _known_bounds(recorder, start, stop, extent)
    if known is None:
        known = _read_bounds(recorder, start, stop, extent)
        recorder.body.integers.slices.append(((start, stop, extent), known))
    return known


def _read_bounds(recorder: Recorder, start: Any, stop: Any, extent: Extent) -> tuple[Extent, Extent]:
    integers = recorder.body.integers  # type: ignore[union-attr]
    if not isinstance(stop, Traced):
        return integers.add(
            _number(recorder, "minimum", _inside(start, extent, recorder), recorder.scalar(stop)), stop
        ), stop
    first = _inside(start, extent, recorder) if isinstance(start, Traced) else recorder.scalar(start)
    length = _number(recorder, "maximum", apply("sub", _inside(stop, extent, recorder), first), 0)
    if not isinstance(start, Traced):
        return start, start + integers.add(length, extent - start)
    low = integers.add(first, extent)
    return low, low + integers.add(length, extent, low)


def _known_bounds(recorder: Recorder, start: Any, stop: Any, extent: Extent) -> tuple[Extent, Extent] | None:
    """Returns the bounds of an equal slice of an axis of the same extent, which may be guarded to be the same."""
    for (first, end, other), known in _slices(recorder):
        if not (_are_same(recorder, start, first) and _are_same(recorder, stop, end)):
            continue
        if extent == other:
            return known
        if not recorder.counters.occur_in(extent, other) and recorder.known(extent) == recorder.known(other):
            recorder.decide(extent, "==", other, "two axes with equal slices")
            return known
    return None


def _slices(recorder: Recorder) -> Iterator[Any]:
    """Yields the slices of the bodies around, innermost first."""
    body: Any = recorder.body
    while body is not None:
        if body.integers is not None:
            yield from reversed(body.integers.slices)
        body = body.outside


def _are_same(recorder: Recorder, bound: Any, other: Any) -> bool:
    if isinstance(bound, Traced) and isinstance(other, Traced):
        return recorder.builder.is_same_value(bound.number, other.number)
    return not isinstance(bound, Traced) and not isinstance(other, Traced) and bool(bound == other)


def _inside(bound: Traced, extent: Extent, recorder: Recorder) -> Traced:
    """Returns a computed bound between 0 and the extent, as NumPy clamps it."""
    size = recorder.scalar(extent)
    value = apply("cast", bound, dtype=int64)
    value = apply("where", apply("lt", value, 0), apply("add", value, size), value)
    return _number(recorder, "minimum", apply("maximum", value, 0), size)


def _number(recorder: Recorder, name: str, *operands: Any) -> Traced:
    """Returns an int64 that an op computes."""
    result: Traced = apply("cast", apply(name, *operands), dtype=int64)
    return recorder.traced_type(recorder, result.number)
