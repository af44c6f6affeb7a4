"""Conditions that only a call knows, in loops that are recorded once and elsewhere."""

from __future__ import annotations

from typing import Any

from tracefuse.dtypes import bool_
from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
from tracefuse.frontend.control_flow.unrolled_loops import can_record
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.recorded_loops import Limits
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent


def recorder_of(value: Any) -> Recorder | None:
    """Returns the recorder if a value is a condition that only the call knows."""
    is_computed = isinstance(value, Traced) and value.read is None and not value.value.shape
    return value.recorder if is_computed and isinstance(value, Traced) else None


def is_in_recorded_loop(recorder: Recorder) -> bool:
    return isinstance(recorder.body, RecordedIteration.body_type)


def truth_of(value: Traced) -> Traced:
    """Returns whether a number is true, as an array without axes."""
    result: Traced = apply("ne", value, 0) if value.value.dtype is not bool_ else value
    if result.weak is not None:
        result = result.recorder.traced_type(result.recorder, result.number)
    return result


def limits_of(recorder: Recorder, relation: str, left: Extent, right: Extent) -> Limits:
    """Returns what is at least 0 if a relation holds, and if it does not."""
    match relation:
        case "lt":
            return (right - left - 1,), (left - right,)
        case "le":
            return (right - left,), (left - right - 1,)
        case "gt" | "ge":
            return limits_of(recorder, "lt" if relation == "gt" else "le", right, left)
        case "ne":
            equal, other = limits_of(recorder, "eq", left, right)
            return other, equal
    apart: tuple[Extent, ...] = ()
    if recorder.always_holds(left, right, "a comparison"):
        apart = (right - left - 1,)
    elif recorder.always_holds(right, left, "a comparison"):
        apart = (left - right - 1,)
    return (right - left, left - right), apart


def record_loops_around(recorder: Recorder) -> None:
    """Begins the trace again if an unrolled loop asks a question, so that the loop is recorded."""
    loops = recorder.loops
    new = {key for key in loops.around() if key not in loops.decisions.nests | loops.decisions.unrolled.keys()}
    if new and recorder.device is None and can_record(recorder):
        loops.decisions.nests |= new
        raise AnotherAttempt
