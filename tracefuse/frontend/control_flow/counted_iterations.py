"""The number of iterations of a `while` loop that appends to lists, which one recording counts for a second one.

The arrays of rows that a loop carries have an extent before it begins. So the loop is recorded twice: once for the
number of its iterations alone, which the call then knows, and once as a loop with that many iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracefuse.dtypes import int64
from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted
from tracefuse.frontend.control_flow.iteration_conditions import outside_of
from tracefuse.frontend.control_flow.recorded_appends import shorten
from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.symbolic_size import extent_of
from tracefuse.ir.extents import Extent

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


class CountedIterations:
    """What the loop carries in the place of what it appends."""

    def __init__(self) -> None:
        self.carried: list[CarriedVariable] = []
        self._count: Any = None

    def begin(
        self, iteration: RecordedIteration, grown: Sequence[tuple[list[Any], int]], after: Mapping[str, Any]
    ) -> CountedIterations:
        """Removes what the iteration has appended to lists. after: the variables after it."""
        for grown_list, size in grown:
            shorten(grown_list, size)
        recorder = iteration.recorder
        kind = LeafType(int64, (), None)
        with outside_of(iteration.body):
            zero = converted(as_leaf(recorder, recorder.movement("full", [0], shape=())), kind)
        one = CarriedVariable("(iterations)", None, zero, kind)
        one.enter(iteration.body)
        self.carried.append(one)
        return self

    def write(self, after: dict[str, Any]) -> None:
        """Counts the iteration."""
        (one,) = self.carried
        after[one.name] = traced_ops.apply("add", one.inside, 1)

    def fill(self, values: dict[str, Any], after: dict[str, Any]) -> None:
        """Takes the count from what variables hold after the loop."""
        (one,) = self.carried
        self._count = values.pop(one.name)

    def undo(self, iteration: RecordedIteration) -> Extent:
        """Gives variables and arrays what they held before the loop; returns the number of its iterations."""
        recorder, before = iteration.recorder, iteration.before or {}
        if any(node.op.effect for node in recorder.builder.nodes[iteration.body.first_node :]):
            raise NotInEveryIteration("an iteration that appends to a list draws random numbers")
        for one in iteration.body.arrays:
            if one.array.number != one.number:
                one.write(one.number, iteration.line)
        after = iteration.carried_slots.values()
        new = after.keys() - before.keys()
        iteration.carried_slots.bind({**before, **dict.fromkeys(new, UNBOUND)})
        iteration.before = None  # no other object may refer to lists that the second recording fills
        length = extent_of(as_size(self._count, pins=False))
        if length is None or (length == 0 and new):
            raise NotInEveryIteration("values decide how often a loop appends to a list")
        return length
