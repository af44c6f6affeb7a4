"""The slice update template for the CPU: an array is computed as if no slice of it were replaced, then the slice is.

`y = x.copy(); y[0] = v` tests the position of every element if one loop does both, and the test keeps the axes of x
from being joined. Apart, the first launch is a copy of contiguous memory, and the second writes the slice where it is.
It pays for thin slices, which are written twice. Of short rows vectors hold little between two tests, so wide slices of
narrow elements pay as well: moving their bytes twice takes less time than the tests.

Must not know: LLVM.
"""

from __future__ import annotations

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.op_kinds import Movement
from tracefuse.ops.roles import COPY
from tracefuse.passes.slice_updates import diagonal_axes, has_known_bounds
from tracefuse.schedule.choose import choose_for
from tracefuse.schedule.cpu.cpu_frame import CpuProblem
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.merge_rule import facts_of
from tracefuse.schedule.probe import weights
from tracefuse.schedule.refusal_codes import RegionRefusal, ScheduleRefusal
from tracefuse.schedule.row_column_sides import rule_of, with_ends
from tracefuse.schedule.template import Template

THIN = 16
"""A slice is thin if the array has so many times its elements."""

NARROW, SHORT_ROW_BYTES = 2, 256
"""The bytes of narrow elements, and of short rows, at most."""

CACHED_BYTES = 2 << 20
"""An array of more bytes in long rows is written once, with tests: it leaves the caches before its slice is written."""


class SliceUpdateRefusal(ScheduleRefusal):
    """Refusals of this template."""

    NO_UPDATE = "the segment replaces no slice of an array"
    IN_PLACE = "the segment may read what it writes"
    EMPTY = "the slice has no elements"
    WIDE = "the slice is wide and rows are long, or the array exceeds the caches"


def _accepts(problem: CpuProblem) -> Verdict:
    facts, fusion, sizes = problem.facts, problem.fusion, problem.sizes
    assert isinstance(facts, Facts)
    if facts.reduced:
        return RegionRefusal.REDUCES()
    node = _update_of(fusion)
    if node is None:
        return SliceUpdateRefusal.NO_UPDATE()
    if problem.memory.shared:
        return SliceUpdateRefusal.IN_PLACE()
    (result,), shape = node.outputs, fusion.shape_of(node.outputs[0])
    if len(shape) == 1 and node.attributes["strides"] == (1,):
        return SliceUpdateRefusal.WIDE()  # the loop of a vector is cut at its slices
    itemsize, written = fusion.values[result].dtype.itemsize, fusion.shape_of(_operands_of(node)[1])
    if any(sizes.at_most(extent, 0, "an empty slice replaces nothing") for extent in written):
        return SliceUpdateRefusal.EMPTY()
    is_narrow = itemsize <= NARROW
    is_short = sizes.at_most(shape[-1] * itemsize, SHORT_ROW_BYTES, "a slice of an array of short rows")
    if is_short and is_narrow and not any(weights(fusion).values()):
        return yes(node)
    is_thin = sizes.at_most(THIN * product(written) - product(shape), 0, "a thin slice is written twice")
    if is_thin and (
        is_short or is_narrow or sizes.at_most(product(shape) * itemsize, CACHED_BYTES, "it stays in a cache")
    ):
        return yes(node)
    return SliceUpdateRefusal.WIDE()


def _update_of(fusion: Fusion) -> Node | None:
    """Returns the node that replaces a slice, if the only output is its result."""
    node = fusion.producers.get(fusion.outputs[0]) if len(fusion.outputs) == 1 else None
    if node is None or not isinstance(node.op, Movement) or node.op.slices != "written":
        return None
    is_plain = all(isinstance(operand, int) for operand in node.operands) and has_known_bounds(fusion, node)
    return node if is_plain else None


def _operands_of(node: Node) -> tuple[int, int]:
    """Returns the array and the values of its slice, which may be the array itself."""
    array, values = node.operands
    assert isinstance(array, int)
    assert isinstance(values, int)
    return array, values


def _lower(problem: CpuProblem, node: Node) -> Lowered:
    array, values = _operands_of(node)
    (result,) = node.outputs
    memory, shape = problem.memory, problem.fusion.shape_of(result)
    written, start = _slice_of(node, memory.output_strides(problem.fusion, result))
    placed = MemoryFacts(
        {**memory.strides, result: written}, memory.aligned, memory.misaligned, memory.placed | {result},
        memory.shared, memory.supplied, {**memory.starts, result: memory.starts.get(result, 0) + start},
    )  # fmt: skip
    parts = (
        (array, shape, memory, "array"),
        (values, problem.fusion.shape_of(values), placed, "slice"),
    )
    lowered = []
    for number, extents, facts, name in parts:
        fusion = _named(problem.fusion, number, result, extents)
        part = problem.part(fusion, facts_of(rule_of(fusion)), facts, f"{problem.name}_{name}")
        lowered.append(choose_for(part).emit())
    first, second = lowered
    guards = tuple(dict.fromkeys((*problem.sizes.guards, *first.guards, *second.guards)))
    return replace(
        first, template="", launches=(*first.launches, *second.launches), guards=guards,
        scratch=(*first.scratch, *second.scratch), derived={**first.derived, **second.derived},
    )  # fmt: skip


SLICE_UPDATE: Template[CpuProblem] = Template("slice_update", _accepts, _lower)


def _named(fusion: Fusion, number: int, result: int, shape: Shape) -> Fusion:
    """Returns the part of a fusion that computes `number`, as the output `result`."""
    part, before = with_ends(fusion, (), (number,)), fusion.values[number]
    value = fusion.values[result]
    value = replace(value, type=replace(value.type, shape=shape))
    producer = part.producers.get(number)
    if producer is None or number in part.inputs:
        last = Node(COPY, (number,), {}, value.dtype, (result,), before.where)
        return replace(part, values={**part.values, result: value}, nodes=(*part.nodes, last), outputs=(result,))
    nodes = tuple(replace(node, outputs=(result,)) if node is producer else node for node in part.nodes)
    values = {n: v for n, v in part.values.items() if n != number}
    return replace(part, values={**values, result: value}, nodes=nodes, outputs=(result,))


def _slice_of(node: Node, strides: Shape) -> tuple[Shape, Extent]:
    """Returns the strides and the first offset of the slice that a node replaces in an array with these strides."""
    steps = [stride * step for stride, step in zip(strides, node.attributes["strides"], strict=True)]
    start: Extent = 0
    for first, stride in zip(node.attributes["start_indices"], strides, strict=True):
        start = start + first * stride
    axes = diagonal_axes(node)
    if axes:
        along: Extent = 0
        for axis in axes:
            along = along + steps[axis]
        steps = [step for axis, step in enumerate(steps) if axis not in axes] + [along]
    return tuple(steps), start
