"""Facts about the loops of a region, and the union of the facts of two regions.

A region's kernel runs over loops: reduction loops and parallel loops. Values that the region stores, and values that
its reductions read or compute, are anchored: each of their axes is one loop. A full value has all loops, a reduced
value has the parallel loops. Every other value is pulled: it is computed at the coordinates that its consumer needs.
So a pointwise or movement producer merges with any consumer unless its value must be stored. A reduction merges if its
result is read along the parallel loops and at no other coordinates.

Two regions merge if their loops can be matched: through the values that one passes to the other, then through common
reads, then by equal extents in order. A region without reduction loops may also run before or after the reductions of
the other, over its parallel loops. A union costs time linear in the smaller side.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from segments import Edge, Verdict, yes
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, AxisMap, reduces, use_maps
from tracefuse.ir.scan_kind import is_library_call, scans
from tracefuse.schedule.kernel_size import HERE, Places, places_read, through, weight
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
    have all loops.
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
        reduced = frozenset(range(len(extents))) - {loop for loop in result if loop is not None}
    elif is_scan := scans(fusion, node):
        reduced = frozenset(
            (sum(extent != 1 for extent in fusion.shape_of(node.outputs[0])[: node.attributes["dim"]]),)
        )
    tainted = frozenset(node.outputs) if reduced is not None else frozenset[int]()
    library = node.op.name if is_library_call(node.op) else None
    return Facts(
        tuple(extents), reduced, dict.fromkeys(node.outputs, result), uses, tainted, frozenset(), library,
        places_read(fusion, node), weight(fusion, node), frozenset(node.inputs) - uses.keys(), is_scan,
    )  # fmt: skip


def merge_facts(
    a: Facts, b: Facts, edges: tuple[Edge, ...], fixed: frozenset[int], *, folding: bool = False,
    most_code: float = math.inf,
) -> Verdict:  # fmt: skip
    """Merges producer `a` and consumer `b`, or two siblings if `edges` is empty.

    fixed: the values that depend on reductions; they can be read along other loops only in another kernel. folding:
    loops that one side lacks may still prove to be reduction loops. most_code: upper bound on the union's code.
    """
    if a.library or b.library:
        return LoopRefusal.LIBRARY_CALL(a.library or b.library or "")
    crossing = {e.value: e.exposed for e in edges}
    code = b.code + a.code * max((len(b.places[v]) for v in crossing), default=1)
    if code > most_code:
        return LoopRefusal.TOO_MUCH_CODE(code=code, most=most_code)
    stored = {v: m for v, m in a.outputs.items() if crossing.get(v, True)}
    if not stored and a.reduced is None and edges:
        verdict = yes(_pull_into(a, b, crossing))
    else:
        verdict = _match(a, b, crossing, stored, fixed, folding)
    union = verdict.facts
    if not isinstance(union, Facts):
        return verdict
    if not folding and (refusal := many_orders(union, across(a)[0] + across(b)[0])) is not None:
        return refusal
    places = _places(a, b, crossing, bool(stored) or not edges)
    return yes(
        Facts(
            union.loops, union.reduced, union.outputs, union.uses, union.tainted, union.pending, union.library,
            places, code, a.scalars | b.scalars, a.scans or b.scans,
        )
    )  # fmt: skip


def _places(a: Facts, b: Facts, crossing: Mapping[int, bool], is_anchored: bool) -> dict[int, Places]:
    """Returns the places at which the union reads its inputs: the producer's reads, at each place it is read from."""
    read = frozenset().union(*(b.places[v] for v in crossing), (HERE,) if is_anchored else ())
    places = {v: at for v, at in b.places.items() if v not in crossing}
    for value, at in a.places.items():
        places[value] = places.get(value, frozenset()) | through(read, at)
    return places


def _pull_into(a: Facts, b: Facts, crossing: Mapping[int, bool]) -> Facts:
    """Inlines a producer into its only consumer: its reads, in the consumer's loops."""
    uses = {v: maps for v, maps in b.uses.items() if v not in crossing}
    for value in crossing:
        for use in b.uses[value]:
            _compose(a.uses, _through(a.outputs[value], use), uses)
    return replace(b, uses=uses)


def _through(output: AxisMap, use: AxisMap) -> dict[int, int | None]:
    """Maps each loop of the producer to an entry of `use`, by which its output is read."""
    return {loop: entry for loop, entry in zip(output, use, strict=True) if loop is not None}


def _compose(uses: Uses, loops: Mapping[int, int | None], into: dict[int, frozenset[AxisMap]]) -> None:
    for value, maps in uses.items():
        moved = frozenset(
            tuple(e if e is None or e == PULLED else loops.get(e, PULLED) for e in axis_map) for axis_map in maps
        )
        into[value] = into.get(value, frozenset()) | moved


