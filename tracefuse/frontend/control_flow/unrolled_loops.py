"""Loops of which Python runs each iteration while the function is traced, and how many ops they may record.

A loop that takes too many is recorded once where it can be. Where it cannot, calls run the function itself, since each
op takes about a millisecond to compile.
"""

from __future__ import annotations

from typing import Any

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.recorded_loops import LoopKey
from tracefuse.frontend.tracer.record.recorder import Recorder

MOST_IN_NEST = 64
"""If a loop in other loops has more iterations in all, the nest is recorded, though each of its loops is short."""

MOST_UNROLLED_OPS = 4000
"""On a GPU, a loop of more ops in all is recorded once. Unrolled steps are launches in a row and take a tenth to a
fifth of the time of recorded steps, which the host starts one by one; but each op takes 1 to 10 ms to compile."""

MOST_VALUES = 10_000
"""The most values that an unrolled loop may record, in the bodies of loops inside of it, too: 10 to 60 s to compile."""


class Unrolling:
    """A loop that is unrolled, by an iterator. key: of the loop."""

    def __init__(self, recorder: Recorder, iterator: Any, key: LoopKey) -> None:
        self.recorder, self.iterator, self.key = recorder, iterator, key
        self.steps, self.begun, self.first = 0, 0, len(recorder.builder.nodes)
        self._first_number = recorder.builder.next_number

    def count(self, steps: int) -> None:
        """Counts iterations; begins the trace again if the loop has too many."""
        loops = self.recorder.loops
        self.steps += steps
        nest = loops.enter(self.iterator, self.key, steps)
        is_new = not loops.decisions.nests >= nest
        is_long = len(nest) > 1 and loops.iterations[self.key] > MOST_IN_NEST
        if is_new and is_long and self.recorder.device is None and can_record(self.recorder):
            loops.decisions.nests |= nest
            raise AnotherAttempt

    def begin_step(self) -> None:
        """Begins the trace again, or leaves the call to the function, if all steps would record too many ops.

        By the steps that have ended. On a GPU, if the loop itself cannot be recorded, those that it has run are.
        """
        ended, self.begun = self.begun, self.begun + 1
        if ended not in (1, 4, 16, 64, 256, 1024, 4096):
            return
        if self.recorder.device is not None:
            ops = (len(self.recorder.builder.nodes) - self.first) * self.steps // ended
            decisions = self.recorder.loops.decisions
            marked = decisions.nests | decisions.unrolled.keys()
            new = {self.key} - marked or self.recorder.loops.iterations.keys() - marked
            if ops > MOST_UNROLLED_OPS and new and can_record(self.recorder):
                decisions.nests |= new
                raise AnotherAttempt
        values = (self.recorder.builder.next_number - self._first_number) * self.steps // ended
        if values > MOST_VALUES and self.recorder.body is None:
            self._leave(values)

    def _leave(self, values: int) -> None:
        """Leaves the call to the function itself, if it may be."""
        answers, decisions = self.recorder.answers, self.recorder.loops.decisions
        unrolled = decisions.unrolled
        if answers is None or not (unrolled or decisions.is_enabled):  # the option `loops` asks for it
            return
        reason = unrolled.get(self.key) or next(iter(unrolled.values()), "")
        because = f", since {reason}" if reason else ""
        answers.leave(UnsupportedError(
            f"this loop is unrolled{because}, and would record about {values} values",
            hint="record its body once by tracefuse.fori_loop", where=source.user_line(), runs_function=True,
        ))  # fmt: skip

    def end(self) -> None:
        """Notes that the loop has ended."""
        self.recorder.loops.leave(self.iterator)


def can_record(recorder: Recorder) -> bool:
    """Whether a loop can be recorded where the function is now."""
    is_inside = recorder.body is not None and not isinstance(recorder.body, RecordedIteration.body_type)
    return recorder.loops.decisions.is_enabled and not is_inside and not recorder.checkpoints
