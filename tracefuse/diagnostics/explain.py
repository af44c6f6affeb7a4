"""`explain`: how a fusion was compiled, and why.

An explanation lists the segments with their templates, the reason for each boundary, the values released after each
segment, the guards, peak memory, and the bytes that each segment moves compared to one kernel per op.

Must not know: frontends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import segments
from segments.lazy_dataclasses import dataclass
from tracefuse import config
from tracefuse.diagnostics.operation_counts import operations_of
from tracefuse.diagnostics.segment_nodes import nodes_of
from tracefuse.diagnostics.segment_profiles import Roofline
from tracefuse.diagnostics.view.fusion_view import FusionView, view_of_plan, view_of_segmentation
from tracefuse.diagnostics.view.inline_svg import notebook_html
from tracefuse.diagnostics.view.picture import picture_of
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import Part, Segmentation, segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.loop_plans import slice_plans
from tracefuse.runtime.peak_memory import memory_of, tensor_bytes
from tracefuse.runtime.plan import Plan
from tracefuse.schedule.recomputation import places, recomputed
from tracefuse.schedule.tiling_choice import PricedTiling


def _count_recomputations(part: Part) -> Mapping[int, int]:
    if part.library is not None or part.slices is not None:
        return {}
    counts = recomputed(part.decomposed, places(part.decomposed, part.rule))
    return {part.segment.value_map.get(value, value): count for value, count in counts.items()}


@dataclass(frozen=True, eq=False)
class Outline:
    """The partition of a fusion before sizes are known: its segments and the reasons for their boundaries."""

    segmentation: Segmentation

    @property
    def templates(self) -> tuple[str, ...]:
        """The kernel kind of each segment: "pointwise", "reduction" or "library". Sizes select the template."""
        return tuple(part.template for part in self.segmentation.segments)

    @property
    def boundaries(self) -> Mapping[tuple[int, int], segments.Verdict]:
        """Why two segments with a value between them are separate, by their positions."""
        return self.segmentation.partition.boundaries

    def view(self, name: str = "fusion") -> FusionView:
        """Returns the graph of ops and segments, which `save` writes as an HTML page."""
        return view_of_segmentation(name, self.segmentation, str(self))

    def __str__(self) -> str:
        parts = self.segmentation.segments
        table = segment_table.segments_table(
            self.segmentation.fusion, [p.segment for p in parts], [p.fusion for p in parts], self.templates
        )
        reasons = segment_table.reasons_text(self.boundaries)
        return f"{table}\n{reasons}" if reasons else table

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook_html(picture_of(self.segmentation), str(self))


def _sub_fusion_lines(part: Part) -> Iterator[str]:
    """Yields the outlines of the sub-fusions that a part runs, and of those inside of them."""
    waiting = [part]
    while waiting:
        node = waiting.pop().library
        if node is None or not isinstance(node.op, ControlFlow):
            continue
        yield from ("", f"{node.op.name} ({node.where}): {node.op.on_host}")
        for name, sub_fusion in node.op.sub_fusions(node.attributes):
            options = config.resolve()
            inner = segment_fusion(run_passes(FUSION_PASSES, sub_fusion.fusion, options), options=options)
            yield f"  {name}:"
            yield from (f"    {line}" for line in str(Outline(inner)).splitlines())
            waiting += reversed(inner.segments)


@dataclass(frozen=True, eq=False)
class Explanation:
    """How one call is compiled. str() is a report; the fields are for programs.

    sizes: extent values by id. captured: captured arrays, as Python expressions. traced: the guards of the trace.
    retraced: the guard failure that caused a new trace, or "". prologue: the steps that depend on captured arrays
    alone, and the bytes that decide whether they run. compared: the arrays that bypassed recording, with the bytes that
    each call compares. unrolled: long loops that are unrolled, with their lines and reasons. exchanges: those that
    propagation of shardings added, with their lines and reasons.
    """

    plan: Plan
    sizes: Mapping[int, int]
    captured: tuple[str, ...] = ()
    traced: tuple[str, ...] = ()
    retraced: str = ""
    prologue: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    unrolled: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()

    @property
    def segmentation(self) -> Segmentation:
        """The partition of the fusion for these sizes."""
        return self.plan.segmentation

    @property
    def templates(self) -> tuple[str, ...]:
        """The template of each segment."""
        return tuple(segment.template for segment in self.plan.segments)

    @property
    def refused(self) -> tuple[Mapping[str, segments.Verdict], ...]:
        """For each segment, the verdicts of the templates that rejected it before one accepted, by template name."""
        return tuple({} if s.lowered is None else s.lowered.refused for s in self.plan.segments)

    @property
    def boundaries(self) -> Mapping[tuple[int, int], segments.Verdict]:
        """Why two segments with a value between them are separate, by their positions."""
        return self.segmentation.partition.boundaries

    @property
    def progress(self) -> tuple[list[str], ...]:
        """For each segment, how far those of its kernels are compiled that run quickly compiled code first."""
        return self.plan.progress

    @property
    def guards(self) -> tuple[str, ...]:
        """The facts about sizes that the kernels assume."""
        return tuple(map(str, self.plan.guards))

    @property
    def guard_failures(self) -> str:
        """The guard failure, and what changed, if the call caused a new trace or plan; "" at the first call."""
        return self.plan.cause or self.retraced

    @cached_property
    def releases(self) -> tuple[tuple[int, ...], ...]:
        """The values released right after each segment."""
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
        """Bytes that each segment reads and writes, counting every tensor of its interface once."""
        interfaces = [segment.part.segment for segment in self.plan.segments]
        return tuple(self._bytes((*i.original_inputs, *i.original_outputs)) for i in interfaces)

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """Arithmetic operations of each segment, as its ops are written (`operations_of`)."""
        parts = (nodes_of(self.segmentation, part, self.sizes) for part in self.segmentation.segments)
        return tuple(operations_of(part.fusion, part.nodes, part.sizes or {}) for part in parts)

    @cached_property
    def bytes_unfused(self) -> int:
        """Bytes that one kernel per op would read and write."""
        nodes = self.segmentation.steps.nodes
        return sum(self._bytes((*node.inputs, *node.outputs)) for node in nodes)

    @cached_property
    def memory(self) -> segments.MemoryUse:
        """The peak allocation of a call in bytes, the segment that reaches it, and how much of it holds outputs."""
        return memory_of(self.plan, self.sizes)

    @cached_property
    def slices(self) -> Mapping[int, Plan]:
        """The plan of one slice, for each segment that is a stream-parallel loop."""
        return slice_plans(self.plan, self.sizes)

    @cached_property
    def recomputed(self) -> tuple[Mapping[int, int], ...]:
        """For each segment, the results of expensive ops that it recomputes, and at how many places."""
        return tuple(_count_recomputations(segment.part) for segment in self.plan.segments)

    def _recomputation_text(self) -> tuple[str, ...]:
        return tuple(
            f"segment {position}: T{value} at {count} places"
            for position, counts in enumerate(self.recomputed)
            for value, count in counts.items()
        )

    @property
    def tilings(self) -> tuple[Mapping[str, tuple[PricedTiling, ...]], ...]:
        """For each segment, the tilings of its kernels with their prices, by the names of its parts."""
        return tuple({} if s.lowered is None else s.lowered.tilings for s in self.plan.segments)

    def _tilings_text(self) -> tuple[str, ...]:
        return tuple(
            f"segment {position}: {tiling}"
            for position, parts in enumerate(self.tilings)
            for tilings in parts.values()
            for tiling in tilings
        )

    def _stored_text(self) -> tuple[str, ...]:
        """The results that loops stack, with their bytes; reverse mode reads some of them."""
        fusion, lines = self.segmentation.fusion, []
        for node in fusion.nodes:
            if isinstance(node.op, ControlFlow) and node.op.stacks:
                for number in node.outputs[node.attributes["carried"] :]:
                    use = fusion.values[number].name or "a result"
                    size = segment_table.bytes_text(self._bytes((number,)))
                    lines.append(f"{node.op.name} ({node.where}): T{number}, {use}, {size}")
        return tuple(lines)

    def _bytes(self, numbers: tuple[int, ...]) -> int:
        fusion = self.segmentation.fusion
        return sum(tensor_bytes(fusion, n, self.sizes) for n in dict.fromkeys(numbers) if n >= 0)

    def __str__(self) -> str:
        fusion = self.segmentation.fusion
        rows = []
        for position, segment in enumerate(self.plan.segments):
            interface = segment.part.segment
            rows.append(
                [
                    str(position),
                    self._template_text(position),
                    segment_table.value_names(fusion, interface.original_inputs),
                    segment_table.value_names(fusion, interface.original_outputs),
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
        lines += [line for part in self.segmentation.segments for line in _sub_fusion_lines(part)]
        if self.boundaries:
            lines += ["", "why the segments are separate:", segment_table.reasons_text(self.boundaries)]
        for title, entries in self._notes():
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
        return "\n".join(lines)

    def _notes(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns the lists that have entries, each with its title."""
        notes = [
            ("recomputed rather than stored", self._recomputation_text()),
            ("stored by loops, a slice for each step", self._stored_text()),
            ("attentions that are computed in parts", self._attention_text()),
            ("products that are computed without what follows", self._products_text()),
            ("tilings (microseconds by the cost model)", self._tilings_text()),
            ("exchanges between ranks", self.exchanges),
            ("captured (read at every call)", self.captured),
            ("prologue (run again when captured contents differ)", self.prologue),
            ("arrays that bypassed recording (compared at every call)", self.compared),
            ("loops that are unrolled", self.unrolled),
            ("guards of the trace (it is reused while these hold)", self.traced),
            ("guards (the plan is reused while these hold)", self.guards),
            ("compiled again because", (self.guard_failures,) if self.guard_failures else ()),
        ]
        return [(title, entries) for title, entries in notes if entries]

    def view(self, name: str = "fusion", roofline: Roofline | None = None) -> FusionView:
        """Returns the graph with kernels, host program and guards, which `save` writes as an HTML page.

        roofline: measurements of the segments, which the page shows too.
        """
        return view_of_plan(name, self.plan, self.sizes, self.slices, self._notes(), str(self), roofline)

    def _attention_text(self) -> tuple[str, ...]:
        """Why products with a softmax between them are not one kernel."""
        return tuple(f"T{number}: {reason}" for number, reason in self.segmentation.divided_attentions.items())

    def _products_text(self) -> tuple[str, ...]:
        """Why a library does not compute products with the bias, residual or activation that follows them."""
        return tuple(f"T{number}: {reason}" for number, reason in self.segmentation.divided_products.items())

    def _template_text(self, position: int) -> str:
        """The template of a segment; for a stream-parallel loop also the templates of a slice."""
        template = self.templates[position]
        if position not in self.slices:
            return template
        return f"{template} of {', '.join(segment.template for segment in self.slices[position].segments)}"

    def _memory_text(self) -> str:
        use = self.memory
        place = "" if use.step is None or len(self.plan.segments) < 2 else f" (segment {use.step})"
        peak, output_bytes = segment_table.bytes_text(use.peak), segment_table.bytes_text(use.outputs)
        return f"peak allocation {peak}{place}, of which {output_bytes} are outputs"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook_html(picture_of(self.segmentation, self.templates, self.sizes), str(self))