@dataclass(slots=True)
class _Matching:
    """A one-to-one matching of loops of `a` with loops of `b`."""

    forward: dict[int, int]
    backward: dict[int, int]

    def add(self, first: int, second: int) -> bool:
        if self.forward.get(first, second) != second or self.backward.get(second, first) != first:
            return False
        self.forward[first], self.backward[second] = second, first
        return True


def _match(
    a: Facts, b: Facts, crossing: Mapping[int, bool], stored: Mapping[int, AxisMap], fixed: frozenset[int],
    folding: bool,
) -> Verdict:  # fmt: skip
    """Matches the loops of two regions, and merges their facts."""
    matching = _Matching({}, {})
    elsewhere: list[tuple[int, AxisMap]] = []
    for value in sorted(crossing, key=lambda v: v not in a.tainted):
        for use in sorted(b.uses[value], key=lambda m: PULLED in m):
            pairs = [(f, s) for f, s in zip(a.outputs[value], use, strict=True) if f is not None]
            direct = [(f, s) for f, s in pairs if s != PULLED]
            moved = frozenset(f for f, s in pairs if s == PULLED)
            # A value that depends on a reduction may be recomputed at other coordinates of the reduction loops only:
            # there it needs the same result of the reduction. If the reduction is not merged yet, these loops become
            # the reduction loops. The result of a scan differs along its loop.
            will_fit = value in fixed and a.reduced is None
            may_move = will_fit or (moved <= (a.reduced or frozenset()) and not a.scans)
            stays = (may_move or not moved) and _all_fit(matching, direct)
            if not stays and value in a.tainted:
                return LoopRefusal.REDUCTION_READ_ELSEWHERE(value=value)
            if moved or not stays:
                elsewhere.append((value, use))
    _match_by_common_reads(a, b, matching, fixed)
    _match_by_extent(a, b, matching)
    only_a = frozenset(range(len(a.loops))) - matching.forward.keys()
    only_b = frozenset(range(len(b.loops))) - matching.backward.keys()
    refusal = _loops_disagree(a, b, matching, only_a, only_b, folding)
    if refusal is not None:
        return refusal
    return _union(a, b, crossing, stored, elsewhere, matching, only_a, only_b)


def _all_fit(matching: _Matching, pairs: list[tuple[int, int | None]]) -> bool:
    trial = _Matching(dict(matching.forward), dict(matching.backward))
    if not all(second is not None and trial.add(first, second) for first, second in pairs):
        return False
    matching.forward, matching.backward = trial.forward, trial.backward
    return True


def _match_by_common_reads(a: Facts, b: Facts, matching: _Matching, fixed: frozenset[int]) -> None:
    """Matches loops along which both sides read a value; extents alone cannot distinguish the loops of a square.

    `fixed` values come first, since the loops along which they are read are fixed: each axis on which all reads of a
    side agree is used. Other values are used only if each side reads them with one axis map.
    """
    common = a.uses.keys() & b.uses.keys()
    for value in sorted(common & fixed):
        reads = zip(_agreed(a.uses[value]), _agreed(b.uses[value]), strict=True)
        _match_reads(a, b, matching, [(f, s) for f, s in reads if PULLED not in (f, s)])
    for value in sorted(common - fixed):
        if len(a.uses[value]) == len(b.uses[value]) == 1:
            (first,), (second,) = a.uses[value], b.uses[value]
            _match_reads(a, b, matching, list(zip(first, second, strict=True)))


def _agreed(maps: frozenset[AxisMap]) -> AxisMap:
    """Returns for each axis the loop along which all maps read it, else PULLED."""
    return tuple(entries[0] if len(set(entries)) == 1 else PULLED for entries in zip(*maps, strict=True))


def _match_reads(a: Facts, b: Facts, matching: _Matching, reads: list[tuple[int | None, int | None]]) -> None:
    """Matches the loops along which a and b read one value, if all of them can be matched."""
    pairs = [(f, s) for f, s in reads if f is not None and s is not None]
    if all(f != PULLED != s and a.loops[f] == b.loops[s] and _same_role(a, f, b, s) for f, s in pairs):
        _all_fit(matching, list(pairs))


def _match_by_extent(a: Facts, b: Facts, matching: _Matching) -> None:
    """Matches the remaining loops by equal extents.

    Loops of equal extent are matched in order. Distinct extents match in any order, so the result does not depend on
    which siblings merge first. Reduction loops are matched with reduction loops first, so two sums over the same axes
    share their loops.
    """
    for prefer_role in (True, False):
        for first, extent in enumerate(a.loops):
            if first in matching.forward:
                continue
            for second in range(len(b.loops)):
                if second in matching.backward or b.loops[second] != extent:
                    continue
                if prefer_role and not _same_role(a, first, b, second):
                    continue
                matching.add(first, second)
                break


def _same_role(a: Facts, first: int, b: Facts, second: int) -> bool:
    if a.reduced is None or b.reduced is None:
        return True
    return (first in a.reduced) == (second in b.reduced)


