"""The tree of a function that asks questions: stages of compiled work, and the answers between them.

A call follows the tree along known answers and runs compiled stages only. At an answer, a size or a scalar that the
tree does not know, the function is traced from its start: the answers so far come from the call, stages that ran do not
run again, and each new stage is compiled and run when its question is asked. Arguments that the function updates are
written once, at the end.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracefuse.dynamic.guards import compile_guards
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import CompiledStage, Environment, StageCompiler, check_stage
from tracefuse.frontend.calls.shared_arguments import check_no_overlap, find_shared_leaves, store_updated_numbers
from tracefuse.frontend.calls.trace_entry import Entry, finish_call, fusion_arguments
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.tracer.questions import READERS, Answers, Stage, ValueQuestion, live_numbers
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import returned

MOST_ANSWERS = 64
"""Answers that the tree keeps for one line of a call. What follows runs without the tree."""

MOST_SIBLINGS = 64
"""Stages that the tree keeps after one answer, for different state, sizes and scalars; the oldest is dropped first."""

MOST_NUMBERS = 4
"""Distinct numbers that the tree keeps as answers to one question. What follows another one runs without the tree."""


@dataclass(slots=True, eq=False)
class TreeNode:
    """A stage in the tree.

    children: the next stages by answer; several for one answer have different guards. reads: the values of this stage
    that known later stages read. axes: of all inputs so far. origin: of the first stage that a trace added, that trace,
    whose state a call must have. kept: the values that later stages read. drops: the values that are released after
    this stage. entry: of the last stage, the trace and how its result is built. compiled: for `reads`, made when it is
    needed. is_free: whether every call may go on with it. read: reads the answer.
    """

    stage: Stage
    axes: Mapping[int, tuple[int, int]]
    origin: Entry | None = None
    entry: Entry | None = None
    children: dict[Any, list[TreeNode]] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    is_free: bool = field(init=False)
    read: Callable[[Any], Any] = field(init=False)
    kept: set[int] = field(default_factory=set)
    drops: tuple[int, ...] = ()
    compiled: CompiledStage | None = None
    _holds: Callable[[Mapping[Any, int]], bool] | None = None

    def __post_init__(self) -> None:
        guarded = self.stage.guards or self.stage.scalar_guards or self.origin is not None
        self.is_free = not guarded
        self.read = READERS[self.stage.question.operation] if self.stage.question is not None else bool

    @property
    def wanted(self) -> list[int]:
        """The values that the stage computes."""
        question = self.stage.question
        return [*(() if question is None else (question.number,)), *sorted(self.reads)]

    def accepts(self, environment: Environment) -> bool:
        """Whether the guards of the stage hold for a call."""
        if not self.stage.guards and not self.stage.scalar_guards:
            return True
        if self._holds is None:
            self._holds = compile_guards(self.stage.guards)
        facts = environment.facts()
        return self._holds(facts) and all(guard.holds(facts) for guard in self.stage.scalar_guards)


class QuestionTree:
    """The tree of one function for one trace key.

    traces: how often it was traced.
    """

    def __init__(self, compiler: StageCompiler, kind: str) -> None:
        self.compiler, self.kind = compiler, kind
        self.roots: list[TreeNode] = []
        self.traces = 0
        self.warned: set[str | None] = set()

    def follow(self, call: CallArguments) -> CallProgress:
        """Runs a call along known answers, as far as the tree knows them."""
        progress = CallProgress(Environment(arguments_by_number(call, self.kind), {}), [], [])
        environment, path, answers = progress.environment, progress.path, progress.answers
        level: Sequence[TreeNode] = self.roots
        while True:
            for node in level:
                if node.is_free or self._enter(node, environment, call):
                    break
            else:
                return progress
            environment.axes, values = node.axes, environment.values
            stage = node.stage
            if stage.requirements:
                check_stage(stage, environment)
            (node.compiled or self._compiled(node)).run(environment)
            if stage.question is None:
                progress.entry = node.entry
                return progress
            answer = node.read(values[stage.question.number])
            path.append(node)
            answers.append(answer)
            for number in node.drops:
                values.pop(number, None)
            level = node.children.get(key_of(answer), ())

    def _enter(self, node: TreeNode, environment: Environment, call: CallArguments) -> bool:
        """Whether a call goes on with this stage; adds the captured arrays and the results of the prologue."""
        axes, values = environment.axes, environment.values
        environment.axes = node.axes
        if node.origin is not None:
            arguments = fusion_arguments(node.origin, call)
            if arguments is None:
                environment.axes = axes
                return False
            numbered = zip(node.origin.trace.fusion.inputs, arguments, strict=True)
            environment.values = values | {n: value for n, value in numbered if n >= node.stage.first}
        if node.accepts(environment):
            return True
        environment.axes, environment.values = axes, values  # the numbers of another trace mean other values
        return False

    def _compiled(self, node: TreeNode) -> CompiledStage:
        if node.compiled is None:
            earlier = range(node.stage.first)
            node.compiled = self.compiler.compile(node.stage, node.wanted, earlier)
        return node.compiled

    # -- growing ------------------------------------------------------------------------------------------------------

    def add(self, path: Sequence[TreeNode], stages: Sequence[Stage], entry: Entry) -> None:
        """Adds the stages of a trace after those of `path`, which the tree has."""
        self.traces += 1
        traced = entry.trace
        whole = [*path]
        axes = {key: (number, axis) for key, number, axis in traced.fusion.axis_ids()}
        counts = Counter(node.stage.question.where for node in path if node.stage.question is not None)
        for stage in stages[len(path) :]:
            above = whole[-1] if whole else None
            if above is not None and self._is_full(above, counts):
                break
            ends = {key: place for key, place in axes.items() if place[0] < stage.end}
            origin = entry if len(whole) == len(path) else None
            node = TreeNode(stage, ends, origin, entry if stage.question is None else None)
            siblings = self.roots if above is None else above.children.setdefault(_answer_key(above, stages, whole), [])
            siblings.insert(0, node)
            del siblings[MOST_SIBLINGS:]
            whole.append(node)
            if stage.question is not None:
                counts[stage.question.where] += 1
        self._spread_reads(whole)

    def _is_full(self, node: TreeNode, counts: Counter[str | None]) -> bool:
        """Whether no other answer to a question is kept; warns once for each line."""
        question = node.stage.question
        assert question is not None
        if counts[question.where] >= MOST_ANSWERS:
            self._warn(
                question,
                f"asked more than {MOST_ANSWERS} times in one call: from there on, every call runs the function; "
                "write tracefuse.while_loop(cond_fun, body_fun, init_val)",
            )
            return True
        if not question.is_choice and len(node.children) >= MOST_NUMBERS:
            self._warn(
                question,
                f"had more than {MOST_NUMBERS} values: from there on, every call runs the function; keep it an array",
            )
            return True
        return False

    def _warn(self, question: ValueQuestion, what: str) -> None:
        if question.where not in self.warned:
            self.warned.add(question.where)
            warnings.warn(
                f"{question.operation} of a computed value {what} ({question.where})", UserWarning, stacklevel=2
            )

    def _spread_reads(self, path: Sequence[TreeNode]) -> None:
        """Makes each stage compute what the later stages of a path read from it."""
        for position in reversed(range(len(path))):
            node = path[position]
            if node.entry is not None:
                node.reads = set(node.entry.trace.fusion.outputs)
            compiled = self._compiled(node)
            read = {n for n in compiled.read if n >= 0}
            read |= {n for n in node.wanted if n < node.stage.first}
            for earlier in path[:position]:
                earlier.kept |= read
                new = {n for n in read if earlier.stage.first <= n < earlier.stage.end and _is_computed(node.stage, n)}
                if not new <= earlier.reads:
                    earlier.reads |= new
                    earlier.compiled = None
        held: set[int] = set()
        for node in path:
            held.update(node.wanted)
            node.drops = tuple(held - node.kept)
            held &= node.kept


@dataclass(slots=True, eq=False)
class CallProgress:
    """How far a call came: its values, the stages that ran with their answers, and the entry of its result, if any."""

    environment: Environment
    path: list[TreeNode]
    answers: list[Any]
    entry: Entry | None = None


class Discovery(Answers):
    """Answers the questions of a trace: first as the call was answered so far, then by running each new stage."""

    def __init__(self, tree: QuestionTree, progress: CallProgress, call: CallArguments) -> None:
        super().__init__()
        self.tree, self.progress, self.call = tree, progress, call

    @classmethod
    def at_start(cls, tree: QuestionTree, call: CallArguments) -> Discovery:
        """The discovery of a call of which nothing has run."""
        return cls(tree, CallProgress(Environment(arguments_by_number(call, tree.kind), {}), [], []), call)

    def complete(self, entry: Entry) -> Entry:
        """Runs the last stage of a trace and adds its stages to the tree; returns the entry with the values."""
        traced, environment = entry.trace, self.progress.environment
        if traced.prints or any(node.op.effect for node in traced.fusion.nodes):
            what = "debug_print" if traced.prints else "a random draw"
            raise UnsupportedError(
                f"{what} in a function that asks questions about computed values",
                hint="do it outside of the fused function", where=self.stages[0].where,
            )  # fmt: skip
        self._forget_later_numbers(len(self.stages) - 1)
        arguments = fusion_arguments(entry, self.call)
        if arguments is None:
            raise TraceError("state that the function reads changes while it runs", hint="pass it as an argument")
        for number, value in zip(traced.fusion.inputs, arguments, strict=True):
            environment.values.setdefault(number, value)
        environment.axes = {key: (number, axis) for key, number, axis in traced.fusion.axis_ids()}
        self.run(self.stages[-1], traced.fusion.outputs)
        self.tree.add(self.progress.path, self.stages, entry)
        entry.values = environment
        return entry

    def answer(self, recorder: Recorder, stage: Callable[[Any], Stage], traced: Traced, operation: str) -> Any:
        position = len(self.stages)
        if position < len(self.progress.answers):
            return self.progress.answers[position]
        unanswered = stage(None)
        self._forget_later_numbers(len(self.stages))
        self.bind(recorder)
        number = traced.number
        live = {n for n in live_numbers(recorder) if n in unanswered.makers and unanswered.values[n].is_tensor}
        environment = self.progress.environment
        self.run(unanswered, [number, *sorted(live - {number})])
        answer = ValueQuestion(operation, number, None, None).read(environment.values[number])
        inputs = recorder.builder.inputs
        environment.values = {n: v for n, v in environment.values.items() if n in live or n in inputs}
        return answer

    def _forget_later_numbers(self, asked: int) -> None:
        """Drops values of the stages after the known ones, which another trace numbered, before the first new stage.

        asked: how many questions were asked before this stage.
        """
        values = self.progress.environment.values
        if asked == len(self.progress.path):
            end = self.progress.path[-1].stage.end if self.progress.path else count_arguments(self.call)
            self.progress.environment.values = {n: value for n, value in values.items() if n < end}

    def run(self, stage: Stage, wanted: Sequence[int]) -> None:
        """Runs a stage for the current call."""
        environment = self.progress.environment
        check_stage(stage, environment)
        self.tree.compiler.compile(stage, wanted, environment.values.keys()).run(environment)

    def bind(self, recorder: Recorder) -> None:
        """Adds the captured arrays and the results of the prologue of a trace to the values of the call."""
        environment, constants = self.progress.environment, recorder.builder.constants
        enter = arrays.entering(self.tree.kind)
        for number in recorder.builder.inputs:
            if number not in environment.values:
                environment.values[number] = entered(constants[number], enter)
        builder, axes, position = recorder.builder, {}, 0
        for number in builder.inputs:
            value = builder.values[number]
            for axis in range(len(value.shape) if value.is_tensor else 0):
                position += 1
                axes[-position] = (number, axis)
        environment.axes = axes


def arguments_by_number(call: CallArguments, kind: str) -> dict[int, Any]:
    """The arguments of a call by the numbers that a trace gives them."""
    enter = arrays.entering(kind)
    values = [leaf.value for leaf in call.leaves if not leaf.is_static]
    return {number: entered(value, enter) for number, value in enumerate(values)}


def entered(value: Any, enter: Callable[[Any], Any]) -> Any:
    """An array as one of NumPy or CuPy, and a number as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    return enter(value) if hasattr(value, "shape") else value


