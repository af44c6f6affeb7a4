"""How long partitioning takes as graphs grow, and what a call of a prepared program costs over its launch.

    python tests/bench/bench_partition.py

The last column of the first table, time / (n log2 n), should stay about the same down each block.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from segments import (
    ArgumentManager,
    Edge,
    Graph,
    Runner,
    Step,
    Verdict,
    build_program,
    build_segment,
    no,
    partition,
    yes,
)

SIZES = (250, 500, 1000, 2000, 4000)
REPEATS = 3


@dataclass(frozen=True)
class Limited:
    """Groups of up to `limit` steps; facts are their number."""

    limit: int
    alone_steps: frozenset[int]
    cheap_steps: frozenset[int]

    def facts(self, step: int) -> int:
        return 1

    def merge(self, a: object, b: object, edges: tuple[Edge, ...]) -> Verdict:
        assert isinstance(a, int)
        assert isinstance(b, int)
        return yes(a + b) if a + b <= self.limit else no("too many steps", first=a, second=b)

    def pays(self, accepted: Verdict) -> Verdict:
        return accepted

    def accepts(self, steps: tuple[int, ...]) -> Verdict:
        return yes(len(steps)) if len(steps) <= self.limit else no("too many steps", count=len(steps))

    def cheap(self, step: int) -> bool:
        return step in self.cheap_steps

    def alone(self, step: int) -> bool:
        return step in self.alone_steps

    def movement(self, step: int) -> bool:
        return step % 7 == 3


@dataclass(frozen=True)
class Case:
    graph: Graph
    alone: frozenset[int] = frozenset()
    cheap: frozenset[int] = frozenset()


def chain(count: int) -> Case:
    return Case(Graph([Step((value,), (value + 1,)) for value in range(count)], [0], [count]))


def independent(count: int) -> Case:
    return Case(Graph([Step((v,), (count + v,)) for v in range(count)], range(count), range(count, 2 * count)))


def common_input(count: int) -> Case:
    return Case(Graph([Step((0,), (value,)) for value in range(1, count + 1)], [0], range(1, count + 1)))


def fan_out_fan_in(count: int) -> Case:
    middle = [Step((1,), (value,)) for value in range(2, count)]
    return Case(Graph([Step((0,), (1,)), *middle, Step(tuple(range(2, count)), (count,))], [0], [count]))


def layers(count: int, cheap: bool = False) -> Case:
    """Layers of 16 steps with two residual edges and four steps that stand alone; all read one shared input too."""
    steps: list[Step] = []
    start = value = 1
    while len(steps) < count:
        for place in range(16):
            reads = (value, start) if place in (7, 15) else (value, 0) if place in (1, 9) else (value,)
            if place == 7:
                start = value + 1
            steps.append(Step(reads, (value + 1,)))
            value += 1
        start = value
    alone = frozenset(step for step in range(len(steps)) if step % 16 in (3, 5, 10, 13))
    copied = frozenset(step for step in range(len(steps)) if step % 16 in (0, 8)) if cheap else frozenset()
    return Case(Graph(steps, [0, 1], [value]), alone, copied)


def layers_with_copies(count: int) -> Case:
    return layers(count, cheap=True)


def random_like(count: int) -> Case:
    """Each step reads two of the last forty values, at places spread by a multiplication."""
    steps = [
        Step((max(0, step - (step * 7919) % 40), max(0, step - (step * 104729) % 40)), (step + 1,))
        for step in range(count)
    ]
    return Case(Graph(steps, [0], [count]))


CASES: tuple[Callable[[int], Case], ...] = (
    chain,
    independent,
    common_input,
    fan_out_fan_in,
    layers,
    layers_with_copies,
    random_like,
)
LIMITS: Mapping[str, int] = {"nothing": 0, "up to 8": 8, "up to 100": 100, "everything": 10**9}


def always(first: object, second: object) -> bool:
    return True


def bench_partition() -> None:
    print(f"{'graph':<20}{'rule accepts':<22}{'steps':>6}{'groups':>8}{'ms':>9}{'ns/(n log2 n)':>15}")
    for make in CASES:
        rows = [*LIMITS.items(), ("everything, pairs", 10**9)]
        for name, limit in rows:
            for size in SIZES:
                case = make(size)
                count = len(case.graph.steps)
                rule = Limited(limit, case.alone, case.cheap)
                predicate = always if name == "everything, pairs" else None
                best = math.inf
                for _ in range(REPEATS):
                    begin = time.perf_counter()
                    split = partition(case.graph, rule, merge=predicate)
                    best = min(best, time.perf_counter() - begin)
                unit = 1e9 * best / (count * math.log2(count))
                print(f"{make.__name__:<20}{name:<22}{count:>6}{len(split.groups):>8}{1e3 * best:>9.1f}{unit:>15.0f}")


class Idle:
    """A device whose launches do nothing."""

    def allocate(self, spec: object, values: Mapping[int, object]) -> object:
        return None

    def launch(self, step: int, label: object, inputs: list[object], outputs: list[object]) -> None:
        return None

    def release(self, buffer: object) -> None:
        return None


def bench_calls() -> None:
    print(f"\n{'one launch, 2 inputs, 4 extents, 1 output':<48}{'us over the launch':>20}")
    graph = Graph([Step((0, 1), (2,))], [0, 1], [2])
    extents = {-1: 2, -2: 3, -3: 2, -4: 3}
    axes: dict[int, tuple[int, ...]] = {0: (-1, -2), 1: (-3, -4)}
    segment = build_segment(graph, (0,), extents_of=axes.__getitem__)
    program = build_program([segment], graph.inputs, graph.outputs, extents=tuple(extents), spec_of=str)
    device = Idle()
    runner = Runner(program, device)
    arguments = ("x", "y", *extents.values())
    inputs = {0: "x", 1: "y"}

    def best(call: Callable[[], object], number: int = 50_000) -> float:
        return 1e6 * min(timeit.repeat(call, number=number, repeat=5)) / number

    launch = best(lambda: device.launch(0, None, ["x", "y"], [None]))
    print(f"{'Runner(...)(arguments)':<48}{best(lambda: runner(arguments)) - launch:>20.2f}")
    with_manager = best(lambda: runner.run(ArgumentManager(inputs, extents)))
    print(f"{'Runner(...).run(ArgumentManager(...))':<48}{with_manager - launch:>20.2f}")


if __name__ == "__main__":
    bench_partition()
    bench_calls()
