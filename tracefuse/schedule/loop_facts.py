"""What is known of the loops of a region, and when two regions have the same ones: facts and their union.

A region has loops, the extents that its kernel runs over. Some may be reduced (R), the others are kept (K). What the
region must store (its exposed values) and what its reductions read or make is anchored: each axis is one loop, a full
value has all loops, a reduced one the K loops. Everything else is pulled: computed at whatever coordinates a reader
needs, so a pointwise or movement producer joins any reader unless somebody else needs it stored. A reduction joins
where its result is read along the K loops, and no other loop's coordinates.

Two regions become one when their loops can be identified: through the values that cross, then through what both read,
then by equal extents in order; a region without R loops may also be what comes before or after the reductions of the
other, over K alone. The union costs the smaller side.

Knows: facts about loops. Must not know: which unions are tried, kernels, targets, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeAlias

from segments import Edge, Verdict, no, yes
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import PULLED, AxisMap, reduces, use_maps
from tracefuse.ir.op_kinds import Library
from tracefuse.schedule.kernel_size import HERE, Places, places_read, through, weight

Uses: TypeAlias = Mapping[int, frozenset[AxisMap]]


class LoopRefusal(Enum):
    """Why loops do not make one region, where a caller acts on it."""

    PERHAPS_EQUAL = auto()
    """A guard can lift it: `y + x.sum(-1, keepdims=True)` is one kernel where x and y have equal rows."""


TOO_MUCH_CODE = "one kernel would emit more than compiles in time that is linear in the program"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rule knows of a region.

    loops: extents. reduced: the R loops, None where nothing reduces. outputs: the map of each value that is stored or
    read further down. uses: how values from outside are read. tainted: outputs that depend on a reduction in here.
    pending: loops that must turn out to be reduced, only while a whole region is judged node by node. places: at which
    places values from outside are read; code: how much a kernel emits for one element; scalars: the host's, as read.
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

    @property
    def parameters(self) -> int:
        """How many tensors and scalars a kernel reads and writes."""
        return len(self.uses) + len(self.outputs) + len(self.scalars)


def node_facts(fusion: Fusion, node: Node) -> Facts:
    """The facts of a single node."""
    extents, result, reads = use_maps(fusion, node)
    uses: dict[int, frozenset[AxisMap]] = {}
    for value, axis_map in reads:
        if fusion.values[value].is_tensor:
            uses[value] = uses.get(value, frozenset()) | {axis_map}
    reduced = None
    if reduces(fusion, node):
        reduced = frozenset(range(len(extents))) - {loop for loop in result if loop is not None}
    tainted = frozenset(node.outputs) if reduced is not None else frozenset[int]()
    library = node.op.name if isinstance(node.op, Library) else None
    return Facts(
        tuple(extents), reduced, dict.fromkeys(node.outputs, result), uses, tainted, frozenset(), library,
        places_read(fusion, node), weight(fusion, node), frozenset(node.inputs) - uses.keys(),
    )  # fmt: skip


def merge_facts(
    a: Facts, b: Facts, edges: tuple[Edge, ...], fixed: frozenset[int], *, folding: bool = False,
    most_code: float = math.inf,
) -> Verdict:  # fmt: skip
    """The union of producer `a` and consumer `b` (or of two siblings, where no value crosses).

    fixed: the values that depend on reductions; they can be read along other loops only where a kernel ends between.
    folding: loops that one side lacks may still turn out to be reduced. most_code: the union emits no more.
    """
    if a.library or b.library:
        return no(f"{a.library or b.library} is a library call, a segment by itself")
    crossing = {e.value: e.exposed for e in edges}
    code = b.code + a.code * max((len(b.places[v]) for v in crossing), default=1)
    if code > most_code:
        return no(TOO_MUCH_CODE, code=code, most=most_code)
    kept = {v: m for v, m in a.outputs.items() if crossing.get(v, True)}
    if not kept and a.reduced is None and edges:
        verdict = yes(_pulled_into(a, b, crossing))
    else:
        verdict = _identify(a, b, crossing, kept, fixed, folding)
    found = verdict.facts
    if not isinstance(found, Facts):
        return verdict
    places = _places(a, b, crossing, bool(kept) or not edges)
    return yes(
        Facts(
            found.loops, found.reduced, found.outputs, found.uses, found.tainted, found.pending, found.library,
            places, code, a.scalars | b.scalars,
        )
    )  # fmt: skip


def _places(a: Facts, b: Facts, crossing: Mapping[int, bool], is_kept: bool) -> dict[int, Places]:
    """Where the union reads values from outside: what the maker reads, from each place where its own is read."""
    read = frozenset().union(*(b.places[v] for v in crossing), (HERE,) if is_kept else ())
    places = {v: found for v, found in b.places.items() if v not in crossing}
    for value, own in a.places.items():
        places[value] = places.get(value, frozenset()) | through(read, own)
    return places


def _pulled_into(a: Facts, b: Facts, crossing: Mapping[int, bool]) -> Facts:
    """A producer that nobody else needs vanishes into its reader: its own reads, in the reader's loops."""
    uses = {v: maps for v, maps in b.uses.items() if v not in crossing}
    for value in crossing:
        for use in b.uses[value]:
            _compose(a.uses, _through(a.outputs[value], use), uses)
    return replace(b, uses=uses)


