"""Sub-fusions: the step graph that `segments` partitions, and the extraction of each part as a separate Fusion.

`step_graph` shows a fusion to `segments` as opaque steps: its tensor nodes, in order. Host scalars are not steps,
because they are computed before any launch; a part that reads one takes it as an input. `extract` builds the part
with local numbers (those of `segments.index_map`), local extents, and every fact about extents that the part can
express.

Axes that the whole fusion proves equal share one local symbol, so the part can prove the same facts. The equality is
also recorded as a requirement, so the part is correct when it runs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import segments
from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import int64
from tracefuse.errors import FusionError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import (
    Atom,
    Binary,
    Expression,
    Extent,
    Symbol,
    as_atom,
    as_symbol,
    input_extent,
    scalar_extent,
    substitute,
    symbol,
    symbol_of,
    symbols,
    terms_of,
)
from tracefuse.ir.fusion import Fusion, Layout, Literal, Node, Requirement, Value
from tracefuse.ir.region_kind import FusedRegion


def map_extents(attribute: Any, change: Callable[[Extent], Extent]) -> Any:
    """Returns the attribute with `change` applied to every symbolic extent in it."""
    if isinstance(attribute, Expression):
        return change(attribute)
    if isinstance(attribute, tuple):
        return tuple(map_extents(a, change) for a in attribute)
    return attribute


def extents_in(attributes: Mapping[str, Any]) -> Iterator[Expression]:
    """Yields every symbolic extent in the attributes of a node."""
    waiting = list(attributes.values())
    while waiting:
        attribute = waiting.pop(0)
        if isinstance(attribute, Expression):
            yield attribute
        elif isinstance(attribute, tuple):
            waiting = [*attribute, *waiting]


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """A fusion as a graph of steps.

    nodes: the node of each step, in the order of the fusion. equations: the equations of extents that the fusion
    requires, each once, between canonical extents, by each of their symbols.
    """

    fusion: Fusion
    graph: segments.Graph
    nodes: tuple[Node, ...]
    equations: Mapping[Symbol, Sequence[Requirement]]

    def extents_of(self, value: int) -> tuple[int | None, ...]:
        """Returns the negative id of each axis's extent; None for any other extent than a single input extent."""
        return tuple(map(self._extent_id, self.fusion.values[value].shape))

    def _extent_id(self, extent: Extent) -> int | None:
        extent_symbol = as_symbol(extent)
        literal = isinstance(self.fusion.canonical(extent), int)
        return (
            None
            if literal or extent_symbol is None or extent_symbol.id is None or extent_symbol.id >= 0
            else extent_symbol.id
        )

    def needs_extents(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Returns the ids of the extents that the steps' attributes use and that no axis of their inputs carries."""
        carried = {self.fusion.canonical(e) for value in self.inputs_of(steps) for e in self._extents(value)}
        needed: dict[int, None] = {}
        for step in steps:
            for extent in map(self.fusion.canonical, extents_in(self.nodes[step].attributes)):
                if extent not in carried:
                    missing = [s for s in symbols(extent) if Expression((((s,), 1),)) not in carried]
                    needed.update((s.id, None) for s in missing if s.id is not None and s.id < 0)
        return tuple(needed)

    def _extents(self, number: int) -> tuple[Extent, ...]:
        value = self.fusion.values[number]
        return value.shape if value.is_tensor else () if value.extent is None else (value.extent,)

    def inputs_of(self, steps: Sequence[int]) -> list[int]:
        """Returns the values (not extents) that the steps read and do not compute, by number."""
        computed = {value for step in steps for value in self.graph.steps[step].outputs}
        read = {value for step in steps for value in self.graph.steps[step].inputs}
        return sorted(value for value in read - computed if value >= 0)

    def segment(self, steps: Sequence[int], outputs: Sequence[int] | None = None) -> segments.Segment:
        """Returns the interface of the segment of the steps; `outputs` as for `segments.build_segment`."""
        return segments.build_segment(
            self.graph, steps, extents_of=self.extents_of, needs_extents=self.needs_extents(steps), outputs=outputs
        )

    def segments_of(self, split: segments.Partition) -> tuple[segments.Segment, ...]:
        """Returns the segments of a partition, in order."""
        return tuple(self.segment(*group) for group in zip(split.groups, split.stored, strict=True))

    def extract(self, segment: segments.Segment) -> Fusion:
        """Extracts the part of a segment as a separate Fusion."""
        return _Extraction(self, segment).run()


def step_graph(fusion: Fusion) -> StepGraph:
    """Returns `fusion` as a graph for `segments.partition`, with its tensor nodes as steps, in order.

    Every host scalar, including a computed one, is an input of the graph, and so is every extent (by its negative
    id).
    """
    nodes = tuple(n for n in fusion.nodes if any(fusion.values[o].is_tensor for o in n.outputs))
    steps = [
        segments.Step((*n.inputs, *_scalars_named(fusion, n)), n.outputs, f"T{n.outputs[0]} = {n.op.name}")
        for n in nodes
    ]
    scalars = [o for n in fusion.nodes for o in n.outputs if not fusion.values[o].is_tensor]
    graph = segments.Graph(steps, [*fusion.inputs, *scalars], fusion.outputs)
    return StepGraph(fusion, graph, nodes, _equations(fusion))


def _equations(fusion: Fusion) -> dict[Symbol, list[Requirement]]:
    """Returns the equations that the canonical extents leave open, by each of their symbols."""
    canonical = fusion.canonical
    equations = (r for r in fusion.requirements if r.relation == "==")
    canonical_equations = (replace(r, left=canonical(r.left), right=canonical(r.right)) for r in equations)
    by_symbol: dict[Symbol, list[Requirement]] = {}
    for equation in distinct_requirements([r for r in canonical_equations if r.left != r.right]):
        for name in dict.fromkeys((*symbols(equation.left), *symbols(equation.right))):
            by_symbol.setdefault(name, []).append(equation)
    return by_symbol


def _scalars_named(fusion: Fusion, node: Node) -> tuple[int, ...]:
    """Returns the host scalars that the node's attributes use and that are not among its operands."""
    extents = map(fusion.canonical, extents_in(node.attributes))
    named = dict.fromkeys(s.id for extent in extents for s in symbols(extent) if s.id is not None and s.id >= 0)
    return tuple(number for number in named if number is not None and number not in node.inputs)


def extract(fusion: Fusion, steps: Sequence[int], segment: segments.Segment | None = None) -> Fusion:
    """Extracts some steps of `step_graph(fusion)`, with the local numbers of `segment` (built if not given).

    Tensor inputs come first, then scalars and extents that no axis of the inputs carries. Axes that the whole fusion
    proves equal share a symbol. Raises FusionError if `segment` belongs to other steps.
    """
    graph = step_graph(fusion)
    interface = graph.segment(steps) if segment is None else segment
    if interface.steps != tuple(sorted(steps)):
        raise FusionError(f"the segment has steps {interface.steps}, not {tuple(sorted(steps))}")
    return graph.extract(interface)


class _Extraction:
    """Builds one part. local_extents: maps canonical extents of the whole fusion to local extents."""

    def __init__(self, graph: StepGraph, segment: segments.Segment) -> None:
        self.fusion, self.graph, self.interface = graph.fusion, graph, segment
        self.builder = FusionBuilder()
        self.local_extents: dict[Extent, Extent] = {}
        self.axes: list[tuple[Expression, Extent]] = []
        self.scalars: list[tuple[int, Expression, Extent]] = []
        for local in segment.inputs:
            original = segment.index_map[local]
            if original < 0:
                extent = self.fusion.canonical(input_extent(-original - 1))
                self.scalars.append((local, symbol(f"e{local}", local), extent))
            elif (value := self.fusion.values[original]).is_tensor:
                for extent in value.shape:
                    self.axes.append((input_extent(len(self.axes)), self.fusion.canonical(extent)))
            elif value.extent is not None:
                extent = self.fusion.canonical(value.extent)
                self.scalars.append((local, self._scalar_symbol(local, extent), extent))
        self._map_extents()

    @staticmethod
    def _scalar_symbol(local: int, extent: Extent) -> Expression:
        """Returns the symbol of a scalar; one that holds a size is nonnegative, and has another name."""
        known = as_symbol(extent)
        is_size = known is not None and known.id is not None and (known.id < 0 or known.minimum >= 0)
        return symbol(f"e{local}", local) if is_size else scalar_extent(local)

    def _map_extents(self) -> None:
        named = [*self.axes, *((name, extent) for _, name, extent in self.scalars)]
        for name, extent in named:
            if as_symbol(extent) is not None:
                self.local_extents.setdefault(extent, name)
            elif (split := _split_symbol(extent)) is not None:
                self.local_extents.setdefault(split, name)
        for name, extent in named:
            if isinstance(extent, Expression) and extent not in self.local_extents:
                known = self._translated(extent)
                self.local_extents[extent] = name if known is None else known

    def _translated(self, extent: Extent) -> Extent | None:
        """Translates a canonical extent to local symbols; None if the part does not know one of its symbols."""
        if isinstance(extent, int):
            return extent
        local = self.local_extents.get(extent)
        if local is not None:
            return local
        table = {atom: name for known, name in self.local_extents.items() if (atom := as_atom(known)) is not None}
        return substitute(extent, table) if _is_made_of(extent, table) else None

    def _local(self, extent: Extent) -> Extent:
        local = self._translated(self.fusion.canonical(extent))
        if local is None:
            raise FusionError(f"extent {extent} is not known in the segment of steps {self.interface.steps}")
        return local

    def run(self) -> Fusion:
        self._inputs()
        self._shared_requirements()
        for step in self.interface.steps:
            node = self.graph.nodes[step]
            if isinstance(node.op, FusedRegion):
                self._region(node)
            else:
                self._node(node)
        for local in self.interface.outputs:
            self._output(local)
        for number, original in self.interface.value_map.items():
            value = self.builder.values[number]
            self.builder.values[number] = replace(value, origin=original if original >= 0 else None)
        self.builder.requirements = list(distinct_requirements(self.builder.requirements))
        return self.builder.build()

    def _inputs(self) -> None:
        axes = iter(self.axes)
        scalars = {local: (name, extent) for local, name, extent in self.scalars}
        for local in self.interface.inputs:
            original = self.interface.index_map[local]
            value = self.fusion.values[original] if original >= 0 else None
            if value is not None and value.is_tensor:
                named_extents = [next(axes) for _ in value.shape]
                self._tensor(local, value, named_extents)
            elif local in scalars:
                name, extent = scalars[local]
                known = self._translated(extent)
                dtype = int64 if value is None else value.dtype
                is_own = known is not None and symbol_of(name) in symbols(known)  # 8 * (e2 // 8), a product of factors
                self.builder.scalar_input(
                    dtype, extent=name if is_own else known, number=local, name=value.name if value else None
                )
                self._equal(known, name, f"scalar {local} is {{right}}, not {{left}}")
            elif value is not None:
                self.builder.scalar_input(value.dtype, number=local, name=value.name, where=value.where)

    def _tensor(self, local: int, value: Value, named_extents: Sequence[tuple[Expression, Extent]]) -> None:
        extents = [self._local(extent) for _, extent in named_extents]
        shape = [e if isinstance(e, int) else -1 for e in extents]
        layout = _layout(value, extents, value.number in self.fusion.inputs)
        self.builder.tensor_input(
            value.dtype, shape, layout=layout, name=value.name, where=value.where, number=local, extents=extents
        )
        for axis, ((name, _), extent) in enumerate(zip(named_extents, extents, strict=True)):
            self._equal(extent, name, f"input {local} has {{right}} elements on axis {axis}, not {{left}}")

    def _equal(self, extent: Extent | None, name: Extent, message: str) -> None:
        """Requires that the local symbol `name` equals `extent`, if `extent` is an expression of other symbols."""
        if isinstance(extent, Expression) and extent != name:
            hint = "these extents are equal in the fusion that this one is a part of"
            self.builder.require(extent, "==", name, message, hint)

    def _shared_requirements(self) -> None:
        """Adds the equations of the whole fusion whose extents the part knows."""
        known = dict.fromkeys(name for extent in self.local_extents for name in symbols(extent))
        equations = [equation for name in known for equation in self.graph.equations.get(name, ())]
        for requirement in distinct_requirements(equations):
            left, right = (self._translated(e) for e in (requirement.left, requirement.right))
            if left is not None and right is not None:
                self.builder.require(
                    left, requirement.relation, right, requirement.message, requirement.hint, requirement.where
                )

    def _node(self, node: Node) -> None:
        inverse, values = self.interface.inverse, self.fusion.values
        self.builder.node(
            node.op,
            [o if isinstance(o, Literal) else inverse[o] for o in node.operands],
            {key: map_extents(attribute, self._local) for key, attribute in node.attributes.items()},
            node.compute,
            [values[o].dtype for o in node.outputs],
            where=node.where,
            names=[values[o].name for o in node.outputs],
            numbers=[inverse[o] for o in node.outputs],
        )

    def _region(self, region: Node) -> None:
        """Adds the nodes that a region replaces. Values inside it get numbers above those of the interface."""
        inverse = self.interface.inverse
        attributes, dtypes = region.attributes, dict(region.attributes["dtypes"])
        local = {n: inverse[o] for n, o in zip(attributes["reads"], region.operands, strict=True) if isinstance(o, int)}
        local |= {number: inverse[number] for number in region.outputs if number in inverse}
        free = itertools.count(max(self.interface.value_map, default=-1) + 1)
        for node in attributes["nodes"]:
            local |= {number: next(free) for number in node.outputs if number not in local}
            self.builder.node(
                node.op,
                [o if isinstance(o, Literal) else local[o] for o in node.operands],
                {key: map_extents(attribute, self._local) for key, attribute in node.attributes.items()},
                node.compute,
                [dtypes[o] for o in node.outputs],
                where=node.where,
                numbers=[local[o] for o in node.outputs],
            )

    def _output(self, local: int) -> None:
        number = self.interface.index_map[local]
        alias = None if number in self.fusion.slice_updates else self.fusion.aliases.get(number)
        self.builder.output(local, None if alias is None else self.interface.inverse.get(alias))


def _split_symbol(extent: Extent) -> Extent | None:
    """Returns i0 for 8 * (i0 // 8), to which the fusion makes i0 equal; None for any other extent."""
    terms = terms_of(extent)
    atom = terms[0][0][0] if len(terms) == 1 and len(terms[0][0]) == 1 else None
    is_split = isinstance(atom, Binary) and atom.operation == "//" and atom.right == terms[0][1]
    return atom.left if isinstance(atom, Binary) and is_split and as_symbol(atom.left) is not None else None


def _is_made_of(extent: Extent, atoms: Collection[Atom]) -> bool:
    """Whether an extent is an expression of these atoms."""
    return all(
        atom in atoms or (isinstance(atom, Binary) and _is_made_of(atom.left, atoms) and _is_made_of(atom.right, atoms))
        for monomial, _ in terms_of(extent)
        for atom in monomial
    )


def _layout(value: Value, extents: Sequence[Extent], from_outside: bool) -> Layout:
    """Returns the layout that the user declared for a fusion input; values that segments store are contiguous."""
    if from_outside and value.layout is not None and value.layout.contiguity:
        pairs = zip(value.layout.contiguity, extents, strict=True)
        return replace(value.layout, contiguity=tuple(None if e == 1 else bool(flag) for flag, e in pairs))
    return value.layout or Layout(tuple(None if e == 1 else True for e in extents))


def distinct_requirements(requirements: Sequence[Requirement]) -> tuple[Requirement, ...]:
    """Removes duplicate requirements; keeps the first of each."""
    distinct: dict[tuple[Extent, str, Extent], Requirement] = {}
    for requirement in requirements:
        distinct.setdefault((requirement.left, requirement.relation, requirement.right), requirement)
    return tuple(distinct.values())
