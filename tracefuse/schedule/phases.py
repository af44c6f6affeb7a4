"""The phases of a region: a phase is one pass over the reduction loops.

A reduction that depends on the result of another belongs to a later phase. Full outputs are stored in the first phase
that can compute them; outputs over the parallel loops are stored at the end. Templates differ in how they run phases.

Must not know: targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, Symbol, product, substitute, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import flat
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.row_major import linearize
from tracefuse.ir.scan_kind import Scan, scans_by_depth
from tracefuse.kernel.kernel_ir import Accumulate, Assign, Declare, Expression, Variable, call
from tracefuse.kernel.scalar_code import Term, apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.nest import Nest, build_nest, first_nest
from tracefuse.schedule.probe import Probe, depths
from tracefuse.schedule.scopes import Key, Lanes
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Region:
    """A region as a template lowers it.

    memory: the layouts of the tensors. reductions: by phase. full: outputs over all loops, by phase. parallel_outputs:
    outputs over the parallel loops. at: the coordinates of the result and the operand of reductions and scans. probe:
    the reads, by phase. columns: by phase, the reductions over the parallel loops, in a row_column region. streamed:
    outputs written past the caches. scans: in lists, each reads results of those before. fixed: values by guards.
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

    def coordinates(self, output: int) -> Shape:
        """Returns the coordinates of an output in terms of the loops."""
        return self.nest.coordinates(self.facts.outputs[output])

    def output_offset(self, output: int) -> Extent:
        """Returns the offset of an output's element in memory, in elements."""
        total: Extent = 0
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
    columns: Sequence[Node] = (), short_run: int = 0,
) -> Region:  # fmt: skip
    """Builds the loop nest of a region and divides its work into phases.

    worth(value): whether to cache a value that a later phase rereads. columns: reductions over the parallel loops; the
    facts list their operands among the outputs. short_run: see `build_nest`.
    """
    written = {output: memory.output_strides(fusion, output) for output in fusion.outputs}
    operands = [operand_of(node) for node in columns]
    nest, first = build_nest(fusion, facts, {**memory.strides, **written}, sizes, operands, short_run)
    renamed = {loop.symbol: at for loop, at in zip(first_nest(facts).loops, nest.at, strict=True)}
    depth = depths(fusion)
    everything = frozenset(range(len(facts.loops)))
    nodes = [n for n in fusion.nodes if n.outputs[0] in first.reduced_at]
    count = max((depth[n.outputs[0]] for n in nodes), default=0)
    full: list[list[int]] = [[] for _ in range(count + 1)]
    parallel: list[int] = []
    for output in fusion.outputs:
        loops = frozenset(flat(facts.outputs[output]))
        if facts.reduced and loops != everything:
            parallel.append(output)
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
    across: list[list[Node]] = [[] for _ in full]
    for node, reduced in zip(columns, operands, strict=True):
        across[depth[reduced]].append(node)
        at[node.outputs[0]] = _across(node, nest.coordinates(facts.outputs[reduced]))
    region = Region(
        fusion, facts, memory, nest, reductions, tuple(map(tuple, full)), tuple(parallel), at, probe,
        tuple(map(tuple, across)),
    )  # fmt: skip
    _probe_phases(region)
    return _with_scans(region) if facts.scans else region


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


# ---------------------------------------------------------------------------------------------------------------------
# emitting a reduction


