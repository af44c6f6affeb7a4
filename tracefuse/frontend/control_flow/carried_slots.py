"""Attributes and entries that an iteration of a recorded loop changes: the loop carries them like variables.

The first attempt to trace the loop finds out which they are. They are the same in the next one, by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.control_flow.carried_types import is_value
from tracefuse.frontend.control_flow.recorded_carries import LoopBody
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND, locals_of, set_locals
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.state.reachable_contents import ReachableContents, read_slot

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


class CarriedSlots:
    """The attributes and entries that a loop carries, by text, and what else its iteration could change."""

    def __init__(self, iteration: RecordedIteration) -> None:
        self.iteration, self.decisions = iteration, iteration.recorder.loops.decisions
        variables = locals_of(iteration.frame)
        texts = {text for place, text in self.decisions.slots if place == iteration.place}
        for text in sorted(texts):
            read_slot(text, variables, iteration.frame.f_globals)
        self.contents = ReachableContents(variables, iteration.recorder.overlays)
        self.slots = self.contents.slots(texts)

    def values(self) -> dict[str, Any]:
        """Returns the values of the variables, the attributes and the entries that are bound."""
        bound = {text: slot.get() for text, slot in self.slots.items()}
        return locals_of(self.iteration.frame) | {text: one for text, one in bound.items() if one is not UNBOUND}

    def bind(self, values: Mapping[str, Any]) -> None:
        """Binds variables, attributes and entries."""
        set_locals(self.iteration.frame, {name: value for name, value in values.items() if name not in self.slots})
        for name in values.keys() & self.slots.keys():
            self.slots[name].set(values[name])

    def grown_lists(self) -> list[tuple[list[Any], int]]:
        """Returns the lists that have grown, with their lengths before.

        Begins the trace again if the iteration has changed attributes or entries that it does not carry.
        """
        grown, changed = self.contents.changes()
        known = {(id(one.owner), one.key) for one in self.slots.values()}
        new = [slot for slot in changed if (id(slot.owner), slot.key) not in known]
        if not new:
            return grown
        for slot in new:
            if (self.iteration.place, slot.text) in self.decisions.slots:
                raise NotInEveryIteration(f"an iteration changes {slot.text}")
            if not is_value(slot.get()):
                raise NotInEveryIteration(f"an iteration stores a {type(slot.get()).__name__} in {slot.text}")
        body: Any = self.iteration.body
        while isinstance(body, LoopBody):
            around = body.iteration
            texts = {around.carried_slots.contents.text_of(slot) or slot.text for slot in new}
            self.decisions.slots |= {(around.place, text) for text in texts}
            body = body.outside
        raise AnotherAttempt
