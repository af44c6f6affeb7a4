"""`for i in range(n)` of a fused function: the body runs once while it is traced, and is recorded as a loop.

Loops over arrays, `enumerate`, `zip` and `reversed` are loops over positions, see `iterated_entries.py`.
In the body the counter is a size, so extents may depend on it. Arrays that the body writes, and variables that it
rebinds, are carried from iteration to iteration: each has a placeholder in the body. Short loops, and loops of which
one recording does not express every iteration, are unrolled: the trace begins again, and Python runs each iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tracefuse import source
from tracefuse.dtypes import int64
from tracefuse.frontend.control_flow.iteration_conditions import UNKNOWN_LENGTH, IterationCondition
from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
from tracefuse.frontend.control_flow.unrolled_loops import MOST_IN_NEST, Unrolling, can_record
from tracefuse.frontend.numpy_api.twins.even_ranges import integers
from tracefuse.frontend.python_numbers.number_arithmetic import number
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.python_code.frame_locals import locals_of
from tracefuse.frontend.tracer.python_code.key_code import is_part_of_key
from tracefuse.frontend.tracer.python_code.loop_code import (
    LoopCode,
    begins_loop,
    is_iterated_by_comprehension,
    is_kept_for_loop,
    loop_code,
    makes_iterator,
)
from tracefuse.frontend.tracer.questions_in_loops import begin_again_rewritten
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, ceildiv

MOST_UNROLLED = 16
"""A loop of more iterations is recorded once. Equal steps of a short one share their kernels, and fuse."""


def range_twin(*bounds: Any) -> Any:
    """Returns what `range(*bounds)` gives; for a `for` loop that may be recorded once, an iterable that records it.

    In a key, as in `x[range(n), labels]`, a range of sizes is an array of positions.
    """
    frame = sys._getframe(1)
    loop = loop_of(bounds)
    if loop is None:
        is_iterated = begins_loop(frame.f_code, frame.f_lasti)
        return (_computed_steps(bounds) if is_iterated else None) or range(*bounds)
    if is_iterated_by_comprehension(frame.f_code, frame.f_lasti):
        begin_comprehension(loop, frame)
    if begins_loop(frame.f_code, frame.f_lasti):
        return loop
    symbolic = SymbolicRange(loop)
    if not (isinstance(loop.start, int) and isinstance(loop.stop, int)):
        return symbolic.elements() if is_part_of_key(frame.f_code, frame.f_lasti) else symbolic
    is_long = loop.recorder.device is None and len(range(*bounds)) > MOST_UNROLLED
    return symbolic if is_long and is_kept_for_loop(frame.f_code, frame.f_lasti) else range(*bounds)


def begin_comprehension(loop: LoopRange, frame: FrameType) -> None:
    """Begins the trace again if a comprehension has so many iterations that it is a loop that is recorded.

    frame: of the function, or of a comprehension around this one.
    """
    recorder, key = loop.recorder, (frame.f_code, frame.f_lasti)
    if recorder.device is not None or not can_record(recorder):
        return
    length, iterations = loop.length(), recorder.loops.iterations
    if not recorder.counters.occur_in(length):
        iterations[key] += recorder.known(length)
        is_short = recorder.decide(length, "<=", MOST_UNROLLED, "a short loop")
        if is_short and iterations[key] <= MOST_IN_NEST:
            return
    begin_again_rewritten(recorder, frame)


def loop_of(bounds: tuple[Any, ...]) -> LoopRange | None:
    """Returns the loop over a range, if its bounds are sizes and it runs in a trace."""
    recorder = current.get()
    if recorder is None or not 1 <= len(bounds) <= 3 or any(isinstance(bound, bool) for bound in bounds):
        return None
    sizes = map(as_size, bounds)
    known = [extent for extent in map(extent_of, sizes) if extent is not None]
    if len(known) < len(bounds):
        return None
    start, stop, step = (0, *known, 1) if len(known) == 1 else (*known, 1)[:3]
    if not isinstance(step, int) and recorder.counters.occur_in(step):
        return None
    reason = "the sign of the step of a range"
    is_upward = recorder.decide(1, "<=", step, reason)
    if not is_upward and not recorder.decide(step, "<=", -1, reason):
        return None
    return LoopRange(recorder, start, stop, step, is_upward=is_upward)


def _computed_steps(bounds: tuple[Any, ...]) -> _ComputedSteps | None:
    """Returns the integers of a range whose bounds the iteration of a recorded loop computes; None for others."""
    recorder = current.get()
    if recorder is None or not isinstance(recorder.body, RecordedIteration.body_type) or not 1 <= len(bounds) <= 3:
        return None
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if type(step) is not int or step == 0:
        return None
    if not any(isinstance(bound, Traced) for bound in (start, stop)) or not (_is_integer(start) and _is_integer(stop)):
        return None
    return _ComputedSteps(recorder, start, stop, step)


def _is_integer(bound: Any) -> bool:
    if isinstance(bound, Traced):
        is_number = bound.is_immutable or bound.weak is not None
        return is_number and bound.value.dtype.kind == "int" and (bound.weak == "int" or bound.weak is None)
    return extent_of(bound) is not None and not isinstance(bound, bool)


class _RecordingIterator:
    """An iterator of a loop: its second step ends the recording of a body that the first one began."""

    iteration: RecordedIteration | None = None
    is_of_loop = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        if self.iteration is None:
            return self._step(frame)
        if (frame.f_code, frame.f_lasti) != self.iteration.place:
            raise NotInEveryIteration("an iteration asks the iterator of the loop for another entry")
        self.iteration.close()
        raise StopIteration

    def _step(self, frame: FrameType) -> Any:
        """Returns the value of the loop's variable, or begins a recording. frame: of the loop."""
        raise NotImplementedError


