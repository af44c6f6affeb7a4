"""A compiler for tests: segments run by `evaluate`, split by nothing but what a predicate forbids.

It has the interface of the real one (`segment_fusion`, `compile_fusion`), runs without a kernel, and so shows what a
segmentation means. Library ops are alone, an op that ends a segment does, and everything else merges.

Knows: partitions, parts, evaluate. Must not know: templates, kernels, devices.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import segments
from tracefuse import rules
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.reference import check_requirements, evaluate, extent_values
from tracefuse.ir.subfusion import StepGraph, step_graph
from tracefuse.ops import Library, Movement, Pointwise


@dataclass(frozen=True, slots=True)
class Part:
    """One segment: its border, and what it computes as a fusion of its own."""

    segment: segments.Segment
    fusion: Fusion
    template: str

    @property
    def steps(self) -> tuple[int, ...]:
        return self.segment.steps


@dataclass(frozen=True, slots=True)
class Segmentation:
    """A fusion, how its steps split, and the parts in the order in which they run."""

    fusion: Fusion
    steps: StepGraph
    partition: segments.Partition
    segments: tuple[Part, ...]


class MergeAll:
    """Everything is one group but for library steps. It is a `segments.Rule`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    def facts(self, step: int) -> object:
        return step

    def merge(self, a: object, b: object, edges: tuple[segments.Edge, ...]) -> segments.Verdict:
        return segments.yes(a)

    def pays(self, accepted: segments.Verdict) -> segments.Verdict:
        return accepted

    def accepts(self, steps: tuple[int, ...]) -> segments.Verdict:
        return segments.yes(steps[0])

    def cheap(self, step: int) -> bool:
        return False

    def alone(self, step: int) -> bool:
        return isinstance(self.nodes[step].op, Library)

    def movement(self, step: int) -> bool:
        return isinstance(self.nodes[step].op, Movement)


def kept_boundaries(fusion: Fusion, nodes: Sequence[Node]) -> tuple[int, ...]:
    """The values whose makers end their segment."""
    ending = (node for node in nodes if isinstance(node.op, Pointwise) and node.op.ends_segment)
    return tuple(output for node in ending for output in node.outputs)


def segment_fusion(
    fusion: Fusion, *, merge: segments.Predicate | None = None, sizes: Mapping[int, int] | None = None
) -> Segmentation:
    """Splits `fusion`; `merge` sees two `rules.Group`s, with `sizes` (extent values by id) where they are known."""
    steps = step_graph(fusion)
    split = segments.partition(
        steps.graph,
        MergeAll(steps.nodes),
        merge=merge,
        view=rules.viewer(fusion, steps.nodes, sizes),
        keep_boundaries=kept_boundaries(fusion, steps.nodes),
    )
    borders = steps.segments_of(split)
    return Segmentation(fusion, steps, split, tuple(Part(b, steps.extract(b), "reference") for b in borders))


class _Evaluator:
    """The device of the reference: a launch evaluates the part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        raise NotImplementedError("the reference allocates nothing: its launches return arrays")

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> Sequence[object]:
        return evaluate(self.parts[step].fusion, inputs)

    def release(self, buffer: object) -> None:
        """Nothing to do: the array is garbage."""


def host_scalars(fusion: Fusion, arguments: Sequence[Any]) -> dict[int, Any]:
    """The values of all computed host scalars, by number."""
    nodes = tuple(n for n in fusion.nodes if not fusion.values[n.outputs[0]].is_tensor)
    numbers = tuple(output for node in nodes for output in node.outputs)
    values = {number: fusion.values[number] for number in (*fusion.inputs, *numbers)}
    results = evaluate(Fusion(values, fusion.inputs, nodes, numbers), arguments)
    return dict(zip(numbers, results, strict=True))


class Executable:
    """A segmentation that can be called with arrays."""

    def __init__(self, segmentation: Segmentation) -> None:
        self.segmentation = segmentation
        fusion, graph = segmentation.fusion, segmentation.steps.graph
        self.extent_ids = tuple(key for key, _, _ in fusion.axis_ids())
        borders = [part.segment for part in segmentation.segments]
        self.program = segments.build_program(borders, graph.inputs, fusion.outputs, extents=self.extent_ids)
        self.runner = segments.Runner(self.program, _Evaluator(segmentation.segments))

    def _bound(self, arguments: Sequence[Any]) -> segments.ArgumentManager:
        """The live values before the first segment. Raises ShapeError where the sizes break a requirement."""
        fusion = self.segmentation.fusion
        extents = extent_values(fusion, arguments)
        check_requirements(fusion, extents)
        scalars = host_scalars(fusion, arguments)
        inputs = {
            number: np.asarray(argument, fusion.values[number].dtype.numpy)
            for number, argument in zip(fusion.inputs, arguments, strict=True)
        }
        return segments.ArgumentManager({**inputs, **scalars}, {key: extents[key] for key in self.extent_ids})

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs, for arguments in the order of the fusion's inputs."""
        return list(self.runner.run(self._bound(arguments)))

    def steps(self, arguments: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs, yielding what is live before the first segment and after each one; returns the outputs."""
        return list((yield from self.runner.steps(self._bound(arguments))))


def compile_fusion(fusion: Fusion, *, merge: segments.Predicate | None = None) -> Executable:
    """The fusion, segmented and ready to be called."""
    return Executable(segment_fusion(fusion, merge=merge))
