"""The one chooser: which template of a target lowers a segment, for the sizes of a call.

It asks the templates in order and takes the first that accepts. Every size that one of them looked at is guarded, so a
plan serves the calls for which all of them would answer alike.

Knows: templates as values. Must not know: which there are, targets, what runs kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from segments import Verdict
from tracefuse import config
from tracefuse.config import Options
from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.passes.pipeline import KERNEL_PASSES, run_passes
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.merge_rule import FusionRule, facts_of
from tracefuse.schedule.phases import Memory
from tracefuse.schedule.scopes import LanesNotPossible
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Problem, Template, TemplateSet


@dataclass(frozen=True, slots=True)
class Choice:
    """The template that takes a problem, and what it decided. refused: why each template before it does not."""

    problem: Problem
    template: Template[Any]
    decision: Any
    refused: Mapping[str, Verdict]

    def lower(self) -> Lowered:
        """The launches, after KERNEL_PASSES."""
        lowered, options = self.emit(), self.problem.options
        launches = (replace(one, kernel=run_passes(KERNEL_PASSES, one.kernel, options)) for one in lowered.launches)
        return replace(lowered, launches=tuple(launches))

    def emit(self) -> Lowered:
        """The launches as the template emits them."""
        try:
            lowered = self.template.lower(self.problem, self.decision)
        except LanesNotPossible:
            if self.problem.narrow:
                raise
            return choose_for(replace(self.problem, narrow=True)).emit()
        return replace(lowered, template=lowered.template or self.template.name, refused=self.refused)


def choose_for(problem: Problem) -> Choice:
    """Asks the templates of the problem's target in order."""
    refused: dict[str, Verdict] = {}
    for template in problem.templates:
        verdict = template.judge(problem)
        if verdict:
            return Choice(problem, template, verdict.facts, refused)
        refused[template.name] = verdict
    answers = "; ".join(f"{name} ({verdict})" for name, verdict in refused.items())
    raise InternalError(f"no template takes {problem.name}: {answers}")


def choose(
    fusion: Fusion, rule: FusionRule, strides: Mapping[int, Shape], sizes: Sizes, target: TemplateSet, *, name: str,
    contract: bool = True, aligned: frozenset[int] = frozenset(), misaligned: frozenset[int] = frozenset(),
    placed: frozenset[int] = frozenset(), shared: frozenset[int] = frozenset(), given: frozenset[int] = frozenset(),
    options: Options | None = None,
) -> Choice:  # fmt: skip
    """The template for a segment.

    fusion: the segment's own definition, composites decomposed; rule: over that fusion. strides: in elements, per
    tensor input and output of `placed`; aligned, misaligned: the inputs that start at a multiple of 16 bytes, and those
    whose elements are not even at multiples of their size; placed, shared, given: see `Memory`. Guards on sizes are in
    terms of the fusion's own extents. options: for the passes; by default those in force.
    """
    options = config.resolve() if options is None else options
    memory = Memory(strides, aligned, misaligned, placed, shared, given)
    return choose_for(
        target.problem(fusion, facts_of(rule), memory, sizes, name, contract, target.templates, options=options)
    )
