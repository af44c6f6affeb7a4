"""Divides the body of a loop where it reads an array that it has updated, so that every update is in place.

A kernel that updates an array and computes from the updated elements needs a copy of the array. NumPy needs none, as it
runs one statement after another. So do phases: loops of one step that carry the arrays which they update.

    a[i] = 2 * x           first phase: x is read, a is updated at i
    while a[j] < x: ...    a loop of its own, which updates a as well
    a[j] = a[i]            second phase

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import int64
from tracefuse.ir.control_flow import RangeLoop
from tracefuse.ir.extents import input_extent, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, SubFusion
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.subfusion import StepGraph, step_graph
from tracefuse.ops.roles import COUNTED_STEPS, EXTENT
from tracefuse.passes.overwritten_slices import read_written_values
from tracefuse.passes.rewriter import Rewriter, needed_for, with_nodes
from tracefuse.passes.slice_updates import MOST_UPDATES, THIN, are_written_apart, has_known_bounds
from tracefuse.schedule.row_update_facts import row_update_of


@dataclass(slots=True)
class _Unit:
    """Consecutive tensor nodes of a body. steps: their positions. is_phase: whether they can become a phase.

    updates: for each updated array, its version before the unit and the one after it. reads: the arrays of which the
    unit reads a version. updates_rows: whether it updates an array at positions that are data. thin_reads: how often it
    reads few rows of an array that it has updated.
    """

    is_phase: bool
    updates_rows: bool = False
    thin_reads: int = 0
    steps: list[int] = field(default_factory=list)
    updates: dict[int, tuple[int, int]] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)


def in_phases(part: SubFusion) -> SubFusion:
    """Returns the body of a loop with phases, or `part` if one kernel can update each array in place.

    A body with effects stays as it is: only the order of its nodes says which of two draws is the first.
    """
    if any(node.op.effect for node in part.fusion.nodes):
        return part
    fusion = _live(read_written_values(part.fusion))
    owners = {owner for owner in fusion.aliases.values() if fusion.values[owner].shape}
    if not owners or fusion.slice_updates:
        return part
    graph = step_graph(replace(fusion, aliases={}))
    units = _Units(fusion, graph.nodes, owners).units
    if not _are_needed(units, owners):
        return part
    divided = _with_phases(fusion, graph, units)
    return part if divided is None else SubFusion(divided, part.inputs)


def _are_needed(units: Sequence[_Unit], owners: set[int]) -> bool:
    """Whether a unit updates an array that another one reads or updates as well, or two of them update rows."""
    if sum(unit.updates_rows for unit in units) > 1:
        return True
    for owner in owners:
        before = after = False
        for unit in units:
            if owner in unit.updates and (before or (after and unit.is_phase)):
                return True
            if before and owner in unit.reads:
                return True
            before |= owner in unit.updates and unit.is_phase
            after |= owner in unit.updates
    return False


class _Units:
    """Divides tensor nodes into units. owner_of: the array of each version of it."""

    def __init__(self, fusion: Fusion, nodes: Sequence[Node], owners: set[int]) -> None:
        self.fusion = fusion
        self.owner_of = {owner: owner for owner in owners}
        self.units: list[_Unit] = []
        self._new: dict[int, list[Node]] = {}
        for step, node in enumerate(nodes):
            self._add(step, node)

    def _add(self, step: int, node: Node) -> None:
        links = list(self._links(node))
        updates_rows = row_update_of(self.fusion, node) is not None
        is_phase = updates_rows or not isinstance(node.op, Library)
        if not self.units or self.units[-1].is_phase != is_phase or not is_phase or not self._fits(node, links):
            self.units.append(_Unit(is_phase))
            self._new = {}
        unit = self.units[-1]
        unit.steps.append(step)
        unit.updates_rows |= updates_rows
        unit.thin_reads += self._reads_few(node)
        unit.reads.update(self.owner_of[n] for n in node.inputs if n in self.owner_of)
        for before, after in links:
            owner = self.owner_of[before]
            self.owner_of[after] = owner
            unit.updates[owner] = unit.updates.get(owner, (before, after))[0], after
            self._new.setdefault(owner, []).append(node)

    def _links(self, node: Node) -> Iterator[tuple[int, int]]:
        """Yields each version of an array that the node updates, with the updated one."""
        if isinstance(node.op, RangeLoop):
            body, count = node.attributes["body"].fusion, node.attributes["carried"]
            initial = node.operands[len(node.operands) - count :]
            for first, after, inside in zip(initial, node.outputs, body.outputs, strict=False):
                if isinstance(first, int) and first in self.owner_of and inside in body.aliases:
                    yield first, after
            return
        facts = row_update_of(self.fusion, node)
        before: Any = facts.table if facts is not None else node.operands[0] if _writes_slice(node) else None
        owner = self.fusion.aliases.get(node.outputs[0])
        if before in self.owner_of:
            yield before, node.outputs[0]
        elif owner in self.owner_of:
            versions = [n for n in node.inputs if self.owner_of.get(n) == owner]
            if versions:
                yield versions[-1], node.outputs[0]

    def _fits(self, node: Node, links: Sequence[tuple[int, int]]) -> bool:
        """Whether one kernel can compute the unit with the node: it reads no updated array, except in few slices."""
        unit = self.units[-1]
        if unit.updates_rows and row_update_of(self.fusion, node) is not None:
            return False
        if unit.thin_reads and self._reads_few(node):
            return False
        for number in node.inputs:
            written = self._new.get(self.owner_of.get(number, -1), [])
            if not any(number in other.outputs for other in written):
                continue
            if not all(map(_writes_slice, written)) or not all(has_known_bounds(self.fusion, n) for n in written):
                return False
        for before, _ in links:
            written = self._new.get(self.owner_of[before], [])
            if written and (len(written) == MOST_UPDATES or not _writes_slice(node)):
                return False
            if not all(are_written_apart(self.fusion, other, node) for other in written):
                return False
        return True

    def _reads_few(self, node: Node) -> bool:
        """Whether the node reads few rows of an array that the unit has updated."""
        if not (isinstance(node.op, Movement) and node.op.slices == "read"):
            return False
        written = self._new.get(self.owner_of.get(node.inputs[0], -1), [])
        extents = map(self.fusion.canonical, self.fusion.shape_of(node.outputs[0]))
        return any(node.inputs[0] in other.outputs for other in written) and any(
            isinstance(extent, int) and extent <= THIN for extent in extents
        )


def _writes_slice(node: Node) -> bool:
    return isinstance(node.op, Movement) and node.op.slices == "written"


def _with_phases(fusion: Fusion, graph: StepGraph, units: Sequence[_Unit]) -> Fusion | None:
    """Returns the fusion with phases; None if a value between two of them has a size that differs between steps."""
    rewriter, free = Rewriter(fusion), _constants(graph)
    phase_of: dict[int, _Unit] = {}
    needed_after: dict[int, set[int]] = {}
    updated_later, needed = set[int](), set(fusion.outputs)
    for unit in reversed(units):
        if unit.is_phase and (unit.updates or not unit.reads.isdisjoint(updated_later)):
            phase_of.update(dict.fromkeys(unit.steps, unit))
        needed_after[unit.steps[-1]] = set(needed)
        updated_later |= unit.updates.keys()
        needed.update(itertools.chain.from_iterable(graph.nodes[step].inputs for step in unit.steps))
    step_of = {node.outputs[0]: step for step, node in enumerate(graph.nodes)}
    for node in fusion.nodes:
        step = step_of.get(node.outputs[0], -1)
        phase = phase_of.get(step)
        if phase is None or step in free:
            rewriter.keep(node)
        if phase is None or step != phase.steps[-1]:
            continue
        if not _add_phase(rewriter, fusion, graph, phase, needed_after[step], free):
            return None
    return _live(rewriter.build())


def _live(fusion: Fusion) -> Fusion:
    return with_nodes(fusion, needed_for(fusion, fusion.outputs))


def _constants(graph: StepGraph) -> set[int]:
    """Returns the steps that read nothing, which every phase computes for itself."""
    return {step for step, node in enumerate(graph.nodes) if not node.inputs and not graph.graph.steps[step].inputs}


def _add_phase(
    rewriter: Rewriter, fusion: Fusion, graph: StepGraph, unit: _Unit, needed: set[int], free: set[int]
) -> bool:  # fmt: skip
    """Adds a loop of one step. needed: what later nodes read. free: see `_constants`. Whether all sizes are fixed."""
    own = [step for step in unit.steps if step not in free]
    read = {number for step in own for number in graph.nodes[step].inputs}
    constants = [step for step in free if graph.nodes[step].outputs[0] in read]
    steps = sorted([*own, *constants])
    computed = [number for step in own for number in graph.nodes[step].outputs]
    changed = [(before, after) for before, after in unit.updates.values()]
    ends = [after for _, after in changed]
    rest = [number for number in computed if number in needed and number not in ends]
    outputs = [*ends, *rest]
    if any(_varies(fusion, number) for number in outputs):
        return False
    segment = graph.segment(steps, outputs)
    cut = graph.extract(segment)
    inverse = segment.inverse
    aliases = {inverse[after]: inverse[before] for before, after in changed}
    body = replace(cut, outputs=tuple(inverse[number] for number in outputs), aliases=aliases)
    initial = [before for before, _ in changed]
    sources = [segment.index_map[local] for local in segment.inputs]
    if any(n >= 0 and _varies(fusion, n) for n in sources):
        return False
    captured = [number for number in sources if number not in initial]
    operands: list[Operand] = [Literal(0), *(_operand(rewriter, number) for number in captured), *initial]
    places = {number: 1 + k for k, number in enumerate([*captured, *initial])}
    attributes = {
        "body": SubFusion(body, tuple(places[number] for number in sources)), "start": 0, "stop": 1, "reverse": False,
        "carried": len(initial), "shapes": tuple(fusion.shape_of(number) for number in outputs),
    }  # fmt: skip
    dtypes = [fusion.values[number].dtype for number in outputs]
    where = graph.nodes[own[-1]].where
    names = [fusion.values[number].name for number in outputs]
    rewriter.node(COUNTED_STEPS, operands, attributes, dtypes[0], dtypes, where=where, names=names, numbers=outputs)
    return True


def _operand(rewriter: Rewriter, number: int) -> int:
    """Returns the number of a value that a phase reads, or of an extent, which becomes a host scalar."""
    if number >= 0:
        return number
    extent = input_extent(-number - 1)
    (scalar,) = rewriter.node(EXTENT, (), {"value": extent}, int64, (int64,), extents=(extent,))
    return scalar


def _varies(fusion: Fusion, number: int) -> bool:
    """Whether the shape of a value depends on a scalar, as a counter is."""
    extents = map(fusion.canonical, fusion.shape_of(number))
    return any(s.id is None or s.id >= 0 for extent in extents for s in symbols(extent))
