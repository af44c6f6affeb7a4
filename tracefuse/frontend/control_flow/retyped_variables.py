"""Variables that have another type after an iteration than before it.

A number that begins as a Python number takes the type that an iteration gives it: the trace begins again with that type
as the variable's. Whatever else changes its type raises NotInEveryIteration, so that the loop is unrolled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import bool_, int64
from tracefuse.frontend.control_flow.carried_types import LeafType, have_equal_extents
from tracefuse.frontend.control_flow.iteration_conditions import is_wide_of
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, LoopBody
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


def require_type(iteration: RecordedIteration, variable: CarriedVariable, after: LeafType) -> None:
    """Begins the trace again if a number has another type after an iteration than before it."""
    if after == variable.type or (after.dtype is variable.type.dtype is bool_ and not variable.name.isidentifier()):
        return
    if not have_equal_extents(iteration.recorder, after.shape, variable.type.shape):
        raise NotInEveryIteration(f"{variable.name} gets another shape")
    after = replace(after, shape=variable.type.shape)
    if after == variable.type:
        return
    outside: Any = iteration.body.outside
    while isinstance(outside, LoopBody):  # the placeholder of a variable of a loop around this one
        around = [other for other in outside.iteration.variables if other.inside is variable.before]
        if around:
            require_type(outside.iteration, around[0], after)
            return
        outside = outside.outside
    if iteration.is_branch and is_wide_of(variable.type, after):
        return
    known = iteration.recorder.loops.decisions.types
    is_decided = (iteration.place, variable.name) in known
    if is_decided or variable.type.weak is None or not _may_become(iteration, variable, after):
        raise NotInEveryIteration(f"{variable.name} gets another type")
    known[iteration.place, variable.name] = after
    raise AnotherAttempt


def _may_become(iteration: RecordedIteration, variable: CarriedVariable, after: LeafType) -> bool:
    """Whether the number that a variable holds before the loop has the same value in the type of an iteration."""
    before = variable.before
    if type(before) in (int, float) and (before == 0 or after.dtype.name in ("float64", "complex128")):
        return True
    if type(before) is int and abs(before) < 2**31 and after.dtype is int64:
        return True
    return iteration.is_branch and is_wide_of(after, variable.type)