def _through(made: AxisMap, use: AxisMap) -> dict[int, int | None]:
    """Where each loop of the maker goes when its value is read by `use`."""
    return {loop: entry for loop, entry in zip(made, use, strict=True) if loop is not None}


def _compose(uses: Uses, loops: Mapping[int, int | None], into: dict[int, frozenset[AxisMap]]) -> None:
    for value, maps in uses.items():
        moved = frozenset(
            tuple(e if e is None or e == PULLED else loops.get(e, PULLED) for e in axis_map) for axis_map in maps
        )
        into[value] = into.get(value, frozenset()) | moved


@dataclass(slots=True)
class _Matching:
    """Loops of a identified with loops of b, one to one."""

    forward: dict[int, int]
    backward: dict[int, int]

    def add(self, first: int, second: int) -> bool:
        if self.forward.get(first, second) != second or self.backward.get(second, first) != first:
            return False
        self.forward[first], self.backward[second] = second, first
        return True


def _identify(
    a: Facts, b: Facts, crossing: Mapping[int, bool], kept: Mapping[int, AxisMap], fixed: frozenset[int], folding: bool
) -> Verdict:
    matching = _Matching({}, {})
    elsewhere: list[tuple[int, AxisMap]] = []
    for value in sorted(crossing, key=lambda v: v not in a.tainted):
        for use in sorted(b.uses[value], key=lambda m: PULLED in m):
            pairs = [(f, s) for f, s in zip(a.outputs[value], use, strict=True) if f is not None]
            direct = [(f, s) for f, s in pairs if s != PULLED]
            moved = frozenset(f for f, s in pairs if s == PULLED)
            # A value that depends on a reduction may be computed again elsewhere along the R loops alone: there it
            # needs the same result of the reduction. Where that one is not in here yet, those will be the R loops.
            will_fit = value in fixed and a.reduced is None
            stays = (will_fit or moved <= (a.reduced or frozenset())) and _all_fit(matching, direct)
            if not stays and value in a.tainted:
                return no("the result of a reduction is read at other coordinates", value=value)
            if moved or not stays:
                elsewhere.append((value, use))
    _match_by_common_reads(a, b, matching, fixed)
    _match_by_extent(a, b, matching)
    only_a = frozenset(range(len(a.loops))) - matching.forward.keys()
    only_b = frozenset(range(len(b.loops))) - matching.backward.keys()
    refusal = _loops_disagree(a, b, matching, only_a, only_b, folding)
    if refusal is not None:
        return refusal
    return _union(a, b, crossing, kept, elsewhere, matching, only_a, only_b)


