"""The row_column template of every target: launches for the row side, then launches for the column side.

A template is selected for each side separately.

Must not know: targets, sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segments import Verdict, yes
from segments.lazy_dataclasses import replace
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Expression, Extent, Symbol, product, substitute
from tracefuse.ir.fusion import Fusion
from tracefuse.schedule.choose import choose_for
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_column_sides import split_sides
from tracefuse.schedule.template import Problem, Template


def _accepts(problem: Problem) -> Verdict:
    return yes()


def _lower(problem: Problem, decision: None) -> Lowered:
    facts = problem.facts
    assert isinstance(facts, RowColumnFacts)
    rows, columns = split_sides(problem.fusion, facts, problem.memory)
    first, second = (
        choose_for(problem.part(side.fusion, side.facts, side.memory, f"{problem.name}_{name}")).emit()
        for side, name in ((rows, "rows"), (columns, "columns"))
    )
    # The guards include the sizes that earlier templates inspected.
    return join_parts(problem.fusion, facts.cut, first, second, problem.finish(()).guards, "row_column of")


ROW_COLUMN_SIDES: Template[Problem] = Template("row_column sides", _accepts, _lower, takes=RowColumnFacts)


def join_parts(
    fusion: Fusion, cut: Sequence[int], first: Lowered, second: Lowered, guards: Sequence[Guard], name: str
) -> Lowered:
    """Joins two parts to one lowered segment.

    cut: the values that the second part reads from the first. guards: the guards of the selection.
    """
    between = [v for v in cut if v not in fusion.outputs]
    place = {value: k for k, value in enumerate(between)}
    scratch = [Scratch(fusion.values[v].dtype.compute, product(fusion.shape_of(v))) for v in between]
    launches: list[LaunchSpec] = []
    derived: dict[Symbol, Extent] = {}
    for position, lowered in enumerate((first, second)):
        names = _names(lowered, position)
        derived.update((names[s], e) for s, e in lowered.derived.items())
        launches += [_rebind(launch, place, len(scratch), names) for launch in lowered.launches]
        renamed = {s: Expression((((name,), 1),)) for s, name in names.items()}
        scratch += [replace(buffer, size=substitute(buffer.size, renamed)) for buffer in lowered.scratch]
    template = f"{name} {first.template} and {second.template}"
    every = tuple(dict.fromkeys((*guards, *first.guards, *second.guards)))
    tilings = {**first.tilings, **second.tilings}
    return Lowered(template, tuple(launches), every, tuple(scratch), derived, tilings=tilings)


def _names(lowered: Lowered, side: int) -> dict[Symbol, Symbol]:
    """Renames the derived integer parameters of a side, since both sides may use the same names."""
    return {s: replace(s, name=f"{s.name}_{side}") for s in lowered.derived}


def _rebind(launch: LaunchSpec, place: Mapping[int, int], before: int, names: Mapping[Symbol, Symbol]) -> LaunchSpec:
    """Binds the values in `place` to scratch buffers, and renumbers the launch's own scratch from `before` on."""
    count = len(launch.tensors)
    buffers = launch.kernel.parameters[:count]
    pairs = list(zip(launch.tensors, buffers, strict=True))
    tensors = [pair for pair in pairs if pair[0] not in place]
    scratch = [pair for pair in pairs if pair[0] in place]
    parameters = (*(b for _, b in tensors), *(b for _, b in scratch), *launch.kernel.parameters[count:])
    return replace(
        launch,
        kernel=replace(launch.kernel, parameters=parameters),
        tensors=tuple(v for v, _ in tensors),
        scratch=(*(place[v] for v, _ in scratch), *(before + k for k in launch.scratch)),
        integers=tuple(names.get(s, s) for s in launch.integers),
    )
