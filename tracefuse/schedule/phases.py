"""A region as phases: what one pass over the R loops computes, and what the next one needs of it.

A reduction that depends on another's result belongs to a later phase. Full outputs are stored in the first phase that
knows them; outputs over the K loops at the end. Templates differ in how they run a phase, not in what it is.

Knows: regions, nests, ops by kind. Must not know: targets, how loops are laid out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tracefuse.dtypes import DType
from tracefuse.extents import Extent, Symbol, substitute
from tracefuse.ir import Fusion, Literal, Node, Shape
from tracefuse.kernel.ir import Accumulate, Declare, Expression, Statement, Variable, call
from tracefuse.ops.row import Reduction
from tracefuse.schedule.body import Body, Lanes
from tracefuse.schedule.nest import Nest, build_nest, contiguous_strides, first_nest
from tracefuse.schedule.probe import Probe, depths
from tracefuse.schedule.region import Facts
from tracefuse.schedule.scalar_code import apply, constant, convert
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Memory:
    """How the tensor inputs lie in memory: strides in elements; which start at a multiple of 16 bytes; which are not
    even aligned to their elements.

    placed: the outputs that go into memory with strides of its own, or that does not start at such a multiple; others
    are contiguous and wide. shared: tensors that may be one array under two numbers, written in place.
    """

    strides: Mapping[int, Shape]
    aligned: frozenset[int] = frozenset()
    misaligned: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()

    def output_strides(self, fusion: Fusion, output: int) -> Shape:
        """Of an output, in elements."""
        found = self.strides.get(output) if output in self.placed else None
        return contiguous_strides(fusion.shape_of(output)) if found is None else found


@dataclass(frozen=True, slots=True)
class Region:
    """What a template lowers.

    memory: of the tensor inputs. reductions: by phase. full: outputs over all loops, by phase; kept: outputs over the K
    loops. at: for each reduction, its result's and its operand's coordinates. probe: what is read, phase by phase.
    """

    fusion: Fusion
    facts: Facts
    memory: Memory
    nest: Nest
    reductions: tuple[tuple[Node, ...], ...]
    full: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    at: Mapping[int, tuple[Shape, ...]]
    probe: Probe

    def coordinates(self, output: int) -> Shape:
        """The coordinates of an output in terms of the loops."""
        return self.nest.coordinates(self.facts.outputs[output])

    def output_offset(self, output: int) -> Extent:
        """Where an output's element goes."""
        total: Extent = 0
        strides = self.memory.output_strides(self.fusion, output)
        for coordinate, stride in zip(self.coordinates(output), strides, strict=True):
            total = total + coordinate * stride
        return total

    def in_phase(self, phase: int) -> tuple[Node, ...]:
        """The reductions of a phase; none in the last, which only stores."""
        return self.reductions[phase] if phase < len(self.reductions) else ()

    def at_loop(self, index: Symbol, coordinate: Extent) -> Region:
        """The same region with one loop's index replaced by a coordinate, for a loop over a part of its range."""
        return self.placed({index: coordinate})

    def placed(self, values: Mapping[Symbol, Extent]) -> Region:
        """The same region with loops' indices replaced by coordinates."""
        at = {
            number: tuple(tuple(substitute(c, values) for c in coordinates) for coordinates in pair)
            for number, pair in self.at.items()
        }
        return replace(self, nest=self.nest.substituted(values, self.nest.loops), at=at)


def build_region(fusion: Fusion, facts: Facts, memory: Memory, sizes: Sizes, worth: Callable[[int], bool]) -> Region:
    """Orders and joins the loops, and sorts the work into phases. `worth(value)`: a later phase should find it kept."""
    written = {output: memory.output_strides(fusion, output) for output in fusion.outputs}
    nest, first = build_nest(fusion, facts, {**memory.strides, **written}, sizes)
    renamed = {loop.symbol: at for loop, at in zip(first_nest(facts).loops, nest.at, strict=True)}
    depth = depths(fusion)
    everything = frozenset(range(len(facts.loops)))
    nodes = [n for n in fusion.nodes if n.outputs[0] in first.reduced_at]
    count = max((depth[n.outputs[0]] for n in nodes), default=0)
    full: list[list[int]] = [[] for _ in range(count + 1)]
    kept: list[int] = []
    for output in fusion.outputs:
        own = frozenset(e for e in facts.outputs[output] if e is not None)
        if facts.reduced and own != everything:
            kept.append(output)
        elif output not in full[depth[output]]:
            full[depth[output]].append(output)
    at = {}
    for node in nodes:
        result = first.reduced_at[node.outputs[0]]
        operand = first.operand_coordinates(node, result)
        moved = [tuple(substitute(c, renamed) for c in coordinates) for coordinates in (result, operand)]
        at[node.outputs[0]] = (moved[0], moved[1])
    reductions = tuple(tuple(n for n in nodes if depth[n.outputs[0]] == p + 1) for p in range(count))
    probe = Probe(fusion, [(loop.extent, loop.index) for loop in nest.reduced], worth, True)
    region = Region(fusion, facts, memory, nest, reductions, tuple(map(tuple, full)), tuple(kept), at, probe)
    _probe_phases(region)
    return region


