"""The conditions of one trace under which its numbers are what Python computes, as an output of the fusion.

A call whose conditions do not all hold has changed nothing yet. It runs again and asks for the numbers themselves.
"""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.effects.questions import unchecked_conditions
from tracefuse.frontend.tracer.record.recorder import Recorder


class ConditionFailed(Exception):
    """Python computes another number than the kernels, or raises."""


ERRORS_OF_NUMBERS = (ArithmeticError, IndexError, ValueError, Warning)
"""What running kernels and library functions raises because of the numbers that a call computes.

Under conditions that do not hold, Python may compute other numbers. Any other error is one in every case.
"""


def of_conditions(trace: Trace, error: Exception) -> Exception:
    """Returns an error of a call; ConditionFailed if the trace has conditions, since Python may raise another one."""
    return ConditionFailed() if trace.conditions and isinstance(error, ERRORS_OF_NUMBERS) else error


def record(recorder: Recorder) -> tuple[str, ...]:
    """Adds whether all conditions hold, but those that a stage has checked, as an output; returns their lines."""
    first, holds = recorder.checked_conditions, unchecked_conditions(recorder)
    if holds is None:
        return ()
    if holds.number in recorder.builder.outputs:
        holds = apply("set", holds)
    recorder.builder.output(holds.number)
    return tuple(dict.fromkeys(line or "" for line in list(recorder.conditions.values())[first:]))


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
