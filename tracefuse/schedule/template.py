"""A template is a value: a way to lay out the loops of a region for a target, and which regions it accepts.

A target has one ordered tuple of templates, and the first that accepts a problem lowers it. A template that refuses
says why; one that accepts hands over what it decided on the way. Every size that it looks at leaves a guard.

Knows: segments, regions, launches. Must not know: which templates and which targets there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeAlias, TypeVar

from segments import Verdict, no
from tracefuse import config
from tracefuse.config import Options
from tracefuse.ir.extents import Extent, Symbol
from tracefuse.ir.fusion import Fusion
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.phases import Memory, Region
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.sizes import Sizes

SegmentFacts: TypeAlias = Facts | RowColumnFacts
"""What the merge rule knows of a segment."""


@dataclass(frozen=True)
class Problem(ABC):
    """A segment that is to be lowered for the sizes of a call, as the templates of one target see it.

    name: what its kernels are called. contract: whether multiplications and additions may be fused. templates: of the
    target, in the order in which they are asked. narrow: one element at a time. options: for the passes.
    """

    fusion: Fusion
    facts: SegmentFacts
    memory: Memory
    sizes: Sizes
    name: str
    contract: bool
    templates: tuple[Template[Any], ...]
    narrow: bool = field(default=False, kw_only=True)
    options: Options = field(default_factory=config.resolve, kw_only=True)

    @property
    @abstractmethod
    def region(self) -> Region:
        """The region, with its loops ordered and joined for the target."""

    def part(self, fusion: Fusion, facts: Facts, memory: Memory, name: str) -> Self:
        """A part of the segment as a problem of its own, with guards of its own."""
        sizes = Sizes(self.sizes.values, self.sizes.named)
        return replace(self, fusion=fusion, facts=facts, memory=memory, sizes=sizes, name=name, narrow=False)

    def finish(
        self, launches: Sequence[LaunchSpec], scratch: Sequence[Scratch] = (),
        derived: Mapping[Symbol, Extent] | None = None,
    ) -> Lowered:  # fmt: skip
        """The lowered segment, in the fusion's own symbols, with the guards so far."""
        return Lowered("", tuple(launches), tuple(self.sizes.guards), tuple(scratch), derived or {})


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True, slots=True, eq=False)
class Template(Generic[P]):
    """One way to lower regions.

    accepts: a verdict about a problem; the facts of a yes are what the template decided, which `lower` is given. takes:
    the kind of segment that it is asked about. writes_in_place: whether an element is stored by the thread that has
    read all that it needs there, so that an output may be written over an input.
    """

    name: str
    accepts: Callable[[P], Verdict]
    lower: Callable[[P, Any], Lowered]
    takes: type[Facts] | type[RowColumnFacts] = Facts
    writes_in_place: bool = False

    def judge(self, problem: P) -> Verdict:
        """Whether it takes a problem, with the reason if it does not."""
        if isinstance(problem.facts, self.takes):
            return self.accepts(problem)
        if self.takes is Facts:
            return no("the segment reduces over its rows and over its columns")
        return no("the segment does not reduce over its rows and over its columns")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSet:
    """The templates of a target in the order in which they are asked.

    problem: how the target sees a segment. flags_positions: whether kernels set an error flag for a position outside
    its axis. takes_workers: whether a kernel is told how many workers it may use at most.
    """

    templates: tuple[Template[Any], ...]
    problem: Callable[..., Problem]
    flags_positions: bool = False
    takes_workers: bool = False
