"""Compiles and runs the stages of a trace with questions.

A stage is cut out of the recording as a fusion of its own. Equal stages, such as the steps of a loop that runs until an
error is small, have one executable.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.dynamic.layouts import numbers_of_stride
from tracefuse.frontend.calls.drawn_states import DrawnStates
from tracefuse.frontend.tracer.effects.printed_values import Print, print_stage
from tracefuse.frontend.tracer.effects.questions import Question, Stage
from tracefuse.frontend.tracer.record.cut_fusions import cut_fusion
from tracefuse.generated_code import compile_function
from tracefuse.ir.data_positions import takes_positions
from tracefuse.ir.extents import Expression, evaluate, symbols
from tracefuse.ir.fusion import Fusion, Node, SubFusion
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.reference import evaluate_scalars
from tracefuse.ir.scalar_text import NAMES, RAISED, scalar_texts
from tracefuse.ir.subfusion import extents_in
from tracefuse.ops.random_draws import RandomSource
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.resolution import resolve_target, target_for

Compile = Callable[[Fusion], Executable | EvaluatedExecutable]

MOST_MOVEMENTS = 8
"""The length of a chain of movements that a later stage evaluates again."""
MOST_EXECUTABLES = 1024
"""Executables of distinct stages for one fused function; the oldest is evicted first."""
register(Cache(
    "frontend.calls.compiled_stages.StageCompiler._executables", "executables of the stages between questions",
    "text of the fusion, compute types", f"{MOST_EXECUTABLES}, the oldest go", "a tree of questions", "with the tree",
))  # fmt: skip


class Environment:
    """The values of one call by number: arguments, captured arrays, and results of stages.

    axes: for the id of each extent, the input and the axis that it belongs to. effects: the results of each effect that
    has run, in order. printed: the number of lines that it has printed. drawn: the states of generators before their
    first draw, or None if the call has drawn without a note. is_known: whether the call followed known answers to the
    last stage.
    """

    def __init__(self, values: dict[int, Any], axes: Mapping[int, tuple[int, int]]) -> None:
        self.values, self.axes = values, axes
        self.effects: list[tuple[Any, ...]] = []
        self.printed, self.is_known = 0, False
        self.drawn: DrawnStates | None = DrawnStates()

    @property
    def is_repeatable(self) -> bool:
        """Whether nothing has happened that cannot be undone: printed lines, draws without a note."""
        return not self.printed and self.drawn is not None and self.drawn.are_known

    def rewind(self) -> bool:
        """Undoes what has happened, so that the call can begin again; False, and undoes nothing, if it cannot be."""
        return self.is_repeatable and self.drawn is not None and self.drawn.restore()

    def add_effects(self, stage: Stage, first: int = 0) -> None:
        """Remembers what the effects of a stage, from the `first` on, have returned."""
        self.effects += (tuple(self.values[number] for number in results) for results in stage.effects[first:])

    def print_lines(self, lines: Sequence[Print]) -> None:
        """Prints lines of a stage that has run."""
        print_stage(lines, self.values, self.facts())
        self.printed += len(lines)

    def facts(self) -> dict[int, Any]:
        """Returns the extents and the scalar arguments of the call, by id."""
        facts = {key: self.values[n].shape[axis] for key, (n, axis) in self.axes.items() if n in self.values}
        facts.update((n, value) for n, value in self.values.items() if not hasattr(value, "shape"))
        return facts

    def strides(self, names: Sequence[str]) -> dict[str, int]:
        """Returns strides of arguments in elements, by the names of their symbols."""
        strides = {}
        for name in names:
            number, axis = numbers_of_stride(name)
            strides[name] = arrays.element_strides(self.values[number])[axis]
        return strides


@dataclass(frozen=True, eq=False)
class CompiledStage:
    """A stage that computes some values.

    read: the values and extents that it reads, in the order of its arguments. outputs: the values that it computes.
    host: computes the host scalars that it reads, `on_host`, from `facts_read`: extents and scalars by id. is_plain:
    whether all that it reads is in the environment.
    """

    executable: Executable | EvaluatedExecutable | None
    read: tuple[int, ...]
    outputs: tuple[int, ...]
    host: Callable[[Mapping[int, Any]], Mapping[int, Any]]
    is_plain: bool
    on_host: frozenset[int] = frozenset()
    facts_read: tuple[int, ...] = ()

    @cached_property
    def gather(self) -> Callable[[Mapping[int, Any]], Sequence[Any]]:
        """Returns the arguments from the values by number."""
        if len(self.read) > 1:
            return operator.itemgetter(*self.read)
        return lambda values: [values[number] for number in self.read]

    @cached_property
    def sources(self) -> tuple[RandomSource, ...]:
        """What the draws of the stage come from."""
        return () if self.executable is None else tuple(sources_of(self.executable.fusion))

    @cached_property
    def plans(self) -> PlanCache[Executable] | None:
        """The plans of the executable."""
        return self.executable.plans if isinstance(self.executable, Executable) else None

    def run(self, environment: Environment, *, builds: bool = True) -> bool:
        """Adds the outputs to the environment. builds: else returns False if no plan fits, before anything runs."""
        if self.executable is None:
            return True
        values = environment.values
        if self.is_plain:
            arguments = self.gather(values)
        else:
            facts = environment.facts()
            arguments = self.gather({**facts, **self.host(facts), **values})
        # The plan that ran last tests the arguments itself; it is the executable's shortest path.
        results = None if self.plans is None else self.plans.first(arguments)
        if results is None and self.plans is not None and not builds:
            results = self.plans.attempt(arguments)
            if results is None:
                return False
        if results is None:
            results = self.executable(arguments)
        for number, result in zip(self.outputs, results, strict=True):
            values[number] = result
        return True


class StageCompiler:
    """Compiles stages; equal ones once. target: the option. gpu: of the arrays, None for the host."""

    def __init__(self, compile_fusion: Compile, target: str, gpu: int | None) -> None:
        self._compile, self._target, self.gpu = compile_fusion, target, gpu
        self._executables: BoundedTable[str, Executable | EvaluatedExecutable] = BoundedTable(MOST_EXECUTABLES)

    @property
    def device(self) -> ArrayDevice:
        """The device that runs the stages."""
        name, gpu = resolve_target(self._target, self.gpu)
        return target_for(name, gpu or 0).device

    @property
    def compiles(self) -> int:
        """The number of plans built."""
        return sum(executable.compiles for executable in self._executables.values())

    def answer(self, question: Question, values: Mapping[int, Any]) -> Any:
        """Returns the answer to a question. values: by number."""
        return question.answer(values)

    def compile(self, stage: Stage, wanted: Sequence[int], known: Collection[int]) -> CompiledStage:
        """Compiles the ops that compute `wanted` from `known` values, arguments and captured arrays."""
        nodes = _needed(stage, wanted, known)
        computed = {n for node in nodes for n in node.outputs}
        outputs = tuple(dict.fromkeys(n for n in wanted if n in computed))
        if not outputs:
            return CompiledStage(None, (), (), lambda facts: {}, True)
        cut = cut_fusion(stage.values, nodes, outputs, stage.simplify)
        scalars = [n for n in cut.read if n >= 0 and n in stage.makers and not stage.values[n].is_tensor]
        is_plain = not scalars and all(n >= 0 for n in cut.read)
        host, facts = _host_scalars(stage, scalars)
        executable = self._executable(cut.fusion)
        return CompiledStage(executable, cut.read, outputs, host, is_plain, frozenset(scalars), facts)

    def _executable(self, fusion: Fusion) -> Executable | EvaluatedExecutable:
        computes = " ".join(node.compute.name for node in fusion.nodes)
        sources = [source.identity for source in sources_of(fusion)]
        key = f"{fusion}\n{computes}\n{fusion.requirements}\n{sources}"
        executable = self._executables.get(key)
        if executable is None:
            executable = self._executables[key] = self._compile(fusion)
        return executable


def _needed(stage: Stage, wanted: Sequence[int], known: Collection[int]) -> list[Node]:
    """Returns the tensor nodes that compute `wanted` from `known` values, in order."""
    nodes: dict[int, Node] = {}
    waiting = [number for number in wanted if number not in known]
    while waiting:
        node = stage.makers.get(waiting.pop())
        if node is None or node.outputs[0] in nodes or not stage.values[node.outputs[0]].is_tensor:
            continue
        nodes[node.outputs[0]] = node
        waiting += [number for number in node.inputs if number not in known or _is_view_of_input(stage, number)]
    return [nodes[number] for number in sorted(nodes)]


def _is_view_of_input(stage: Stage, number: int) -> bool:
    """Whether a value holds all elements of an argument or a captured array, read at other positions.

    Each stage reads that array itself: an earlier stage would store a copy.
    """
    for _ in range(MOST_MOVEMENTS):
        node = stage.makers.get(number)
        if node is None:
            return stage.values[number].is_tensor
        is_movement = isinstance(node.op, Movement) and node.op.resize is None and not takes_positions(node)
        if not is_movement or len(node.inputs) != 1:
            return False
        number = node.inputs[0]
    return False


def _host_scalars(
    stage: Stage, numbers: Sequence[int]
) -> tuple[Callable[[Mapping[int, Any]], Mapping[int, Any]], tuple[int, ...]]:
    """Returns a function that computes host scalars from extents and scalar arguments of a call, and their ids."""
    if not numbers:
        return lambda facts: {}, ()
    nodes: dict[int, Node] = {}
    waiting, inputs = list(numbers), set()
    while waiting:
        number = waiting.pop()
        node = stage.makers.get(number)
        if node is None:
            inputs.add(number)
        elif number not in nodes:
            nodes[number] = node
            waiting += node.inputs
    ordered = [nodes[number] for number in sorted(nodes)]
    values = {n: stage.values[n] for n in (*inputs, *nodes)}
    fusion = Fusion(values, tuple(sorted(inputs)), tuple(ordered), tuple(numbers))

    quick = _compiled_scalars(fusion, ordered)
    extents = [extent for node in ordered for extent in extents_in(node.attributes)]
    extents += [value.extent for value in values.values() if isinstance(value.extent, Expression)]
    named = {symbol.id for extent in extents for symbol in symbols(extent) if symbol.id is not None}

    def compute(facts: Mapping[int, Any]) -> Mapping[int, Any]:
        if quick is not None:
            with suppress(*RAISED):  # NumPy has a number where Python has none
                return quick(facts)
        results = evaluate_scalars(fusion, ordered, {n: facts[n] for n in inputs}, facts)
        return dict(zip((node.outputs[0] for node in ordered), results, strict=True))

    return compute, tuple({*inputs, *named} - set(nodes))


def _compiled_scalars(fusion: Fusion, nodes: Sequence[Node]) -> Callable[[Mapping[int, Any]], Mapping[int, Any]] | None:
    """Returns a function that computes host scalars from facts as Python does; None if one has no text."""
    names = dict(NAMES)
    texts = scalar_texts(fusion, nodes, lambda number: f"t{number}", lambda symbol: f"facts[{symbol.id}]", names)
    if texts is None:
        return None
    reads = [f"t{number} = facts[{number}]" for number in fusion.inputs]
    items = ", ".join(f"{node.outputs[0]}: t{node.outputs[0]}" for node in nodes)
    body = "".join(f"    {line}\n" for line in (*reads, *texts, f"return {{{items}}}"))
    return compile_function(f"def compute(facts):\n{body}", "compute", names, "scalars")  # type: ignore[no-any-return]


def sources_of(fusion: Fusion) -> Iterator[RandomSource]:
    """Yields what the draws of a fusion come from, those of the bodies of its loops too."""
    waiting = [fusion]
    while waiting:
        for node in waiting.pop().nodes:
            for value in node.attributes.values() if node.op.effect else ():
                if isinstance(value, RandomSource):
                    yield value
                elif isinstance(value, SubFusion):
                    waiting.append(value.fusion)


def check_stage(stage: Stage, environment: Environment) -> None:
    """Raises the error of the first requirement of the stage that a call violates."""
    facts = environment.facts() if stage.requirements else {}
    for requirement in stage.requirements:
        left, right = (evaluate(extent, facts) for extent in (requirement.left, requirement.right))
        if not requirement.holds(left, right):
            raise requirement.error(left, right)
