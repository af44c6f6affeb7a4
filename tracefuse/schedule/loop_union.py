"""The union of the facts of two regions.

Two regions merge if their loops can be matched: through the values that one passes to the other, then through common
reads, then by equal extents in order. Where a reshape regroups the axes that they share, loops are split first. A
region without reduction loops may also run before or after the reductions of the other, over its parallel loops. A
union costs time linear in the smaller side.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from segments import Edge, Verdict, yes
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Shape
from tracefuse.ir.indexing import PULLED, AxisMap, Entry, flat
from tracefuse.ir.row_major import axis_groups
from tracefuse.schedule.kernel_size import HERE, Places, at_places
from tracefuse.schedule.loop_entries import Splits, loop_pairs, moved, splits_between, through
from tracefuse.schedule.loop_facts import Facts, LoopRefusal, Uses, many_orders, split_facts


def merge_facts(
    a: Facts, b: Facts, edges: tuple[Edge, ...], fixed: frozenset[int], *, folding: bool = False,
    most_code: float = math.inf,
) -> Verdict:  # fmt: skip
    """Merges producer `a` and consumer `b`, or two siblings if `edges` is empty.

    fixed: the values that depend on reductions; they can be read along other loops only in another kernel. folding:
    loops that one side lacks may still prove to be reduction loops. most_code: upper bound on the union's code; where
    a refusal gives the code, it counts at most little more than `most_code` places of a value.
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
        verdict = _match(a, b, crossing, fixed, folding)
    union = verdict.facts
    if not isinstance(union, Facts):
        return verdict
    if a.orders or b.orders:
        union = replace(union, orders={**a.orders, **b.orders})
    if not folding and (refusal := many_orders(union, a, b)) is not None:
        return refusal
    places = _places(a, b, crossing, bool(stored) or not edges, most_code)
    return yes(
        Facts(
            union.loops, union.reduced, union.outputs, union.uses, union.tainted, union.pending, union.library,
            places, code, a.scalars | b.scalars, a.scans or b.scans, union.axes, union.orders,
        )
    )  # fmt: skip


def _places(
    a: Facts, b: Facts, crossing: Mapping[int, bool], is_anchored: bool, most: float
) -> dict[int, Places]:  # fmt: skip
    """Returns the places at which the union reads its inputs: the producer's reads, at each place it is read from.

    Of more than `most` places it keeps a part that is still above `most`: any producer read there is refused.
    """
    read = frozenset().union(*(b.places[v] for v in crossing), (HERE,) if is_anchored else ())
    places = {v: at for v, at in b.places.items() if v not in crossing}
    is_here = len(read) == 1 and HERE in read
    for value, at in a.places.items():
        known = places.get(value)
        if known is None or len(known) <= most:
            composed = at if is_here else at_places(read, at, most)
            places[value] = composed if known is None or known == composed else known | composed
    return places


def _pull_into(a: Facts, b: Facts, crossing: Mapping[int, bool]) -> Facts:
    """Inlines a producer into its only consumer: its reads, in the consumer's loops."""
    uses = {v: maps for v, maps in b.uses.items() if v not in crossing}
    for value in crossing:
        for use in b.uses[value]:
            loops = through(a.outputs[value], use)
            _compose(a.uses, loops, uses, are_same=all(loops.get(k) == k for k in range(len(a.loops))))
    return replace(b, uses=uses)


def _compose(
    uses: Uses, loops: Mapping[int, Entry], into: dict[int, frozenset[AxisMap]], *, are_same: bool = False
) -> None:
    """Adds uses along `loops`. are_same: these are the loops of the uses, so that no map changes."""
    composed: dict[frozenset[AxisMap], frozenset[AxisMap]] = {}  # most values of a region have one of a few maps
    for value, maps in uses.items():
        read = maps if are_same else composed.get(maps)
        if read is None:
            moved_maps = (tuple([moved(entry, loops) for entry in axis_map]) for axis_map in maps)
            read = composed[maps] = frozenset(moved_maps)
        known = into.get(value)
        into[value] = read if known is None or known == read else known | read


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


def _match(a: Facts, b: Facts, crossing: Mapping[int, bool], fixed: frozenset[int], folding: bool) -> Verdict:
    """Matches the loops of two regions, and merges their facts.

    Loops are split where a reshape regroups the axes of a value that both sides share, or where only their product is
    the extent of a loop of the other side.
    """
    finer = _split_at_reshapes(a, b, crossing) or (a, b)
    verdict = _match_loops(*finer, crossing, fixed, folding)
    if verdict.code is LoopRefusal.DIFFERENT_EXTENTS:
        by_extent = _split_by_extent(*finer)
        if by_extent is not None:
            verdict = _match_loops(*by_extent, crossing, fixed, folding)
    if verdict or finer == (a, b):
        return verdict
    return _match_loops(a, b, crossing, fixed, folding)