def _loops_disagree(
    a: Facts, b: Facts, matching: _Matching, only_a: frozenset[int], only_b: frozenset[int], folding: bool
) -> Verdict | None:
    """Returns why the matched loops do not form one region, or None if they do."""
    if only_a and only_a == a.reduced and b.reduced is None and len(only_a) == len(only_b):
        pairs = [(a.loops[f], b.loops[s]) for f, s in zip(sorted(only_a), sorted(only_b), strict=True)]
        if not any(isinstance(first - second, int) for first, second in pairs):
            return LoopRefusal.PERHAPS_EQUAL(extents=tuple(pairs))
    if only_a and only_b:
        mine, theirs = (tuple(f.loops[k] for k in sorted(o)) for f, o in ((a, only_a), (b, only_b)))
        return LoopRefusal.DIFFERENT_EXTENTS(first=mine, second=theirs)
    if a.reduced is not None and b.reduced is not None:
        if a.scans != b.scans:
            return LoopRefusal.SCAN_AND_REDUCTION()
        if only_a or only_b or {matching.forward[k] for k in a.reduced} != b.reduced:
            first, second = (tuple(f.loops[k] for k in sorted(f.reduced or ())) for f in (a, b))
            return LoopRefusal.DIFFERENT_REDUCTIONS(first=first, second=second)
        return None
    only, larger = (only_a, a) if only_a else (only_b, b)
    if only and larger.reduced != only and not (folding and larger.reduced is None):
        return LoopRefusal.MISSING_LOOPS(extents=tuple(larger.loops[k] for k in sorted(only)))
    return None


def _union(
    a: Facts, b: Facts, crossing: Mapping[int, bool], stored: Mapping[int, AxisMap],
    elsewhere: list[tuple[int, AxisMap]], matching: _Matching, only_a: frozenset[int], only_b: frozenset[int],
) -> Verdict:  # fmt: skip
    """Merges the facts, in terms of the loops of the side that has more of them (b if they have equally many)."""
    from_a: Mapping[int, int] = {k: k for k in range(len(a.loops))} if only_a else matching.forward
    from_b: Mapping[int, int] = matching.backward if only_a else {k: k for k in range(len(b.loops))}
    loops = a.loops if only_a else b.loops
    reduced: frozenset[int] | None = None
    for facts, names in ((a, from_a), (b, from_b)):
        if facts.reduced is not None:
            reduced = frozenset(names[k] for k in facts.reduced)
    pending = frozenset(from_a[k] for k in a.pending) | frozenset(from_b[k] for k in b.pending)
    if (only_a or only_b) and reduced is None:
        pending = pending | (only_a or only_b)
    outputs = dict(stored) if only_a else {v: _renamed(m, from_a) for v, m in stored.items()}
    outputs.update({v: _renamed(m, from_b) for v, m in b.outputs.items()} if only_a else b.outputs)
    refusal = _outputs_disagree(outputs, frozenset(range(len(loops))), reduced)
    if refusal is not None:
        return refusal
    uses: dict[int, frozenset[AxisMap]] = {}
    _compose({v: m for v, m in b.uses.items() if v not in crossing}, from_b, uses)
    _compose(a.uses, from_a, uses)
    for value, use in elsewhere:
        _compose(a.uses, _through(a.outputs[value], _renamed(use, from_b)), uses)
    tainted = (a.tainted & outputs.keys()) | b.tainted
    if any(v in a.tainted for v in crossing):
        tainted |= b.outputs.keys()
    return yes(Facts(loops, reduced, outputs, uses, frozenset(tainted), pending))


def _renamed(axis_map: AxisMap, names: Mapping[int, int]) -> AxisMap:
    return tuple(e if e is None or e == PULLED else names[e] for e in axis_map)


def _outputs_disagree(
    outputs: Mapping[int, AxisMap], every: frozenset[int], reduced: frozenset[int] | None
) -> Verdict | None:
    """Refuses outputs that have neither all loops nor, in a reduction, all parallel loops."""
    if reduced is None:
        return None
    for value, axis_map in outputs.items():
        loops = frozenset(e for e in axis_map if e is not None)
        if loops not in (every, every - reduced):
            return LoopRefusal.OUTPUT_LOOPS(value=value)
    return None


def across(facts: Facts) -> tuple[int, int | None]:
    """Returns how many accesses of an element are across the order of a complete region's loops; see memory_orders."""
    return accesses_across(facts.loops, facts.reduced is not None, facts.outputs, facts.uses)


def many_orders(facts: Facts, before: int = 0) -> Verdict | None:
    """Refuses a complete region with more accesses across its loops than its parts have. before: those of its parts."""
    count, value = across(facts)
    if count <= before:
        return None
    code = LoopRefusal.STORED_ACROSS if value in facts.outputs else LoopRefusal.READ_ACROSS
    return code(value=value)
