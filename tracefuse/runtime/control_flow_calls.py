"""Runs loops and branches around the compiled segments of their sub-fusions: by a driver, or on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse import config
from tracefuse.config import Options
from tracefuse.generated_code import compile_function
from tracefuse.ir.control_flow import Branch, ControlFlow, CountedLoop, RangeLoop, WhileLoop
from tracefuse.ir.extents import python_text
from tracefuse.ir.fusion import Fusion, Literal, Node, SubFusion
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.partition.update_phases import in_phases
from tracefuse.runtime.bound_parts import BoundPart
from tracefuse.runtime.driven_loops import DrivenLoop
from tracefuse.runtime.host_loops import CountedRun, RangeRun, run_while
from tracefuse.runtime.streams.slices import Computation
from tracefuse.runtime.targets.library_calls import names_of_inputs
from tracefuse.runtime.targets.target import Target

ComputationOf: TypeAlias = Callable[[SubFusion], Computation]
"""Returns the compiled computation of a sub-fusion."""


def _same(value: Any) -> Any:
    return value


class ControlFlowRun:
    """A launch that runs a control-flow node and returns new arrays.

    stored: the results that it returns. disk: the cache of compiled drivers. options: select
    whether drivers run the loop, and what is logged; by default those in force.
    """

    def __init__(
        self, fusion: Fusion, node: Node, stored: Sequence[int], target: Target, computation_of: ComputationOf,
        disk: DiskCache | None = None, options: Options | None = None,
    ) -> None:  # fmt: skip
        op = node.op
        assert isinstance(op, ControlFlow)
        self.fusion, self.node = fusion, node
        self._places = [fusion.inputs.index(o) if isinstance(o, int) else None for o in node.operands]
        self._literals = [o.value if isinstance(o, Literal) else None for o in node.operands]
        options = config.resolve() if options is None else options
        is_driven = target.compiler.compiles_loops and not options.disables("loop_drivers")
        bodies = dict(op.sub_fusions(node.attributes))
        if target.compiler.compiles_loops and isinstance(op, RangeLoop):  # its steps round alike on the host
            bodies = {name: in_phases(part) for name, part in bodies.items()}
        self.parts = {name: BoundPart(part, computation_of(part), target) for name, part in bodies.items()}
        self._returned = [node.outputs.index(number) for number in stored]
        self.driven = DrivenLoop(self, target, disk, options) if is_driven and not isinstance(op, Branch) else None
        if isinstance(op, RangeLoop):
            self._bounds = _bounds_function(fusion, node)
        self._run: Callable[[list[Any], Sequence[Any]], Sequence[Any]] = {
            WhileLoop: lambda operands, inputs: run_while(node, self.parts, operands, self.driven),
            CountedLoop: self._run_counted,
            RangeLoop: lambda operands, inputs: RangeRun(
                node, self.parts["body"], operands, inputs, self.driven, self._bounds(inputs)
            ).run(),
            Branch: lambda operands, inputs: _run_branch(self.parts, operands),
        }[type(op)]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return self.stored(self._run(self.operands(inputs), inputs))

    def operands(self, inputs: Sequence[Any], of_literal: Callable[[Any], Any] = _same) -> list[Any]:
        """Returns the operands of the op. of_literal: makes an operand of a literal."""
        places = zip(self._places, self._literals, strict=True)
        return [of_literal(literal) if place is None else inputs[place] for place, literal in places]

    def stored(self, results: Sequence[Any]) -> list[Any]:
        """Returns the results that the segment stores, of all."""
        return [results[k] for k in self._returned]

    def _run_counted(self, operands: list[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        length = int(operands[1]) - int(operands[0])
        results = None if self.driven is None or length < 1 else self.driven.run(operands, length)
        return (
            CountedRun(self.fusion, self.node, self.parts["body"], operands, inputs).run()
            if results is None
            else results
        )


def _bounds_function(fusion: Fusion, node: Node) -> Callable[[Sequence[Any]], tuple[int, int]]:
    """Returns a function from the inputs of a fusion to the first and the end of the integers of its loop."""
    name_of = names_of_inputs(fusion)
    start, stop = (python_text(node.attributes[k], lambda size: f"int({name_of(size)})") for k in ("start", "stop"))
    text = f"def bounds(i):\n    return {start}, {stop}\n"
    return compile_function(text, "bounds", {"min": min, "max": max}, "bounds of a loop")  # type: ignore[no-any-return]


def _run_branch(parts: dict[str, BoundPart], operands: list[Any]) -> Sequence[Any]:
    predicate = operands[0]
    if hasattr(predicate, "dtype") and not isinstance(predicate, np.ndarray | np.generic):
        predicate = parts["on_true"].device.on_host(predicate)
    part = parts["on_true" if bool(predicate) else "on_false"]
    results: Sequence[Any] = part.computation(part.part.select(operands), None)  # type: ignore[arg-type]
    return results
