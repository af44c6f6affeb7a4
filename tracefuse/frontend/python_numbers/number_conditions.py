"""The conditions of one trace under which its numbers are what Python computes, as an output of the fusion.

A call whose conditions do not all hold has changed nothing yet. It runs again and asks for the numbers themselves.
"""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.frontend.tracer.traced_ops import apply


class ConditionFailed(Exception):
    """Python computes another number than the kernels, or raises."""


def record(recorder: Recorder) -> tuple[str, ...]:
    """Adds whether all conditions hold as an output; returns the lines that need them."""
    numbers = list(recorder.conditions)
    if not numbers:
        return ()
    holds: Any = recorder.traced_type(recorder, numbers[0])
    for number in numbers[1:]:
        holds = apply("logical_and", holds, recorder.traced_type(recorder, number))
    if holds.number in recorder.builder.outputs:
        holds = apply("set", holds)
    recorder.builder.output(holds.number)
    return tuple(dict.fromkeys(line or "" for line in recorder.conditions.values()))


def position(trace: Trace) -> int:
    """Returns the position of the conditions among the outputs that are returned."""
    return trace.output_count + len(trace.updated_numbers)


def check(trace: Trace, outputs: list[Any]) -> list[Any]:
    """Returns the other outputs of a call. Raises ConditionFailed if a condition does not hold."""
    if not trace.conditions:
        return outputs
    if not bool(outputs[position(trace)]):
        raise ConditionFailed
    return outputs[: position(trace)]