State: TypeAlias = tuple[Expression, ...]
"""The state of a reduction: one expression for each of its parts."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The running state of a reduction, in mutable variables."""

    node: Node
    variables: tuple[Variable, ...]

    @property
    def op(self) -> Reduction:
        """The reduction whose combiner joins states."""
        return combining(self.node)

    @property
    def adds_floats(self) -> bool:
        return self.op.adds_floats(self.node.compute)

    @property
    def neutral(self) -> State:
        if isinstance(self.node.op, Scan):
            return tuple(constant(self.node.op.neutral(v.dtype), v.dtype) for v in self.variables)
        pairs = zip(self.op.state_parts, self.variables, strict=True)
        return tuple(constant(self.op.neutral(part, v.dtype), v.dtype) for part, v in pairs)

    def combined(self, earlier: State, later: State, *, in_order: bool = False) -> State:
        """Combines two states; the later one may be a partial state of narrower types.

        in_order: the elements of the later state follow those of the earlier one.
        """
        if self.op.combine:
            return (call(self.op.combine, earlier[0], convert(later[0], earlier[0].dtype)),)
        parts = self.op.state_parts
        names: dict[str, Term] = {part.name: e for part, e in zip(parts, earlier, strict=True)}
        names |= {f"later_{part.name}": e for part, e in zip(parts, later, strict=True)}
        codes = [part.in_order if in_order and part.in_order else part.combine for part in parts]
        return tuple(apply(code, names, v.dtype) for code, v in zip(codes, self.variables, strict=True))

    def absorb(self, body: Body, state: State, *, in_order: bool = False) -> None:
        """Combines a later state, which may be a partial state of narrower types, into the variables."""
        if self.op.combine:
            body.append(Accumulate(self.variables[0], self.op.combine, convert(state[0], self.variables[0].dtype)))
            return
        state = body.name("later", state)
        for variable, value in zip(
            self.variables, body.name("both", self.combined(self.variables, state, in_order=in_order)), strict=True
        ):
            body.append(Assign(variable, value))

    def first_combined(self, earlier: State, later: State) -> State:
        """Combines the first parts of two states; for a reduction whose second part sums terms over the first."""
        part = self.op.state_parts[0]
        names: dict[str, Term] = {part.name: earlier[0], f"later_{part.name}": later[0]}
        return (apply(part.combine, names, self.variables[0].dtype),)

    def terms(self, body: Body, elements: Sequence[Expression], first: Expression) -> list[Expression]:
        """Returns the terms of elements over the first part `first`."""
        assert self.op.term is not None
        dtype = self.variables[1].dtype
        (over,) = body.name("over", (apply(self.op.over, {self.op.state_parts[0].name: first}, dtype),))
        return [apply(self.op.term, {"x": element, "over": over}, dtype) for element in elements]

    def final(self, state: State, region: Region, body: Body) -> Expression:
        """Computes the result of the reduction from its state."""
        if self.op.final == "a":
            result = state[0]
        else:
            names: dict[str, Term] = {part.name: e for part, e in zip(self.op.state_parts, state, strict=True)}
            names["n"] = body.index.code(product(e for _, e in _reduced_axes(region, self.node)))
            result = apply(self.op.final, names, state[0].dtype)
        return convert(result, region.fusion.values[self.node.outputs[0]].dtype.compute)


def _reduced_axes(region: Region, node: Node) -> list[tuple[int, Extent]]:
    """Returns (axis, extent) of each reduced axis."""
    shape = region.fusion.shape_of(node.operands[0])
    return [(axis, shape[axis]) for axis in node.attributes["dims"]]


def combining(node: Node) -> Reduction:
    """Returns the reduction whose combiner a reduction or a scan uses."""
    op = node.op.reduction if isinstance(node.op, Scan) else node.op
    assert isinstance(op, Reduction)
    return op


def state_types(node: Node, body: Body | None = None) -> tuple[DType, ...]:
    """Returns the dtypes of a reduction's running state, in which a body may have narrower positions."""
    op = combining(node)
    pairs = zip(op.state_parts, op.state(node.compute), strict=True)
    return tuple(body.position_dtype if body and part.lift == "index" else dtype for part, dtype in pairs)


def total_types(node: Node) -> tuple[DType, ...]:
    """Returns the dtypes of a state that joins partial states of a reduction."""
    return combining(node).total(node.compute)


def new_accumulator(body: Body, node: Node, *, joins: bool = False) -> Accumulator:
    """Makes an accumulator with new variables; does not declare them. joins: it joins partial states."""
    types = total_types(node) if joins else state_types(node, body)
    return Accumulator(node, tuple(Variable(body.fresh(f"acc{node.outputs[0]}"), dtype) for dtype in types))


def declare(body: Body, node: Node, *, joins: bool = False) -> Accumulator:
    """Declares an accumulator in the current scope, initialized to the neutral element. joins: see new_accumulator."""
    accumulator = new_accumulator(body, node, joins=joins)
    for variable, value in zip(accumulator.variables, accumulator.neutral, strict=True):
        body.append(Declare(variable, value))
    return accumulator


