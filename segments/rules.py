"""What says yes or no to a merge: verdicts, the rule that a partition follows, predicates, the log of refusals.

A `Verdict` is the only answer there is. A yes carries the facts of the union, so that the next question starts from
them; a no carries its reason and the facts that explain it, because a refusal without a reason helps nobody.

A `Rule` decides what may be one group; a predicate, given by a user, can only forbid more. Predicates combine with
`both`, `any_of` and `negate`.

This module knows positions of steps, numbers of values, and opaque facts. It must not know what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Protocol

from segments.graph import SegmentsError

# Refusals beyond this many are counted and not kept: the reasons along the final boundaries are kept elsewhere,
# and a log is read by people.
REFUSALS_KEPT = 1000

_NOTHING: Mapping[str, object] = MappingProxyType({})


class PredicateError(SegmentsError, TypeError):
    """Something that is combined as a predicate and is none."""


class SegmentationError(SegmentsError, RuntimeError):
    """A graph could not be split: a rule contradicts itself, or a predicate failed."""


class RefusalCode(Enum):
    """Why the partition itself refuses a merge."""

    STANDS_ALONE = auto()
    ACCEPTED_WHOLE = auto()
    TAKEN_BACK = auto()
    KEPT_BOUNDARY = auto()
    CYCLE = auto()
    PREDICATE = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A yes with the facts of the union, or a no with its reason and the details that explain it.

    Make one with `yes` or `no`. It is true for a yes, and its `str` is the reason with the details. `code` is what
    programs compare: a member of `RefusalCode`, or of a rule's own enum. The reason is for people and may change.
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
    """Return a verdict that accepts; `facts` are those of the union, for the next merge to start from."""
    return Verdict(True, facts=facts)


def no(reason: str, code: Enum | None = None, /, **details: object) -> Verdict:
    """Return a verdict that refuses. Raises ValueError when `reason` is empty: every no says why.

    `code` is for programs that must tell this refusal from others.
    """
    if not isinstance(reason, str) or not reason:
        raise ValueError("a refusal needs a reason")
    return Verdict(False, reason, MappingProxyType(details) if details else _NOTHING, code=code)


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that the producer group makes and the consumer group reads.

    `exposed` says whether it must be stored after the merge too: it is read outside of the union, or is an output
    of the graph.
    """

    value: int
    exposed: bool


class Rule(Protocol):
    """What may be one group. Steps go by their positions in the graph.

    `merge` sees the facts of both sides and must cost no more than the smaller of them; `accepts` is the full check.
    What `merge` lets grow, `accepts` must take: a disagreement is an error of the rule, which costs a merge.
    A copied cheap step may be part of both sides of a merge; facts must bear that.
    """

    def facts(self, step: int) -> object:
        """Return the facts of one step."""
        ...

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        """Judge a union; a yes carries its facts. `a` is the producer, or with no edges a sibling that comes first."""
        ...

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        """Judge a whole group (ascending positions). A yes without facts on a region ends its growth."""
        ...

    def cheap(self, step: int) -> bool:
        """Return whether the step may be computed again in every group that reads it."""
        ...

    def alone(self, step: int) -> bool:
        """Return whether the step is never merged and reads stored values only."""
        ...

    def movement(self, step: int) -> bool:
        """Return whether the step is offered to its producer before other readers are."""
        ...


# A predicate sees two groups as the `view` of the partition makes them, the producer or the earlier sibling first.
Predicate = Callable[[Any, Any], "bool | Verdict"]


def as_verdict(answer: object, source: str = "the merge predicate") -> Verdict:
    """Turn what a predicate returned into a verdict. Raises TypeError for anything but a bool or a Verdict."""
    if isinstance(answer, Verdict):
        return answer
    if isinstance(answer, bool):
        return yes() if answer else no(f"{source} refused", RefusalCode.PREDICATE)
    raise TypeError(
        f"{source} returned {answer!r} of type {type(answer).__name__}; it must return a bool (wrap it in bool()) "
        f"or a Verdict (yes(), no(reason))"
    )


def predicate_name(predicate: Predicate) -> str:
    """Return the name of a predicate for messages."""
    return str(getattr(predicate, "__name__", None) or type(predicate).__name__)


def _check(*predicates: object) -> None:
    """Raise PredicateError for what cannot be called."""
    for predicate in predicates:
        if not callable(predicate) or isinstance(predicate, type):
            raise PredicateError(f"a predicate is a function of two groups, not a {type(predicate).__name__}")


def both(*predicates: Predicate) -> Predicate:
    """Return the predicate that allows a merge when all of `predicates` do; the first no is the answer."""
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
    """Return the predicate that allows a merge when one of `predicates` does; a no gives all the reasons."""
    _check(*predicates)

    def one_allows(first: Any, second: Any) -> Verdict:
        reasons: list[str] = []
        for predicate in predicates:
            verdict = as_verdict(predicate(first, second), predicate_name(predicate))
            if verdict:
                return verdict
            reasons.append(str(verdict))
        return no("; ".join(reasons) or "any_of() of no predicates allows nothing", RefusalCode.PREDICATE)

    one_allows.__name__ = f"any_of({', '.join(map(predicate_name, predicates))})"
    return one_allows


def negate(predicate: Predicate, reason: str = "") -> Predicate:
    """Return the predicate that allows what `predicate` forbids; `reason` is given where it forbids."""
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
    """Two groups of steps that were not merged, and why. `second` is empty for a region that was refused whole."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    verdict: Verdict

    def __str__(self) -> str:
        steps = f"{self.first} with {self.second}" if self.second else f"{self.first} as a whole"
        return f"{steps}: {self.verdict}"


class RefusalLog:
    """The first refusals of a partition, in order, and the number of those that were not kept."""

    __slots__ = ("dropped", "kept", "limit")

    def __init__(self, known: Iterable[Refusal] = (), limit: int = REFUSALS_KEPT) -> None:
        self.limit = limit
        self.kept: list[Refusal] = list(known)
        self.dropped = 0

    def add(
        self, first: Callable[[], tuple[int, ...]], second: Callable[[], tuple[int, ...]], verdict: Verdict
    ) -> None:
        """Note a refusal. The steps come as callables, so that a full log costs nothing but a count."""
        if len(self.kept) < self.limit:
            self.kept.append(Refusal(first(), second(), verdict))
        else:
            self.dropped += 1
