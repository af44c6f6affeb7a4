"""The graph to partition, opaque steps over integer values, and the quotient graph of its groups.

A `Graph` is immutable and validated at construction: every value has at most one producer, the steps are in topological
order, and every value read is produced or an input. Values from 0 up are tensors and scalars; negative numbers are
extents of the inputs, which are always available and have no producer.

A `Quotient` is the graph of groups during partitioning: its edges, the values on them, a topological order, and whether
merging two groups would create a cycle. It maintains the order under merging, so a cycle check searches only between
the positions of the two groups rather than the whole graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from segments.lazy_dataclasses import dataclass

# Distance between adjacent labels in the order of a Quotient. An insertion at worst halves a gap, so 40 insertions fit
# at one place before all labels are reassigned.
_GAP = 1 << 40


class SegmentsError(Exception):
    """The base class of the package's errors."""


class GraphError(SegmentsError, ValueError):
    """The steps, inputs and outputs do not form a valid graph."""


@dataclass(frozen=True, slots=True)
class Step:
    """One opaque step: the values it reads, in operand order, the values it produces, and a label for messages."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: object = None


class Graph:
    """An immutable graph of steps in topological order.

    `inputs` are the values supplied from outside; extents (negative) need no declaration. `outputs` are the values
    that must exist at the end; an input may be an output, and a value may be listed twice.

    Raises GraphError if a value is produced twice, an input is declared twice or produced by a step, a step reads a
    value that no earlier step produces, a step produces an extent, or an output does not exist.
    """

    __slots__ = ("_output_set", "_producers", "_readers", "inputs", "outputs", "steps")

    def __init__(self, steps: Sequence[Step], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.steps = tuple(steps)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._output_set = frozenset(self.outputs)
        self._producers = self._find_producers()
        self._readers = self._find_readers()
        for value in self.outputs:
            if value >= 0 and value not in self._producers and value not in self._readers:
                raise GraphError(f"output {value} is produced by no step and is not an input of the graph")

    def _find_producers(self) -> dict[int, int]:
        declared = set(self.inputs)
        if len(declared) != len(self.inputs):
            twice = next(value for value in self.inputs if self.inputs.count(value) > 1)
            raise GraphError(f"input {twice} is declared twice (inputs {self.inputs})")
        producers: dict[int, int] = {}
        for position, step in enumerate(self.steps):
            for value in step.outputs:
                if value < 0:
                    raise GraphError(
                        f"{self.describe(position)} produces {value}: negative numbers are extents of the inputs, "
                        f"which no step produces"
                    )
                if value in declared:
                    raise GraphError(
                        f"{self.describe(position)} produces value {value}, which is an input of the graph"
                    )
                if value in producers:
                    raise GraphError(
                        f"value {value} is produced twice: by {self.describe(producers[value])} "
                        f"and by {self.describe(position)}"
                    )
                producers[value] = position
        return producers

    def _find_readers(self) -> dict[int, tuple[int, ...]]:
        readers: dict[int, list[int]] = {value: [] for value in self.inputs}
        for position, step in enumerate(self.steps):
            for value in dict.fromkeys(step.inputs):
                producer = self._producers.get(value)
                if producer is None:
                    if value >= 0 and value not in readers:
                        raise GraphError(
                            f"{self.describe(position)} reads value {value}, "
                            f"which no step produces and which is not an input of the graph"
                        )
                elif producer >= position:
                    raise GraphError(
                        f"{self.describe(position)} reads value {value} before {self.describe(producer)} "
                        f"produces it: steps must be in topological order"
                    )
                readers.setdefault(value, []).append(position)
        return {value: tuple(positions) for value, positions in readers.items()}

    def describe(self, position: int) -> str:
        """Name a step for a message: its position and, if any, its label."""
        label = self.steps[position].label
        return f"step {position}" if label is None else f"step {position} ({label})"

    def producer(self, value: int) -> int | None:
        """Return the position of the step that produces `value`, or None for an input or an extent."""
        return self._producers.get(value)

    def readers(self, value: int) -> tuple[int, ...]:
        """Return the positions of the steps that read `value`, ascending, each once."""
        return self._readers.get(value, ())

    def is_output(self, value: int) -> bool:
        """Return whether `value` is an output of the graph."""
        return value in self._output_set

    def has(self, value: int) -> bool:
        """Return whether `value` is an input, is produced by a step, or is an extent that a step reads."""
        return value in self._producers or value in self._readers

    def producers_of(self, position: int) -> tuple[int, ...]:
        """Return the steps that produce the step's inputs, each once, in the order of its inputs."""
        producers = (self._producers.get(value) for value in self.steps[position].inputs)
        return tuple(dict.fromkeys(producer for producer in producers if producer is not None))

    def readers_of(self, position: int) -> tuple[int, ...]:
        """Return the steps that read the step's outputs, each once."""
        outputs = self.steps[position].outputs
        return tuple(dict.fromkeys(reader for value in outputs for reader in self.readers(value)))

    def reaches(self, first: int, second: int) -> bool:
        """Return whether a path of at least one edge leads from step `first` to step `second`."""
        return second in self.descendants((first,), until=second)

    def descendants(self, steps: Iterable[int], until: int | None = None) -> frozenset[int]:
        """Return every step reachable from one of `steps`, up to position `until` if given."""
        last = len(self.steps) if until is None else until
        seen: set[int] = set()
        stack = list(steps)
        while stack:
            for reader in self.readers_of(stack.pop()):
                if reader <= last and reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
        return frozenset(seen)

    def merge_makes_cycle(self, steps: Collection[int]) -> bool:
        """Return whether a path leaves `steps` and re-enters them, so no order can run them as one group."""
        if not steps:
            return False
        members = frozenset(steps)
        last = max(members)
        outside = {reader for step in members for reader in self.readers_of(step)} - members
        return not members.isdisjoint(self.descendants((step for step in outside if step < last), until=last))


