"""`for i in range(n)` of a fused function: the body runs once while it is traced, and is recorded as a loop.

In the body the counter is a size, so extents may depend on it. Arrays that the body writes, and variables that it
rebinds, are carried from iteration to iteration: each has a placeholder in the body. Short loops, and loops of which
one recording does not express every iteration, are unrolled: the trace begins again, and Python runs each iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tracefuse.dtypes import int64
from tracefuse.frontend.numpy_api.creation import integers
from tracefuse.frontend.recorded_iteration import RecordedIteration
from tracefuse.frontend.tracer.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.key_code import is_part_of_key
from tracefuse.frontend.tracer.loop_code import LoopCode, begins_loop, loop_code
from tracefuse.frontend.tracer.recorded_loops import LoopKey
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.symbolic_size import extent_of, wrap
from tracefuse.ir.extents import Extent, ceildiv

MOST_UNROLLED = 16
"""A loop of more iterations is recorded once. Equal steps of a short one share their kernels, and fuse."""

MOST_IN_NEST = 64
"""If a loop in other loops has more iterations in all, the nest is recorded, though each of its loops is short."""


def range_twin(*bounds: Any) -> Any:
    """Returns what `range(*bounds)` gives; for a `for` loop that may be recorded once, an iterable that records it.

    In a key, as in `x[range(n), labels]`, a range of sizes is an array of positions.
    """
    frame = sys._getframe(1)
    recorder = current.get()
    extents = list(map(extent_of, bounds))
    if recorder is None or not 1 <= len(bounds) <= 3 or any(isinstance(one, bool) for one in bounds):
        return range(*bounds)
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents):
        return range(*bounds)
    start, stop, step = (0, *known, 1) if len(known) == 1 else (*known, 1)[:3]
    if not isinstance(step, int) or step == 0:
        return range(*bounds)
    if begins_loop(frame.f_code, frame.f_lasti):
        return _LoopRange(recorder, bounds, start, stop, step)
    is_symbolic = not all(isinstance(extent, int) for extent in known)
    if is_symbolic and is_part_of_key(frame.f_code, frame.f_lasti):
        return integers(recorder, wrap(start, recorder), wrap(stop, recorder), step, int64)
    return range(*bounds)


class _LoopRange:
    """The integers of a `for` loop."""

    def __init__(self, recorder: Recorder, bounds: tuple[Any, ...], start: Extent, stop: Extent, step: int) -> None:
        self.recorder, self.bounds, self.start, self.stop, self.step = recorder, bounds, start, stop, step

    def __iter__(self) -> Iterator[Any]:
        return _LoopIterator(self)

    def length(self) -> Extent:
        """The number of iterations, negative for some loops without any."""
        if self.step > 0:
            return ceildiv(self.stop - self.start, self.step)
        return ceildiv(self.start - self.stop, -self.step)


class _LoopIterator:
    """Gives the integers of a loop one by one, or a counter for all of them."""

    def __init__(self, loop: _LoopRange) -> None:
        self.loop = loop
        self.rest: Iterator[int] | None = None
        self.iteration: RecordedIteration | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.iteration is not None:
            self.iteration.close()
            raise StopIteration
        if self.rest is None:
            frame = sys._getframe(1)
            code = self._code(frame)
            if code is not None:
                return self._open(frame, code)
            self.rest = self._unrolled((frame.f_code, frame.f_lasti))
        for position in self.rest:
            return position
        self.loop.recorder.loops.leave(self)
        raise StopIteration

    def _unrolled(self, key: LoopKey) -> Iterator[int]:
        """Returns the integers; begins the trace again if it has too many iterations of a loop in others."""
        steps, loops = range(*map(int, self.loop.bounds)), self.loop.recorder.loops
        nest = loops.enter(self, key, len(steps))
        is_new = len(nest) > 1 and not loops.decisions.nests >= nest
        if is_new and loops.iterations[key] > MOST_IN_NEST and self._can_record():
            loops.decisions.nests |= nest
            raise AnotherAttempt
        return iter(steps)

    def _can_record(self) -> bool:
        recorder = self.loop.recorder
        is_inside = recorder.body is not None and not isinstance(recorder.body, RecordedIteration.body_type)
        is_possible = recorder.loops.decisions.is_enabled and recorder.device is None
        return is_possible and not is_inside and not recorder.checkpoints

    def _code(self, frame: FrameType) -> LoopCode | None:
        """Returns the loop that iterates, if it is recorded once."""
        recorder, decisions = self.loop.recorder, self.loop.recorder.loops.decisions
        key = (frame.f_code, frame.f_lasti)
        if key in decisions.unrolled or not self._can_record():
            return None
        length = self.loop.length()
        is_free = key not in decisions.nests and not recorder.counters.occur_in(length)
        if is_free and recorder.decide(length, "<=", MOST_UNROLLED, "a short loop"):
            return None
        return loop_code(*key)

    def _open(self, frame: FrameType, code: LoopCode) -> Any:
        loop = self.loop
        self.iteration = RecordedIteration(loop.recorder, frame, code, loop.length(), loop.start, loop.step)
        return wrap(self.iteration.counter_value, loop.recorder)