def _probe_phases(region: Region) -> None:
    probe = region.probe
    for phase, outputs in enumerate(region.full):
        probe.phase = phase
        for node in region.in_phase(phase):
            operand = node.operands[0]
            if isinstance(operand, int):
                probe.visit(operand, region.at[node.outputs[0]][1])
        for output in outputs:
            probe.visit(output, region.coordinates(output))


# ---------------------------------------------------------------------------------------------------------------------
# emitting a reduction


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A reduction's running state in a mutable variable."""

    node: Node
    variable: Variable

    @property
    def op(self) -> Reduction:
        assert isinstance(self.node.op, Reduction)
        return self.node.op

    @property
    def neutral(self) -> Expression:
        return constant(self.op.neutral(self.variable.dtype), self.variable.dtype)

    def combined(self, left: Expression, right: Expression) -> Expression:
        """The combination of two states."""
        return call(self.op.combine, left, right)

    def final(self, state: Expression, region: Region, body: Body) -> Expression:
        """The result of the reduction from its state."""
        if self.op.final == "a":
            result = state
        else:
            dims, shape = self.node.attributes["dims"], region.fusion.shape_of(self.node.operands[0])
            count: Extent = 1
            for axis in dims:
                count = count * shape[axis]
            result = apply(self.op.final, {"a": state, "n": body.index.code(count)}, state.dtype)
        return convert(result, region.fusion.values[self.node.outputs[0]].dtype.compute)


def state_dtype(node: Node) -> DType:
    """The type of a reduction's running state."""
    assert isinstance(node.op, Reduction)
    return node.op.state(node.compute)


def declare(body: Body, region: Region, node: Node) -> Accumulator:
    """Declares a reduction's state in the current scope, at its neutral element."""
    name = body.fresh(f"acc{node.outputs[0]}")
    accumulator = Accumulator(node, Variable(name, state_dtype(node)))
    body.append(Declare(accumulator.variable, accumulator.neutral))
    return accumulator


def lifted(body: Body, region: Region, node: Node) -> Lanes:
    """The elements that a reduction combines, at the current loop indices."""
    op, operand = node.op, node.operands[0]
    assert isinstance(op, Reduction)
    dtype = state_dtype(node)
    if isinstance(operand, Literal):
        return (apply(op.lift, {"a": constant(operand.value, dtype)}, dtype),)
    elements = body.value(operand, region.at[node.outputs[0]][1])
    if op.lift == "a":
        return tuple(convert(e, dtype) for e in elements)
    return tuple(convert(apply(op.lift, {"a": e}, e.dtype), dtype) for e in elements)


def accumulate(body: Body, region: Region, accumulator: Accumulator) -> None:
    """Adds the elements at the current loop indices, every lane."""
    elements = lifted(body, region, accumulator.node)
    for element in body.spread(elements):
        statement: Statement = Accumulate(accumulator.variable, accumulator.op.combine, element)
        body.append(statement)


def finish(body: Body, region: Region, *lanes: Accumulator) -> None:
    """Makes a reduction's result known in the current scope: one state for all lanes, or one a lane."""
    number = lanes[0].node.outputs[0]
    result = body.name(f"v{number}", tuple(lane.final(lane.variable, region, body) for lane in lanes))
    dtype = region.fusion.values[number].dtype
    if dtype.is_half and number in body.outputs:
        result = body.name(f"v{number}", tuple(convert(convert(e, dtype), dtype.compute) for e in result))
    body.levels[-1].memo[(number, region.at[number][0])] = result


def store_output(body: Body, region: Region, output: int, *, aligned: bool = False) -> None:
    """Stores an output's element at the current loop indices."""
    buffer = body.buffer_of(output, written=True)
    lanes = body.value(output, region.coordinates(output))
    body.store(buffer, region.output_offset(output), lanes, aligned=aligned or output in body.aligned)
