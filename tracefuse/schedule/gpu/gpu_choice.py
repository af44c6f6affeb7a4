"""Which GPU template a region gets, and the facts that all of them use.

pointwise (cuda_pointwise.py): no reduction; transpose (cuda_transpose.py): the same where an input lies in another
order than the output. row (cuda_row.py): the innermost loop is reduced; a row in registers, or
looped. column (cuda_column.py): the innermost loop is kept. Few long rows, and columns too few to fill the chip, are
split over the grid and finished by further launches (cuda_split.py). Long rows that several phases read are held by
clusters of blocks (cuda_cluster.py) where the chip has them.

Every choice follows from sizes, layout and the number of multiprocessors alone, and leaves guards behind.

Knows: templates, sizes. Must not know: how templates emit, CUDA's notation, arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracefuse.config import Options
from tracefuse.dtypes import DType, int32, int64
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Expression, Extent, Symbol, is_nonnegative, product, substitute, symbols
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.passes.split_complex import has_complex
from tracefuse.schedule.chip import Chip
from tracefuse.schedule.gpu.gpu_cluster import cluster_share, lower_cluster, worth_holding
from tracefuse.schedule.gpu.gpu_column import lower_column
from tracefuse.schedule.gpu.gpu_frame import Setting
from tracefuse.schedule.gpu.gpu_lanes import Widening, every_output, widen
from tracefuse.schedule.gpu.gpu_pointwise import lower_pointwise
from tracefuse.schedule.gpu.gpu_row import lower_long_row, lower_row, row_shape, worth_keeping
from tracefuse.schedule.gpu.gpu_split import lower_split_row, splits_rows
from tracefuse.schedule.gpu.gpu_transpose import lower_transposed
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.phases import Memory, Region, build_region
from tracefuse.schedule.scopes import LanesNotPossible
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.transposed import is_worth_tiles, transposed_reads

NARROW_INDEX = 2**31 - 2**17
"""Positions below this are counted in 32 bits; what a block reaches beyond the end still fits."""


def lower_cuda(
    fusion: Fusion,
    facts: Facts,
    memory: Memory,
    sizes: Sizes,
    chip: Chip,
    name: str,
    contract: bool,
    options: Options,
) -> Lowered:
    """The launches of a region on a GPU."""
    region = build_region(fusion, facts, memory, sizes, worth_keeping(fusion))
    dtype = index_dtype(region, sizes)
    lanes, widening = widen(region, sizes)
    setting = Setting(lanes, dtype, contract, chip, name, options)
    if widening.table:
        fusion, facts, memory = widening.fusion(fusion), widening.facts(facts), widening.memory(memory)
        region = build_region(fusion, facts, memory, widening.sizes, worth_keeping(fusion))
    try:
        chosen = _choose(region, setting, widening.sizes)
    except LanesNotPossible:
        chosen = _choose(region, replace(setting, lanes=1), widening.sizes)
    return resolved(*chosen, widening, sizes)


Chosen = tuple[str, Sequence[LaunchSpec], Sequence[Scratch], Mapping[Symbol, Extent]]


def _choose(region: Region, setting: Setting, sizes: Sizes) -> Chosen:
    nest = region.nest
    if not nest.reduced:
        transposed = transposed_reads(region)
        if transposed is not None and is_worth_tiles(region, transposed, sizes):
            launch, derived = lower_transposed(region, setting, transposed)
            return "transpose", (launch,), (), derived
        launch, derived = lower_pointwise(region, setting, sizes)
        return "pointwise", (launch,), (), derived
    if not nest.loops[-1].reduced:
        launches, scratch, derived = lower_column(region, setting, sizes)
        return "column", launches, scratch, derived
    shape = row_shape(region, sizes, setting.lanes)
    if shape is not None:
        launch, derived = lower_row(region, setting, shape)
        return "row", (launch,), (), derived
    once = run_passes(passes_at("for rows that a block cannot hold"), region.fusion, setting.options)
    passes = (
        region if once is region.fusion else build_region(once, region.facts, region.memory, sizes, worth_keeping(once))
    )
    if passes.probe.kept:  # what one pass does not read again need not be held
        held = build_region(region.fusion, region.facts, region.memory, sizes, worth_holding(region.fusion))
        share = cluster_share(held, sizes, setting)
        if share is not None:
            launch, derived = lower_cluster(held, setting, share)
            return "cluster", (launch,), (), derived
    region = passes
    if splits_rows(region, sizes, setting):
        launches, scratch, derived = lower_split_row(region, setting)
        return "split", launches, scratch, derived
    launch, derived = lower_long_row(region, setting)
    return "long row", (launch,), (), derived


def index_dtype(region: Region, sizes: Sizes) -> DType:
    """int32 where every position in the loops and in each array's memory fits."""
    spans: list[Extent] = [product(loop.extent for loop in region.nest.loops)]
    for number, strides in region.memory.strides.items():
        spans.append(_span(region.fusion.shape_of(number), strides, sizes))
    spans += [product(region.fusion.shape_of(output)) for output in every_output(region)]
    spans = [s for k, s in enumerate(spans) if not any(_covers(other, s) for other in spans[:k])]
    # A complex number is two elements of the array that the kernel sees.
    limit = NARROW_INDEX // 2 if has_complex(region.fusion) else NARROW_INDEX
    fits = [sizes.at_most(s, limit, "positions fit 32 bits") for s in spans]
    return int32 if all(fits) else int64


def _covers(larger: Extent, span: Extent) -> bool:
    """Whether span <= larger wherever no extent is 0; where one is, nothing runs."""
    difference = larger - span
    if any(s.id is None for s in symbols(difference)):  # strides, which may be negative
        return False
    return is_nonnegative(substitute(difference, {s: Expression((((s,), 1),)) + 1 for s in symbols(difference)}))


def _span(shape: Shape, strides: Shape, sizes: Sizes) -> Extent:
    """Elements from the first to the last of an array in memory."""
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


def resolved(
    template: str, launches: Sequence[LaunchSpec], scratch: Sequence[Scratch], derived: Mapping[Symbol, Extent],
    widening: Widening, sizes: Sizes,
) -> Lowered:  # fmt: skip
    """The lowered segment in terms of the fusion's own symbols."""
    own = {s: widening.original(e) for s, e in derived.items()}
    complete = {**own, **widening.derived}
    sized = tuple(replace(s, size=substitute(widening.original(s.size), own)) for s in scratch)
    guards = (replace(g, left=substitute(g.left, complete), right=substitute(g.right, complete)) for g in sizes.guards)
    known: tuple[Guard, ...] = tuple(
        dict.fromkeys(g for g in guards if not isinstance(g.left, int) or not isinstance(g.right, int))
    )
    return Lowered(template, tuple(launches), known, sized, complete)
