"""Elements that are known while tracing: those of values that depend on no argument.

`np.arange(4)` inside a fused function is a traced array, so that it can be written and fused, and so is a captured
array. If Python asks for elements, as `if mask.any()` does, the reference implementation computes them from the arrays
that the trace created and captured. What captured arrays decide is a step of the prologue: later calls ask again if
the contents differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from segments.lazy_dataclasses import replace
from tracefuse import source
from tracefuse.frontend.tracer.captured.prologue import Evaluation, Prologue, PrologueStep, Question, on_host
from tracefuse.frontend.tracer.captured.snapshots import Snapshot, as_own
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Expression, Extent, Symbol, as_symbol, input_extent, substitute, symbols
from tracefuse.ir.fusion import Node
from tracefuse.ir.subfusion import extents_in, map_extents

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder


class KnownContents:
    """The contents of values of one trace, each computed once, and the steps of the prologue.

    axes: value and axis of each extent of an array that the trace created, captured or computed in the prologue, by
    the extent's id. inputs: the results of the prologue that are inputs of the fusion.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.axes: dict[int, tuple[int, int]] = {}
        self.inputs: list[int] = []
        self.steps: list[PrologueStep] = []
        self._recorder = recorder
        self._contents: dict[int, Any] = {}
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def numbers_read(self) -> Collection[int]:
        """The captured arrays whose elements the trace read."""
        return self._snapshots.keys()

    # -- recording ----------------------------------------------------------------------------------------------------

    def add_axes(self, number: int) -> None:
        """Adds the extents of an input that is no argument. It is the input that was added last."""
        builder = self._recorder.builder
        rank = len(builder.values[number].shape)
        self.axes.update({-(builder.axes - rank + axis + 1): (number, axis) for axis in range(rank)})

    def add_result(self, number: int, contents: Any) -> None:
        """Adds an input of the fusion that a step of the prologue computes."""
        self.inputs.append(number)
        self._contents[number] = contents

    def of(self, number: int, pin: str | None) -> Any:
        """Returns the elements of a value as an array; None if they depend on arguments.

        pin: the reason to read and guard the sizes of arguments that the value depends on. With None, a value that
        depends on such sizes is unknown. Elements that depend on captured arrays are guarded, as by `ask`.
        """
        if number in self._recorder.builder.of_state:
            return self.ask(number, pin or "the elements of an array")
        return self.elements(number, pin)

    def elements(self, number: int, pin: str | None) -> Any:
        """As `of`, without a guard: for steps of the prologue, which run again when captured contents differ."""
        self._add_contents_of_input(number)
        if number in self._contents:
            return self._contents[number]
        if number not in self._recorder.builder.independent:
            return None
        nodes = self._nodes_behind(number)
        if not self._pin_sizes(nodes, pin):
            return None
        self._evaluate(nodes)
        return self._contents[number]

    def ask(self, number: int, question: str, ask: Callable[[Any], Any] = np.asarray) -> Any:
        """Returns `ask(elements)` of a value; None if the elements depend on arguments.

        An answer that depends on captured arrays is asked for again when their contents differ, and another answer
        makes another trace. question: for listings and for the guards of sizes.
        """
        known = self.elements(number, question)
        if known is None:
            return None
        answer = ask(on_host(known))
        if number in self._recorder.builder.of_state:
            if isinstance(answer, np.ndarray):
                answer = answer.copy()
            self.steps.append(Question((number,), (), source.user_line(), question, ask, answer))
        return answer

    def _add_contents_of_input(self, number: int) -> None:
        """Adds the elements of an array that the trace created or captured; takes a snapshot of the latter."""
        builder = self._recorder.builder
        if number in self._contents or number not in builder.constants:
            return
        array = builder.constants[number]
        if number in builder.of_state:
            self._snapshots[number] = Snapshot(array)
            array = self._snapshots[number].array
        self._contents[number] = as_own(array)

    def _nodes_behind(self, number: int) -> list[Node]:
        """Returns the nodes that compute a value from the known contents, in order."""
        builder = self._recorder.builder
        behind: dict[int, Node] = {}
        waiting = [number]
        while waiting:
            value = waiting.pop()
            self._add_contents_of_input(value)
            if value not in behind and value not in self._contents:
                node = builder.makers[value]
                behind.update(dict.fromkeys(node.outputs, node))
                waiting += node.inputs
        order = sorted(behind, key=lambda value: min(behind[value].outputs))
        return list(dict.fromkeys(behind[value] for value in order))

    def depends_on_sizes(self, number: int) -> bool:
        """Whether a value that depends on no elements of arguments depends on extents of theirs."""
        if number in self._contents:
            return False
        return not self._pin_sizes(self._nodes_behind(number), None)

    def follows_sizes(self, number: int) -> bool:
        """Whether a value depends on no elements of arguments, but on extents of theirs."""
        return number in self._recorder.builder.independent and self.depends_on_sizes(number)

    def _pin_sizes(self, nodes: Sequence[Node], pin: str | None) -> bool:
        """Guards the sizes of arguments in the attributes of nodes; returns whether none is left."""
        recorder = self._recorder
        for node in nodes:
            for extent in extents_in(node.attributes):
                if all(size.id in self.axes for size in symbols(recorder.simplify(extent))):
                    continue
                if pin is None:
                    return False
                for size in dict.fromkeys(symbols(recorder.simplify(extent))):
                    if size.id not in self.axes:
                        recorder.pin(Expression((((size,), 1),)), pin)
        return True

    def _evaluate(self, nodes: Sequence[Node]) -> None:
        """Computes the elements of every result of some nodes; adds a step if they depend on captured arrays."""
        recorder = self._recorder
        step = _Part(recorder, self.axes, nodes).evaluation(recorder.device)
        for number in step.reads:
            self._add_contents_of_input(number)
        self._contents.update(zip(step.writes, step.run(self._contents), strict=True))
        if not recorder.builder.of_state.isdisjoint(step.writes):
            self.steps.append(step)

    # -- the prologue -------------------------------------------------------------------------------------------------

    def prologue(self, positions: dict[int, int]) -> Prologue | None:
        """Returns the prologue of the trace; None if it has no steps. positions: of captured arrays, by number."""
        steps = self._steps_that_matter()
        if not steps:
            return None
        reads = {number for step in steps for number in step.reads}
        captured = [number for number in self._snapshots if number in reads]
        names = {number: self._name_of(number) for number in captured}
        written = {number for step in steps for number in step.writes}
        constants = {number: self._contents[number] for number in reads.difference(written, captured)}
        return Prologue(
            steps, [positions[number] for number in captured], names, self.inputs, constants,
            [self._snapshots[number] for number in captured], self._contents,
        )  # fmt: skip

    def _name_of(self, number: int) -> str:
        """Returns the name of a captured array, without the line that read it first."""
        return self._recorder.builder.values[number].name or self._recorder.describe(number)

    def _steps_that_matter(self) -> list[PrologueStep]:
        """Returns the steps, without results of evaluations that nothing reads."""
        read = set(self.inputs)
        needed: list[PrologueStep] = []
        for step in reversed(self.steps):
            if isinstance(step, Evaluation):
                outputs = tuple(number for number in step.writes if number in read)
                if not outputs:
                    continue
                step = replace(step, writes=outputs, fusion=replace(step.fusion, outputs=outputs))
            read.update(step.reads)
            needed.append(step)
        return needed[::-1]


