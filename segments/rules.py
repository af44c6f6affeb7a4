"""Merge decisions: verdicts, the rule that a partition follows, user predicates, and the log of refusals.

Every decision is a `Verdict`. One that accepts carries the facts of the union, from which the next merge continues. One
that refuses carries a reason and the details that explain it.

A `Rule` decides which steps may form one group. A predicate comes from the user and can only forbid further merges.
Predicates combine with `both`, `any_of` and `negate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Protocol

from segments.graph import SegmentsError
from segments.lazy_dataclasses import dataclass

# Refusals beyond this many are counted, not kept: people read the log, and `Partition.boundaries` has the reasons at
# the final boundaries.
REFUSALS_KEPT = 1000

_NOTHING: Mapping[str, object] = MappingProxyType({})


class PredicateError(SegmentsError, TypeError):
    """A value passed as a predicate is not a function."""


class SegmentationError(SegmentsError, RuntimeError):
    """A graph cannot be partitioned: the rule contradicts itself, or a predicate failed."""


class RefusalCode(Enum):
    """Why the partition itself refuses a merge."""

    STANDS_ALONE = auto()
    ACCEPTED_WHOLE = auto()
    UNDONE = auto()
    KEPT_BOUNDARY = auto()
    CYCLE = auto()
    PREDICATE = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a proposed merge: accepted with the facts of the union, or refused with a reason and details.

    Construct one with `yes` or `no`. It is truthy if it accepts; `str` gives the reason with its details. `code` is for
    programs to compare: a member of `RefusalCode` or of a rule's own enum. The reason is for people and may change.
    """

    accepted: bool
    reason: str = ""
    details: Mapping[str, object] = field(default_factory=lambda: _NOTHING, hash=False)
    facts: object = field(default=None, hash=False)
    code: Enum | None = None

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        if self.accepted:
            return "yes"
        if not self.details:
            return self.reason
        return f"{self.reason} ({', '.join(f'{name}={value!r}' for name, value in self.details.items())})"


def yes(facts: object = None) -> Verdict:
    """Return a verdict that accepts. `facts` describe the union and are passed to the next merge."""
    return Verdict(True, facts=facts)


def no(reason: str, code: Enum | None = None, /, **details: object) -> Verdict:
    """Return a verdict that refuses. Raises ValueError when `reason` is empty.

    `code` lets programs tell this refusal from others.
    """
    if not isinstance(reason, str) or not reason:
        raise ValueError("a refusal needs a reason")
    return Verdict(False, reason, MappingProxyType(details) if details else _NOTHING, code=code)


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that the producer group writes and the consumer group reads.

    `exposed` says whether it must still be stored after the merge, because a group outside the union reads it or the
    graph returns it.
    """

    value: int
    exposed: bool


class Rule(Protocol):
    """Decides which steps may form one group. Steps are identified by their positions in the graph.

    `merge` sees the facts of both sides and must cost no more than the smaller of them; `accepts` is the full check.
    `accepts` must accept every group that `merge` let grow: a disagreement is an error in the rule and undoes a merge.
    Both sides of a merge may contain a copy of the same cheap step, so facts must allow for that.
    """

    def facts(self, step: int) -> object:
        """Return the facts of one step."""
        ...

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        """Judge a union; accepting returns its facts. `a` is the producer or, with no edges, the earlier sibling."""
        ...

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Judge a whole group (ascending positions). A region accepted without facts is not merged further."""
        ...

    def pays(self, accepted: Verdict) -> Verdict:
        """Judge whether a group is better than its parts, from the verdict of `accepts`.

        It is asked about the whole graph and about regions, before pairs merge, and about the unions of the last pass.
        `merge` answers for pairs by itself. A negative verdict of `accepts` is returned as it is.
        """
        ...

    def cheap(self, step: int) -> bool:
        """Return whether the step may be recomputed in every group that reads it."""
        ...

    def alone(self, step: int) -> bool:
        """Return whether the step always forms a segment of its own and reads only stored values."""
        ...

    def movement(self, step: int) -> bool:
        """Return whether the step is offered to its producer before the producer's other readers."""
        ...


