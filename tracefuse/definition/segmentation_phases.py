"""The segmentation of a definition in phases: set up, build each segment, finalize.

The phases are nvFuser's, which a program can call one by one. The state between them is one object, which the last
phase drops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from segments import Launch, Predicate, releases
from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.definition.segment import DefinitionSegment, Executes
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import extent_values
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.loop_plans import slice_plans
from tracefuse.runtime.plan import Plan

Definition = TypeVar("Definition", bound=Executes)


class SegmentationPhases(Generic[Definition]):
    """A segmentation in progress.

    placed: the fusion with its new segmentation, or the one that `fusion` had if it is the same. segmentation: for the
    sizes, if given. count: the number of segments.
    """

    def __init__(
        self, fusion: Fusion, placed: PlacedFusion | None, inputs: Sequence[Any] | None, merge: Predicate | None
    ) -> None:
        """Splits `fusion`. inputs: arrays or ShapeDtypes, which give the segments kernels and `merge` sizes."""
        if placed is None or merge is not placed.segmentation.merge or (merge is not None and inputs is not None):
            sizes = None if inputs is None else extent_values(fusion, inputs)
            decorator = None if placed is None else placed.decorator
            placed = PlacedFusion(segment_fusion(fusion, merge=merge, sizes=sizes), decorator)
        self.placed = placed
        self._plan: Plan | None = None
        self._slices: Mapping[int, Plan] = {}
        if inputs is not None:
            self._plan, values = placed.plan_for(inputs)
            self._slices = slice_plans(self._plan, values)
        self.segmentation = placed.segmentation if self._plan is None else self._plan.segmentation
        interfaces = [part.segment for part in self.segmentation.segments]
        self.count = len(interfaces)
        launches = [Launch(k, one.original_inputs, one.original_outputs) for k, one in enumerate(interfaces)]
        self._releases = releases(launches, self.segmentation.steps.graph.inputs, fusion.outputs)[1:]
        self._built: dict[int, DefinitionSegment[Definition]] = {}

    def build(self, position: int, definition_of: Callable[[Fusion], Definition]) -> DefinitionSegment[Definition]:
        """Returns the segment at `position`, built on first use. definition_of: creates its definition."""
        if position not in self._built:
            part = self.segmentation.segments[position]
            compiled = None if self._plan is None else self._plan.segments[position]
            slices = self._slices[position].segments if position in self._slices else ()
            self._built[position] = DefinitionSegment(
                definition_of(part.fusion), part, self._releases[position], compiled, slices
            )
        return self._built[position]