def count_arguments(call: CallArguments) -> int:
    """The number of arguments that are inputs of a trace."""
    return sum(not leaf.is_static for leaf in call.leaves)


def key_of(answer: Any) -> Any:
    """The key of an answer in the tree: NaN equals itself, and numbers of two types differ."""
    if answer is True or answer is False:
        return answer
    return (type(answer), repr(answer) if answer != answer else answer)


def finish(entry: Entry, environment: Environment, call: CallArguments) -> Any:
    """Writes the arguments that a call updates, and returns its result."""
    traced, values = entry.trace, environment.values
    arguments = [values[number] for number in traced.fusion.inputs]
    if traced.fusion.aliases or traced.updated_numbers:
        _write_arguments(entry, values, arguments, call)
    outputs = number_conditions.check(traced, [values[number] for number in returned(traced.fusion)])
    outputs = store_updated_numbers(traced, call.leaves, outputs)
    outputs = list(map(arrays.leaving(entry.kind), outputs))
    arrays.hold(entry.kind, arguments)
    return finish_call(entry, [leaf.value for leaf in call.leaves], arguments, outputs, call.roots)


def _write_arguments(
    entry: Entry, values: Mapping[int, Any], arguments: Sequence[Any], call: CallArguments
) -> None:  # fmt: skip
    device = entry.array_device
    if find_shared_leaves(entry.trace, device, arguments):
        raise UnsupportedError(
            "two arguments share memory, and the function updates one and asks a question", hint="pass a copy of one"
        )
    check_no_overlap(entry.trace, device, arguments, call.leaves)
    for number, owner in entry.trace.fusion.aliases.items():
        device.copy(values[number], values[owner])


def _answer_key(above: TreeNode, stages: Sequence[Stage], whole: Sequence[TreeNode]) -> Any:
    """The key of the answer that the trace got to the question of the last stage that the tree has."""
    question = stages[len(whole) - 1].question
    assert question is not None
    return key_of(question.answer)


def _is_computed(stage: Stage, number: int) -> bool:
    return number in stage.makers and stage.values[number].is_tensor