def lifted(body: Body, region: Region, node: Node) -> list[State]:
    """Lifts the elements at the current loop indices to states, one per lane."""
    op = combining(node)
    types, coordinates = state_types(node, body), region.at[node.outputs[0]][1]
    places: Lanes = ()
    if any(part.lift == "index" for part in op.state_parts):
        axes = _reduced_axes(region, node)
        places = body.spread(body.integers(linearize([coordinates[a] for a, _ in axes], [e for _, e in axes])))
    states = []
    for lane, element in enumerate(_elements(body, region, node)):
        names: dict[str, Term] = {"a": element}
        if places:
            names["index"] = places[lane]
        parts = (apply(part.lift, names, element.dtype) for part in op.state_parts)
        states.append(tuple(convert(e, dtype) for e, dtype in zip(parts, types, strict=True)))
    return states


def _elements(body: Body, region: Region, node: Node) -> Lanes:
    """Returns the elements that a reduction reads at the current loop indices, one per lane."""
    operand = node.operands[0]
    if isinstance(operand, Literal):
        return body.spread((constant(operand.value, state_types(node)[0]),))
    return body.spread(body.value(operand, region.at[node.outputs[0]][1]))


def _absorb_terms(body: Body, region: Region, accumulator: Accumulator) -> None:
    """Adds the elements of all lanes to a sum of terms over the first part of the state; rescales the sum once."""
    first, total = accumulator.variables
    elements = [convert(element, first.dtype) for element in _elements(body, region, accumulator.node)]
    moved: Expression = first
    for element in elements:
        (moved,) = accumulator.first_combined((moved,), (element,))
    (moved,) = body.name("moved", (moved,))
    terms = accumulator.terms(body, (first, *elements), moved)
    result: Expression = call("mul", total, terms[0])
    for term in terms[1:]:
        result = call("add", result, term)
    (result,) = body.name("both", (result,))
    body.append(Assign(first, moved))
    body.append(Assign(total, result))


def accumulate(body: Body, region: Region, accumulator: Accumulator) -> None:
    """Accumulates the elements of all lanes at the current loop indices."""
    if accumulator.op.term is not None:
        _absorb_terms(body, region, accumulator)
        return
    states = lifted(body, region, accumulator.node)
    in_order = len(region.nest.reduced) == 1  # a thread's positions ascend, and so does the index of a single loop
    while accumulator.op.parts and len(states) > 1:  # combine lanes pairwise before they meet the running state
        pairs = zip(states[::2], states[1::2], strict=True)
        states = [body.name("pair", accumulator.combined(*pair, in_order=in_order)) for pair in pairs]
    for state in states:
        accumulator.absorb(body, state, in_order=in_order)


def finish(body: Body, region: Region, *lanes: Accumulator) -> None:
    """Defines a reduction's result in the current scope, from one state for all lanes or one per lane."""
    number = lanes[0].node.outputs[0]
    result = body.name(f"v{number}", tuple(lane.final(lane.variables, region, body) for lane in lanes))
    dtype = region.fusion.values[number].dtype
    if dtype.is_half and number in body.outputs:
        result = body.rounded(f"v{number}", result, dtype)
    body.levels[-1].memo[(number, region.at[number][0])] = result


def store_outputs(body: Body, region: Region, outputs: Sequence[int]) -> None:
    """Stores several outputs; if tensors may alias, computes all of them before the first store."""
    for output in outputs if region.memory.shared else ():
        body.value(output, region.coordinates(output))
    for output in outputs:
        store_output(body, region, output)


def store_output(body: Body, region: Region, output: int) -> None:
    """Stores the element of an output at the current loop indices, in shared memory if it is staged there."""
    lanes = body.value(output, region.coordinates(output))
    if output in body.staged:
        body.store(*body.staged[output], lanes)
        return
    buffer = body.buffer_of(output, written=True)
    cache = "streaming" if output in body.streamed else "default"
    body.store(buffer, region.output_offset(output), lanes, aligned=output in body.aligned, cache=cache)