@dataclass(frozen=True, slots=True)
class MergePlan:
    """How to merge two groups of a Quotient. A plan is valid until the next merge.

    `moved` lists the groups between them that change position, in order. They move to right after `second` if `after`
    is true, and to right before `first` otherwise.
    """

    first: int
    second: int
    moved: tuple[int, ...]
    after: bool


class Quotient:
    """Groups of nodes under merging, with a topological order of the groups.

    `edges[producer][consumer]` are the values that the consumer reads from the producer; nodes are numbered in
    topological order. A group is identified by one of its nodes (`find`). A merge costs the smaller group's number of
    neighbours plus the shorter of two searches: forward from the earlier group or backward from the later one, both
    limited to the groups between them.

    The order is a linked list with integer labels (M. Dietz and D. Sleator, "Two algorithms for maintaining order
    in a list", 1987). The search limited to the affected window follows D. Pearce and P. Kelly, "A dynamic
    topological sort algorithm for directed acyclic graphs", 2007.
    """

    __slots__ = ("_consumers", "_labels", "_next", "_outside", "_parents", "_previous", "_producers")

    def __init__(self, edges: Sequence[Mapping[int, Collection[int]]]) -> None:
        count = len(edges)
        self._parents = list(range(count))
        self._labels = [(node + 1) * _GAP for node in range(count)]
        self._next = [*range(1, count), -1] if count else []
        self._previous = list(range(-1, count - 1))
        self._consumers: list[dict[int, set[int]]] = [{} for _ in range(count)]
        self._producers: list[dict[int, set[int]]] = [{} for _ in range(count)]
        self._outside: dict[int, int] = {}
        for producer, targets in enumerate(edges):
            for consumer, values in targets.items():
                if not producer < consumer < count:
                    raise GraphError(f"edge from node {producer} to node {consumer} is not in topological order")
                shared = set(values)
                self._consumers[producer][consumer] = shared
                self._producers[consumer][producer] = shared
                for value in shared:
                    self._outside[value] = self._outside.get(value, 0) + 1

    def find(self, node: int) -> int:
        """Return the current number of the group that contains `node`."""
        parents = self._parents
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def groups(self) -> list[int]:
        """Return all groups, in no particular topological order."""
        return [node for node, parent in enumerate(self._parents) if node == parent]

    def label(self, group: int) -> int:
        """Return the position of the group in the current topological order, as a comparable number."""
        return self._labels[group]

    def consumers(self, group: int) -> Collection[int]:
        """Return the groups that read the outputs of `group`. It is a live view: copy it before merging."""
        return self._consumers[group].keys()

    def values(self, producer: int, consumer: int) -> Collection[int]:
        """Return the values that `consumer` reads from `producer`; empty if there are none."""
        return self._consumers[producer].get(consumer, ())

    def outside_readers(self, value: int) -> int:
        """Return how many groups other than its producer's read `value`."""
        return self._outside.get(value, 0)

    def plan(self, first: int, second: int) -> MergePlan | None:
        """Return how to merge two different groups, or None if that would create a cycle."""
        if self._labels[first] > self._labels[second]:
            first, second = second, first
        ahead: set[int] = set()
        behind: set[int] = set()
        forward = self._walk(first, second, self._consumers, ahead, behind)
        backward = self._walk(second, first, self._producers, behind, ahead)
        # The two searches alternate edge by edge, so the cost is at most twice that of the shorter one.
        while True:
            outcome = next(forward, None)
            if outcome is not None:
                between, after = ahead, True
                break
            outcome = next(backward, None)
            if outcome is not None:
                between, after = behind, False
                break
        if outcome == "cycle":
            return None
        moved = tuple(sorted(between, key=self._labels.__getitem__))
        return MergePlan(first, second, moved, after)

    def _walk(
        self, start: int, goal: int, links: list[dict[int, set[int]]], seen: set[int], met: set[int]
    ) -> Iterator[str | None]:
        """Search from `start` between the two positions; yield None after each edge and the outcome at the end."""
        labels = self._labels
        low, high = sorted((labels[start], labels[goal]))
        stack = [start]
        while stack:
            node = stack.pop()
            for other in links[node]:
                if other == goal:
                    if node != start:
                        yield "cycle"
                elif low < labels[other] < high and other not in seen:
                    if other in met:
                        yield "cycle"
                    seen.add(other)
                    stack.append(other)
                yield None
        yield "free"

    def merge(self, plan: MergePlan) -> int:
        """Merge the two groups of `plan` and return the union's number."""
        first, second = plan.first, plan.second
        place = second if plan.after else first
        for group in plan.moved:
            self._unlink(group)
        if plan.after:
            self._insert(plan.moved, second, self._next[second])
        else:
            self._insert(plan.moved, self._previous[first], first)
        weight_of_first = len(self._consumers[first]) + len(self._producers[first])
        weight_of_second = len(self._consumers[second]) + len(self._producers[second])
        keep, absorbed = (first, second) if weight_of_first >= weight_of_second else (second, first)
        if place == keep:
            self._unlink(absorbed)
        else:
            self._unlink(keep)
            self._replace(absorbed, keep)
        self._join_edges(keep, absorbed)
        self._parents[absorbed] = keep
        return keep

    def _join_edges(self, keep: int, absorbed: int) -> None:
        for links, back in ((self._consumers, self._producers), (self._producers, self._consumers)):
            inner = links[keep].pop(absorbed, None)
            if inner is not None:
                del back[absorbed][keep]
                for value in inner:
                    self._outside[value] -= 1
        for other, values in self._consumers[absorbed].items():
            del self._producers[other][absorbed]
            # Each value has one producer, so no reader is counted twice here.
            self._share(keep, other, values, self._consumers[keep].get(other))
        for other, values in self._producers[absorbed].items():
            del self._consumers[other][absorbed]
            direct_values = self._consumers[other].get(keep)
            for value in direct_values & values if direct_values else ():
                self._outside[value] -= 1
            self._share(other, keep, values, direct_values)
        self._consumers[absorbed] = {}
        self._producers[absorbed] = {}

    def _share(self, producer: int, consumer: int, values: set[int], existing: set[int] | None) -> None:
        if existing is not None:
            larger, smaller = (values, existing) if len(values) >= len(existing) else (existing, values)
            larger |= smaller
            values = larger
        self._consumers[producer][consumer] = values
        self._producers[consumer][producer] = values

    def _unlink(self, group: int) -> None:
        previous, following = self._previous[group], self._next[group]
        if previous >= 0:
            self._next[previous] = following
        if following >= 0:
            self._previous[following] = previous

    def _replace(self, old: int, new: int) -> None:
        previous, following = self._previous[old], self._next[old]
        self._previous[new], self._next[new], self._labels[new] = previous, following, self._labels[old]
        if previous >= 0:
            self._next[previous] = new
        if following >= 0:
            self._previous[following] = new

    def _insert(self, groups: Sequence[int], previous: int, following: int) -> None:
        """Link `groups` between two neighbours (-1: the end of the list) and label them."""
        if not groups:
            return
        low = self._labels[previous] if previous >= 0 else self._labels[following] - _GAP * (len(groups) + 1)
        high = self._labels[following] if following >= 0 else low + _GAP * (len(groups) + 1)
        distance = (high - low) // (len(groups) + 1)
        for position, group in enumerate(groups):
            self._labels[group] = low + distance * (position + 1)
            self._previous[group] = previous
            if previous >= 0:
                self._next[previous] = group
            previous = group
        self._next[previous] = following
        if following >= 0:
            self._previous[following] = previous
        if distance == 0:
            self._spread_labels(groups[0])

    def _spread_labels(self, group: int) -> None:
        """Reassign labels a full gap apart along the list that contains `group`."""
        while self._previous[group] >= 0:
            group = self._previous[group]
        label = _GAP
        while group >= 0:
            self._labels[group] = label
            label += _GAP
            group = self._next[group]
