"""A region as a template lowers it: its loop nest, and its work in phases.

A phase is one pass over the reduction loops. A reduction that depends on the result of another belongs to a later one.
Full outputs are stored in the first phase that can compute them; outputs over the parallel loops are stored at the end.
Templates differ in how they run phases.

Must not know: targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Extent, Symbol, substitute, symbols
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.indexing import flat
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.scan_kind import Scan, scans_by_depth
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.nest import Nest, build_nest, first_nest
from tracefuse.schedule.probe import Probe, depths
from tracefuse.schedule.scopes import Key
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Region:
    """A region as a template lowers it.

    memory: the layouts of the tensors. reductions: by phase. full: outputs over all loops, by phase. parallel_outputs:
    outputs over the parallel loops. at: for each reduction or scan, the coordinates of its result and of its operand.
    probe: the reads, phase by phase. columns: by phase, the reductions over the parallel loops, in a row_column region.
    streamed: the outputs that are written past the caches. scans: the scans, in lists of which each reads the results
    of the lists before it. fixed: values of symbols, which guards fix. masks: whether instructions on vectors take
    masks, so that a loop of a known length leaves no scalar iterations.
    """

    fusion: Fusion
    facts: Facts
    memory: MemoryFacts
    nest: Nest
    reductions: tuple[tuple[Node, ...], ...]
    full: tuple[tuple[int, ...], ...]
    parallel_outputs: tuple[int, ...]
    at: Mapping[int, tuple[Shape, ...]]
    probe: Probe
    columns: tuple[tuple[Node, ...], ...]
    streamed: frozenset[int] = frozenset()
    scans: tuple[tuple[Node, ...], ...] = ()
    fixed: tuple[tuple[Symbol, int], ...] = ()
    masks: bool = False

    def coordinates(self, output: int) -> Shape:
        """Returns the coordinates of an output in terms of the loops."""
        return self.nest.coordinates(self.facts.outputs[output])

    def output_offset(self, output: int) -> Extent:
        """Returns the offset of an output's element in memory, in elements."""
        total = self.memory.starts.get(output, 0)
        strides = self.memory.output_strides(self.fusion, output)
        for coordinate, stride in zip(self.coordinates(output), strides, strict=True):
            total = total + coordinate * stride
        return total

    def in_phase(self, phase: int) -> tuple[Node, ...]:
        """Returns the reductions of a phase; none for the last phase, which only stores."""
        return self.reductions[phase] if phase < len(self.reductions) else ()

    def contained(self, phase: int) -> dict[int, tuple[Node, int]]:
        """Finds the reductions of a phase whose state is a part of the state of another over the same elements.

        Of several with the same state, such as means that are rounded to different types, the first one keeps it.
        Returns for the result of each such reduction the other reduction and the position of the part.
        """
        nodes = self.in_phase(phase)
        contained: dict[int, tuple[Node, int]] = {}
        for position, node in enumerate(nodes):
            parts = combining(node).state_parts
            for place, other in enumerate(nodes):
                wider = combining(other).state_parts
                same = node.operands == other.operands and node.attributes["dims"] == other.attributes["dims"]
                same = same and node.compute.compute is other.compute.compute  # halves are computed in float32
                first = len(wider) > 1 or (place < position and other.outputs[0] not in contained)
                if same and len(parts) == 1 and first and parts[0] in wider:
                    contained[node.outputs[0]] = (other, wider.index(parts[0]))
        return contained

    def visit_phase(self, probe: Probe, phase: int) -> None:
        """Probes the operands of a phase's reductions and its outputs."""
        for node in self.in_phase(phase):
            operand = node.operands[0]
            if isinstance(operand, int):
                probe.visit(operand, self.at[node.outputs[0]][1])
        for node in self.columns[phase]:
            probe.visit(operand_of(node), self.at[node.outputs[0]][1])
        for output in self.full[phase]:
            probe.visit(output, self.coordinates(output))

    def reads_of(self, phase: int, known: Collection[Key]) -> list[Key]:
        """Returns the input elements that a phase reads unconditionally, given that the values `known` are computed."""
        probe = Probe(self.fusion, self.probe.reduced, stop_at_reductions=True, known=known)
        self.visit_phase(probe, phase)
        return [
            (number, at)
            for number, at in probe.reads
            if (number, at) in probe.unconditional and probe.indirect.isdisjoint(s for c in at for s in symbols(c))
        ]

    def at_loop(self, index: Symbol, coordinate: Extent) -> Region:
        """Returns the region with one loop's index replaced by `coordinate`, to loop over a part of its range."""
        return self.placed({index: coordinate})

    def placed(self, values: Mapping[Symbol, Extent]) -> Region:
        """Returns the region with loop indices replaced by coordinates."""
        at = {
            number: tuple(tuple(substitute(c, values) for c in coordinates) for coordinates in pair)
            for number, pair in self.at.items()
        }
        return replace(self, nest=self.nest.substituted(values, self.nest.loops), at=at)


