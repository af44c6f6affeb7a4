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
from tracefuse.ir.fusion import Literal
from tracefuse.ops.roles import ADD, SUBTRACT

_MOST_TERMS = 8
"""Sums and differences of which a bound of a slice is taken apart."""

_MOST_COMPARED = 40
"""Operations that are compared to find whether two bounds are the same."""

_EMPTY = "a slice with elements"


def is_computed(bound: Any) -> bool:
    """Whether a bound of a slice is an integer that depends on elements."""
    if not isinstance(bound, Traced) or bound.on_host or bound.value.shape:
        return False
    return bound.value.dtype.is_integer and bound.value.dtype is not uint64


def reads_bounds(part: slice, recorder: Recorder) -> bool:
    """Whether an iteration that is being recorded reads the bounds of a slice as sizes."""
    if recorder.device is not None or (part.step is not None and not (type(part.step) is int and part.step == 1)):
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
    assert recorder.body is not None
    integers = recorder.body.integers
    low, high = (_inside(b, extent, recorder) if isinstance(b, Traced) else b for b in (start, stop))
    least = 0
    if integers.are_assumed:
        size = _known_size(recorder, start, stop, extent)
        if size is not None:
            first = _between(start, 0, extent - size, recorder)
            integers.assume(apply("eq", start, first))
            begin = integers.add(first, extent - size)
            return begin, begin + size
        least = int(_may_have_elements(recorder, start, stop, extent))
    return _ends(recorder, integers, low, high, extent, least)


def _ends(
    recorder: Recorder, integers: Any, low: Any, high: Any, extent: Extent, least: int
) -> tuple[Extent, Extent]:  # fmt: skip
    """Returns the ends of a slice with at least `least` elements. low, high: its ends, between 0 and the extent."""
    if not isinstance(high, Traced):
        begin = _number(recorder, "minimum", low, recorder.scalar(high - least))
        if least:
            integers.assume(apply("le", low, begin))
        return integers.add(begin, high - least), high
    first = low if isinstance(low, Traced) else recorder.scalar(low)
    length = _number(recorder, "maximum", apply("sub", high, first), least)
    if least:
        integers.assume(apply("lt", first, high))
    if not isinstance(low, Traced):
        return low, low + integers.add(length, extent - low, None, least)
    if least:
        first = _number(recorder, "minimum", low, recorder.scalar(extent - least))
    begin = integers.add(first, extent - least)
    return begin, begin + integers.add(length, extent, begin, least)


def _may_have_elements(recorder: Recorder, start: Any, stop: Any, extent: Extent) -> bool:
    """Whether a slice is not empty for some values of its computed bounds."""
    if not isinstance(stop, Traced):
        return recorder.always_holds(1, stop, _EMPTY)
    return recorder.always_holds(1 if isinstance(start, Traced) else start + 1, extent, _EMPTY)


def _known_size(recorder: Recorder, start: Any, stop: Any, extent: Extent) -> Extent | None:
    """Returns the size of `x[s:s + size]` if the axis has as many elements; None for other slices."""
    if not (isinstance(start, Traced) and isinstance(stop, Traced)):
        return None
    (first, before), (last, after) = (_sum(recorder, bound.number) for bound in (start, stop))
    size = after - before
    if not recorder.builder.is_same_value(first, last, _MOST_COMPARED):
        return None
    is_inside = recorder.always_holds(0, size, _EMPTY) and recorder.always_holds(size, extent, _EMPTY)
    return size if is_inside else None


def _sum(recorder: Recorder, number: int) -> tuple[int, Extent]:
    """Returns a value and an extent of which another value is the sum."""
    total: Extent = 0
    for _ in range(_MOST_TERMS):
        node = recorder.builder.makers.get(number)
        if node is None or node.op not in (ADD, SUBTRACT) or node.compute is not int64:  # narrower ones wrap around
            break
        (left, first), (right, second) = ((operand, _extent_of(recorder, operand)) for operand in node.operands)
        sign = 1 if node.op is ADD else -1
        if second is not None and isinstance(left, int):
            number, total = left, total + sign * second
        elif first is not None and sign == 1 and isinstance(right, int):
            number, total = right, total + first
        else:
            break
    return number, total


def _extent_of(recorder: Recorder, operand: Any) -> Extent | None:
    """Returns the extent that an operand of a sum is."""
    if isinstance(operand, Literal):
        return operand.value if type(operand.value) is int else None
    return recorder.builder.values[operand].extent


def _known_bounds(recorder: Recorder, start: Any, stop: Any, extent: Extent) -> tuple[Extent, Extent] | None:
    """Returns the bounds of an equal slice of an axis of the same extent, which may be guarded to be the same."""
    known: tuple[Extent, Extent]
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
        return recorder.builder.is_same_value(bound.number, other.number, _MOST_COMPARED)
    return not isinstance(bound, Traced) and not isinstance(other, Traced) and bool(bound == other)


def _inside(bound: Traced, extent: Extent, recorder: Recorder) -> Traced:
    """Returns a computed bound between 0 and the extent, as NumPy clamps it."""
    size = recorder.scalar(extent)
    value = apply("cast", bound, dtype=int64)
    value = apply("where", apply("lt", value, 0), apply("add", value, size), value)
    return _between(value, 0, extent, recorder)


def _between(value: Any, low: int, high: Extent, recorder: Recorder) -> Traced:
    return _number(recorder, "minimum", apply("maximum", value, low), recorder.scalar(high))


def _number(recorder: Recorder, name: str, *operands: Any) -> Traced:
    """Returns an int64 that an op computes."""
    result: Traced = apply("cast", apply(name, *operands), dtype=int64)
    return recorder.traced_type(recorder, result.number)
