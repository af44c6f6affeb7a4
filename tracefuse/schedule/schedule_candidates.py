"""The schedules that the templates of a target offer for one segment, each with a lower bound of its memory traffic.

Choosing stops at the first template that accepts. Candidates continue past it, for people who compare schedules.

Must not know: targets, CUDA C++.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.ir.extents import Extent, Symbol, substitute
from tracefuse.kernel.kernel_ir import Allocate, Kernel, walk_statements
from tracefuse.schedule.launch_spec import Candidate, Lowered
from tracefuse.schedule.scopes import LanesNotPossible
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import Problem, Template
from tracefuse.schedule.tilings import Tiled


def candidates_of(problem: Problem, chosen: str) -> tuple[Candidate, ...]:
    """Returns what every template of the problem's target offers, in order. chosen: the template that is in use."""
    return tuple(candidate for template in problem.templates for candidate in _candidates(problem, template, chosen))


def _candidates(problem: Problem, template: Template[Any], chosen: str) -> tuple[Candidate, ...]:
    """Returns a template's refusal, or one candidate for each of its tilings."""
    fresh = with_own_guards(problem)
    verdict = template.judge(fresh)
    if not verdict:
        return (Candidate(template.name, str(verdict), False),)
    decision, priced = template.decide(fresh, verdict.facts)
    if not priced:
        return (_candidate(problem, fresh, template, decision, chosen),)
    return tuple(
        replace(
            _candidate(problem, fresh, template, Tiled(decision.decision, option.tiling), chosen),
            is_chosen=template.name == chosen and option.is_chosen, tiling=str(option.tiling), price=option.price,
        )
        for option in priced
    )  # fmt: skip


def _candidate(problem: Problem, fresh: Problem, template: Template[Any], decision: Any, chosen: str) -> Candidate:
    try:
        lowered = template.lower(fresh, decision)
    except LanesNotPossible:
        fresh = replace(with_own_guards(problem), narrow=True)
        verdict = template.judge(fresh)
        if not verdict:
            return Candidate(template.name, str(verdict), False)
        lowered = template.lower(fresh, template.decide(fresh, verdict.facts)[0])
    launches = tuple(_shape_text(launch.kernel) for launch in lowered.launches)
    return Candidate(template.name, "", template.name == chosen, _least_bytes(fresh, lowered), launches)


def with_own_guards(problem: Problem) -> Problem:
    """Returns the problem without its guards and without what was derived from it."""
    return replace(problem, sizes=Sizes(problem.sizes.values, problem.sizes.named))


def _least_bytes(problem: Problem, lowered: Lowered) -> int:
    fusion, hint = problem.fusion, problem.sizes.hint
    crossing = dict.fromkeys((*fusion.tensor_inputs, *fusion.outputs))
    moved = sum(math.prod(map(hint, fusion.shape_of(n))) * fusion.values[n].dtype.itemsize for n in crossing)
    scratch = sum(hint(_resolved(s.size, lowered.derived)) * s.dtype.itemsize for s in lowered.scratch)
    return moved + 2 * scratch


def _resolved(extent: Extent, derived: Mapping[Symbol, Extent]) -> Extent:
    """Replaces derived parameters by the sizes that they follow from."""
    for _ in derived:
        resolved = substitute(extent, derived)
        if resolved == extent:
            break
        extent = resolved
    return extent


def _shape_text(kernel: Kernel) -> str:
    """Describes a launch, such as `256 threads a block, 12.0 KiB shared`."""
    if kernel.thread is None:
        return "one loop over the workers" if kernel.grid else "one iteration"
    shared = sum(
        s.buffer.size * s.buffer.dtype.itemsize
        for s in walk_statements(kernel.body)
        if isinstance(s, Allocate) and s.buffer.space == "shared" and isinstance(s.buffer.size, int)
    )
    parts = [f"{kernel.threads} threads a block"]
    parts += [f"clusters of {kernel.cluster} blocks"] if kernel.cluster > 1 else []
    parts += [f"{shared / 1024:.1f} KiB shared"] if shared else []
    return ", ".join(parts)
