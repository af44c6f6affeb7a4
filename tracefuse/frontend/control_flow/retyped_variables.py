"""Variables that have another type after an iteration than before it.

A number that begins as a Python number takes the type that an iteration gives it: the trace begins again with that type
as the variable's. Whatever else changes its type raises NotInEveryIteration, so that the loop is unrolled. A loop in an
unrolled loop is entered several times, with other numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import bool_
from tracefuse.frontend.control_flow.carried_types import (
    LeafType,
    can_begin_as,
    converted,
    have_equal_extents,
    is_wide_of,
    type_of,
)
from tracefuse.frontend.control_flow.optional_values import number_for_none
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, LoopBody
from tracefuse.frontend.tracer.python_code.generated_syntax import is_condition
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import symbols

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


def carried_variable(iteration: RecordedIteration, name: str, before: Any, initial: Traced) -> CarriedVariable:
    """Returns a variable, in the type that an earlier attempt showed if its number can begin in that type."""
    own = type_of(initial)
    leaf = decided_type(iteration, name, own)
    if before is None:
        return CarriedVariable(name, before, number_for_none(iteration.recorder, leaf), leaf, own)
    leaf = leaf if can_begin_as(before, own, leaf, iteration.is_branch) else own
    return CarriedVariable(name, before, converted(initial, leaf), leaf, own)


def decided_type(iteration: RecordedIteration, name: str, own: LeafType) -> LeafType:
    """Returns the type that iterations give a variable, as an earlier attempt showed; else its type before the loop."""
    types = iteration.recorder.loops.decisions.types
    result: LeafType = types.get((iteration.place, name, own.dtype, own.weak), own)
    return result


def require_type(iteration: RecordedIteration, variable: CarriedVariable, after: LeafType) -> None:
    """Begins the trace again if a number has another type after an iteration than before it."""
    if after == variable.type or (after.dtype is variable.type.dtype is bool_ and is_condition(variable.name)):
        return
    has_its_shape = have_equal_extents(iteration.recorder, after.shape, variable.type.shape)
    if has_its_shape:
        after = replace(after, shape=variable.type.shape)
    if after == variable.type or (has_its_shape and iteration.is_branch and is_wide_of(variable.type, after)):
        return
    outside: Any = iteration.body.outside
    while isinstance(outside, LoopBody):  # the placeholder of a variable of a loop around this one
        around = [other for other in outside.iteration.variables if other.inside is variable.before]
        if around:
            require_type(outside.iteration, around[0], after)
            return
        outside = outside.outside
    types, own = iteration.recorder.loops.decisions.types, variable.own
    key = (iteration.place, variable.name, own.dtype, own.weak)
    if variable.before is not None and not has_its_shape:
        raise NotInEveryIteration(f"{variable.name} gets another shape")
    if any(one in iteration.recorder.loops.symbols for extent in after.shape for one in symbols(extent)):
        raise NotInEveryIteration(f"the shape of {variable.name} depends on the counter")
    known = types.get(key)
    if variable.before is None:  # any number stands for it
        can_begin = known is None or (known.weak is not None and is_wide_of(after, known))
    else:
        can_begin = known is None and can_begin_as(variable.before, own, after, iteration.is_branch)
    if not can_begin:
        raise NotInEveryIteration(f"{variable.name} gets another type")
    if variable.before is None:  # branches may have raised because of the type that stood for it
        iteration.recorder.loops.decisions.raising.clear()
    types[key] = after
    raise AnotherAttempt
