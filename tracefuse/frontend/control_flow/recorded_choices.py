"""What the code of functions calls whose loops ask questions; see `tracer/python_code/rewritten_loops.py`.

In a loop that is recorded once, a branch is a loop with at most one iteration: it runs if its condition is true. So the
body of the loop is recorded with both branches. A `while` loop, and a `for` loop with `break`, have a condition that
each iteration computes. Everywhere else the conditions are questions, as in the function itself.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tracefuse.frontend.control_flow import joined_calls, joined_lists, joined_reads
from tracefuse.frontend.control_flow.contained_numbers import numbers_contain
from tracefuse.frontend.control_flow.counted_iterations import CountedIterations
from tracefuse.frontend.control_flow.iterated_entries import loop_over
from tracefuse.frontend.control_flow.iteration_conditions import UNKNOWN_LENGTH, IterationCondition
from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration
from tracefuse.frontend.control_flow.recorded_ranges import MOST_UNROLLED, LoopIterator
from tracefuse.frontend.control_flow.traced_conditions import (
    is_in_recorded_loop,
    limits_of,
    record_loops_around,
    recorder_of,
    truth_of,
)
from tracefuse.frontend.control_flow.unrolled_loops import Unrolling, can_record
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.python_code.frame_locals import locals_of
from tracefuse.frontend.tracer.python_code.loop_code import loop_code
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorded_loops import LoopKey
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of


class ControlFlowTwin:
    """The methods that rewritten code calls."""

    def branches(self, condition: Any) -> Iterator[bool]:
        """Returns an iterator over the branches that run: True for `if`, False for `else`."""
        return _Branches(self._compared_with_zero(condition))

    def steps_while(self, condition: Any) -> Iterator[Any]:
        """Returns an iterator over the steps of a `while` loop. condition: of the first one."""
        return _WhileSteps(self._compared_with_zero(condition))

    def steps_of(self, going: str, function: Callable[..., Any] | None, *arguments: Any) -> Iterator[Any]:
        """Returns an iterator over a result of a function, or an argument, until the variable `going` is false."""
        loop = loop_over(function, arguments)
        if loop is not None:
            return LoopIterator(loop, going)
        return _StepsUntil(iter(*arguments) if function is None else iter(function(*arguments)), going)

    def reads(self, going: Any) -> None:
        """Does nothing. The call shows that the loop reads the variable after each step."""

    def truth(self, value: Any) -> Any:
        """Returns the truth of a value, traced or not."""
        value = self._compared_with_zero(value)
        recorder = recorder_of(value)
        if recorder is None or not is_in_recorded_loop(recorder):
            return value if recorder is not None else bool(value)
        return truth_of(value)

    def negated(self, value: Any) -> Any:
        """Returns `not value`, traced or not."""
        value = self._compared_with_zero(value)
        recorder = recorder_of(value)
        if recorder is None:
            return not value
        return apply("logical_not", truth_of(value))

    # -- variables that are None, or strings --------------------------------------------------------------------------

    def is_none(self, value: Any) -> bool:
        """Returns whether a variable has been bound to `None`."""
        return value is None

    def given(self, value: Any, none: Any) -> Any:
        """Returns the value of a variable that is `None` if `none` is true, or of one that is never read then."""
        recorder = recorder_of(none)
        if recorder is not None and is_in_recorded_loop(recorder):
            assume(apply("logical_not", none))
            return value
        return None if none else value

    def entry_given(self, value: Any, none: Any) -> Any:
        """Returns an entry of a tuple; raises what `None[0]` raises if a variable is `None` in place of the tuple."""
        recorder = recorder_of(none)
        if recorder is not None and is_in_recorded_loop(recorder):
            assume(apply("logical_not", none))
            return value
        return operator.getitem(None, 0) if none else value  # type: ignore[call-overload]

    def named(self, position: Any, *names: str) -> str:
        """Returns the string of a variable that holds its position."""
        return names[int(position)]

    def needs_recording(self, recorder: Recorder) -> None:
        """Begins the trace again if a slice is about to ask for computed bounds in an unrolled loop."""
        record_loops_around(recorder)

    # -- lists and comprehensions -------------------------------------------------------------------------------------

    def rows(self, *entries: Any) -> list[Any]:
        """Returns a new list, which no code reads but by `called`, `entries`, `first` and `after_first`."""
        return joined_lists.new_list(*entries)

    def listed(self, array: Any) -> Any:
        """Returns `array.tolist()`, as such a list."""
        return joined_lists.listed(array)

    def entries(self, value: Any) -> Any:
        """Returns what the user's code reads in the place of such a list, and may keep under another name."""
        return joined_lists.handed_out(value)

    def iterated(self, value: Any) -> Any:
        """Returns what a loop over such a list iterates over."""
        return joined_reads.iterated(value)

    def entry(self, value: Any, index: Any) -> Any:
        """Returns an entry of such a list."""
        return joined_reads.entry_at(value, index)

    def sorted(self, function: Callable[..., Any], value: Any, reverse: Any = False) -> Any:
        """Returns such a list, sorted."""
        return joined_calls.sorted_list(function, value, reverse)

    def length(self, value: Any) -> Any:
        """Returns what is true if such a list has entries."""
        return joined_calls.length(value) if joined_lists.is_joined(value) else value

    def part(self, value: Any, key: slice) -> Any:
        """Returns a slice of such a list."""
        return joined_reads.part_of(value, key)

    def reverse(self, value: Any, *arguments: Any) -> None:
        """Reverses such a list in place."""
        joined_reads.reverse(value, *arguments)

    def returned(self, value: Any, function: Callable[..., Any] | None = None) -> Any:
        """Returns such a list, or `function` of it, where the user's code returns it."""
        recorder, original = current.get(), getattr(function, "__wrapped__", function)
        if recorder is None or original not in (None, list, tuple) or not recorder.is_called_in(sys._getframe(2)):
            return self.entries(value) if function is None else self.called(function, value)
        return joined_reads.as_result(value, tuple if original is tuple else list)

    def called(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Calls a function with such lists among its arguments."""
        recorder = current.get()
        if recorder is not None and recorder.overlays is not None:
            function = recorder.overlays.called_twin(function)
        return joined_calls.call_with_lists(function, [*arguments], keywords)

    def is_builtin(self, name: str, function: Any) -> bool:
        """Whether a function is Python's, and a loop computes what it does."""
        return joined_reads.is_builtin(name, function)

    def first(self, function: Callable[..., Any], value: Any) -> Any:
        """Returns the first entry of such a list."""
        return joined_reads.first_of(function, value)

    def after_first(self, value: Any) -> Any:
        """Returns the other entries."""
        return joined_reads.after_first(value)

    def _compared_with_zero(self, value: Any) -> Any:
        return self.compared("ne", value, 0) if isinstance(value, SymbolicSize) else value

    def compared(self, relation: str, left: Any, right: Any) -> Any:
        """Returns a comparison. One of sizes that differs between iterations is traced."""
        recorder = current.get()
        extents = extent_of(left), extent_of(right)
        is_of_sizes = isinstance(left, SymbolicSize) or isinstance(right, SymbolicSize)
        first, second = extents
        if recorder is None or not is_of_sizes or first is None or second is None:
            return getattr(operator, relation)(left, right)
        if not recorder.counters.occur_in(first, second):
            return getattr(operator, relation)(left, right)
        try:
            return getattr(operator, relation)(left, right)
        except NotInEveryIteration:
            result = truth_of(apply(relation, recorder.scalar(first), recorder.scalar(second)))
            recorder.loops.limits[result.number] = limits_of(recorder, relation, first, second)
            return recorder.python_number(result, "bool")

    def contained(self, value: Any, container: Any) -> Any:
        """Returns `value in container`; traced if a number differs between iterations, and all entries are numbers."""
        recorder = recorder_of(value) or (current.get() if isinstance(value, SymbolicSize) else None)
        if recorder is None or not is_in_recorded_loop(recorder):
            return value in container
        return numbers_contain(container, value, self.compared)


class _Branches:
    """The branches of one `if`: those that run, or both while a loop is recorded."""

    def __init__(self, condition: Any) -> None:
        self.condition = condition
        self.rest: Iterator[bool] | None = None
        self.recorded: list[RecordedIteration] = []
        self.outcomes: list[bool] | None = None

    def __iter__(self) -> Iterator[bool]:
        return self

    def __next__(self) -> bool:
        if self.rest is None:
            frame, recorder = sys._getframe(1), recorder_of(self.condition)
            if recorder is not None and is_in_recorded_loop(recorder):
                return self._recorded(recorder, frame)
            if recorder is not None:
                record_loops_around(recorder)
            self.rest = iter((bool(self.condition),))
        return next(self.rest)

    def _recorded(self, recorder: Recorder, frame: FrameType) -> bool:
        code, place, loops = loop_code(frame.f_code, frame.f_lasti), (frame.f_code, frame.f_lasti), recorder.loops
        if code is None:
            raise NotInEveryIteration("a branch leaves the function, or binds what others see")
        if self.outcomes is None:
            self.condition = truth_of(self.condition)
            self.outcomes = self._possible(recorder, place)
        else:
            self.recorded[-1].close()
            loops.branches.pop()
        if not self.outcomes:
            if len(self.recorded) == 2:
                self._check_defined(*self.recorded)
            self.rest = iter(())
            raise StopIteration
        is_true = self.outcomes.pop(0)
        truth = self.condition if is_true else apply("logical_not", self.condition)
        limits = loops.limits.get(self.condition.number, ((), ()))[not is_true]
        condition = IterationCondition(truth, lambda _: False, limits, loops.open[-1])
        self.recorded.append(RecordedIteration(recorder, frame, code, 1, 0, 1, condition))
        loops.branches.append((len(loops.open), (place, is_true)))
        return is_true

    def _possible(self, recorder: Recorder, place: LoopKey) -> list[bool]:
        """Returns the outcomes of the condition whose branches are recorded. The call checks that no other occurs."""
        raising = recorder.loops.decisions.raising
        possible = [outcome for outcome in (True, False) if (place, outcome) not in raising]
        if not possible:
            raise NotInEveryIteration("both branches raise exceptions")
        if len(possible) == 1:
            assume(self.condition if possible[0] else apply("logical_not", self.condition))
        return possible

    def _check_defined(self, first: RecordedIteration, second: RecordedIteration) -> None:
        """Raises NotInEveryIteration for a variable that only one branch binds, and that had no value before.

        (Code reads a result of rewritten code only if the branch that binds it has run.)
        """
        unbound = (first.undefined - second.rebound - second.are_none) | second.undefined
        unbound = {name for name in unbound if name.isidentifier()}
        if unbound:
            raise NotInEveryIteration(f"{min(unbound)} is bound by one branch alone")


class _Step:
    """One step of a `while` loop. condition: of the next one."""

    def __init__(self) -> None:
        self.condition: Any = None

    def follow(self, condition: Any) -> None:
        """Sets the condition of the next step."""
        self.condition = condition


class _WhileSteps:
    """The steps of one `while` loop: as many as run, or one that is recorded for all."""

    def __init__(self, condition: Any) -> None:
        self.step = _Step()
        self.step.condition = condition
        self.iteration: RecordedIteration | None = None
        self.counted: CountedIterations | None = None
        self.unrolling: Unrolling | None = None

    def __iter__(self) -> Iterator[_Step]:
        return self

    def __next__(self) -> _Step:
        if self.iteration is not None:
            if self.counted is not None:
                return self._again(self.iteration, self.counted)
            self.iteration.close()
            raise StopIteration
        recorder = current.get()
        if recorder is None:
            return self._if_true()
        if self.unrolling is None:
            frame = sys._getframe(1)
            if self._opens(recorder, frame):
                return self.step
            self.unrolling = Unrolling(recorder, self, (frame.f_code, frame.f_lasti))
        self.unrolling.count(1)
        if recorder_of(self.step.condition) is not None or self.unrolling.steps > MOST_UNROLLED:
            record_loops_around(recorder)
        return self._if_true()

    def _again(self, iteration: RecordedIteration, counted: CountedIterations) -> _Step:
        """Begins a second recording of the loop, with as many iterations as the first one has counted."""
        iteration.close(counted)
        length, self.counted = counted.undo(iteration), None
        if length == 0:
            raise StopIteration
        self.iteration = RecordedIteration(iteration.recorder, iteration.frame, iteration.code, length, 0, 1)
        return self.step

    def _if_true(self) -> _Step:
        if self.step.condition:
            return self.step
        if self.unrolling is not None:
            self.unrolling.end()
        raise StopIteration

    def _opens(self, recorder: Recorder, frame: FrameType) -> bool:
        """Opens the recording of a step, if the loop is recorded."""
        key, condition = (frame.f_code, frame.f_lasti), self.step.condition
        decisions = recorder.loops.decisions
        is_computed = recorder_of(condition) is not None
        if key in decisions.unrolled or not can_record(recorder) or not (is_computed or key in decisions.nests):
            return False
        if recorder.device is not None and recorder.body is None:  # compiled answers take less time there
            return False
        code = loop_code(*key)
        if code is None:
            return False
        initial = None
        if is_computed and (is_in_recorded_loop(recorder) or recorder.contents.follows_sizes(condition.number)):
            initial = truth_of(condition)
        elif not condition:
            self.step.condition = False
            return False
        following = IterationCondition(initial, lambda _: self._following())
        before = locals_of(frame)
        self.iteration = RecordedIteration(recorder, frame, code, UNKNOWN_LENGTH, 0, 1, following)
        if key in decisions.counted:
            self.counted, self.iteration.before = CountedIterations(), before
        return True

    def _following(self) -> Any:
        condition = self.step.condition
        return truth_of(condition) if recorder_of(condition) is not None else bool(condition)


class _StepsUntil:
    """What an iterator gives, until a variable of the function is false."""

    def __init__(self, iterator: Iterator[Any], going: str) -> None:
        self.iterator, self.going = iterator, going

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not locals_of(sys._getframe(1))[self.going]:
            raise StopIteration
        return next(self.iterator)


CONTROL_FLOW = ControlFlowTwin()
