"""A call at an answer, a size or a scalar that the tree of questions does not know.

The function is traced from its start: the answers so far come from the call, stages that ran do not run again, and
each new stage is compiled and run when its question is asked. Random draws and printed lines happen once, also if the
trace starts again. State and arguments are written at the end of the call, see `tree_results.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.errors import TraceError, TracefuseError, UnsupportedError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import check_stage
from tracefuse.frontend.calls.question_tree import (
    FEW_ELEMENTS,
    MOST_ANSWERS,
    MOST_STAGES_OF_FEW_ELEMENTS,
    MOST_STAGES_OF_ONE_LINE,
    CallProgress,
    QuestionTree,
    count_arguments,
    entered,
)
from tracefuse.frontend.calls.trace_entry import Entry, fusion_arguments
from tracefuse.frontend.calls.untraced_calls import FunctionRuns
from tracefuse.frontend.python_numbers.number_conditions import ConditionFailed, of_conditions
from tracefuse.frontend.tracer.effects.questions import Answers, IntegerQuestion, Question, Stage
from tracefuse.frontend.tracer.effects.reachable_values import live_numbers
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.ops.random_draws import SourceOfCall
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import ShapeDtype

MOST_LEFT = 3
"""Calls that run the function itself without a warning, where later ones may not: those that open files."""


class Discovery(Answers):
    """Answers the questions of a trace: first as the call was answered so far, then by running each new stage."""

    def __init__(self, tree: QuestionTree, progress: CallProgress, call: CallArguments, is_tree: bool = True) -> None:
        super().__init__(progress.numbers, is_tree, tree.refusal)
        self.tree, self.progress, self.call = tree, progress, call
        if not call.numbers <= progress.numbers:
            self.restart(progress.numbers | call.numbers)

    @classmethod
    def at_start(cls, tree: QuestionTree, call: CallArguments) -> Discovery:
        """The discovery of a call of which nothing has run, of a function that may ask no questions."""
        if any(isinstance(leaf.value, ShapeDtype) and not leaf.value.has_elements for leaf in call.leaves):
            cls = Unanswered
        return cls(tree, CallProgress.at_start(call, tree.kind, tree.numbers), call, is_tree=False)

    def begin(self) -> None:
        super().begin()
        # The results of the effects that the trace has passed, and how many lines and generators it has.
        self._effects: list[tuple[int, ...]] = []
        self._lines = 0
        self._sources = Counter[Callable[..., Any]]()
        self._executables = set[int]()
        # How many of them a question on a line asked for first.
        self._of_lines = Counter[str | None]()

    def restart(self, numbers: frozenset[Any]) -> None:
        done = self.progress.environment
        if numbers != self.numbers and done.drawn is not None and done.drawn.restore():
            done.effects = []  # the next trace may draw in one loop what this one has drawn step by step
        self.progress = CallProgress.at_start(self.call, self.tree.kind, numbers)
        following = self.progress.environment
        following.effects, following.printed, following.drawn = done.effects, done.printed, done.drawn
        self.numbers = numbers
        self.begin()

    def source_of_call(self, make: Callable[..., Any]) -> SourceOfCall:
        sources = [source for source in self.tree.sources if source.make is make]
        if self._sources[make] == len(sources):
            sources.append(SourceOfCall(make))
            self.tree.sources.append(sources[-1])
        self._sources[make] += 1
        return sources[self._sources[make] - 1]

    def complete(self, entry: Entry) -> Entry:
        """Runs the last stage of a trace and adds its stages to the tree; returns the entry with the values."""
        traced, environment = entry.trace, self.progress.environment
        self._forget_later_numbers(len(self.stages) - 1)
        arguments = fusion_arguments(entry, self.call)
        if arguments is None:
            raise TraceError("state that the function reads changes while it runs", hint="pass it as an argument")
        for number, value in zip(traced.fusion.inputs, arguments, strict=True):
            if value is not None:
                environment.values.setdefault(number, value)
        for number, _ in traced.host_sizes:
            environment.values.setdefault(number, traced.sizes[number])
        environment.axes = {key: (number, axis) for key, number, axis in traced.fusion.axis_ids()}
        try:
            self._run(self.stages[-1], traced.fusion.outputs)
        except Exception as error:
            raise of_conditions(traced, error) from None
        self.tree.add(self.progress.path, self.stages, self.answers, entry, self.numbers)
        last = self.stages[-2].question if len(self.stages) > 1 else None
        if self.call.may_run_function and last is not None:
            self.tree.close_if_full(last)
        entry.values, entry.device_of_stages = environment, self.tree.compiler.device
        return entry

    def answer(self, recorder: Recorder, stage: Stage) -> Any:
        position = len(self.stages)
        if position < len(self.progress.answers):
            known = self.progress.path[position].stage if position < len(self.progress.path) else stage
            if known.end != stage.end:
                raise AnotherAttempt  # this trace gave other numbers to values: it begins again, and runs every stage
            self._pass(stage)
            return self.progress.answers[position]
        assert stage.question is not None
        self.tree.unrolled = recorder.loops.reasons() or self.tree.unrolled
        self._check_count(stage.question)
        self._forget_later_numbers(position)
        self._bind(recorder)
        live = {n for n in live_numbers(recorder) if n in stage.makers and stage.values[n].is_tensor}
        environment = self.progress.environment
        self._run(stage, sorted(live))
        answer = self.tree.compiler.answer(stage.question, environment.values)
        needed = {*live, *recorder.builder.inputs, *recorder.objects}
        environment.values = {n: v for n, v in environment.values.items() if n in needed}
        results = stage.question.results_of(answer)
        environment.values.update(zip(results, answer if results else (), strict=True))
        return answer

    def _check_count(self, question: Question) -> None:
        """Leaves a call to the function itself that asks too often: on one line, or after little work each time."""
        if not self.call.may_run_function:
            return
        if len(self.stages) >= MOST_ANSWERS:
            count = sum(stage.where == question.where for stage in self.stages)
            if count >= MOST_ANSWERS and self.progress.environment.rewind():
                self.tree.close_at(question)
                raise FunctionRuns
        many = len(self._executables) >= MOST_STAGES_OF_FEW_ELEMENTS
        if isinstance(question, IntegerQuestion):
            many |= self._of_lines[question.where] >= MOST_STAGES_OF_ONE_LINE
        if not many or not self._has_few_elements():
            return
        if self.progress.environment.rewind():
            self.tree.close_at_small(question, len(self._executables))
            raise FunctionRuns

    def _has_few_elements(self) -> bool:
        """Whether every array that the call has, or has computed and not released, has few elements."""
        values = self.progress.environment.values.values()
        return all(math.prod(value.shape) <= FEW_ELEMENTS for value in values if hasattr(value, "shape"))

    def leave(self, refusal: TracefuseError) -> None:
        """Leaves a call to the function itself, after a refusal that allows it, if nothing has happened for good."""
        may_leave = refusal.runs_function and refusal.given_to is None
        if may_leave and self.call.may_run_function and self.progress.environment.rewind():
            self.tree.left += refusal.is_of_first_calls
            if not refusal.is_of_first_calls or self.tree.left > MOST_LEFT:
                self.tree.close_after(refusal)
            raise FunctionRuns

    def _forget_later_numbers(self, questions: int) -> None:
        """Drops values of the stages after the known ones, which another trace numbered, before the first new stage.

        questions: how many questions were asked before this stage.
        """
        values, path = self.progress.environment.values, self.progress.path
        if questions == len(path):
            end = count_arguments(self.call)
            if path and path[-1].stage.question is not None:
                last, answer = path[-1].stage, self.progress.answers[len(path) - 1]
                end = max((last.end, *(n + 1 for n in path[-1].stage.question.results_of(answer))))
            self.progress.environment.values = {n: value for n, value in values.items() if n < end}

    def _pass(self, stage: Stage) -> None:
        """Counts the effects and the printed lines of a stage."""
        self._effects += stage.effects
        self._lines += len(stage.prints)

    def _run(self, stage: Stage, reads: Sequence[int]) -> None:
        """Runs a stage for the current call, without the effects and lines that happened in an earlier attempt."""
        environment = self.progress.environment
        check_stage(stage, environment)
        happened = len(environment.effects) - len(self._effects)
        for numbers, results in zip((*self._effects, *stage.effects), environment.effects, strict=False):
            environment.values.update(zip(numbers, results, strict=True))  # never computed again
        wanted = [*stage.wanted, *reads]
        compiled = self.tree.compiler.compile(stage, wanted, environment.values.keys())
        if stage.effects and environment.drawn is not None:
            environment.drawn.add(compiled.sources)
        compiled.run(environment)
        if compiled.executable is not None and id(compiled.executable) not in self._executables:
            self._executables.add(id(compiled.executable))
            self._of_lines[stage.where] += 1
        if stage.condition is not None and not environment.values[stage.condition]:
            raise ConditionFailed
        environment.add_effects(stage, happened)
        lines = stage.prints[max(0, environment.printed - self._lines) :]
        if lines:
            environment.print_lines(lines)
        self._pass(stage)

    def _bind(self, recorder: Recorder) -> None:
        """Adds the captured arrays and the results of the prologue of a trace to the values of the call."""
        environment = self.progress.environment
        constants = {**recorder.builder.constants, **recorder.changing}
        enter = arrays.entering(self.tree.kind)
        for number in recorder.builder.inputs:
            if number not in environment.values:
                value = constants[number] if number in constants else recorder.hints[number]
                environment.values[number] = entered(value, enter)
        builder, axes, position = recorder.builder, {}, 0
        for number in builder.inputs:
            value = builder.values[number]
            for axis in range(len(value.shape) if value.is_tensor else 0):
                position += 1
                axes[-position] = (number, axis)
        environment.axes = axes


class Unanswered(Discovery):
    """The questions of a trace for stand-ins of arrays, which have no elements."""

    def answer(self, recorder: Recorder, stage: Stage) -> Any:
        assert stage.question is not None
        raise UnsupportedError(
            f"{stage.question.title}: a ShapeDtype has no elements to compute it from",
            hint="give arrays: the function runs on them up to its result, and writes nothing", where=stage.where,
        )  # fmt: skip