class _Part:
    """Some nodes of a trace as a separate fusion, whose inputs are arrays with known elements."""

    def __init__(self, recorder: Recorder, axes: dict[int, tuple[int, int]], nodes: Sequence[Node]) -> None:
        self.recorder, self.axes, self.nodes = recorder, axes, nodes
        self.builder = FusionBuilder()
        self._local: dict[Symbol, Extent] = {}

    def evaluation(self, device: int | None) -> Evaluation:
        computed = [value for node in self.nodes for value in node.outputs]
        inputs = dict.fromkeys(value for node in self.nodes for value in node.inputs if value not in set(computed))
        for node in self.nodes:
            for extent in extents_in(node.attributes):
                inputs.update((self.axes[entry.id][0], None) for entry in symbols(self._simple(extent)) if entry.id)
        for number in inputs:
            self._add_input(number)
        types = self.recorder.builder.values
        for node in self.nodes:
            attributes = {name: map_extents(entry, self._translated) for name, entry in node.attributes.items()}
            dtypes = [types[value].dtype for value in node.outputs]
            self.builder.node(
                node.op, node.operands, attributes, node.compute, dtypes, where=node.where, numbers=node.outputs
            )
        for number in computed:
            self.builder.output(number)
        return Evaluation(tuple(inputs), tuple(computed), self.nodes[-1].where, self.builder.build(), device)

    def _simple(self, extent: Extent) -> Extent:
        return self.recorder.simplify(extent)

    def _translated(self, extent: Extent) -> Extent:
        return substitute(self._simple(extent), self._local)

    def _add_input(self, number: int) -> None:
        value = self.recorder.builder.values[number]
        if not value.is_tensor:
            self.builder.scalar_input(value.dtype, number=number)
            return
        first = self.builder.axes
        extents = [self._simple(extent) for extent in value.shape]
        self.builder.tensor_input(value.dtype, [e if isinstance(e, int) else -1 for e in extents], number=number)
        for axis, extent in enumerate(value.shape):
            symbol = as_symbol(extent)
            if symbol is not None and self.axes.get(symbol.id or 0) == (number, axis):
                self._local[symbol] = input_extent(first + axis)
