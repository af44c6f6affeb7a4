"""The running states of reductions, and the statements that accumulate, combine and finish them.

Must not know: targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Literal, Node
from tracefuse.ir.op_kinds import Reduction
from tracefuse.ir.row_major import linearize
from tracefuse.ir.scan_kind import Scan
from tracefuse.kernel.kernel_ir import Accumulate, Assign, Call, Declare, Expression, If, Variable, call
from tracefuse.kernel.scalar_code import Term, apply, constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.region_phases import Region, combining
from tracefuse.schedule.scopes import Lanes

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
        both = self.combined(self.variables, body.name("later", state), in_order=in_order)
        if self.op.selects and self.variables[0].dtype.is_complex:
            # The comparison takes long: the next element need not wait for it in a branch.
            choices = [value for value in both if isinstance(value, Call) and value.name == "select"]
            assigned = (Assign(v, choice.arguments[1]) for v, choice in zip(self.variables, choices, strict=True))
            body.append(If(choices[0].arguments[0], tuple(assigned)))
            return
        for variable, value in zip(self.variables, body.name("both", both), strict=True):
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
