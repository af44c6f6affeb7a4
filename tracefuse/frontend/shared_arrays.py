"""Which arrays an iteration that is recorded for all may bind to a variable, as results of a loop share no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracefuse.frontend.recorded_carries import LoopBody, is_array, is_ordered
from tracefuse.frontend.tracer.carried_types import is_value
from tracefuse.frontend.tracer.frame_locals import UNBOUND
from tracefuse.frontend.tracer.in_place import SharedByLoop
from tracefuse.frontend.tracer.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.recorded_iteration import RecordedIteration

SHARED = "an array that a branch rebinds"


def check_value(iteration: RecordedIteration, name: str, value: Any) -> None:
    """Raises NotInEveryIteration unless a loop can carry a value."""
    if not is_value(value):
        raise NotInEveryIteration(f"{name} is no array and no number")
    if not isinstance(value, Traced) or value.is_python or not is_array(value):
        return
    if not _is_new(iteration.body, value):
        if not iteration.is_branch or not _is_new_in_loop(iteration.body, value):
            raise NotInEveryIteration(f"{name} shares the memory of another array")
        value.read_only = SharedByLoop(SHARED, iteration.symbol)
    if not iteration.runs:
        _keep_apart(iteration, name)


def _is_new(body: LoopBody, array: Traced) -> bool:
    """Whether a body makes an array, whose memory is its own."""
    number, inner = array.state()[0], array.recorder.body
    if array.parent is not None or number < body.first_number or not is_ordered(array):
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


def _keep_apart(iteration: RecordedIteration, name: str) -> None:
    """Refuses writes to the array that a variable holds if no iteration runs, as the result shares no memory."""
    before = iteration.objects.get(name, UNBOUND)
    if before is UNBOUND:
        return
    if not iteration.is_branch or not isinstance(before, Traced) or before.parent is not None:
        raise NotInEveryIteration(f"{name} is bound to an array, and the loop may have no iteration")
    if before.read_only is None:
        outermost = _outermost(iteration.body)
        if before.state()[0] < outermost.first_number or before.state()[0] in outermost.placeholders:
            raise NotInEveryIteration(f"{name} is bound to one of two arrays, of which one is from before the loop")
        before.read_only = SharedByLoop(SHARED, iteration.symbol)
