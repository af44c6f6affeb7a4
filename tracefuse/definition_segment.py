"""One segment as it is shown: its own definition, how its numbers read in the original, its kernels.

The maps go from the segment's numbers to the original's. Kernels depend on sizes: they are there where the segmentation
was asked for with inputs (arrays or ShapeDtypes).

Knows: parts of a fusion and what they were compiled to. Must not know: how a definition is recorded or run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tracefuse import view
from tracefuse.errors import FusionError
from tracefuse.ir import Fusion
from tracefuse.kernel.text import kernel_text
from tracefuse.plan import CompiledSegment
from tracefuse.schedule.launches import LaunchSpec
from tracefuse.segmentation import Part

Definition = TypeVar("Definition")

_SLICES_TEXT = "computed slice by slice on streams; what computes a slice is compiled when the first one is met"


@dataclass(frozen=True, eq=False)
class DefinitionSegment(Generic[Definition]):
    """One segment of a definition.

    definition: what it computes, a definition of its own, printable and runnable alone. releases: the values, by number
    in the original, that are released right after it. compiled: with its kernels, where sizes are known.
    """

    definition: Definition
    part: Part
    releases: tuple[int, ...]
    compiled: CompiledSegment | None = None

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
        """Its kernels in order, each with what is passed to it; none for a library call."""
        lowered = self._compiled().lowered
        return () if lowered is None else lowered.launches

    @property
    def kernel(self) -> str:
        """The kernels as readable text; for a library call, or what runs slice by slice, a line that says so."""
        if self.part.slices is not None:
            return _SLICES_TEXT
        if self.part.library is not None:
            return self._library_text()
        return "\n\n".join(kernel_text(launch.kernel) for launch in self.launches)

    @property
    def source(self) -> str:
        """The kernels as the target's compiler gets them: LLVM IR or CUDA C++; where there are none as `kernel`."""
        if self.part.slices is not None:
            return _SLICES_TEXT
        if self.part.library is not None:
            return self._library_text()
        return "\n\n".join(function.source for function in self._compiled().functions)

    def _compiled(self) -> CompiledSegment:
        if self.compiled is None:
            raise FusionError(
                "the kernels of a segment depend on sizes", hint="give inputs: fd.segment(inputs), or f.segments(*args)"
            )
        return self.compiled

    def _library_text(self) -> str:
        assert self.part.library is not None
        shapes = [str(self.part.fusion.values[number].type) for number in self.part.library.inputs]
        return f"{self.part.library.op.name}({', '.join(shapes)}) by the target's library"

    def __str__(self) -> str:
        return (
            f"{self.definition!r}\n    index_map {dict(self.index_map)}  value_map {dict(self.value_map)}"
            f"  extent_map {dict(self.extent_map)}"
        )

    def _repr_html_(self) -> str:
        return view.html_of(self)


class Segments(list[DefinitionSegment[Definition]], Generic[Definition]):
    """The segments of a definition in order: a list that prints as a table and their definitions.

    fusion: what they are segments of.
    """

    def __init__(self, found: Iterable[DefinitionSegment[Definition]], fusion: Fusion) -> None:
        super().__init__(found)
        self.fusion = fusion

    def __str__(self) -> str:
        table = view.segments_table(
            self.fusion, [s.part.segment for s in self], [s.part.fusion for s in self], [s.template for s in self]
        )
        return "\n\n".join([table, *map(str, self)])

    def _repr_html_(self) -> str:
        return view.html_of(self)
