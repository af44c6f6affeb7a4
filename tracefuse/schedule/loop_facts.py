"""Facts about the loops of a region.

A region's kernel runs over loops: reduction loops and parallel loops. Values that the region stores, and values that
its reductions read or compute, are anchored: each of their axes is one loop. A full value has all loops, a reduced
value has the parallel loops. Every other value is pulled: it is computed at the coordinates that its consumer needs.
So a pointwise or movement producer merges with any consumer unless its value must be stored. A reduction merges if its
result is read along the parallel loops and at no other coordinates.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from segments import Verdict
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.indexing import PULLED, AxisMap, LoopFactor, flat, parts_of, reduces, use_maps
from tracefuse.ir.scan_kind import is_library_call, scans
from tracefuse.schedule.kernel_size import Places, places_read, weight
from tracefuse.schedule.loop_entries import Splits, places_after, split_map
from tracefuse.schedule.memory_orders import accesses_across
from tracefuse.schedule.refusal_codes import ScheduleRefusal

Uses: TypeAlias = Mapping[int, frozenset[AxisMap]]


class LoopRefusal(ScheduleRefusal):
    """Refusals by the loops and the code of two groups."""

    PERHAPS_EQUAL = "the reduced loops and those of the reader are not known to be equal"
    """A guard may lift it: `y + x.sum(-1, keepdims=True)` is one kernel if x and y have equal rows."""
    TOO_MUCH_CODE = "one kernel would emit more than compiles in time that is linear in the program"
    LIBRARY_CALL = "is a library call, a segment by itself"
    REDUCTION_READ_ELSEWHERE = "the result of a reduction is read at other coordinates"
    DIFFERENT_EXTENTS = "their loops have different extents"
    DIFFERENT_REDUCTIONS = "both reduce, over different axes"
    SCAN_AND_REDUCTION = "one combines the elements so far, the other reduces"
    MISSING_LOOPS = "one has loops that the other lacks"
    OUTPUT_LOOPS = "an output has neither all loops nor all but the reduced ones"
    READ_ACROSS = "one kernel would read arrays in two orders of memory, each element far from the one before"
    STORED_ACROSS = "one kernel would store a transposed result, each element far from the one before"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a region.

    loops: extents. reduced: the reduction loops; None if the region does not reduce. outputs: the axis map of each
    value that is stored or read by a consumer. uses: the axis maps by which inputs are read. tainted: outputs that
    depend on a reduction of the region. pending: loops that must still prove to be reduction loops, while a whole
    region is judged node by node. places: the places at which inputs are read. code: the ops that a kernel emits for
    one element. scalars: the host scalars that it reads. scans: its reductions are scans along one loop, whose results
    have all loops. axes: for the result of each reduction, the loops of the axes that it reduces. orders: of inputs in
    another order in memory than row-major, the axes from the outermost.
    """

    loops: tuple[Extent, ...]
    reduced: frozenset[int] | None
    outputs: Mapping[int, AxisMap]
    uses: Uses
    tainted: frozenset[int]
    pending: frozenset[int] = frozenset()
    library: str | None = None
    places: Mapping[int, Places] = field(default_factory=dict)
    code: int = 1
    scalars: frozenset[int] = frozenset()
    scans: bool = False
    axes: Mapping[int, AxisMap] = field(default_factory=dict)
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """The number of tensors and scalars that a kernel reads and writes."""
        return len(self.uses) + len(self.outputs) + len(self.scalars)


def node_facts(fusion: Fusion, node: Node) -> Facts:
    """Returns the facts of a single node."""
    extents, result, reads = use_maps(fusion, node)
    uses: dict[int, frozenset[AxisMap]] = {}
    for value, axis_map in reads:
        if fusion.values[value].is_tensor:
            uses[value] = uses.get(value, frozenset()) | {axis_map}
    reduced, is_scan = None, False
    if reduces(fusion, node):
        reduced = frozenset(range(len(extents))) - frozenset(flat(result))
    elif is_scan := scans(fusion, node):
        reduced = frozenset(
            (sum(extent != 1 for extent in fusion.shape_of(node.outputs[0])[: node.attributes["dim"]]),)
        )
    tainted = frozenset(node.outputs) if reduced is not None else frozenset[int]()
    axes: dict[int, AxisMap] = {}
    if reduced is not None and not is_scan:
        shape = fusion.shape_of(node.operands[0])
        loop_of_axis = [None if extent == 1 else sum(e != 1 for e in shape[:axis]) for axis, extent in enumerate(shape)]
        axes = dict.fromkeys(node.outputs, tuple(loop_of_axis[axis] for axis in node.attributes["dims"]))
    library = node.op.name if is_library_call(node.op) else None
    return Facts(
        tuple(extents), reduced, dict.fromkeys(node.outputs, result), uses, tainted, frozenset(), library,
        places_read(fusion, node), weight(fusion, node), frozenset(node.inputs) - uses.keys(), is_scan, axes,
        {value: order for value in uses if (order := fusion.values[value].memory_order) is not None},
    )  # fmt: skip


def split_facts(facts: Facts, splits: Splits) -> Facts:
    """Returns the facts over loops of which some are split."""
    if not splits:
        return facts
    places = places_after(len(facts.loops), splits)
    loops = tuple(extent for k, extent_of_loop in enumerate(facts.loops) for extent in splits.get(k, (extent_of_loop,)))

    def renamed(names: frozenset[int]) -> frozenset[int]:
        return frozenset(new for loop in names for new in places[loop])

    return replace(
        facts, loops=loops, reduced=None if facts.reduced is None else renamed(facts.reduced),
        outputs={v: split_map(m, places, splits) for v, m in facts.outputs.items()},
        axes={v: split_map(m, places, splits) for v, m in facts.axes.items()},
        uses={v: frozenset(split_map(m, places, splits) for m in maps) for v, maps in facts.uses.items()},
        pending=renamed(facts.pending),
    )  # fmt: skip


def with_factors(facts: Facts) -> Facts:
    """Returns the facts of a pointwise region over the factors of its loops by which inputs are read.

    `np.repeat` and a reshape that merges axes read an input at a quotient of an index; over the factors, at an index.
    """
    entries = [entry for maps in facts.uses.values() for axis_map in maps for entry in axis_map if entry is not None]
    if facts.reduced is not None or PULLED in entries:
        return facts
    splits: dict[int, Shape] = {}
    for part in (part for entry in entries for part in parts_of(entry)):
        if isinstance(part, LoopFactor) and len(part.extents) > len(splits.get(part.loop, ())):
            splits[part.loop] = part.extents
    return split_facts(facts, splits)


def across(facts: Facts) -> tuple[int, int | None]:
    """Returns how many accesses of an element are across the order of a complete region's loops; see memory_orders."""
    return accesses_across(facts.loops, facts.reduced is not None, facts.outputs, facts.uses, facts.orders)


def many_orders(facts: Facts, *parts: Facts) -> Verdict | None:
    """Refuses a complete region with more accesses across its loops than its parts have."""
    count, value = across(facts)
    if not count or count <= sum(across(part)[0] for part in parts):
        return None
    code = LoopRefusal.STORED_ACROSS if value in facts.outputs else LoopRefusal.READ_ACROSS
    return code(value=value)
