"""The tree of a function that asks questions: stages of compiled work, and the answers between them.

A call follows the tree along known answers and runs compiled stages only. What a call does at an answer, a size or a
scalar that the tree does not know: see `discovery.py`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import compile_guards
from tracefuse.dynamic.layouts import stride_names
from tracefuse.errors import TracefuseError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import CompiledStage, Environment, StageCompiler, check_stage
from tracefuse.frontend.calls.trace_entry import Entry, fusion_arguments
from tracefuse.frontend.calls.untraced_calls import FunctionRuns
from tracefuse.frontend.python_numbers.number_conditions import ERRORS_OF_NUMBERS, ConditionFailed
from tracefuse.frontend.tracer.effects.questions import Question, Stage
from tracefuse.ops.random_draws import SourceOfCall
from tracefuse.runtime.devices import arrays

MOST_ANSWERS = 64
"""Answers that the tree keeps for one line of a call. What follows runs without the tree."""

MOST_STAGES_OF_FEW_ELEMENTS = 16
"""Different compiled stages of a call whose arrays have at most `FEW_ELEMENTS`; with more, the function runs."""

MOST_STAGES_OF_ONE_LINE = 6
"""As `MOST_STAGES_OF_FEW_ELEMENTS`, of one line that asks for sizes: a loop whose steps have other shapes each."""

FEW_ELEMENTS = 2**14
"""NumPy computes an op of an array of this extent in about the time that a question and a stage take beside it."""

MOST_SIBLINGS = 64
"""Stages that the tree keeps after one answer, for different state, sizes and scalars; the oldest is dropped first."""

MOST_NUMBERS = 4
"""Distinct numbers that the tree keeps as answers to one question. What follows another one runs without the tree."""

MOST_PATHS = 64
"""Traces that a tree has. Calls with other answers run without the tree."""

MOST_PATHS_ONCE = 16
"""As `MOST_PATHS`, of a tree that served fewer calls along known answers."""

MOST_PATHS_UNUSED = 10
"""As `MOST_PATHS`, of a tree that served fewer than one call for every four traces."""


@dataclass(slots=True, eq=False)
class TreeNode:
    """A stage in the tree.

    children: the next stages by answer; several for one answer have different guards. reads: the values of this stage
    that known later stages read. axes: of all inputs so far. origin: of the first stage that a trace added, that trace,
    whose state a call must have. needed_later: the values that later stages read. drops: the values that are released
    after this stage. entry: of the last stage, the trace and how its result is built. compiled: for `reads`, built at
    the first use. step: the code of the fast path, built at the first use. is_free: whether the stage has no guards.
    has_code: whether it has such code.
    """

    stage: Stage
    axes: Mapping[int, tuple[int, int]]
    origin: Entry | None = None
    entry: Entry | None = None
    children: dict[Any, list[TreeNode]] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    is_free: bool = field(init=False)
    has_code: bool = field(init=False)
    needed_later: set[int] = field(default_factory=set)
    drops: tuple[int, ...] = ()
    compiled: CompiledStage | None = None
    step: Any = None
    _holds: Any = None
    _strides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        guarded = self.stage.guards or self.stage.scalar_guards or self.origin is not None
        self.is_free = not guarded
        is_quiet = not self.stage.effects and not self.stage.prints
        self.has_code = is_quiet and (self.entry is None or not self.entry.trace.updated_numbers)

    @property
    def wanted(self) -> list[int]:
        """The values that the stage computes."""
        return [*self.stage.wanted, *sorted(self.reads)]

    @property
    def has_conditions(self) -> bool:
        """Whether the results hold only if what the trace assumed does."""
        return self.stage.condition is not None or (self.entry is not None and bool(self.entry.trace.conditions))

    def accepts(self, environment: Environment) -> bool:
        """Whether the guards of the stage hold for a call."""
        if not self.stage.guards and not self.stage.scalar_guards:
            return True
        if self._holds is None:
            self._holds = compile_guards(self.stage.guards)
            self._strides = stride_names(side for guard in self.stage.guards for side in (guard.left, guard.right))
        facts: dict[Any, Any] = {**environment.facts(), **environment.strides(self._strides)}
        return self._holds(facts) and all(guard.holds(facts) for guard in self.stage.scalar_guards)


@dataclass(slots=True, eq=False)
class CallProgress:
    """How far a call came: its values, the stages that ran with their answers, and the entry of its result, if any.

    numbers: the routes to numbers of the state that are inputs of these stages. differing: traces whose stages could
    have followed, for other state, sizes or scalars.
    """

    environment: Environment
    path: list[TreeNode]
    answers: list[Any]
    numbers: frozenset[Any]
    entry: Entry | None = None
    differing: Sequence[Entry] = ()

    @classmethod
    def at_start(cls, call: CallArguments, kind: str, numbers: frozenset[Any]) -> CallProgress:
        """The progress of a call of which nothing has run."""
        return cls(Environment(arguments_by_number(call, kind), {}), [], [], numbers)


class QuestionTree:
    """The tree of one function for one trace key.

    traces: how often it was traced. numbers: the routes to numbers of the state that are inputs of its stages. sources:
    of the random generators that a call makes, in order. refusal: why data cannot decide sizes, or None. is_closed:
    whether it has as many answers as it keeps, so that calls with others run the function itself where they can.
    hits: the calls along known answers. left: the calls that ran the function itself where later ones may not.
    closings: why it is closed, with lines. unrolled: loops that ask in each iteration, since they are not recorded,
    with lines and reasons.
    """

    def __init__(
        self, compiler: StageCompiler, kind: str, refusal: str | None, numbers: frozenset[Any] = frozenset()
    ) -> None:
        self.compiler, self.kind, self.refusal = compiler, kind, refusal
        self.roots: list[TreeNode] = []
        self.traces = 0
        self.numbers = numbers
        self.sources: list[SourceOfCall] = []
        self.warned: set[str | None] = set()
        self.is_closed, self.hits, self.left = False, 0, 0
        self.closings: list[str] = []
        self.unrolled: tuple[str, ...] = ()

    def follow(self, call: CallArguments) -> CallProgress:
        """Runs a call along known answers, as far as the tree knows them.

        A tree that keeps no more answers, and has served few calls, builds no more plans: raises FunctionRuns.
        """
        numbers = self.numbers  # before the roots, which another thread may replace
        level: Sequence[TreeNode] = self.roots
        progress = CallProgress.at_start(call, self.kind, numbers)
        environment, path, answers = progress.environment, progress.path, progress.answers
        results: tuple[int, ...] = ()
        while True:
            for node in level:
                if node.is_free or self._enter(node, environment, call, len(results) if path else None):
                    break
            else:
                progress.differing = [node.origin for node in level if node.origin is not None]
                return progress
            environment.axes, values = node.axes, environment.values
            self._run(node, environment, call)
            question = node.stage.question
            if question is None:
                progress.entry, environment.is_known = node.entry, True
                return progress
            answer = self.compiler.answer(question, values)
            path.append(node)
            answers.append(answer)
            results = question.results_of(answer)
            if results:
                values.update(zip(results, answer, strict=True))
            for number in node.drops:
                values.pop(number, None)
            level = node.children.get(question.key_of(answer), ())

    def _run(self, node: TreeNode, environment: Environment, call: CallArguments) -> None:
        """Runs a stage for a call, with its draws and printed lines."""
        stage, may_leave = node.stage, self.is_closed and call.may_run_function
        if stage.requirements:
            check_stage(stage, environment)
        builds = not (may_leave and self.hits < self.traces and environment.is_repeatable)
        if node.compiled is None and not builds:
            self._leave(environment)
        compiled = node.compiled or self.compiled(node)
        if stage.effects and not may_leave:
            environment.drawn = None
        elif stage.effects and environment.drawn is not None:
            environment.drawn.add(compiled.sources)
        try:
            if not compiled.run(environment, builds=builds):
                self._leave(environment)
        except ERRORS_OF_NUMBERS:
            if node.has_conditions:
                raise ConditionFailed from None  # Python may raise another one
            raise
        if stage.condition is not None and not environment.values[stage.condition]:
            raise ConditionFailed
        if stage.effects:
            environment.add_effects(stage)
        if stage.prints:
            environment.print_lines(stage.prints)

    def _leave(self, environment: Environment) -> NoReturn:
        """Leaves a call to the function itself, from its start."""
        environment.rewind()
        raise FunctionRuns

    def _enter(
        self, node: TreeNode, environment: Environment, call: CallArguments, results: int | None
    ) -> bool:  # fmt: skip
        """Whether a call goes on with this stage; adds the captured arrays and the results of the prologue.

        results: the number of the results of the question before, or None for a first stage.
        What an earlier trace captured after its stages of this path is dropped: its numbers mean other values now.
        """
        axes, values = environment.axes, environment.values
        environment.axes = node.axes
        if node.origin is not None:
            arguments = fusion_arguments(node.origin, call)
            if arguments is None:
                environment.axes = axes
                return False
            numbered = zip(node.origin.trace.fusion.inputs, arguments, strict=True)
            new = {n: value for n, value in numbered if n >= node.stage.first and value is not None}
            end = count_arguments(call) if results is None else node.stage.first + results
            environment.values = {n: value for n, value in values.items() if n < end} | new
        for number, read in node.stage.host_sizes:
            environment.values = {**environment.values, number: int(read(environment.facts()))}
        if node.accepts(environment):
            return True
        environment.axes, environment.values = axes, values  # the numbers of another trace mean other values
        return False

    def compiled(self, node: TreeNode) -> CompiledStage:
        """The compiled stage of a node."""
        if node.compiled is None:
            earlier = range(node.stage.first)
            node.compiled = self.compiler.compile(node.stage, node.wanted, earlier)
        return node.compiled

    # -- growing ------------------------------------------------------------------------------------------------------

    def add(
        self, path: Sequence[TreeNode], stages: Sequence[Stage], answers: Sequence[Any], entry: Entry,
        numbers: frozenset[Any],
    ) -> None:  # fmt: skip
        """Adds the stages of a trace after those of `path`, which the tree has.

        numbers: of the trace. If they are more than the tree knew, its stages have other inputs, and are dropped.
        """
        self.traces += 1
        if numbers < self.numbers:
            return  # another thread has added numbers meanwhile
        if numbers != self.numbers:
            self.roots, self.numbers = [], numbers
        traced = entry.trace
        nodes = [*path]
        axes = {key: (number, axis) for key, number, axis in traced.fusion.axis_ids()}
        counts = Counter(node.stage.question.where for node in path if node.stage.question is not None)
        for stage in stages[len(path) :]:
            above = nodes[-1] if nodes else None
            if above is not None and self._is_full(above, counts):
                break
            ends = {key: place for key, place in axes.items() if place[0] < stage.end}
            origin = entry if len(nodes) == len(path) else None
            node = TreeNode(stage, ends, origin, entry if stage.question is None else None)
            siblings = self.roots
            if above is not None:
                question = above.stage.question
                assert question is not None
                siblings = above.children.setdefault(question.key_of(answers[len(nodes) - 1]), [])
            siblings.insert(0, node)
            del siblings[MOST_SIBLINGS:]
            nodes.append(node)
            if stage.question is not None:
                counts[stage.question.where] += 1
        self._spread_reads(nodes)

    def _is_full(self, node: TreeNode, counts: Counter[str | None]) -> bool:
        """Whether no other answer to a question is kept; warns once for each line."""
        question = node.stage.question
        assert question is not None
        if counts[question.where] >= MOST_ANSWERS:
            self.close_at(question)
            return True
        if not question.is_choice and len(node.children) >= MOST_NUMBERS:
            self._warn(
                question,
                f"had more than {MOST_NUMBERS} values: from there on, every call runs the function; keep it an array",
            )
            return True
        return False

    def close_if_full(self, question: Question) -> None:
        """Keeps no more answers if it has as many traces as it keeps. question: the last of a call."""
        few = MOST_PATHS_ONCE if 4 * self.hits >= self.traces else MOST_PATHS_UNUSED
        if self.traces < (MOST_PATHS if self.hits >= self.traces else few):
            return
        self._warn(
            question,
            f"and other questions before it had {self.traces} combinations of answers: calls with others run the "
            "function; select by np.where",
        )

    def close_at(self, question: Question) -> None:
        """Keeps no more answers, after a question that one call asked too often."""
        self._warn(
            question,
            f"asked more than {MOST_ANSWERS} times in one call: from there on, every call runs the function; "
            "write tracefuse.while_loop(cond_fun, body_fun, init_val)",
        )

    def close_at_small(self, question: Question, stages: int) -> None:
        """Keeps no more answers, before a question of a call that computes little between many questions.

        stages: how many different ones it has compiled.
        """
        self._warn(
            question,
            f"asked again after {stages} other computations on at most {FEW_ELEMENTS} elements in one call: from there "
            "on, every call runs the function, which takes less time than the stages between the questions; select by "
            "np.where, or leave @fuse out",
        )

    def close_after(self, refusal: TracefuseError) -> None:
        """Keeps no more answers, after a refusal that leaves calls to the function itself."""
        hint = "" if refusal.hint is None else f"; {refusal.hint}"
        self._close(refusal.where, f"{refusal.message}: from there on, calls run the function itself{hint}")

    def _warn(self, question: Question, text: str) -> None:
        self._close(question.where, f"{question.title} {text}")

    def _close(self, where: str | None, text: str) -> None:
        self.is_closed = True
        if where not in self.warned:
            self.warned.add(where)
            self.closings.append(text if where is None else f"{text} ({where})")
            warnings.warn(self.closings[-1], UserWarning, stacklevel=2)

    def _spread_reads(self, path: Sequence[TreeNode]) -> None:
        """Makes each stage compute what the later stages of a path read from it."""
        for position in reversed(range(len(path))):
            node = path[position]
            if node.entry is not None:
                node.reads = set(node.entry.trace.fusion.outputs)
            compiled = self.compiled(node)
            read = {n for n in compiled.read if n >= 0}
            read |= {n for n in node.wanted if n < node.stage.first}
            for earlier in path[:position]:
                earlier.needed_later |= read
                new = {n for n in read if earlier.stage.first <= n < earlier.stage.end and _is_computed(node.stage, n)}
                if not new <= earlier.reads:
                    earlier.reads |= new
                    earlier.compiled = None
        live: set[int] = set()
        for node in path:
            live.update(n for n in node.wanted if n in node.stage.makers)
            node.drops, node.step = tuple(live - node.needed_later), None
            live &= node.needed_later


def arguments_by_number(call: CallArguments, kind: str) -> dict[int, Any]:
    """The arguments of a call by the numbers that a trace gives them."""
    enter = arrays.entering(kind)
    leaves = [leaf for leaf in call.leaves if not leaf.is_static]
    return {k: entered(leaf.value, enter) if leaf.is_array else leaf.number for k, leaf in enumerate(leaves)}


def count_arguments(call: CallArguments) -> int:
    """The number of arguments that are inputs of a trace."""
    return sum(not leaf.is_static for leaf in call.leaves)


def entered(value: Any, enter: Any) -> Any:
    """An array as one of NumPy or CuPy, and a number as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    return enter(value) if hasattr(value, "shape") else value


def _is_computed(stage: Stage, number: int) -> bool:
    return number in stage.makers and stage.values[number].is_tensor