def _split_by_extent(a: Facts, b: Facts) -> tuple[Facts, Facts] | None:
    """Splits loops whose extent is the product of loops of the other side; None if there are none."""
    left = [k for k, extent in enumerate(a.loops) if extent not in b.loops]
    right = [k for k, extent in enumerate(b.loops) if extent not in a.loops]
    splits: tuple[dict[int, Shape], dict[int, Shape]] = ({}, {})
    for left_group, right_group in axis_groups(tuple(a.loops[k] for k in left), tuple(b.loops[k] for k in right)):
        extents, right_extents = (
            tuple(a.loops[left[k]] for k in left_group),
            tuple(b.loops[right[k]] for k in right_group),
        )
        if product(extents) != product(right_extents):
            return None
        if len(left_group) == 1:
            splits[0][left[left_group[0]]] = right_extents
        elif len(right_group) == 1:
            splits[1][right[right_group[0]]] = extents
    return _finer(a, b, splits)


def _split_at_reshapes(a: Facts, b: Facts, crossing: Mapping[int, bool]) -> tuple[Facts, Facts] | None:
    """Splits loops so that both sides follow the same loops of the values that they share; None if they do."""
    pairs = [(a.outputs[value], use) for value in sorted(crossing) for use in b.uses[value]]
    for value in sorted(a.uses.keys() & b.uses.keys()):
        if len(a.uses[value]) == len(b.uses[value]) == 1:
            pairs += [(first, second) for first in a.uses[value] for second in b.uses[value]]
    splits: tuple[dict[int, Shape], dict[int, Shape]] = ({}, {})
    for written, read in pairs:
        for known, new in zip(splits, splits_between(written, read), strict=True):
            for loop, extents in new.items():
                known.setdefault(loop, extents)
    return _finer(a, b, splits)


def _finer(a: Facts, b: Facts, splits: tuple[Splits, Splits]) -> tuple[Facts, Facts] | None:
    """Returns both sides with their loops split; None if there are none, or a side scans: its loop stays whole."""
    if not any(splits) or a.scans or b.scans:
        return None
    return split_facts(a, splits[0]), split_facts(b, splits[1])


def _match_loops(a: Facts, b: Facts, crossing: Mapping[int, bool], fixed: frozenset[int], folding: bool) -> Verdict:
    stored = {v: m for v, m in a.outputs.items() if crossing.get(v, True)}
    matching = _Matching({}, {})
    elsewhere: list[tuple[int, AxisMap]] = []
    for value in sorted(crossing, key=lambda v: v not in a.tainted):
        for use in sorted(b.uses[value], key=lambda m: PULLED in m):
            pairs = list(loop_pairs(a.outputs[value], use))
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
        reads = loop_pairs(_agreed(a.uses[value]), _agreed(b.uses[value]))
        _match_reads(a, b, matching, [(f, s) for f, s in reads if PULLED not in (f, s)])
    for value in sorted(common - fixed):
        if len(a.uses[value]) == len(b.uses[value]) == 1:
            (first,), (second,) = a.uses[value], b.uses[value]
            _match_reads(a, b, matching, list(loop_pairs(first, second)))


def _agreed(maps: frozenset[AxisMap]) -> AxisMap:
    """Returns for each axis the loop along which all maps read it, else PULLED."""
    return tuple(entries[0] if len(set(entries)) == 1 else PULLED for entries in zip(*maps, strict=True))


def _match_reads(a: Facts, b: Facts, matching: _Matching, reads: list[tuple[int, int | None]]) -> None:
    """Matches the loops along which a and b read one value, if all of them can be matched."""
    pairs = [(f, s) for f, s in reads if s is not None]
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
        first_extents, second_extents = (tuple(f.loops[k] for k in sorted(o)) for f, o in ((a, only_a), (b, only_b)))
        return LoopRefusal.DIFFERENT_EXTENTS(first=first_extents, second=second_extents)
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
    _compose({v: m for v, m in b.uses.items() if v not in crossing}, from_b, uses, are_same=_are_same(from_b, b))
    _compose(a.uses, from_a, uses, are_same=_are_same(from_a, a))
    for value, use in elsewhere:
        _compose(a.uses, through(a.outputs[value], _renamed(use, from_b)), uses)
    tainted = (a.tainted & outputs.keys()) | b.tainted
    if any(v in a.tainted for v in crossing):
        tainted |= b.outputs.keys()
    axes = {v: _renamed(m, names) for side, names in ((a, from_a), (b, from_b)) for v, m in side.axes.items()}
    return yes(Facts(loops, reduced, outputs, uses, frozenset(tainted), pending, axes=axes))


def _are_same(names: Mapping[int, int], facts: Facts) -> bool:
    """Whether all loops of a side keep their numbers."""
    return all(names.get(loop) == loop for loop in range(len(facts.loops)))


def _renamed(axis_map: AxisMap, names: Mapping[int, int]) -> AxisMap:
    return tuple(moved(entry, names) for entry in axis_map)


def _outputs_disagree(
    outputs: Mapping[int, AxisMap], every: frozenset[int], reduced: frozenset[int] | None
) -> Verdict | None:
    """Refuses outputs that have neither all loops nor, in a reduction, all parallel loops."""
    if reduced is None:
        return None
    for value, axis_map in outputs.items():
        loops = frozenset(flat(axis_map))
        if loops not in (every, every - reduced):
            return LoopRefusal.OUTPUT_LOOPS(value=value)
    return None
