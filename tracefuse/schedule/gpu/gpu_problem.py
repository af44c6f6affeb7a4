"""A segment as the GPU templates see it: its region, the lanes per thread, and the dtype of its indices.

Wide accesses may rewrite symbols as multiples of the lanes. Templates work in the rewritten symbols, and `finish`
substitutes the fusion's own symbols in their results.

Must not know: CUDA C++.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType, int32, int64
from tracefuse.ir.extents import Expression, Extent, Symbol, is_nonnegative, product, substitute, symbols
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.passes.split_complex import has_complex
from tracefuse.schedule.chip import Chip
from tracefuse.schedule.gpu.gpu_cached_values import worth_keeping, worth_keeping_in_ring
from tracefuse.schedule.gpu.gpu_frame import Setting
from tracefuse.schedule.gpu.gpu_lanes import SHORT_RUN, Widening, every_output, widen
from tracefuse.schedule.gpu.gpu_runs import ElementRun, find_run
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.region_phases import Region, build_region
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_column_sides import row_side
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Problem

NARROW_INDEX = 2**31 - 2**17
"""Positions below this use 32-bit indices; the margin covers positions of a block beyond the end."""


@dataclass(frozen=True)
class _Prepared:
    """A region in rewritten symbols. fusion: the segment's fusion; a row_column region has only one side of it."""

    region: Region
    fusion: Fusion
    lanes: int
    index_dtype: DType
    widening: Widening


@dataclass(frozen=True)
class GpuProblem(Problem):
    """A segment for a GPU. For a row_column region, `region` is the row side with the column reductions."""

    chip: Chip = field(kw_only=True)

    @cached_property
    def _prepared(self) -> _Prepared:
        original, memory = self.fusion, self.memory
        if isinstance(self.facts, RowColumnFacts):
            fusion, facts = row_side(original, self.facts), self.facts.rows
        else:
            assert isinstance(self.facts, Facts), "an attention has no region"
            fusion, facts = original, self.facts
        region = self._region(fusion, facts, memory, self.sizes)
        dtype = index_dtype(region, self.sizes)
        lanes, widening = widen(region, self.sizes)
        if widening.table:
            fusion, facts, memory = widening.fusion(fusion), widening.facts(facts), widening.memory(memory)
            original = widening.fusion(original)
            region = self._region(fusion, facts, memory, widening.sizes)
        return _Prepared(region, original, lanes, dtype, widening)

    def _region(self, fusion: Fusion, facts: Facts, memory: MemoryFacts, sizes: Sizes) -> Region:
        worth = worth_keeping_in_ring if isinstance(self.facts, RowColumnFacts) else worth_keeping
        return build_region(fusion, facts, memory, sizes, worth(fusion), self.columns, SHORT_RUN)

    @property
    def region(self) -> Region:
        return self._prepared.region

    @property
    def rewritten(self) -> Fusion:
        """The segment's fusion in rewritten symbols."""
        return self._prepared.fusion

    @property
    def columns(self) -> list[Node]:
        """The column reductions of a row_column region."""
        if not isinstance(self.facts, RowColumnFacts):
            return []
        columns = self.facts.columns
        return [node for node in self.fusion.nodes if node.outputs[0] in columns]

    @property
    def rewritten_sizes(self) -> Sizes:
        """The sizes in rewritten symbols; they share their guards with `sizes`."""
        return self._prepared.widening.sizes

    @property
    def region_sizes(self) -> Sizes:
        return self.rewritten_sizes

    @cached_property
    def setting(self) -> Setting:
        """The settings that all templates share."""
        prepared = self._prepared
        lanes = 1 if self.narrow else prepared.lanes
        return Setting(lanes, prepared.index_dtype, self.contract, self.chip, self.name)

    @cached_property
    def run(self) -> ElementRun | None:
        """The runs of the region's rows, if they begin anywhere in an access."""
        lanes = self.setting.lanes
        return None if self.narrow or self.columns else find_run(self.region, lanes, self.rewritten_sizes)

    @property
    def row_setting(self) -> Setting:
        """The setting of templates that access runs of rows in whole accesses."""
        return self.setting if self.run is None else replace(self.setting, lanes=self.run.lanes)

    @cached_property
    def one_pass(self) -> Region:
        """The region after merging the reductions that one pass over memory can compute together."""
        region, sizes = self.region, self.rewritten_sizes
        merged = run_passes(passes_at("for rows that a block cannot hold"), region.fusion, self.options)
        if merged is region.fusion:
            return region
        return build_region(merged, region.facts, region.memory, sizes, worth_keeping(merged), short_run=SHORT_RUN)

    def finish(
        self, launches: Sequence[LaunchSpec], scratch: Sequence[Scratch] = (),
        derived: Mapping[Symbol, Extent] | None = None,
    ) -> Lowered:  # fmt: skip
        widening = self._prepared.widening
        complete_of = {s: substitute(e, derived or {}) for launch in launches for s, e in launch.inverses.items()}
        replacements = {s: widening.original(e) for s, e in {**complete_of, **(derived or {})}.items()}
        complete = {**replacements, **widening.derived}
        sized = tuple(replace(s, size=substitute(widening.original(s.size), replacements)) for s in scratch)
        guards = (
            replace(g, left=substitute(g.left, complete), right=substitute(g.right, complete))
            for g in self.sizes.guards
        )
        known = dict.fromkeys(g for g in guards if not isinstance(g.left, int) or not isinstance(g.right, int))
        return Lowered("", tuple(launches), tuple(known), sized, complete)


