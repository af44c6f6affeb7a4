"""`for i in range(n)` of a fused function: the body runs once while it is traced, and is recorded as a loop.

In the body the counter is a size, so extents may depend on it. Arrays that the body writes, and variables that it binds
anew, are carried from iteration to iteration: each has a placeholder in the body. Short loops, and loops of which one
recording does not express every iteration, are unrolled: the trace begins again, and Python runs each iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tracefuse.frontend.recorded_iteration import RecordedIteration
from tracefuse.frontend.tracer.loop_code import LoopCode, begins_loop, loop_code
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.symbolic_size import extent_of, wrap
from tracefuse.ir.extents import Extent, ceildiv

MOST_UNROLLED = 16
"""A loop of more iterations is recorded once. Equal steps of a short one share their kernels, and fuse."""


def range_twin(*bounds: Any) -> Any:
    """Returns what `range(*bounds)` gives; for a `for` loop that may be recorded once, an iterable that records it."""
    frame = sys._getframe(1)
    recorder = current.get()
    extents = list(map(extent_of, bounds))
    if recorder is None or not 1 <= len(bounds) <= 3 or any(isinstance(one, bool) for one in bounds):
        return range(*bounds)
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents) or not begins_loop(frame.f_code, frame.f_lasti):
        return range(*bounds)
    start, stop, step = (0, *known, 1) if len(known) == 1 else (*known, 1)[:3]
    if not isinstance(step, int) or step == 0 or not _may_be_long(start, stop, step):
        return range(*bounds)
    return _LoopRange(recorder, bounds, start, stop, step)


def _may_be_long(start: Extent, stop: Extent, step: int) -> bool:
    length = ceildiv(stop - start, step) if step > 0 else ceildiv(start - stop, -step)
    return not isinstance(length, int) or length > MOST_UNROLLED


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
            self.rest = iter(range(*map(int, self.loop.bounds)))
        return next(self.rest)

    def _code(self, frame: FrameType) -> LoopCode | None:
        """Returns the loop that iterates, if it is recorded once."""
        recorder, decisions = self.loop.recorder, self.loop.recorder.loops.decisions
        key = (frame.f_code, frame.f_lasti)
        is_inside = recorder.body is not None and not isinstance(recorder.body, RecordedIteration.body_type)
        if not decisions.is_enabled or is_inside or key in decisions.unrolled or recorder.device is not None:
            return None
        if recorder.checkpoints:
            return None
        length = self.loop.length()
        if not recorder.counters.occur_in(length) and recorder.decide(length, "<=", MOST_UNROLLED, "a short loop"):
            return None
        return loop_code(*key)

    def _open(self, frame: FrameType, code: LoopCode) -> Any:
        loop = self.loop
        self.iteration = RecordedIteration(loop.recorder, frame, code, loop.length(), loop.start, loop.step)
        return wrap(self.iteration.counter_value, loop.recorder)
