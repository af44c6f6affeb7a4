"""Random graphs, rules and devices for the tests of `segments`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from segments import Edge, Graph, Segment, Step, Verdict, no, yes

EXTENTS = {-1: 11, -2: 13, -3: 17}


@dataclass
class SetRule:
    """Facts are the set of steps; `takes(steps)` says what may be one group, so merge and accepts always agree.

    Every merge asked about is checked: its edges must be exactly what the graph says crosses.
    """

    graph: Graph
    limit: int = 10**9
    seed: int | None = None
    cheap_steps: frozenset[int] = frozenset()
    alone_steps: frozenset[int] = frozenset()
    movement_steps: frozenset[int] = frozenset()
    facts_of_wholes: bool = True
    merges: int = 0
    full_checks: list[tuple[int, ...]] = field(default_factory=list)

    def takes(self, steps: frozenset[int]) -> Verdict:
        if len(steps) > self.limit:
            return no("too many steps", count=len(steps), limit=self.limit)
        if self.seed is not None and hash((self.seed, *sorted(steps))) % 3 == 0:
            return no("an unlucky number")
        return yes(steps)

    def facts(self, step: int) -> frozenset[int]:
        return frozenset((step,))

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, frozenset)
        assert isinstance(b, frozenset)
        self.merges += 1
        self.check_edges(a, b, edges)
        return self.takes(a | b)

    def check_edges(self, a: frozenset[int], b: frozenset[int], edges: tuple[Edge, ...]) -> None:
        made_by_b = {value for step in b for value in self.graph.steps[step].outputs}
        read_by_b = {value for step in b for value in self.graph.steps[step].inputs}
        made_by_a = {value for step in a for value in self.graph.steps[step].outputs}
        values = [edge.value for edge in edges]
        assert values == sorted(values)
        assert set(values) == (read_by_b & made_by_a) - made_by_b
        for edge in edges:
            outside = any(reader not in a | b for reader in self.graph.readers(edge.value))
            if not self.cheap_steps:
                assert edge.exposed == (outside or self.graph.is_output(edge.value))
        if not edges:
            read_by_a = {value for step in a for value in self.graph.steps[step].inputs}
            assert read_by_a & read_by_b, "siblings have a common input"

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        assert steps == tuple(sorted(set(steps)))
        self.full_checks.append(steps)
        verdict = self.takes(frozenset(steps))
        return verdict if self.facts_of_wholes or not verdict else yes()

    def pays(self, accepted: Verdict) -> Verdict:
        return accepted

    def cheap(self, step: int) -> bool:
        return step in self.cheap_steps

    def alone(self, step: int) -> bool:
        return step in self.alone_steps

    def movement(self, step: int) -> bool:
        return step in self.movement_steps


@st.composite
def graphs(draw: st.DrawFn, most: int = 18, extents: bool = True) -> Graph:
    """A graph of up to `most` steps; values are numbered with gaps and not in the order in which they are made."""
    step_count = draw(st.integers(0, most))
    input_count = draw(st.integers(0 if step_count == 0 else 1, 3))
    numbers = draw(st.permutations(range(3 * step_count + input_count)))
    inputs = sorted(numbers[:input_count])
    fresh = iter(numbers[input_count:])
    available = list(inputs)
    steps: list[Step] = []
    for position in range(step_count):
        operands = st.one_of(st.sampled_from(available[-6:]), st.sampled_from(available))
        read = draw(st.lists(operands, max_size=3))
        if extents and draw(st.integers(0, 5)) == 0:
            read.append(draw(st.sampled_from(sorted(EXTENTS))))
        made = [next(fresh) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
        steps.append(Step(tuple(read), tuple(made), f"op{position}"))
        available += made
    outputs = draw(st.lists(st.sampled_from(available), max_size=4)) if available else []
    return Graph(steps, inputs, outputs)


def subsets(draw: st.DrawFn, count: int, rarity: int) -> frozenset[int]:
    return frozenset(step for step in range(count) if draw(st.integers(0, rarity)) == 0)


@st.composite
def rules(draw: st.DrawFn, graph: Graph) -> SetRule:
    count = len(graph.steps)
    cheap = subsets(draw, count, 2) if draw(st.booleans()) else frozenset()
    alone = subsets(draw, count, 4) if draw(st.booleans()) else frozenset()
    return SetRule(
        graph,
        limit=draw(st.sampled_from([1, 2, 3, 5, 10**9])),
        seed=draw(st.one_of(st.none(), st.integers(0, 1000))),
        cheap_steps=cheap,
        alone_steps=alone,
        movement_steps=subsets(draw, count, 3),
        facts_of_wholes=draw(st.booleans()),
    )


def extents_of(value: int) -> tuple[int | None, ...]:
    """Extents that depend on the value alone: 0 to 2 axes, some of them literal."""
    axes: tuple[int | None, ...] = (-1, None, -2, -3)
    return axes[value % 4 : value % 4 + value % 3]


def reference_results(graph: Graph, step: int, operands: Sequence[object]) -> list[int]:
    """What a step computes in the tests: a hash of its position, its operands and the place of each output."""
    return [hash((step, place, *operands)) for place in range(len(graph.steps[step].outputs))]


def run_directly(graph: Graph, inputs: Mapping[int, object]) -> dict[int, object]:
    """Run a graph step by step; returns every value."""
    values: dict[int, object] = {**inputs, **EXTENTS}
    for position, step in enumerate(graph.steps):
        made = reference_results(graph, position, [values[value] for value in step.inputs])
        values.update(zip(step.outputs, made, strict=True))
    return values


class HashDevice:
    """Runs segments by their own numbers, on buffers that are lists of one item, and watches their life."""

    def __init__(self, graph: Graph, segments: Sequence[Segment], allocates: bool) -> None:
        self.graph = graph
        self.segments = segments
        self.allocates = allocates
        self.alive: list[list[object]] = []
        self.launched: list[int] = []

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        assert spec is not None
        assert values.items() >= EXTENTS.items()
        buffer: list[object] = []
        self.alive.append(buffer)
        return buffer

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> list[object] | None:
        segment = self.segments[step]
        self.launched.append(step)
        local: dict[int, object] = dict(zip(segment.inputs, map(content, inputs), strict=True))
        for position in segment.steps:
            original = self.graph.steps[position]
            operands = [self.operand(segment, local, value) for value in original.inputs]
            for value, made in zip(original.outputs, reference_results(self.graph, position, operands), strict=True):
                local[segment.inverse[value]] = made
        results = [local[value] for value in segment.outputs]
        if not self.allocates:
            buffers: list[list[object]] = [[result] for result in results]
            self.alive += buffers
            return list(buffers)
        for buffer, result in zip(outputs, results, strict=True):
            assert buffer == []
            assert isinstance(buffer, list)
            buffer.append(result)
        return None

    def operand(self, segment: Segment, local: Mapping[int, object], value: int) -> object:
        if value >= 0:
            return local[segment.inverse[value]]
        known = segment.extent_inverse[value]
        return local[known] if known >= 0 else EXTENTS[segment.extent_map[known]]

    def release(self, buffer: object) -> None:
        place = next(place for place, held in enumerate(self.alive) if held is buffer)
        del self.alive[place]


def content(held: object) -> object:
    """Return what a buffer holds; inputs and extents are no buffers and stand for themselves."""
    if isinstance(held, list):
        (item,) = held
        return item
    return held