class _ComputedSteps(_RecordingIterator):
    """The integers of a range of which the loop computes one bound or both: the body is always recorded."""

    def __init__(self, recorder: Recorder, start: Any, stop: Any, step: int) -> None:
        self.recorder, self.step = recorder, step
        self.start, self.stop = (traced_ops.apply("cast", self._operand(bound), dtype=int64) for bound in (start, stop))

    def _operand(self, bound: Any) -> Any:
        extent = extent_of(bound)
        return bound if extent is None else self.recorder.scalar(extent)

    def _step(self, frame: FrameType) -> Any:
        code = loop_code(frame.f_code, frame.f_lasti)
        if code is None:
            raise NotInEveryIteration("a loop over a computed range leaves the function, or binds what others see")
        comparison = "lt" if self.step > 0 else "gt"
        initial = traced_ops.apply(comparison, self.start, self.stop)
        condition = IterationCondition(initial, lambda _: traced_ops.apply(comparison, self._after(1), self.stop))
        self.iteration = RecordedIteration(self.recorder, frame, code, UNKNOWN_LENGTH, 0, 1, condition)
        return number(self._after(0), "int")

    def _after(self, steps: int) -> Any:
        """Returns the integer of the iteration, or of one after it."""
        assert self.iteration is not None
        distance = (self.iteration.counter_value + steps) * self.step
        return traced_ops.apply("add", self.start, self.recorder.scalar(distance))


class LoopRange:
    """The integers of a `for` loop.

    is_upward: whether a symbolic step is positive. A step is not 0.
    entry: returns the value of the loop variable for an integer, or for the counter; None for the integer itself.
    reason: why unrolled iterations need the bounds.
    """

    def __init__(
        self, recorder: Recorder, start: Extent, stop: Extent, step: Extent = 1,
        entry: Callable[[Any], Any] | None = None, reason: str | None = None, is_upward: bool = True,
    ) -> None:  # fmt: skip
        self.recorder, self.start, self.stop, self.step = recorder, start, stop, step
        self.entry, self.reason = entry, reason
        self.is_upward = step > 0 if isinstance(step, int) else is_upward

    def __iter__(self) -> Iterator[Any]:
        return LoopIterator(self)

    def length(self) -> Extent:
        """The number of iterations, negative for some loops without any."""
        if self.is_upward:
            return ceildiv(self.stop - self.start, self.step)
        return ceildiv(self.start - self.stop, -self.step)

    def integers(self) -> range:
        """Returns the integers, whose bounds the trace guards."""
        start, stop, step = (
            int(wrap(bound, self.recorder)) if self.reason is None else self.recorder.pin(bound, self.reason)
            for bound in (self.start, self.stop, self.step)
        )
        return range(start, stop, step)

    def at(self, position: Any) -> Any:
        """Returns the value of the loop variable for an integer."""
        return position if self.entry is None else self.entry(position)