def index_dtype(region: Region, sizes: Sizes) -> DType:
    """Returns int32 if every position in the loops and in each array's memory fits, else int64; guards the sizes."""
    spans: list[Extent] = [product(loop.extent for loop in region.nest.loops)]
    for number, strides in region.memory.strides.items():
        spans.append(span_of(region.fusion.shape_of(number), strides, sizes))
    spans += [product(region.fusion.shape_of(output)) for output in every_output(region)]
    spans = [s for k, s in enumerate(spans) if not any(_covers(other, s) for other in spans[:k])]
    # The kernel sees a complex number as two elements.
    limit = NARROW_INDEX // 2 if has_complex(region.fusion) else NARROW_INDEX
    fits = [sizes.at_most(s, limit, "positions fit 32 bits") for s in spans]
    return int32 if all(fits) else int64


def index_dtype_of_arrays(problem: GpuProblem) -> DType:
    """Returns int32 if every position in each array's memory fits, else int64; guards the sizes."""
    fusion, memory, sizes = problem.fusion, problem.memory, problem.sizes
    spans = [span_of(fusion.shape_of(n), strides, sizes) for n, strides in memory.strides.items()]
    spans += [product(fusion.shape_of(n)) for n in fusion.outputs]
    fits = [sizes.at_most(span, NARROW_INDEX, "positions fit 32 bits") for span in dict.fromkeys(spans)]
    return int32 if all(fits) else int64


def _covers(larger: Extent, span: Extent) -> bool:
    """Whether span <= larger if no extent is 0; if one is, no iteration runs."""
    difference = larger - span
    if any(s.id is None for s in symbols(difference)):  # strides may be negative
        return False
    return is_nonnegative(substitute(difference, {s: Expression((((s,), 1),)) + 1 for s in symbols(difference)}))


def span_of(shape: Shape, strides: Shape, sizes: Sizes) -> Extent:
    """Returns the distance in elements from the first to the last element of an array; guards the signs of strides."""
    total: Extent = 1
    for extent, stride in zip(shape, strides, strict=True):
        if is_nonnegative(stride):
            total = total + (extent - 1) * stride
        elif sizes.hint(stride) < 0:
            sizes.require(stride, "<=", -1, "an axis is read backwards")
            total = total - (extent - 1) * stride
        else:
            sizes.require(0, "<=", stride, "an axis is read forwards")
            total = total + (extent - 1) * stride
    return total
