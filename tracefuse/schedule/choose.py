"""Lowering a segment: from a fusion and the sizes of a call to launches.

Chooses the template by the loops that are left after ordering and joining; every size that a choice looks at is
guarded. Each template is in a module of its own.

Knows: templates. Must not know: how they emit, what runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.passes.pipeline import KERNEL_PASSES, run_passes
from tracefuse.schedule.chip import chip_of
from tracefuse.schedule.cpu.cpu_column import lower_column
from tracefuse.schedule.cpu.cpu_column_chunks import is_worth_chunks, lower_column_chunks
from tracefuse.schedule.cpu.cpu_row import cut_points, lower_pointwise, lower_row
from tracefuse.schedule.cpu.cpu_row_chunks import lower_split
from tracefuse.schedule.cpu.cpu_streaming import streamed_outputs
from tracefuse.schedule.cpu.cpu_transpose import lower_transpose
from tracefuse.schedule.gpu.gpu_choice import lower_cuda
from tracefuse.schedule.gpu.gpu_row_column_choice import lower_both_ways
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.phases import Memory, Region, build_region
from tracefuse.schedule.probe import weights
from tracefuse.schedule.row_column_rule import Crosswise
from tracefuse.schedule.row_column_stages import one_after_the_other, two_stages
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_worth_tiles, transposed_reads

KEPT_ELEMENTS = 1 << 15
"""A row's values are kept between phases while the row has at most this many elements: 256 KiB of the L2 cache."""

FEW_ROWS = 16
LONG_ROW = 1 << 16
"""At most FEW_ROWS rows of more than LONG_ROW elements are split: rows alone would leave workers idle."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is made for. architecture: the GPU's ("sm_90") or "" for this machine's processor."""

    name: str
    architecture: str = ""
    multiprocessors: int = 0


def lower(
    fusion: Fusion, rule: FusionRule, strides: Mapping[int, Shape], sizes: Sizes, target: Target, *, name: str,
    contract: bool = True, aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
    placed: frozenset[int] = frozenset(), shared: frozenset[int] = frozenset(), given: frozenset[int] = frozenset(),
    options: Options | None = None,
) -> Lowered:  # fmt: skip
    """The launches of a segment.

    fusion: the segment's own definition, composites decomposed; rule: over that fusion. strides: in elements, per
    tensor input and output of `placed`; aligned, misaligned: the inputs that start at a multiple of 16 bytes, and those
    whose elements are not even at multiples of their size; placed, shared, given: see `Memory`. Guards on sizes are in
    terms of the fusion's own extents. options: for the passes; by default those in force.
    """
    options = config.resolve() if options is None else options
    facts, memory = facts_of(rule), Memory(strides, aligned, misaligned, placed, shared, given)
    lowered = _lower(fusion, facts, memory, sizes, target, name, contract, options)
    launches = (replace(one, kernel=run_passes(KERNEL_PASSES, one.kernel, options)) for one in lowered.launches)
    return replace(lowered, launches=tuple(launches))


def _lower(
    fusion: Fusion, facts: Facts | Crosswise, memory: Memory, sizes: Sizes, target: Target, name: str, contract: bool,
    options: Options,
) -> Lowered:  # fmt: skip
    """The launches as templates emit them."""
    if isinstance(facts, Facts):
        return _lower_region(fusion, facts, memory, sizes, target, name, contract, options)
    guards: tuple[Guard, ...] = ()
    if target.name == "cuda":
        own = Sizes(sizes.values, sizes.named)
        chip = chip_of(target.architecture, target.multiprocessors)
        found = lower_both_ways(fusion, facts, memory, own, chip, name, contract)
        if isinstance(found, Lowered):
            return found
        guards = found
    first, second = (
        _lower_region(
            stage.fusion, stage.facts, stage.memory, Sizes(sizes.values, sizes.named), target, f"{name}_{side}",
            contract, options,
        )
        for stage, side in zip(two_stages(fusion, facts, memory), ("rows", "columns"), strict=True)
    )  # fmt: skip
    return one_after_the_other(fusion, facts, first, second, guards)


def _lower_region(
    fusion: Fusion, facts: Facts, memory: Memory, sizes: Sizes, target: Target, name: str, contract: bool,
    options: Options,
) -> Lowered:  # fmt: skip
    """The launches of a region with one kind of reduction."""
    if target.name == "cuda":
        chip = chip_of(target.architecture, target.multiprocessors)
        return lower_cuda(fusion, facts, memory, sizes, chip, name, contract, options)
    weight = weights(fusion)
    region = build_region(fusion, facts, memory, sizes, lambda number: weight[number] > 0)
    return _lower_cpu(region, sizes, name, contract)


def _lower_cpu(region: Region, sizes: Sizes, name: str, contract: bool) -> Lowered:
    nest = region.nest
    if not nest.reduced:
        transposed = transposed_reads(region)
        if transposed is not None and is_worth_tiles(region, transposed, sizes):
            region = replace(region, streamed=streamed_outputs(region, nest.loops[-1], sizes))
            launch = lower_transpose(region, transposed, f"{name}_transpose", contract)
            return Lowered("transpose", (launch,), tuple(sizes.guards))
        region = replace(region, streamed=_streamed_pieces(region, sizes))
        launch = lower_pointwise(region, f"{name}_pointwise", contract)
        return Lowered("pointwise", (launch,), tuple(sizes.guards))
    rows = product(loop.extent for loop in nest.kept)
    length = product(loop.extent for loop in nest.reduced)
    # The length first: where rows are short, nothing depends on how many there are, and one plan serves every batch.
    short = sizes.at_most(length, KEPT_ELEMENTS, "a row stays in cache between passes")
    long = not short and not sizes.at_most(length, LONG_ROW, "a short row is not split")
    if long and sizes.at_most(rows, FEW_ROWS, "few rows are split over the workers"):
        launches, split = lower_split(region, f"{name}_split", contract)
        return Lowered("split", launches, tuple(sizes.guards), tuple(split.scratch), split.derived)
    region = replace(region, streamed=streamed_outputs(region, nest.loops[-1], sizes))
    if nest.loops[-1].reduced:
        return Lowered("row", (lower_row(region, f"{name}_row", contract, keep=short),), tuple(sizes.guards))
    if is_worth_chunks(region, sizes):
        launches, scratch, derived = lower_column_chunks(region, f"{name}_column", contract)
        return Lowered("column", launches, tuple(sizes.guards), scratch, derived)
    return Lowered("column", (lower_column(region, f"{name}_column", contract),), tuple(sizes.guards))


def _streamed_pieces(region: Region, sizes: Sizes) -> frozenset[int]:
    """Of a pointwise kernel, whose innermost loop starts anew wherever it is cut."""
    if not region.nest.loops:
        return frozenset()
    inner = region.nest.loops[-1]
    return streamed_outputs(region, inner, sizes, cut_points(region, inner)[1:-1])
