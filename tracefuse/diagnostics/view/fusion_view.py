"""A view of a fusion: what its page shows, as an HTML page, inline SVG, DOT or JSON.

A view of a compiled plan has kernels, memory and guards; that of a segmentation alone has its segments and their
boundaries.

Must not know: frontends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import segments
from segments.lazy_dataclasses import dataclass
from tracefuse.diagnostics.segment_profiles import Roofline
from tracefuse.diagnostics.view.dot_text import dot_of
from tracefuse.diagnostics.view.html_page import page_of
from tracefuse.diagnostics.view.inline_svg import notebook_html
from tracefuse.diagnostics.view.palette import colour_of
from tracefuse.diagnostics.view.picture import Picture, picture_of
from tracefuse.errors import OptionError
from tracefuse.partition.segmentation import Segmentation
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.peak_memory import timeline_of
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.segment_texts import sources_of, texts_of
from tracefuse.schedule.launch_spec import Candidate


@dataclass(frozen=True, slots=True)
class SegmentCode:
    """The kernels of a segment. kernel: readable text. source: LLVM IR or CUDA C++. candidates: what each template
    offers. A stream-parallel segment has those of one slice.
    """

    kernel: str
    source: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """An instruction of the host program. live: bytes allocated while it runs. segment: the one that it launches."""

    text: str
    live: int
    segment: int | None


@dataclass(frozen=True, slots=True)
class FusionView:
    """A fusion as it is shown. codes: of each segment. program: in order. codes and program are empty without sizes.

    notes: titles with lines, such as the guards. text: the explanation as text. roofline: measurements, if there are
    any.
    """

    name: str
    picture: Picture
    codes: tuple[SegmentCode, ...]
    program: tuple[ProgramStep, ...]
    notes: tuple[tuple[str, tuple[str, ...]], ...]
    text: str
    roofline: Roofline | None = None

    def to_json(self) -> str:
        """Returns everything that the page shows, as JSON."""
        return json.dumps(self._data())

    def to_dot(self) -> str:
        """Returns the graph in the DOT language, with a cluster for each segment."""
        return dot_of(self.picture)

    def to_html(self) -> str:
        """Returns the page: HTML that needs neither a network nor a server."""
        return page_of(self.name, self._data())

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the page to a file and returns its path. Raises OptionError if it cannot be written."""
        try:
            with open(path, "w", encoding="utf-8") as opened:
                opened.write(self.to_html())
        except OSError as error:
            raise OptionError(
                f"view: cannot write {os.fspath(path)}: {error.strerror}", hint="set path to a file in another folder"
            ) from None
        return os.fspath(path)

    def _data(self) -> dict[str, Any]:
        kinds = dict.fromkeys([*(s.kind for s in self.picture.segments), *(op.kind for op in self.picture.ops)])
        colours = {kind: colour_of(kind) for kind in kinds}
        return {**asdict(self), "colours": colours}

    def __str__(self) -> str:
        return self.text if self.roofline is None else f"{self.text}\n\n{self.roofline.profile}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook_html(self.picture, self.text)


def view_of_plan(
    name: str, plan: Plan, sizes: Mapping[int, int], slices: Mapping[int, Plan],
    notes: Sequence[tuple[str, Sequence[str]]], text: str, roofline: Roofline | None = None,
) -> FusionView:  # fmt: skip
    """Returns the view of a compiled plan. sizes: extent values by id. slices: the plan of one slice, by segment.

    roofline: measurements of the segments.
    """
    picture = picture_of(plan.segmentation, [segment.template for segment in plan.segments], sizes)
    compiled = [slices[k].segments if k in slices else (segment,) for k, segment in enumerate(plan.segments)]
    codes = tuple(map(_code_of, compiled))
    program = tuple(_step_of(instruction, live) for instruction, live in timeline_of(plan, sizes))
    return FusionView(name, picture, codes, program, _tuples(notes), text, roofline)


def view_of_segmentation(name: str, segmentation: Segmentation, text: str) -> FusionView:
    """Returns the view of a segmentation before sizes are known."""
    return FusionView(name, picture_of(segmentation), (), (), (), text)


def _tuples(notes: Sequence[tuple[str, Sequence[str]]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((title, tuple(lines)) for title, lines in notes)


def _code_of(compiled: Sequence[CompiledSegment]) -> SegmentCode:
    candidates = [
        candidate for segment in compiled if segment.lowered is not None for candidate in segment.lowered.candidates()
    ]
    return SegmentCode(_joined(compiled, texts_of), _joined(compiled, sources_of), tuple(candidates))


def _joined(compiled: Sequence[CompiledSegment], texts: Callable[[CompiledSegment], Sequence[str]]) -> str:
    return "\n\n".join(text for segment in compiled for text in texts(segment))


def _step_of(instruction: segments.Instruction, live: int) -> ProgramStep:
    launches = (i for i in segments.in_order([instruction]) if isinstance(i, segments.Launch | segments.HostOp))
    return ProgramStep(str(instruction), live, next((i.step for i in launches), None))
