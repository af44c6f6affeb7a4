"""Segments as users see them: a definition of its own, index maps, releases and kernels.

The maps go from the segment's numbers to the original definition's. Kernels depend on sizes, so a segment has them only
if the segmentation was given inputs (arrays or ShapeDtypes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from segments.lazy_dataclasses import dataclass
from tracefuse.diagnostics.view.inline_svg import notebook_html
from tracefuse.diagnostics.view.picture import picture_of, picture_of_fusion
from tracefuse.errors import FusionError
from tracefuse.ir.fusion import Fusion
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.segment_texts import sources_of, texts_of
from tracefuse.schedule.launch_spec import LaunchSpec


class Executes(Protocol):
    """A definition that runs."""

    def execute(self, inputs: Sequence[Any]) -> list[Any]: ...


Definition = TypeVar("Definition", bound=Executes)


@dataclass(frozen=True, eq=False)
class DefinitionSegment(Generic[Definition]):
    """One segment of a definition.

    definition: a definition of its own, which prints and runs alone. releases: the values released right after the
    segment, by number in the original. compiled: the segment with its kernels, if sizes are known. slices: for a
    segment of a stream-parallel loop, the segments that compute one slice.
    """

    definition: Definition
    part: Part
    releases: tuple[int, ...]
    compiled: CompiledSegment | None = None
    slices: tuple[CompiledSegment, ...] = ()

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the segment alone on arrays or numbers for its inputs; returns its outputs in order."""
        return self.definition.execute(inputs)

    @property
    def index_map(self) -> Mapping[int, int]:
        """Numbers of the inputs and outputs, in the segment and in the original."""
        return self.part.segment.index_map

    @property
    def value_map(self) -> Mapping[int, int]:
        """Numbers of all values, in the segment and in the original."""
        return self.part.segment.value_map

    @property
    def extent_map(self) -> Mapping[int, int]:
        """Ids of the extents of the input tensors, negative in the segment and in the original."""
        return self.part.segment.extent_map

    @property
    def inputs(self) -> tuple[int, ...]:
        """The inputs, by number in the segment."""
        return self.part.segment.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The outputs, by number in the segment."""
        return self.part.segment.outputs

    @property
    def template(self) -> str:
        """The name of the template; without sizes "pointwise", "reduction" or "library"."""
        return self.part.template if self.compiled is None else self.compiled.template

    @property
    def launches(self) -> tuple[LaunchSpec, ...]:
        """The kernel launches in order, with their arguments; empty for a library call.

        For a stream-parallel segment, the launches of one slice, in terms of the slice's own values.
        """
        lowered = [segment.lowered for segment in self._compiled_segments()]
        return tuple(launch for segment in lowered if segment is not None for launch in segment.launches)

    @property
    def kernel(self) -> str:
        """The kernels as readable text; for a library call, a line that names it."""
        return "\n\n".join(text for segment in self._compiled_segments() for text in texts_of(segment))

    @property
    def source(self) -> str:
        """The kernels as LLVM IR or CUDA C++; for a library call, a line that names it."""
        return "\n\n".join(text for segment in self._compiled_segments() for text in sources_of(segment))

    def _compiled_segments(self) -> tuple[CompiledSegment, ...]:
        """Returns the segments of one slice, or the segment itself. Raises FusionError without sizes."""
        if self.slices:
            return self.slices
        if self.compiled is None:
            raise FusionError(
                "the kernels of a segment depend on sizes", hint="give inputs: fd.segment(inputs), or f.segments(*args)"
            )
        return (self.compiled,)

    def __str__(self) -> str:
        return (
            f"{self.definition!r}\n    index_map {dict(self.index_map)}  value_map {dict(self.value_map)}"
            f"  extent_map {dict(self.extent_map)}"
        )

    def _repr_html_(self) -> str:
        return notebook_html(picture_of_fusion(self.part.fusion), str(self))


class Segments(list[DefinitionSegment[Definition]], Generic[Definition]):
    """The segments of a definition in order: a list that prints as a table and their definitions.

    fusion: the fusion that was segmented. segmentation: its partition.
    """

    def __init__(
        self, segments: Iterable[DefinitionSegment[Definition]], fusion: Fusion, segmentation: Segmentation
    ) -> None:
        super().__init__(segments)
        self.fusion, self.segmentation = fusion, segmentation

    def __str__(self) -> str:
        table = segment_table.segments_table(
            self.fusion, [s.part.segment for s in self], [s.part.fusion for s in self], [s.template for s in self]
        )
        return "\n\n".join([table, *map(str, self)])

    def _repr_html_(self) -> str:
        return notebook_html(picture_of(self.segmentation, [s.template for s in self]), str(self))
