"""A chunk of a scan on a GPU: every thread scans a few elements, and groups of threads pass on what came before.

A thread keeps the states of its elements in registers. It scans them in runs: a run is what the thread reads at one
step, if its lanes follow each other along the scan, or what one lane reads at all steps, if they lie beside it. A group
of adjacent threads then combines the runs; so each run gets the state of everything before it.

Must not know: sizes, CUDA C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import chain

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Assign,
    Barrier,
    Buffer,
    Combiner,
    Declare,
    Expression,
    GroupReduce,
    Load,
    Store,
    Variable,
    call,
)
from tracefuse.schedule.body import Body
from tracefuse.schedule.gpu.gpu_frame import Positions, Steps
from tracefuse.schedule.gpu.gpu_phase import is_of_one_row, reads_on_the_way
from tracefuse.schedule.reduction_states import lifted, state_types, store_output
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scan_states import as_element, joined, neutral_state


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A block of `count` rows of `across` threads each. row, column: a thread's place in it."""

    count: int
    across: int
    row: Extent
    column: Extent


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that scan a row together, or one column each.

    group: adjacent threads, a power of two of at most 32, which follow each other along the scan. warps: the number of
    such groups along the scan, which are then whole warps of one block. last: whether the thread is the last of its
    group; only if there are several. along: the lanes of a thread follow each other along the scan. rows: the threads
    that share a column, if they are not adjacent but rows of the block.
    """

    group: int
    warps: int
    last: Expression | None
    along: bool
    rows: BlockRows | None = None


Carries = dict[int, tuple[Variable, ...]]
"""By the number of a scan, the mutable variables with the states before the chunk: one, or one for each lane."""


@dataclass(slots=True)
class ScannedChunk:
    """The emission of one chunk. region: with the coordinates of a thread. carries: see `Carries`; they move on."""

    body: Body
    region: Region
    positions: Positions
    walk: Steps
    team: Team
    carries: Carries
    _totals: dict[int, Buffer] = field(default_factory=dict)
    _held: dict[int, Buffer] = field(default_factory=dict)

    def emit(self) -> None:
        """Scans the chunk and stores the outputs."""
        for nodes in self.region.scans:
            self._scan_runs(nodes)
            self._join_runs(nodes)
        self._store()
        for nodes in self.region.scans:
            for node in nodes:
                del self.body.cached[self._key(node)]

    @property
    def runs(self) -> int:
        return self.walk.count if self.team.along else self.body.lanes

    def _key(self, node: Node) -> tuple[int, tuple[Extent, ...]]:
        return node.outputs[0], self.region.at[node.outputs[0]][0]

    def _place(self, lane: Extent) -> Extent:
        return self.walk.step * self.body.lanes + lane

    def _scan_runs(self, nodes: Sequence[Node]) -> None:
        """Scans each run by itself; positions beyond the end leave it as it is."""
        body = self.body
        for node in nodes:
            (dtype,), number = state_types(node), node.outputs[0]
            self._held[number] = Buffer(body.fresh(f"scan{number}"), dtype, "local", self.walk.count * body.lanes)
            self._totals[number] = Buffer(body.fresh(f"total{number}"), dtype, "local", self.runs)
            body.append(Allocate(self._held[number]))
            body.append(Allocate(self._totals[number]))
            for run in range(self.runs):
                body.append(Store(self._totals[number], body.index.code(run), neutral_state(node)))
        reads = [key for key in reads_on_the_way(body, self.region, 0, self.positions) if self._is_streamed(key)]

        def work() -> None:
            for node in nodes:
                self._scan_step(node)

        self.walk.each(body, self.positions.binder(body), work, reads)

    def _is_streamed(self, key: tuple[int, tuple[Extent, ...]]) -> bool:
        return is_of_one_row(self.body, self.region, key, self.positions)

    def _scan_step(self, node: Node) -> None:
        body, total, states = self.body, self._totals[node.outputs[0]], self._held[node.outputs[0]]
        for lane, (element,) in enumerate(lifted(body, self.region, node)):
            run = body.index.code(self.walk.step if self.team.along else lane)
            (state,) = body.name("run", (joined(node, Load(total, run), element),))
            body.append(Store(total, run, state))
            body.append(Store(states, body.index.code(self._place(lane)), state))

    def _join_runs(self, nodes: Sequence[Node]) -> None:
        """Combines the runs of the team in order, and each element with what came before its run."""
        body = self.body
        runs = {node.outputs[0]: self._variables(node, "own") for node in nodes}
        for node in nodes:
            for run, variable in enumerate(runs[node.outputs[0]]):
                body.append(Declare(variable, Load(self._totals[node.outputs[0]], body.index.code(run))))
        before = self._reduce(nodes, runs, self.team.group)
        if self.team.rows is not None:
            before = self._across_rows(nodes, runs, self.team.rows)
        if self.team.along:
            before = self._across_steps(nodes, runs, before)
        for node in nodes:
            self._pass_on(node, runs[node.outputs[0]], before[node.outputs[0]])

    def _variables(self, node: Node, stem: str, count: int | None = None) -> tuple[Variable, ...]:
        (dtype,) = state_types(node)
        return tuple(Variable(self.body.fresh(stem), dtype) for _ in range(self.runs if count is None else count))

    def _reduce(
        self, nodes: Sequence[Node], runs: dict[int, tuple[Variable, ...]], group: int
    ) -> dict[int, tuple[Expression, ...]]:
        """Combines the states of each run over a group of threads; returns the states of the earlier threads."""
        if group == 1:
            return {n.outputs[0]: (neutral_state(n),) * len(runs[n.outputs[0]]) for n in nodes}
        before: dict[int, tuple[Variable, ...]] = {}
        left: list[Variable] = []
        right: list[Variable] = []
        results: list[Expression] = []
        for node in nodes:
            count = len(runs[node.outputs[0]])
            before[node.outputs[0]] = self._variables(node, "before", count)
            for variable in before[node.outputs[0]]:
                self.body.append(Declare(variable, neutral_state(node)))
            sides = [self._variables(node, side, count) for side in ("left", "right")]
            left += sides[0]
            right += sides[1]
            results += [joined(node, x, y) for x, y in zip(*sides, strict=True)]
        combiner = Combiner(tuple(left), tuple(right), tuple(results))
        together = tuple(chain.from_iterable(runs[node.outputs[0]] for node in nodes))
        self.body.append(GroupReduce(together, combiner, group, tuple(chain.from_iterable(before.values()))))
        return {number: tuple(variables) for number, variables in before.items()}

    def _across_rows(
        self, nodes: Sequence[Node], runs: dict[int, tuple[Variable, ...]], rows: BlockRows
    ) -> dict[int, tuple[Expression, ...]]:
        """Combines the runs of the rows of a block in order, through shared memory."""
        body, width = self.body, self.runs
        shared: dict[int, Buffer] = {}
        body.append(Barrier())  # the last chunk's states have been read
        for node in nodes:
            (dtype,), number = state_types(node), node.outputs[0]
            shared[number] = Buffer(body.fresh("states"), dtype, "shared", rows.count * rows.across * width)
            body.append(Allocate(shared[number]))
            for run, variable in enumerate(runs[number]):
                body.append(Store(shared[number], self._in_row(rows, rows.row, run), variable))
        body.append(Barrier())
        result: dict[int, tuple[Expression, ...]] = {}
        for node in nodes:
            number = node.outputs[0]
            before = self._variables(node, "before")
            for variable in before:
                body.append(Declare(variable, neutral_state(node)))
            for variable in runs[number]:
                body.append(Assign(variable, neutral_state(node)))
            for row in range(rows.count):
                is_own = body.index.compare("eq", rows.row, row)
                for run, variable in enumerate(runs[number]):
                    body.append(Assign(before[run], call("select", is_own, variable, before[run])))
                    other = Load(shared[number], self._in_row(rows, row, run))
                    body.append(Assign(variable, joined(node, variable, other)))
            result[number] = tuple(before)
        return result

    def _in_row(self, rows: BlockRows, row: Extent, run: int) -> Expression:
        return self.body.index.code((row * rows.across + rows.column) * self.runs + run)

    def _across_steps(
        self, nodes: Sequence[Node], runs: dict[int, tuple[Variable, ...]], before: dict[int, tuple[Expression, ...]]
    ) -> dict[int, tuple[Expression, ...]]:
        """Combines the runs of the steps in order, then those of the warps; leaves their total in the first run."""
        body, result, totals = self.body, {}, {}
        for node in nodes:
            number, states = node.outputs[0], [before[node.outputs[0]][0]]
            total: Expression = runs[number][0]
            for run in range(1, self.runs):
                states += body.name("before", (joined(node, total, before[number][run]),))
                (total,) = body.name("sofar", (joined(node, total, runs[number][run]),))
            result[number], totals[number] = tuple(states), total
        if self.team.warps > 1:
            assert self.team.last is not None
            group_totals = {node.outputs[0]: self._variables(node, "warp", 1) for node in nodes}
            for node in nodes:
                last_of_group = call("select", self.team.last, totals[node.outputs[0]], neutral_state(node))
                body.append(Declare(group_totals[node.outputs[0]][0], last_of_group))
            outside = self._reduce(nodes, group_totals, self.team.group * self.team.warps)
            for node in nodes:
                number, (earlier,) = node.outputs[0], outside[node.outputs[0]]
                result[number] = body.name("before", tuple(joined(node, earlier, state) for state in result[number]))
                totals[number] = group_totals[number][0]
        for node in nodes:
            body.append(Assign(runs[node.outputs[0]][0], totals[node.outputs[0]]))
        return result

    def _pass_on(self, node: Node, runs: tuple[Variable, ...], before: tuple[Expression, ...]) -> None:
        """Combines the elements with the states before their runs; moves the carry on."""
        body, number = self.body, node.outputs[0]
        carry = self.carries.get(number)
        if carry is not None:
            before = body.name(
                "before", tuple(joined(node, carry[0 if self.team.along else k], b) for k, b in enumerate(before))
            )
            for variable, run in zip(carry, runs, strict=False):
                body.append(Assign(variable, joined(node, variable, run)))
        (dtype,) = state_types(node)
        starts = Buffer(body.fresh(f"start{number}"), dtype, "local", self.runs)
        body.append(Allocate(starts))
        for place, state in enumerate(before):
            body.append(Store(starts, body.index.code(place), state))
        self._finish_elements(node, starts)

    def _finish_elements(self, node: Node, starts: Buffer) -> None:
        body, states = self.body, self._held[node.outputs[0]]
        element = self.region.fusion.values[node.outputs[0]].dtype.compute
        final = Buffer(body.fresh(f"v{node.outputs[0]}"), element, "local", self.walk.count * body.lanes)
        body.append(Allocate(final))

        def work() -> None:
            for lane in range(body.lanes):
                at = body.index.code(self._place(lane))
                start = Load(starts, body.index.code(self.walk.step if self.team.along else lane))
                state = joined(node, start, Load(states, at))
                body.append(Store(final, at, as_element(body, self.region, node, state)))

        self.walk.each(body, self.positions.binder(body), work)
        place = self._place(body.lane if body.lanes > 1 else 0)
        body.cached[self._key(node)] = (final, place)

    def _store(self) -> None:
        body, outputs = self.body, self.region.full[0]

        def work() -> None:
            for output in outputs:
                body.value(output, self.region.coordinates(output))
            for output in outputs:
                store_output(body, self.region, output)

        self.walk.each(body, self.positions.binder(body), work)


def declare_carries(body: Body, region: Region, width: int) -> Carries:
    """Declares the states before the first chunk: those of no elements."""
    carries: Carries = {}
    for node in chain.from_iterable(region.scans):
        (dtype,) = state_types(node)
        carries[node.outputs[0]] = tuple(Variable(body.fresh("carry"), dtype) for _ in range(width))
        for variable in carries[node.outputs[0]]:
            body.append(Declare(variable, neutral_state(node)))
    return carries
