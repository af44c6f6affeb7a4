"""Lowers a region that reduces both ways for a GPU, where its rows fit the registers.

One launch goes over the rows, and one finishes the columns.

Knows: the template, regions, sizes. Must not know: how the template emits, CUDA's notation, arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tracefuse.dynamic.guards import Guard
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import AxisMap
from tracefuse.schedule.chip import Chip
from tracefuse.schedule.gpu.gpu_choice import index_dtype, resolved
from tracefuse.schedule.gpu.gpu_frame import Setting
from tracefuse.schedule.gpu.gpu_lanes import widen
from tracefuse.schedule.gpu.gpu_row_column import lower_row_column, row_column_shape
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import Loop, Nest
from tracefuse.schedule.phases import Memory, Region, build_region, operand_of
from tracefuse.schedule.probe import weights
from tracefuse.schedule.row_column_rule import Crosswise
from tracefuse.schedule.row_column_stages import row_side
from tracefuse.schedule.scopes import LanesNotPossible
from tracefuse.schedule.sizes import Sizes


def lower_both_ways(
    fusion: Fusion, facts: Crosswise, memory: Memory, sizes: Sizes, chip: Chip, name: str, contract: bool
) -> Lowered | tuple[Guard, ...]:
    """The launches of both reductions, or the guards under which the template does not take them."""
    held, rows = row_side(fusion, facts), facts.rows
    columns = [node for node in fusion.nodes if node.outputs[0] in facts.columns]
    region = build_region(held, rows, memory, sizes, worth_keeping(held), columns)
    dtype = index_dtype(region, sizes)
    lanes, widening = widen(region, sizes)
    if widening.table:
        held, rows, memory = widening.fusion(held), widening.facts(rows), widening.memory(memory)
        fusion = widening.fusion(fusion)
        region = build_region(held, rows, memory, widening.sizes, worth_keeping(held), columns)
    after = [output for output in fusion.outputs if output in facts.after]
    for width in dict.fromkeys((lanes, 1)):
        setting = Setting(width, dtype, contract, chip, name)
        shape = row_column_shape(region, widening.sizes, setting)
        if shape is None:
            return resolved("", (), (), {}, widening, sizes).guards
        try:
            found = lower_row_column(region, _finishing(fusion, region, columns, after), setting, widening.sizes, shape)
        except LanesNotPossible:
            continue
        return resolved("rows and columns", *found, widening, sizes)
    raise AssertionError("one element at a time is always possible")


def worth_keeping(fusion: Fusion) -> Callable[[int], bool]:
    """What a row keeps for later phases: inputs, which may come through shared memory, and what is dear to compute."""
    weight, inputs = weights(fusion), frozenset(fusion.tensor_inputs)
    return lambda number: number in inputs or weight[number] > 0


def _finishing(fusion: Fusion, region: Region, columns: Sequence[Node], after: Sequence[int]) -> Region:
    """The region of the second launch: the R loops alone, over which it stores what is made of the columns."""
    facts, nest = region.facts, region.nest
    operand = facts.outputs[operand_of(columns[0])]
    dims = columns[0].attributes["dims"]
    loops = [entry for axis, entry in enumerate(operand) if axis not in dims and entry is not None]
    outputs = {output: _along(fusion, output, loops) for output in after}
    return replace(
        region,
        fusion=fusion,
        facts=replace(facts, outputs=outputs),
        nest=Nest(tuple(Loop(loop.index, loop.extent, False) for loop in nest.reduced), nest.at),
        kept=tuple(after),
    )


def _along(fusion: Fusion, value: int, loops: Sequence[int]) -> AxisMap:
    """The map of a value whose axes of more than one element run along these loops, in order."""
    own = iter(loops)
    return tuple(None if extent == 1 else next(own) for extent in fusion.shape_of(value))
