"""What happened to a fusion, and why: the answer of `explain`.

The segments with their templates, why each boundary is there, what is released when, which size facts the plan depends
on, and the bytes that each segment moves, beside those that one kernel for each op would.

Knows: segmentations and plans. Must not know: frontends, how anything was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import segments
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.runtime.loop_plans import plans_of_slices
from tracefuse.runtime.peak_memory import memory_of, tensor_bytes
from tracefuse.runtime.plan import Plan
from tracefuse.schedule.recomputation import places, recomputed


def _again(part: Part) -> Mapping[int, int]:
    if part.library is not None or part.slices is not None:
        return {}
    found = recomputed(part.written, places(part.written, part.rule))
    return {part.segment.value_map.get(value, value): count for value, count in found.items()}


@dataclass(frozen=True, eq=False)
class Outline:
    """How a fusion splits where no sizes are known: the segments, and why they are not one. Prints as text."""

    segmentation: Segmentation

    @property
    def templates(self) -> tuple[str, ...]:
        """What kind of kernel each segment needs: "pointwise", "reduction" or "library"; sizes decide the rest."""
        return tuple(part.template for part in self.segmentation.segments)

    @property
    def boundaries(self) -> Mapping[tuple[int, int], segments.Verdict]:
        """For each pair of segments with a value between them, why they are two."""
        return self.segmentation.partition.boundaries

    def __str__(self) -> str:
        parts = self.segmentation.segments
        table = segment_table.segments_table(
            self.segmentation.fusion, [p.segment for p in parts], [p.fusion for p in parts], self.templates
        )
        reasons = segment_table.reasons_text(self.boundaries)
        return f"{table}\n{reasons}" if reasons else table

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


@dataclass(frozen=True, eq=False)
class Explanation:
    """Prints as text; the fields are for programs.

    sizes: extent values by id. captured: arrays that the function closed over, as Python spells them. traced: facts
    under which it was recorded. retraced: what changed since the recording before.
    """

    plan: Plan
    sizes: Mapping[int, int]
    captured: tuple[str, ...] = ()
    traced: tuple[str, ...] = ()
    retraced: str = ""

    @property
    def segmentation(self) -> Segmentation:
        """How the fusion was split for these sizes."""
        return self.plan.segmentation

    @property
    def templates(self) -> tuple[str, ...]:
        """The template of each segment."""
        return tuple(segment.template for segment in self.plan.segments)

    @property
    def refused(self) -> tuple[Mapping[str, segments.Verdict], ...]:
        """For each segment, why each template that the target asks before its own does not take it, by name."""
        return tuple({} if s.lowered is None else s.lowered.refused for s in self.plan.segments)

    @property
    def boundaries(self) -> Mapping[tuple[int, int], segments.Verdict]:
        """For each pair of segments with a value between them, why they are two."""
        return self.segmentation.partition.boundaries

    @property
    def guards(self) -> tuple[str, ...]:
        """The facts about sizes under which these kernels are right."""
        return tuple(map(str, self.plan.guards))

    @property
    def missed(self) -> str:
        """Which guard failed, and what changed, so that this was recorded or compiled anew; "" for the first time."""
        return self.plan.cause or self.retraced

    @cached_property
    def releases(self) -> tuple[tuple[int, ...], ...]:
        """The values that are released right after each segment."""
        result: list[tuple[int, ...]] = [() for _ in self.plan.segments]
        current = -1
        for instruction in self.plan.program.instructions:
            run = [i for i in segments.in_order([instruction]) if isinstance(i, segments.Launch | segments.HostOp)]
            if run and run[-1].step is not None:
                current = run[-1].step
            elif isinstance(instruction, segments.Release) and current >= 0:
                result[current] = (*result[current], instruction.value)
        return tuple(result)

    @cached_property
    def bytes_moved(self) -> tuple[int, ...]:
        """Bytes that each segment reads and writes: every tensor at its border once."""
        borders = [segment.part.segment for segment in self.plan.segments]
        return tuple(self._bytes((*b.original_inputs, *b.original_outputs)) for b in borders)

    @cached_property
    def bytes_unfused(self) -> int:
        """Bytes that one kernel for each op would read and write."""
        nodes = self.segmentation.steps.nodes
        return sum(self._bytes((*node.inputs, *node.outputs)) for node in nodes)

    @cached_property
    def memory(self) -> segments.MemoryUse:
        """The most bytes that a call allocates at one time, in which segment, and what its results keep of them."""
        return memory_of(self.plan, self.sizes)

    @cached_property
    def slices(self) -> Mapping[int, Plan]:
        """For each segment whose slices are computed by kernels on streams, what one slice runs."""
        return plans_of_slices(self.plan, self.sizes)

    @cached_property
    def computed_again(self) -> tuple[Mapping[int, int], ...]:
        """For each segment, the results of costly ops that it computes at several places, with how many."""
        return tuple(_again(segment.part) for segment in self.plan.segments)

    def _again_text(self) -> tuple[str, ...]:
        return tuple(
            f"segment {position}: T{value} at {count} places"
            for position, found in enumerate(self.computed_again)
            for value, count in found.items()
        )

    def _bytes(self, numbers: tuple[int, ...]) -> int:
        fusion = self.segmentation.fusion
        return sum(tensor_bytes(fusion, n, self.sizes) for n in dict.fromkeys(numbers) if n >= 0)

    def __str__(self) -> str:
        fusion = self.segmentation.fusion
        rows = []
        for position, segment in enumerate(self.plan.segments):
            border = segment.part.segment
            rows.append(
                [
                    str(position),
                    self._template_text(position),
                    segment_table.value_names(fusion, border.original_inputs),
                    segment_table.value_names(fusion, border.original_outputs),
                    segment_table.value_names(fusion, self.releases[position]),
                    segment_table.kinds_text(segment.part.fusion),
                    segment_table.bytes_text(self.bytes_moved[position]),
                ]
            )
        headers = ["segment", "template", "inputs", "outputs", "released", "nodes", "bytes"]
        total = segment_table.bytes_text(sum(self.bytes_moved))
        lines = [
            segment_table.table(headers, rows),
            f"{total} moved; one kernel for each op would move {segment_table.bytes_text(self.bytes_unfused)}",
            self._memory_text(),
        ]
        if self.boundaries:
            lines += ["", "why they are not one:", segment_table.reasons_text(self.boundaries)]
        for title, entries in (
            ("computed again, rather than stored:", self._again_text()),
            ("captured, and read at every call:", self.captured),
            ("recorded for every size with:", self.traced),
            ("compiled for every size with:", self.guards),
            ("made anew, since", (self.missed,) if self.missed else ()),
        ):
            if entries:
                lines += ["", title, *(f"  {entry}" for entry in entries)]
        return "\n".join(lines)

    def _template_text(self, position: int) -> str:
        """The template; of what is computed slice by slice, that of a slice too."""
        template = self.templates[position]
        if position not in self.slices:
            return template
        return f"{template} of {', '.join(segment.template for segment in self.slices[position].segments)}"

    def _memory_text(self) -> str:
        use = self.memory
        place = "" if use.step is None or len(self.plan.segments) < 2 else f" in segment {use.step}"
        peak, kept = segment_table.bytes_text(use.peak), segment_table.bytes_text(use.kept)
        return f"{peak} allocated at most{place}; results keep {kept}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)
