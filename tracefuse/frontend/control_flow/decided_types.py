"""The types in which recorded loops carry variables that are numbers of Python before them.

`s = 0.0` before a loop takes the type of what an iteration adds to it. The first attempt to trace a function shows
that type, and begins the trace again. A loop in an unrolled loop is entered several times, with other numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracefuse.dtypes import bool_
from tracefuse.frontend.control_flow.carried_types import (
    LeafType,
    can_begin_as,
    converted,
    have_equal_extents,
    is_wide_of,
    type_of,
)
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, LoopBody
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


def variable(iteration: RecordedIteration, name: str, before: Any, initial: Traced) -> CarriedVariable:
    """Returns a variable, in the type that an earlier attempt showed if its number can begin in that type."""
    own = type_of(initial)
    leaf = decided(iteration, name, own)
    leaf = leaf if can_begin_as(before, own, leaf, iteration.is_branch) else own
    return CarriedVariable(name, before, converted(initial, leaf), leaf, own)


def decided(iteration: RecordedIteration, name: str, own: LeafType) -> LeafType:
    """Returns the type that iterations give a variable, as an earlier attempt showed; else its type before the loop."""
    types = iteration.recorder.loops.decisions.types
    result: LeafType = types.get((iteration.place, name, own.dtype, own.weak), own)
    return result


def join(iteration: RecordedIteration, one: CarriedVariable, after: LeafType) -> None:
    """Begins the trace again if a number has another type after an iteration than before it."""
    if after == one.type or (after.dtype is one.type.dtype is bool_ and not one.name.isidentifier()):
        return
    if not have_equal_extents(iteration.recorder, after.shape, one.type.shape):
        raise NotInEveryIteration(f"{one.name} gets another shape")
    after = replace(after, shape=one.type.shape)
    if after == one.type:
        return
    outside: Any = iteration.body.outside
    while isinstance(outside, LoopBody):  # the placeholder of a variable of a loop around this one
        around = [other for other in outside.iteration.variables if other.inside is one.before]
        if around:
            join(outside.iteration, around[0], after)
            return
        outside = outside.outside
    if iteration.is_branch and is_wide_of(one.type, after):
        return
    types, key = iteration.recorder.loops.decisions.types, (iteration.place, one.name, one.own.dtype, one.own.weak)
    if key in types or not can_begin_as(one.before, one.own, after, iteration.is_branch):
        raise NotInEveryIteration(f"{one.name} gets another type")
    types[key] = after
    raise AnotherAttempt
