"""Reads of a slice of an array in which other slices were written: `u[:5] = a; u[-5:] *= b` reads `u` as it was.

Whether two slices share elements may depend on sizes: then the sizes of the call decide, and a guard keeps it. A read
from the array before the writes depends on none of them, and the writes stay those of slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import is_nonnegative
from tracefuse.ir.op_kinds import Movement

MOST_WRITES = 8
"""The number of earlier writes that a read is compared with."""

_BOUNDS = ("start_indices", "end_indices")


def before_separate_writes(array: Traced, bounds: Mapping[str, Any]) -> Traced:
    """Returns the array to read a slice from: the given one, or that before the last writes of other slices."""
    recorder, number = array.recorder, array.number
    makers = recorder.builder.makers
    for _ in range(MOST_WRITES if recorder.body is None else 0):
        node = makers.get(number)
        is_write = node is not None and isinstance(node.op, Movement) and node.op.slices == "written"
        before = node.operands[0] if node is not None and is_write else None
        if node is None or not isinstance(before, int) or not _are_separate(recorder, bounds, node.attributes):
            break
        number = before
    return array if number == array.number else recorder.traced_type(recorder, number)


def _are_separate(recorder: Any, left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether one slice ends before the other begins on some axis, for the sizes of the call; guarded."""
    entries = (each[name] for each in (left, right) for name in _BOUNDS)
    gaps = [gap for a, b, c, d in zip(*entries, strict=True) for gap in ((c, b), (a, d))]
    gaps = [(recorder.simplify(start), recorder.simplify(end)) for start, end in gaps]
    if any(is_nonnegative(start - end) for start, end in gaps):
        return True
    known = recorder.known
    for start, end in gaps:
        if not recorder.counters.occur_in(start, end) and known(end) <= known(start):
            return bool(recorder.decide(end, "<=", start, "whether slices share elements"))
    return False