class SymbolicRange:
    """A range of sizes, or one that a loop iterates over later: positions of arrays, or what a loop iterates over.

    Anything else asks for the values of its bounds.
    """

    has_elements = True
    python_type = range

    def __init__(self, loop: LoopRange) -> None:
        self.loop = loop

    def elements(self) -> Any:
        """Returns the integers as an array."""
        loop = self.loop
        start, stop = wrap(loop.start, loop.recorder), wrap(loop.stop, loop.recorder)
        return integers(loop.recorder, start, stop, wrap(loop.step, loop.recorder), int64)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        if is_iterated_by_comprehension(frame.f_code, frame.f_lasti):
            begin_comprehension(self.loop, frame)
        return iter(self.loop if makes_iterator(frame.f_code, frame.f_lasti) else self.loop.integers())

    def __len__(self) -> int:
        length, recorder = self.loop.length(), self.loop.recorder
        is_empty = recorder.decide(length, "<=", 0, "the length of a range")
        return 0 if is_empty else wrap(length, recorder)

    def __getitem__(self, key: Any) -> Any:
        return self.loop.integers()[key]

    def __reversed__(self) -> Iterator[int]:
        return reversed(self.loop.integers())

    def __contains__(self, value: Any) -> bool:
        return value in self.loop.integers()

    @property
    def start(self) -> Any:
        return wrap(self.loop.start, self.loop.recorder)

    @property
    def stop(self) -> Any:
        return wrap(self.loop.stop, self.loop.recorder)

    @property
    def step(self) -> Any:
        return wrap(self.loop.step, self.loop.recorder)

    def count(self, value: Any) -> int:
        return self.loop.integers().count(value)

    def index(self, value: Any) -> int:
        return self.loop.integers().index(value)

    def __eq__(self, other: object) -> bool:
        return self.loop.integers() == (other.loop.integers() if isinstance(other, SymbolicRange) else other)

    def __hash__(self) -> int:
        return hash(self.loop.integers())

    def __repr__(self) -> str:
        return repr(self.loop.integers())

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        is_own = source.is_internal(sys._getframe(1).f_code.co_filename)
        return type(self) if is_own else range  # for isinstance


def recorded_code(recorder: Recorder, frame: FrameType, length: Extent) -> LoopCode | None:
    """Returns the loop that a frame begins, if it is recorded once. length: the number of its iterations."""
    decisions, key = recorder.loops.decisions, (frame.f_code, frame.f_lasti)
    if key in decisions.unrolled or not can_record(recorder):
        return None
    is_free = key not in decisions.nests and not recorder.counters.occur_in(length)
    if is_free and (recorder.device is not None or recorder.decide(length, "<=", MOST_UNROLLED, "a short loop")):
        return None
    code = loop_code(*key)
    if code is None:  # `break` leaves it
        begin_again_rewritten(recorder, frame)
    return code


class LoopIterator(_RecordingIterator):
    """Gives the integers of a loop one by one, or a counter for all of them.

    going: the local variable that ends the loop when it is false.
    """

    def __init__(self, loop: LoopRange, going: str | None = None) -> None:
        self.loop, self.going = loop, going
        self.rest: Iterator[int] | None = None
        self.unrolling: Unrolling | None = None

    def _step(self, frame: FrameType) -> Any:
        if self.rest is None:
            if self._is_empty():
                raise StopIteration
            code = recorded_code(self.loop.recorder, frame, self.loop.length())
            if code is not None:
                return self._open(frame, code)
            steps = self.loop.integers()
            self.unrolling = Unrolling(self.loop.recorder, self, (frame.f_code, frame.f_lasti))
            self.unrolling.count(len(steps))
            self.rest = iter(steps)
        if self.going is None or locals_of(frame)[self.going]:
            for position in self.rest:
                if self.unrolling is not None:
                    self.unrolling.begin_step()
                return self.loop.at(position)
        if self.unrolling is not None:
            self.unrolling.end()
        raise StopIteration

    def _is_empty(self) -> bool:
        """Whether there is no iteration, of which the body of a recorded loop might have no values."""
        return self.loop.recorder.always_holds(self.loop.length(), 0, "a loop without iterations")

    def _open(self, frame: FrameType, code: LoopCode) -> Any:
        loop, going, condition = self.loop, self.going, None
        if going is not None:
            condition = IterationCondition(None, lambda after: after[going])
        self.iteration = RecordedIteration(
            loop.recorder, frame, code, loop.length(), loop.start, loop.step, condition
        )  # fmt: skip
        return loop.at(wrap(self.iteration.counter_value, loop.recorder))
