"""Elements that are known while tracing: the elements of values that depend on no argument.

`np.arange(4)` inside a fused function is a traced array, so that it can be written and fused. If Python asks for its
elements, as a loop over it does, the reference implementation computes them.

Must not know: names, views, callers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import symbols
from tracefuse.ir.fusion import Node
from tracefuse.ir.reference import evaluate
from tracefuse.ir.subfusion import extents_in, map_extents

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.recorder import Recorder


class KnownContents:
    """The contents of values of one trace, each computed once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._contents: dict[int, Any] = {}
        self.asked: dict[int, Any] = {}
        """Captured arrays whose contents answered a question, by input, with a copy of their elements."""

    def of(self, number: int, pin: str | None) -> Any:
        """Returns the elements of a value as a NumPy array; None if they depend on arguments.

        pin: the reason to read and guard the sizes that the value depends on. With None, a value that depends on
        sizes is unknown.
        """
        if number in self._contents:
            return self._contents[number]
        if number not in self._recorder.builder.independent:
            return None
        if number in self._recorder.builder.constants:
            self._contents[number] = self._constant(number)
            return self._contents[number]
        nodes = self._nodes_behind(number)
        recorder = self._recorder
        sizes = {s for node in nodes for e in extents_in(node.attributes) for s in symbols(recorder.simplify(e))}
        if sizes:
            if pin is None:
                return None
            for node in nodes:
                for extent in extents_in(node.attributes):
                    recorder.pin(extent, pin)
        self._contents[number] = self._evaluated(number, nodes)
        return self._contents[number]

    def _nodes_behind(self, number: int) -> list[Node]:
        """Returns the nodes that compute a value from the known contents, in order."""
        builder = self._recorder.builder
        made: dict[int, Node] = {}
        waiting = [number]
        while waiting:
            value = waiting.pop()
            if value not in made and value not in self._contents and value not in builder.constants:
                node = builder.makers[value]
                made.update(dict.fromkeys(node.outputs, node))
                waiting += node.inputs
        order = sorted(made, key=lambda value: min(made[value].outputs))
        return list(dict.fromkeys(made[value] for value in order))

    def _evaluated(self, number: int, nodes: list[Node]) -> Any:
        recorder, builder, arguments = self._recorder, FusionBuilder(), []
        made = {value for node in nodes for value in node.outputs}
        for value in dict.fromkeys([number, *(v for node in nodes for v in node.inputs)]):
            if value not in made:
                array = self._contents[value] if value in self._contents else self._constant(value)
                builder.tensor_input(recorder.builder.values[value].dtype, array.shape, number=value)
                arguments.append(array)
        for node in nodes:
            attributes = {
                name: map_extents(attribute, recorder.simplify) for name, attribute in node.attributes.items()
            }
            types = [recorder.builder.values[value].dtype for value in node.outputs]
            builder.node(node.op, node.operands, attributes, node.compute, types, numbers=node.outputs)
        builder.output(number)
        (result,) = evaluate(builder.build(), arguments)
        return np.asarray(result)

    def _constant(self, number: int) -> Any:
        """Returns the elements of an input that is known; those of captured state are compared at every call."""
        array = self._recorder.builder.constants[number]
        if number not in self._recorder.builder.of_state:
            return array
        return self.asked.setdefault(number, array.copy())