def build_region(
    fusion: Fusion, facts: Facts, memory: MemoryFacts, sizes: Sizes, worth: Callable[[int], bool],
    columns: Sequence[Node] = (), short_run: int = 0, joins_tested: bool = False,
) -> Region:  # fmt: skip
    """Builds the loop nest of a region and divides its work into phases.

    worth(value): whether to cache a value that a later phase rereads. columns: reductions over the parallel loops; the
    facts list their operands among the outputs. short_run, joins_tested: see `build_nest`.
    """
    written = {output: memory.output_strides(fusion, output) for output in fusion.outputs}
    operands = [operand_of(node) for node in columns]
    nest, first = build_nest(fusion, facts, {**memory.strides, **written}, sizes, operands, short_run, joins_tested)
    renamed = {loop.symbol: at for loop, at in zip(first_nest(facts).loops, nest.at, strict=True)}
    depth = depths(fusion)
    nodes = [n for n in fusion.nodes if n.outputs[0] in first.reduced_at]
    count = max((depth[n.outputs[0]] for n in nodes), default=0)
    full, parallel = _outputs_by_phase(fusion, facts, depth, count + 1)
    at = {}
    for node in nodes:
        result = first.reduced_at[node.outputs[0]]
        operand = first.operand_coordinates(node, result)
        moved = [tuple(substitute(c, renamed) for c in coordinates) for coordinates in (result, operand)]
        at[node.outputs[0]] = (moved[0], moved[1])
    reductions = tuple(tuple(n for n in nodes if depth[n.outputs[0]] == p + 1) for p in range(count))
    probe = Probe(fusion, [(loop.extent, loop.index) for loop in nest.reduced], worth, True)
    across: list[list[Node]] = [[] for _ in full]
    for node, reduced in zip(columns, operands, strict=True):
        across[depth[reduced]].append(node)
        at[node.outputs[0]] = _across(node, nest.coordinates(facts.outputs[reduced]))
    region = Region(
        fusion, facts, memory, nest, reductions, full, parallel, at, probe, tuple(map(tuple, across))
    )  # fmt: skip
    _probe_phases(region)
    return _with_scans(region) if facts.scans else region


def _outputs_by_phase(
    fusion: Fusion, facts: Facts, depth: Mapping[int, int], phases: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Returns the outputs over all loops, by phase, and those over the parallel loops."""
    everything = frozenset(range(len(facts.loops)))
    full: list[dict[int, None]] = [{} for _ in range(phases)]
    parallel: list[int] = []
    for output in fusion.outputs:
        if facts.reduced and frozenset(flat(facts.outputs[output])) != everything:
            parallel.append(output)
        else:
            full[depth[output]][output] = None
    return tuple(map(tuple, full)), tuple(parallel)


def _with_scans(region: Region) -> Region:
    """Returns the region with its scans and their coordinates."""
    lists, coordinates = scans_by_depth(region.fusion), dict(region.probe.walked)
    at = {node.outputs[0]: (coordinates[node.outputs[0]],) * 2 for nodes in lists for node in nodes}
    return replace(region, at={**region.at, **at}, scans=lists)


def operand_of(node: Node) -> int:
    """Returns the value that a reduction reduces."""
    operand = node.operands[0]
    assert isinstance(operand, int)
    return operand


def _across(node: Node, operand: Shape) -> tuple[Shape, Shape]:
    """Returns the coordinates of a column reduction's result and of its operand."""
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    result = (0 if axis in dims else c for axis, c in enumerate(operand) if keepdim or axis not in dims)
    return tuple(result), operand


def _probe_phases(region: Region) -> None:
    for phase in range(len(region.full)):
        region.probe.phase = phase
        region.visit_phase(region.probe, phase)


def combining(node: Node) -> Reduction:
    """Returns the reduction whose combiner a reduction or a scan uses."""
    op = node.op.reduction if isinstance(node.op, Scan) else node.op
    assert isinstance(op, Reduction)
    return op
