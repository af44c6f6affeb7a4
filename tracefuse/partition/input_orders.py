"""Copies of inputs whose memory runs along another axis than the loops of the kernels that read them.

A kernel's loops follow its outputs. Pointwise kernels read a few transposed inputs through tiles; a reduction reads
every element of one from another line of memory, and so does a stencil, and so does what reads a flattened one at
shifted positions, as `np.diff(x.ravel())`. A copy in C order costs one pass instead.

Must not know: kernels, targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol

from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import UNIT, Strided
from tracefuse.ir.extents import Extent, evaluate, product, symbols
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.indexing import PULLED, AxisMap, flat
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ops.roles import ENDING_COPY
from tracefuse.passes.rewriter import Rewriter, renamed
from tracefuse.schedule.loop_facts import Facts, with_factors
from tracefuse.schedule.memory_orders import LEAST_EXTENT, MOST_TILES, innermost_loop
from tracefuse.schedule.nest import first_nest, probe_outputs, quotients
from tracefuse.schedule.row_column_rule import RowColumnFacts

LEAST_ELEMENTS, LEAST_DIVIDED, LEAST_SEARCHED = 1 << 15, 1 << 13, 1 << 12
"""Elements of the smallest input that is copied; smaller ones stay in a cache, whatever the order. Of one whose
positions are divided for each element, and of one that is searched in the order of its indices."""


class KernelPart(Protocol):
    """A segment with kernels: facts by local numbers, and the number in the fusion of each."""

    @property
    def fusion(self) -> Fusion: ...

    @property
    def facts(self) -> object: ...

    @property
    def originals(self) -> Mapping[int, int]: ...


def inputs_to_copy(
    fusion: Fusion, parts: Sequence[KernelPart], layouts: Sequence[Strided | None], sizes: Mapping[int, int]
) -> tuple[frozenset[int], tuple[Guard, ...]]:
    """Returns the inputs to copy before the kernels run, and the guards of the choice.

    layouts: of the tensor inputs, None for C order. sizes: extent values by id. Inputs that an output updates in place
    stay as they are.
    """
    turned = {
        number: layout.axes.index(UNIT)
        for number, layout in zip(fusion.tensor_inputs, layouts, strict=True)
        if layout is not None and UNIT in layout.axes[:-1] and number not in fusion.aliases.values()
    }
    apart = {
        number for number, layout in zip(fusion.tensor_inputs, layouts, strict=True)
        if layout is not None and UNIT in layout.axes and number not in fusion.aliases.values()
    }  # fmt: skip
    if not apart:
        return frozenset(), ()
    wanted: dict[int, int] = {}
    repeated: dict[int, Extent] = {}
    iterations: dict[int, Extent] = {}  # twice those that read an input at quotients
    for part in parts:
        least = LEAST_SEARCHED if _searches_in_order(part) else LEAST_ELEMENTS
        for number in _read_across(part, turned):
            wanted[number] = min(least, wanted.get(number, least))
        for number, count in _read_divided(part, apart):
            iterations[number] = 2 * count + iterations.get(number, 0)
        for number, count in _read_across_again(part, turned):
            repeated[number] = count
    chosen, guards = list[int](), list[Guard]()
    for number, count in repeated.items():
        elements = 2 * product(fusion.shape_of(number))
        is_read = evaluate(elements, sizes) <= evaluate(count, sizes)
        pair = (elements, count) if is_read else (count + 1, elements)
        guards.append(Guard(pair[0], "<=", pair[1], "how often an input in another order is read"))
        if is_read:
            wanted[number] = min(LEAST_ELEMENTS, wanted.get(number, LEAST_ELEMENTS))
    for number, count in iterations.items():
        elements = product(fusion.shape_of(number))
        is_read = evaluate(elements, sizes) <= evaluate(count, sizes)
        pair = (elements, count) if is_read else (count + 1, elements)
        guards.append(Guard(pair[0], "<=", pair[1], "how much of an input in another order is read at quotients"))
        if is_read:
            wanted[number] = min(LEAST_DIVIDED, wanted.get(number, LEAST_DIVIDED))
    for number, least in wanted.items():
        elements = product(fusion.shape_of(number))
        is_large = math.prod(evaluate(e, sizes) for e in fusion.shape_of(number)) >= least
        if is_large:
            chosen.append(number)
            guards.append(Guard(least, "<=", elements, "an input in another order is copied"))
        else:
            guards.append(Guard(elements, "<=", least - 1, "an input in another order stays in a cache"))
    return frozenset(chosen), tuple(g for g in guards if not (isinstance(g.left, int) and isinstance(g.right, int)))


def _read_across(part: KernelPart, turned: Mapping[int, int]) -> Iterator[int]:
    """Yields the inputs among `turned` that a kernel reads across its loops."""
    facts = part.facts.rows if isinstance(part.facts, RowColumnFacts) else part.facts
    if not isinstance(facts, Facts):
        return
    unit_axes = {v: turned[o] for v, o in part.originals.items() if v in facts.uses and o in turned}
    order = frozenset((max(facts.reduced or ()),)) if _searches_in_order(part) else _order(facts, unit_axes)
    for value, axis in unit_axes.items():
        last = [list(flat(use[axis : axis + 1]))[-1] for use in facts.uses[value] if use[axis] is not None]
        across = any(order and loop != PULLED and loop not in order for loop in last)
        is_read_often = len(facts.places.get(value, ())) > MOST_TILES and value not in facts.orders
        if (facts.reduced is not None and across) or is_read_often:
            yield part.originals[value]


def _read_across_again(part: KernelPart, turned: Mapping[int, int]) -> Iterator[tuple[int, Extent]]:
    """Yields the inputs among `turned` that a kernel without reductions reads across its loops, and its iterations."""
    if not isinstance(part.facts, Facts) or part.facts.reduced is not None or not part.facts.loops:
        return
    facts = with_factors(part.facts)
    unit_axes = {v: turned[o] for v, o in part.originals.items() if v in facts.uses and o in turned}
    order = _order(facts, unit_axes)
    for value, axis in unit_axes.items():
        last = [list(flat(use[axis : axis + 1]))[-1] for use in facts.uses[value] if use[axis] is not None]
        if any(order and loop != PULLED and loop not in order for loop in last):
            yield part.originals[value], product(facts.loops)


def _read_divided(part: KernelPart, apart: Set[int]) -> Iterator[tuple[int, Extent]]:
    """Yields the inputs among `apart` whose positions a kernel divides for each element, and its iterations."""
    values = {value for value, original in part.originals.items() if original in apart}
    if not isinstance(part.facts, Facts) or values.isdisjoint(part.facts.uses) or not part.facts.loops:
        return
    facts = with_factors(part.facts)
    nest = first_nest(facts)
    inner = nest.loops[-1].symbol
    for value, coordinates in probe_outputs(part.fusion, facts, nest).reads:
        if value in values and any(inner in symbols(atom.left) for c in coordinates for atom in quotients(c)):
            yield part.originals[value], product(facts.loops)


def _searches_in_order(part: KernelPart) -> bool:
    """Whether a kernel finds the position of an element along several axes: of equal elements the first one counts.

    Its loops then stand in the order of the axes.
    """
    facts = part.facts
    if not isinstance(facts, Facts) or len(facts.reduced or ()) < 2:
        return False
    return any(isinstance(node.op, Reduction) and node.op.selects for node in part.fusion.nodes)


def _order(facts: Facts, unit_axes: Mapping[int, int]) -> frozenset[int]:
    """Returns the loops along which outputs with all loops are contiguous; without any, those of inputs in C order."""
    stored = [loop for axis_map in facts.outputs.values() for loop in _innermost_loops(axis_map, facts.loops)]
    if stored:
        return frozenset(stored)
    read = (m for v, maps in facts.uses.items() if v not in unit_axes for m in maps)
    return frozenset(loop for axis_map in read for loop in _innermost_loops(axis_map, facts.loops))


def _innermost_loops(axis_map: AxisMap, loops: Sequence[Extent]) -> Iterator[int]:
    """Yields the innermost loop of a value that has all loops; if it is known to be short, the next one as well."""
    if innermost_loop(axis_map, len(loops)) is None:
        return
    for loop in reversed(list(flat(axis_map))):
        assert isinstance(loop, int)
        yield loop
        extent = loops[loop]
        if not isinstance(extent, int) or extent >= LEAST_EXTENT:
            return


def with_copies(fusion: Fusion, numbers: frozenset[int]) -> Fusion:
    """Returns the fusion with its nodes reading copies of some inputs, each of which is a segment."""
    rewriter = Rewriter(fusion)
    copies: dict[int, int] = {}
    for number in sorted(numbers):
        value = fusion.values[number]
        copies[number] = rewriter.node(
            ENDING_COPY, (number,), {}, value.dtype, (value.dtype,), where=value.where
        )[0]  # fmt: skip
    for node in fusion.nodes:
        rewriter.keep(renamed(node, copies))
    return rewriter.build()
