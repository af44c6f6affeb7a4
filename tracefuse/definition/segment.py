"""One segment as it is shown: its own definition, how its numbers read in the original, its kernels.

The maps go from the segment's numbers to the original's. Kernels depend on sizes: they are there where the segmentation
was asked for with inputs (arrays or ShapeDtypes).

Knows: parts of a fusion and what they were compiled to. Must not know: how a definition is recorded or run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tracefuse.errors import FusionError
from tracefuse.ir.fusion import Fusion
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import Part
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.schedule.launch_spec import LaunchSpec

Definition = TypeVar("Definition")


@dataclass(frozen=True, eq=False)
class DefinitionSegment(Generic[Definition]):
    """One segment of a definition.

    definition: what it computes, a definition of its own, printable and runnable alone. releases: the values, by number
    in the original, that are released right after it. compiled: with its kernels, where sizes are known. slices: the
    segments of one slice, where it is computed slice by slice on streams.
    """

    definition: Definition
    part: Part
    releases: tuple[int, ...]
    compiled: CompiledSegment | None = None
    slices: tuple[CompiledSegment, ...] = ()

    @property
    def index_map(self) -> Mapping[int, int]:
        """What crosses its border: inputs and outputs."""
        return self.part.segment.index_map

    @property
    def value_map(self) -> Mapping[int, int]:
        """Every value."""
        return self.part.segment.value_map

    @property
    def extent_map(self) -> Mapping[int, int]:
        """The extents of its input tensors, negative on both sides."""
        return self.part.segment.extent_map

    @property
    def inputs(self) -> tuple[int, ...]:
        """Its inputs by its own numbers."""
        return self.part.segment.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """Its outputs by its own numbers."""
        return self.part.segment.outputs

    @property
    def template(self) -> str:
        """The name of the template that takes it; without sizes "pointwise", "reduction" or "library"."""
        return self.part.template if self.compiled is None else self.compiled.template

    @property
    def launches(self) -> tuple[LaunchSpec, ...]:
        """Its kernels in order, each with what is passed to it; none for a library call. On streams, those of a slice,
        in whose own terms the values are."""
        lowered = [one.lowered for one in self._run()]
        return tuple(launch for one in lowered if one is not None for launch in one.launches)

    @property
    def kernel(self) -> str:
        """The kernels as readable text; for a library call a line that says so."""
        return "\n\n".join(text for one in self._run() for text in _texts(one, _kernel_text))

    @property
    def source(self) -> str:
        """The kernels as the target's compiler gets them: LLVM IR or CUDA C++; where there are none as `kernel`."""
        return "\n\n".join(text for one in self._run() for text in _texts(one, _source_text))

    def _run(self) -> tuple[CompiledSegment, ...]:
        """What is run, or for each slice."""
        return self.slices or (self._compiled(),)

    def _compiled(self) -> CompiledSegment:
        if self.compiled is None:
            raise FusionError(
                "the kernels of a segment depend on sizes", hint="give inputs: fd.segment(inputs), or f.segments(*args)"
            )
        return self.compiled

    def __str__(self) -> str:
        return (
            f"{self.definition!r}\n    index_map {dict(self.index_map)}  value_map {dict(self.value_map)}"
            f"  extent_map {dict(self.extent_map)}"
        )

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


def _kernel_text(segment: CompiledSegment, position: int) -> str:
    assert segment.lowered is not None
    return kernel_text(segment.lowered.launches[position].kernel)


def _source_text(segment: CompiledSegment, position: int) -> str:
    source: str = segment.functions[position].source
    return source


def _texts(segment: CompiledSegment, text_of: Callable[[CompiledSegment, int], str]) -> list[str]:
    """One text a kernel, or the line that says what else runs."""
    if segment.lowered is not None:
        return [text_of(segment, position) for position in range(len(segment.functions))]
    fusion = segment.part.fusion
    node = segment.part.library or fusion.nodes[-1]
    shapes = ", ".join(str(fusion.values[number].type) for number in node.inputs)
    which = "the target's library" if segment.part.library is not None else "the array library"
    slices = "" if segment.part.slices is None else ", slice by slice"
    return [f"{node.op.name}({shapes}) by {which}{slices}"]


class Segments(list[DefinitionSegment[Definition]], Generic[Definition]):
    """The segments of a definition in order: a list that prints as a table and their definitions.

    fusion: what they are segments of.
    """

    def __init__(self, found: Iterable[DefinitionSegment[Definition]], fusion: Fusion) -> None:
        super().__init__(found)
        self.fusion = fusion

    def __str__(self) -> str:
        table = segment_table.segments_table(
            self.fusion, [s.part.segment for s in self], [s.part.fusion for s in self], [s.template for s in self]
        )
        return "\n\n".join([table, *map(str, self)])

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)
