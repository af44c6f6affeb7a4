"""Which arrays an iteration that is recorded for all may bind to a variable, as results of a loop share no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.control_flow.carried_types import is_value
from tracefuse.frontend.control_flow.iteration_conditions import EXACT, FLAG
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable, LoopBody, is_array, is_ordered
from tracefuse.frontend.tracer.array_ops.in_place import SharedByLoop
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import is_contiguous, owner_of

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration

SHARED = "an array that a branch rebinds"


def check_value(iteration: RecordedIteration, name: str, value: Any) -> None:
    """Raises NotInEveryIteration unless a loop can carry a value."""
    if not is_value(value):
        raise NotInEveryIteration(f"{name} is no array and no number")
    if not isinstance(value, Traced) or value.is_python or not is_array(value):
        return
    if not _is_new(iteration.body, value):
        if not iteration.is_branch or not _is_new_in_loop(iteration.body, value):
            _keep_unwritten(iteration, name, value)
        value.read_only = SharedByLoop(SHARED, iteration.symbol)
    if not iteration.runs or isinstance(value.read_only, SharedByLoop):
        keep_apart(iteration, name)


def _keep_unwritten(iteration: RecordedIteration, name: str, view: Traced) -> None:
    """Lets a loop carry the contents of a view: nothing may write the array from before the loop that it is of.

    Raises NotInEveryIteration if the loop, or one around it, has written the array.
    """
    owner = owner_of(view)
    body, number = iteration.body, owner.state()[0]
    is_unwritten = is_contiguous(view, "the layout of a view that a loop rebinds") and is_ordered(view)
    while is_unwritten and not isinstance(owner.read_only, SharedByLoop) and isinstance(body, LoopBody):
        carried = [one for one in body.arrays if one.array is owner]
        is_unwritten = bool(carried) and carried[0].placeholder == number
        number, body = carried[0].number if carried else -1, body.outside  # type: ignore[assignment]
    if not is_unwritten:
        raise NotInEveryIteration(f"{name} shares the memory of another array")
    owner.read_only = owner.read_only or SharedByLoop(SHARED, _outermost(iteration.body).iteration.symbol)


def _is_new(body: LoopBody, array: Traced) -> bool:
    """Whether a body makes an array with memory of its own, or the array of which it is a contiguous view.

    Variables that hold both are shared_names.
    """
    if array.parent is not None and not is_contiguous(array, "the layout of a view that a loop rebinds"):
        return False
    array = owner_of(array)
    number, inner = array.state()[0], array.recorder.body
    if number < body.first_number or not is_ordered(array):
        return False
    if array.memory is not None and array.memory.argument is not None:
        return False
    while isinstance(inner, LoopBody):
        if number in inner.placeholders or id(array) in inner.owners:
            return False
        inner = inner.outside
    return True


def _is_new_in_loop(body: LoopBody, array: Traced) -> bool:
    """Whether the iteration around a branch makes an array, which has no views, and the branch does not write it."""
    number, outermost, placeholders = array.state()[0], _outermost(body), list[int]()
    inner: Any = body
    while isinstance(inner, LoopBody):
        for carried in inner.arrays:
            if carried.array is array and carried.placeholder == number:
                number = carried.number
        placeholders += inner.placeholders
        inner = inner.outside
    is_plain = array.parent is None and array.memory is None and is_ordered(array)
    is_inside = number >= outermost.first_number and number not in placeholders and id(array) not in outermost.owners
    return is_plain and is_inside


def _outermost(body: LoopBody) -> LoopBody:
    while isinstance(body.outside, LoopBody):
        body = body.outside
    return body


def keep_apart(iteration: RecordedIteration, name: str) -> None:
    """Refuses writes to the array that a variable may still hold after the loop: the result shares no memory."""
    before = iteration.objects.get(name, UNBOUND)
    if before is UNBOUND or before is None:
        return
    if not isinstance(before, Traced):
        raise NotInEveryIteration(f"{name} is bound to an array, and the loop may leave it as it is")
    if before.parent is not None:
        _keep_unwritten(iteration, name, before)
        return
    carried = _carried_outside(iteration.body, before)
    if carried is not None:
        carried.is_shared = True
    elif before.read_only is None:
        outermost, number = _outermost(iteration.body), before.state()[0]
        is_before = number < outermost.first_number or number in outermost.placeholders
        if is_before and iteration.body is not outermost:
            raise NotInEveryIteration(f"{name} is bound to one of two arrays, of which one is from before the loop")
        if not iteration.is_branch and any(one.array is before and one.is_written for one in iteration.body.arrays):
            raise NotInEveryIteration(f"{name} is bound to one of two arrays, of which the loop writes one")
        before.read_only = SharedByLoop(SHARED, iteration.symbol)


def _carried_outside(body: LoopBody, array: Traced) -> CarriedVariable | None:
    """Returns the variable of a loop around a body for whose value an array stands in the current iteration."""
    outside: Any = body.outside
    while isinstance(outside, LoopBody):
        for one in outside.iteration.variables:
            if one.inside is array:
                return one
        outside = outside.outside
    return None


def shared_names(
    iteration: RecordedIteration, changed: Sequence[CarriedVariable], exported: Sequence[str], after: dict[str, Any]
) -> set[str]:  # fmt: skip
    """Returns the variables that may be bound to an array that another one has, too."""
    traced = {name: value for name, value in after.items() if isinstance(value, Traced)}  # not selections
    shared = {name for name, value in traced.items() if isinstance(value.read_only, SharedByLoop)}
    shared |= {one.name for one in iteration.variables if one.is_shared}
    if not iteration.runs:
        shared |= {one.name for one in changed if is_array(one.inside)}
    names = [name for name in (*(one.name for one in changed), *exported) if is_array(after.get(name))]
    owners = [id(owner_of(after[name])) if isinstance(after[name], Traced) else 0 for name in names]
    shared |= {name for name, owner in zip(names, owners, strict=True) if owners.count(owner) > 1}
    return shared - {FLAG, EXACT}
