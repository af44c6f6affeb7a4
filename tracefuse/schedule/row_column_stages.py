"""A region that reduces both ways as two fusions, one launched after the other: first the rows, then the columns.

The second reads what the first leaves in memory: its outputs, and in scratch buffers the results of row reductions and
what is dear to compute again. Half values in scratch memory are in their arithmetic type: nothing rounds them.

Knows: fusions, launches. Must not know: templates, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracefuse.dynamic.guards import Guard
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Expression, Extent, Symbol, product, substitute
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.subfusion import step_graph
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.phases import Memory, operand_of
from tracefuse.schedule.row_column_rule import Crosswise


@dataclass(frozen=True, slots=True)
class Stage:
    """One side as a fusion of its own."""

    fusion: Fusion
    facts: Facts
    memory: Memory


def with_ends(fusion: Fusion, inputs: Iterable[int], outputs: Iterable[int]) -> Fusion:
    """The part of a fusion that makes `outputs` of its own inputs and of further ones. Host scalars stay."""
    known = (*fusion.inputs, *inputs)
    wanted = tuple(dict.fromkeys(outputs))
    live, kept = set(wanted), list[Node]()
    for node in reversed(fusion.nodes):
        scalar = not fusion.values[node.outputs[0]].is_tensor
        if scalar or (not live.isdisjoint(node.outputs) and known_none(node, known)):
            live.update(node.inputs)
            kept.append(node)
    made = {*known, *(v for node in kept for v in node.outputs)}
    values = {number: value for number, value in fusion.values.items() if number in made}
    return replace(
        fusion, values=values, inputs=known, nodes=tuple(kept[::-1]), outputs=wanted, aliases={},
    )  # fmt: skip


def known_none(node: Node, known: Collection[int]) -> bool:
    """Whether none of what a node makes is there already."""
    return not any(value in known for value in node.outputs)


def rule_of(fusion: Fusion) -> FusionRule:
    """The rule over a fusion's own steps."""
    graph = step_graph(fusion)
    return FusionRule(fusion, graph.graph, graph.nodes)


def column_operands(fusion: Fusion, facts: Crosswise) -> tuple[int, ...]:
    """What the column reductions reduce."""
    return tuple(operand_of(node) for node in fusion.nodes if node.outputs[0] in facts.columns)


def row_side(fusion: Fusion, facts: Crosswise) -> Fusion:
    """The row side with its own outputs and with all that the columns reduce."""
    mine = tuple(output for output in fusion.outputs if output not in facts.after)
    whole = with_ends(fusion, (), (*mine, *column_operands(fusion, facts)))
    return replace(whole, outputs=mine)


def two_stages(fusion: Fusion, facts: Crosswise, memory: Memory) -> tuple[Stage, Stage]:
    """The row side and the column side."""
    mine = [output for output in fusion.outputs if output not in facts.after]
    theirs = [output for output in fusion.outputs if output in facts.after]
    whole = _unrounded(fusion, [v for v in facts.cut if v not in fusion.outputs])
    first = with_ends(whole, (), (*mine, *facts.cut))
    second = with_ends(whole, facts.cut, theirs)
    strides = {v: memory.output_strides(fusion, v) for v in facts.cut}
    wide = memory.aligned | (frozenset(facts.cut) - memory.placed - memory.given)
    between = replace(memory, strides={**memory.strides, **strides}, aligned=wide)
    return Stage(first, _plain(first), memory), Stage(second, _plain(second), between)


def _plain(fusion: Fusion) -> Facts:
    facts = facts_of(rule_of(fusion))
    if not isinstance(facts, Facts):
        raise InternalError("a side of a region that reduces both ways does so itself")
    return facts


def _unrounded(fusion: Fusion, numbers: Iterable[int]) -> Fusion:
    """The fusion with values in the type of their arithmetic."""
    values = dict(fusion.values)
    for number in numbers:
        value = values[number]
        values[number] = replace(value, type=replace(value.type, dtype=value.dtype.compute))
    return replace(fusion, values=values)


def one_after_the_other(
    fusion: Fusion, facts: Crosswise, first: Lowered, second: Lowered, guards: Sequence[Guard]
) -> Lowered:
    """Both stages as one lowered segment. guards: under which they were chosen."""
    between = [v for v in facts.cut if v not in fusion.outputs]
    place = {value: k for k, value in enumerate(between)}
    scratch = [Scratch(fusion.values[v].dtype.compute, product(fusion.shape_of(v))) for v in between]
    launches: list[LaunchSpec] = []
    derived: dict[Symbol, Extent] = {}
    for number, lowered in enumerate((first, second)):
        names = _names(lowered, number)
        derived.update((names[s], e) for s, e in lowered.derived.items())
        launches += [_moved(launch, place, len(scratch), names) for launch in lowered.launches]
        renamed = {s: Expression((((own,), 1),)) for s, own in names.items()}
        scratch += [replace(one, size=substitute(one.size, renamed)) for one in lowered.scratch]
    template = f"{first.template} and {second.template}"
    every = tuple(dict.fromkeys((*guards, *first.guards, *second.guards)))
    return Lowered(template, tuple(launches), every, tuple(scratch), derived)


def _names(lowered: Lowered, stage: int) -> dict[Symbol, Symbol]:
    """The integer parameters that a stage has of its own: both may call theirs alike."""
    return {s: replace(s, name=f"{s.name}_{stage}") for s in lowered.derived}


def _moved(launch: LaunchSpec, place: Mapping[int, int], before: int, names: Mapping[Symbol, Symbol]) -> LaunchSpec:
    """A launch that finds the values of `place` in scratch memory, and its own buffers behind `before` others."""
    count = len(launch.tensors)
    buffers = launch.kernel.parameters[:count]
    pairs = list(zip(launch.tensors, buffers, strict=True))
    own = [pair for pair in pairs if pair[0] not in place]
    moved = [pair for pair in pairs if pair[0] in place]
    parameters = (*(b for _, b in own), *(b for _, b in moved), *launch.kernel.parameters[count:])
    return replace(
        launch,
        kernel=replace(launch.kernel, parameters=parameters),
        tensors=tuple(v for v, _ in own),
        scratch=(*(place[v] for v, _ in moved), *(before + k for k in launch.scratch)),
        integers=tuple(names.get(s, s) for s in launch.integers),
    )