def _all_fit(matching: _Matching, pairs: list[tuple[int, int | None]]) -> bool:
    trial = _Matching(dict(matching.forward), dict(matching.backward))
    if not all(second is not None and trial.add(first, second) for first, second in pairs):
        return False
    matching.forward, matching.backward = trial.forward, trial.backward
    return True


def _match_by_common_reads(a: Facts, b: Facts, matching: _Matching, fixed: frozenset[int]) -> None:
    """Loops along which both read a value are the same: extents do not tell a square's apart.

    `fixed` values come first, since it cannot be chosen along which loops they are read: of those every axis counts
    that all reads of a side agree about. Of other values those count that each side reads in one way.
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
    """Per axis the loop along which all of the maps read it, else PULLED."""
    return tuple(entries[0] if len(set(entries)) == 1 else PULLED for entries in zip(*maps, strict=True))


def _match_reads(a: Facts, b: Facts, matching: _Matching, reads: list[tuple[int | None, int | None]]) -> None:
    """Identifies the loops along which a and b read one value, where that is possible for all of them."""
    pairs = [(f, s) for f, s in reads if f is not None and s is not None]
    if all(f != PULLED != s and a.loops[f] == b.loops[s] and _same_role(a, f, b, s) for f, s in pairs):
        _all_fit(matching, list(pairs))


def _match_by_extent(a: Facts, b: Facts, matching: _Matching) -> None:
    """Loops that no crossing value identifies are taken to be the same where their extents are equal.

    Equal extents go in order; distinct ones in any, so that it does not matter which of several siblings merge first.
    R loops of one side go with R loops of the other first: two sums over the same axes share their loops.
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
    """Why the identified loops do not make one region, or None where they do."""
    if only_a and only_a == a.reduced and b.reduced is None and len(only_a) == len(only_b):
        pairs = [(a.loops[f], b.loops[s]) for f, s in zip(sorted(only_a), sorted(only_b), strict=True)]
        if not any(isinstance(first - second, int) for first, second in pairs):
            why = "the reduced loops and those of the reader are not known to be equal"
            return no(why, LoopRefusal.PERHAPS_EQUAL, extents=tuple(pairs))
    if only_a and only_b:
        mine, theirs = (tuple(f.loops[k] for k in sorted(o)) for f, o in ((a, only_a), (b, only_b)))
        return no("their loops have different extents", first=mine, second=theirs)
    if a.reduced is not None and b.reduced is not None:
        if only_a or only_b or {matching.forward[k] for k in a.reduced} != b.reduced:
            first, second = (tuple(f.loops[k] for k in sorted(f.reduced or ())) for f in (a, b))
            return no("both reduce, over different axes", first=first, second=second)
        return None
    only, larger = (only_a, a) if only_a else (only_b, b)
    if only and larger.reduced != only and not (folding and larger.reduced is None):
        return no("one has loops that the other lacks", extents=tuple(larger.loops[k] for k in sorted(only)))
    return None


def _union(
    a: Facts, b: Facts, crossing: Mapping[int, bool], kept: Mapping[int, AxisMap],
    elsewhere: list[tuple[int, AxisMap]], matching: _Matching, only_a: frozenset[int], only_b: frozenset[int],
) -> Verdict:  # fmt: skip
    """The facts of the union, in the loops of the side that has more of them (b where both have the same)."""
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
    outputs = dict(kept) if only_a else {v: _renamed(m, from_a) for v, m in kept.items()}
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
    """Each stored value has all loops or, where there is a reduction, all but the R loops."""
    if reduced is None:
        return None
    for value, axis_map in outputs.items():
        own = frozenset(e for e in axis_map if e is not None)
        if own not in (every, every - reduced):
            return no("an output has neither all loops nor all but the reduced ones", value=value)
    return None