# A predicate gets the partition's `view` of two groups, the producer or the earlier sibling first.
Predicate = Callable[[Any, Any], "bool | Verdict"]


def as_verdict(answer: object, source: str = "the merge predicate") -> Verdict:
    """Convert a predicate's return value to a verdict. Raises TypeError for anything but a bool or a Verdict."""
    if isinstance(answer, Verdict):
        return answer
    if isinstance(answer, bool):
        return yes() if answer else no(f"{source} refused", RefusalCode.PREDICATE)
    raise TypeError(
        f"{source} returned {answer!r} of type {type(answer).__name__}; it must return a bool (wrap it in bool()) "
        f"or a Verdict (yes(), no(reason))"
    )


def predicate_name(predicate: Predicate) -> str:
    """Return a predicate's name for messages."""
    return str(getattr(predicate, "__name__", None) or type(predicate).__name__)


def _check(*predicates: object) -> None:
    """Raise PredicateError for a value that is not a function."""
    for predicate in predicates:
        if not callable(predicate) or isinstance(predicate, type):
            raise PredicateError(f"a predicate must be a function of two groups, not {type(predicate).__name__}")


def both(*predicates: Predicate) -> Predicate:
    """Return a predicate that allows a merge if all of `predicates` do. It returns the first refusal."""
    _check(*predicates)

    def all_allow(first: Any, second: Any) -> Verdict:
        for predicate in predicates:
            verdict = as_verdict(predicate(first, second), predicate_name(predicate))
            if not verdict:
                return verdict
        return yes()

    all_allow.__name__ = f"both({', '.join(map(predicate_name, predicates))})"
    return all_allow


def any_of(*predicates: Predicate) -> Predicate:
    """Return a predicate that allows a merge if any of `predicates` does. A refusal gives all their reasons."""
    _check(*predicates)

    def one_allows(first: Any, second: Any) -> Verdict:
        reasons: list[str] = []
        for predicate in predicates:
            verdict = as_verdict(predicate(first, second), predicate_name(predicate))
            if verdict:
                return verdict
            reasons.append(str(verdict))
        return no("; ".join(reasons) or "any_of() without predicates allows no merge", RefusalCode.PREDICATE)

    one_allows.__name__ = f"any_of({', '.join(map(predicate_name, predicates))})"
    return one_allows


def negate(predicate: Predicate, reason: str = "") -> Predicate:
    """Return a predicate that allows the merges that `predicate` forbids, and refuses the others with `reason`."""
    _check(predicate)
    name = f"negate({predicate_name(predicate)})"

    def opposite(first: Any, second: Any) -> Verdict:
        if as_verdict(predicate(first, second), predicate_name(predicate)):
            return no(reason or f"{name} refused", RefusalCode.PREDICATE)
        return yes()

    opposite.__name__ = name
    return opposite


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two groups of steps that were not merged, and why. `second` is empty for a region refused as a whole."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    verdict: Verdict

    def __str__(self) -> str:
        steps = f"{self.first} with {self.second}" if self.second else f"{self.first} as a whole"
        return f"{steps}: {self.verdict}"


class RefusalLog:
    """The first refusals of a partition, in order, and the number of refusals dropped after those."""

    __slots__ = ("dropped", "limit", "refusals")

    def __init__(self, known: Iterable[Refusal] = (), limit: int = REFUSALS_KEPT) -> None:
        self.limit = limit
        self.refusals: list[Refusal] = list(known)
        self.dropped = 0

    def add(
        self, first: Callable[[], tuple[int, ...]], second: Callable[[], tuple[int, ...]], verdict: Verdict
    ) -> None:
        """Log a refusal. The steps are callables, so a full log costs no more than a count."""
        if len(self.refusals) < self.limit:
            self.refusals.append(Refusal(first(), second(), verdict))
        else:
            self.dropped += 1
