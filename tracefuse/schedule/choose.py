"""Selects the template of a target that lowers a segment, for the sizes of a call.

The templates are tried in order and the first that accepts is used. Every size that a template inspected is guarded,
so a plan is reused exactly for the calls on which every template gives the same answer.

Must not know: targets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field
from functools import partial
from typing import Any

from segments import Verdict
from segments.lazy_dataclasses import dataclass, replace
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.passes.pipeline import KERNEL_PASSES, run_passes
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.merge_rule import FusionRule, segment_facts
from tracefuse.schedule.schedule_candidates import candidates_of, with_own_guards
from tracefuse.schedule.scopes import LanesNotPossible
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Problem, Template, TemplateSet
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected template and its decision.

    refused: the verdict of each template that was tried before it. tilings: those that the template offers, priced.
    """

    problem: Problem
    template: Template[Any]
    decision: Any
    refused: Mapping[str, Verdict]
    tilings: tuple[PricedTiling, ...] = ()

    def lower(self) -> Lowered:
        """Returns the launches, after KERNEL_PASSES."""
        lowered, options = self.emit(), self.problem.options
        launches = (
            replace(launch, kernel=run_passes(KERNEL_PASSES, launch.kernel, options)) for launch in lowered.launches
        )
        return replace(lowered, launches=tuple(launches))

    def emit(self) -> Lowered:
        """Returns the launches as the template emits them."""
        try:
            lowered = self.template.lower(self.problem, self.decision)
        except LanesNotPossible:
            if self.problem.narrow:
                raise
            return choose_for(replace(self.problem, narrow=True)).emit()
        offers = partial(candidates_of, with_own_guards(self.problem), self.template.name)
        name = lowered.template or self.template.name
        tilings = {self.problem.name: self.tilings} if self.tilings else {}
        return replace(
            lowered, template=name, refused=self.refused, candidates=offers, tilings={**lowered.tilings, **tilings}
        )


def choose_for(problem: Problem) -> Choice:
    """Tries the templates of the problem's target in order; raises InternalError if none accepts."""
    refused: dict[str, Verdict] = {}
    for template in problem.templates:
        verdict = template.judge(problem)
        if verdict:
            decision, tilings = template.decide(problem, verdict.facts)
            return Choice(problem, template, decision, refused, tilings)
        refused[template.name] = verdict
    answers = "; ".join(f"{name} ({verdict})" for name, verdict in refused.items())
    raise InternalError(f"no template takes {problem.name}: {answers}")


def choose(
    fusion: Fusion, rule: FusionRule, strides: Mapping[int, Shape], sizes: Sizes, target: TemplateSet, *, name: str,
    contract: bool = True, aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
    placed: frozenset[int] = frozenset(), shared: frozenset[int] = frozenset(), supplied: frozenset[int] = frozenset(),
    options: Options | None = None, tilings: TilingChooser | None = None,
) -> Choice:  # fmt: skip
    """Selects the template for a segment.

    fusion: the segment as a fusion, composites decomposed; rule: the merge rule over that fusion. strides: in elements,
    for each tensor input and each output in `placed`. aligned: inputs that start at a multiple of 16 bytes; misaligned:
    inputs whose elements are not aligned to their own size. placed, shared, supplied: see `MemoryFacts`. The guards on
    sizes are expressed in the fusion's extents. options: passed to the passes; defaults to the options in force.
    tilings: chooses among the tilings of a template; by default by the cost model.
    """
    options = config.resolve() if options is None else options
    memory = MemoryFacts(strides, aligned, misaligned, placed, shared, supplied)
    tilings = TilingChooser(target.rates(options)) if tilings is None else tilings
    facts, templates = segment_facts(rule), target.templates
    problem = target.problem(fusion, facts, memory, sizes, name, contract, templates, options=options, tilings=tilings)
    return choose_for(problem)


@dataclass(frozen=True, slots=True)
class ReusedChoice:
    """The template of an equal segment, and its kernels under another name."""

    template: Template[Any]
    lowered: Lowered
    earlier: str
    name: str

    def lower(self) -> Lowered:
        """Returns the launches of the equal segment, named for this one."""
        launches = (
            replace(
                launch, kernel=replace(launch.kernel, name=self.name + launch.kernel.name.removeprefix(self.earlier))
            )
            for launch in self.lowered.launches
        )
        return replace(self.lowered, launches=tuple(launches))


@dataclass(slots=True)
class EqualSegments:
    """The choices for the segments of a plan. A segment takes the kernels of an equal one whose guards it meets."""

    _lowered: dict[Hashable, list[ReusedChoice]] = field(default_factory=dict)

    def find(self, key: Hashable, sizes: Sizes, name: str) -> ReusedChoice | None:
        """Returns the choice of an equal segment. key: of everything that `choose` takes but sizes and name."""
        for choice in self._lowered.get(key, ()):
            if all(_holds(guard, sizes) for guard in choice.lowered.guards):
                return replace(choice, name=name)
        return None

    def add(self, key: Hashable, choice: Choice, lowered: Lowered) -> None:
        """Records a lowered segment."""
        name = choice.problem.name
        self._lowered.setdefault(key, []).append(ReusedChoice(choice.template, lowered, name, name))


def _holds(guard: Guard, sizes: Sizes) -> bool:
    return guard.compares(sizes.hint(guard.left), sizes.hint(guard.right))
