"""Derives the fusion that one rank runs from a fusion over a mesh and the sharding of its inputs and outputs.

The rank's fusion has the same inputs, with the extents of its parts; then its place along each mesh axis and the
extents of whole axes with parts that are not equal, as scalars. Exchanges are nodes of it. Sizes stay symbolic.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.errors import UnsupportedError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent, as_symbol, evaluate
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.ir.subfusion import map_extents
from tracefuse.partition.over_ranks.body_placement import BodyShardings, PlacedBodies
from tracefuse.partition.over_ranks.body_recorder import BodyRecorder
from tracefuse.partition.over_ranks.exchange_recorder import COORDINATE_TYPE, ExchangeRecorder, PlannedExchange, shared
from tracefuse.partition.over_ranks.node_recorder import NodeRecorder
from tracefuse.partition.over_ranks.part_extents import PartExtents
from tracefuse.partition.over_ranks.pipelined_products import PipelinedProducts
from tracefuse.partition.over_ranks.placements import Placed, Spec
from tracefuse.partition.over_ranks.propagation import Propagation
from tracefuse.partition.over_ranks.size_facts import SizeFacts


@dataclass(frozen=True, slots=True, eq=False)
class LocalFusion:
    """The fusion of one rank. outputs: the sharding of each output. coordinates: the mesh axes of further inputs.

    wholes: (value, axis) of the whole extents that are the last inputs. facts: what must hold of the sizes of a call.
    """

    fusion: Fusion
    outputs: tuple[Spec, ...]
    coordinates: tuple[str, ...]
    wholes: tuple[tuple[int, int], ...]
    exchanges: tuple[PlannedExchange, ...]
    facts: SizeFacts


def localize(
    fusion: Fusion, mesh: DeviceMesh, sizes: Mapping[int, int], inputs: Mapping[int, Spec],
    outputs: Sequence[Spec | None], group_of: Callable[[MeshAxis], Any],
    marks: Mapping[int, Spec] = MappingProxyType({}), pipelined: str = "off",
) -> LocalFusion:  # fmt: skip
    """Returns the fusion of one rank.

    sizes: extents and integer scalars of the traced call. inputs: the sharding of inputs by value, others are equal on
    all ranks. outputs: the wanted sharding of each output, None for what propagation gives. group_of: the ranks along a
    mesh axis, as collectives take them. marks: the wanted sharding of other values. pipelined: the option
    `pipelined_exchanges`.
    """
    propagation = Propagation(fusion, mesh, SizeFacts(fusion, sizes))
    wanted: dict[int, Spec] = dict(marks)
    for number, spec in zip(fusion.outputs, outputs, strict=True):
        if spec is not None and number not in fusion.inputs:
            wanted.setdefault(number, spec)
    propagation.run(inputs, wanted)
    return _Localizer(propagation, group_of, pipelined).run(outputs)


class _Localizer:
    """versions: local numbers by value and sharding. first: the sharding in which a value is computed, and its number.

    readers: the nodes that read a value. wholes: see `LocalFusion`.
    """

    def __init__(self, propagation: Propagation, group_of: Callable[[MeshAxis], Any], pipelined: str) -> None:
        self.propagation, self.fusion, self.mesh = propagation, propagation.fusion, propagation.mesh
        self.builder = FusionBuilder()
        self.extents = PartExtents(self.builder, self.mesh, propagation.facts)
        self.exchanges = ExchangeRecorder(self.builder, self.extents, group_of)
        self.nodes = NodeRecorder(self.fusion, self.exchanges, self.plan)
        self.bodies = BodyRecorder(self.fusion, self.exchanges)
        self.pipelined = PipelinedProducts(self.exchanges, pipelined)
        self.versions: dict[tuple[int, Spec], int] = {}
        self.first: dict[int, tuple[Spec, int]] = {}
        self.scalars: dict[int, int] = {}
        self.wholes: list[tuple[int, int]] = []
        self.readers: dict[int, list[tuple[Node, Placed]]] = {}
        for node in self.fusion.nodes:
            if node.outputs[0] in propagation.placed:
                for operand in node.inputs:
                    self.readers.setdefault(operand, []).append((node, propagation.placed[node.outputs[0]]))

    def run(self, outputs: Sequence[Spec | None], decides: bool = False) -> LocalFusion:
        """Returns the fusion of one rank. outputs: see `localize`. decides: the first rank's outputs hold on all."""
        for number in self.fusion.inputs:
            self._input(number)
        for name in self.mesh.names:
            self.extents.scalars[name] = self.builder.scalar_input(COORDINATE_TYPE, name=f"place in {name}")
        self._whole_extents()
        for requirement in self.fusion.requirements:
            left, right = self.extents.of_whole(requirement.left), self.extents.of_whole(requirement.right)
            self.builder.require(
                left,
                requirement.relation,
                right,
                requirement.message,
                requirement.hint,
                requirement.where,
                requirement.kind,
            )
        for node in self.fusion.nodes:
            if self.fusion.values[node.outputs[0]].is_tensor:
                self._tensor_node(node)
            else:
                self._scalar_node(node)
        specs = []
        for number, wanted in zip(self.fusion.outputs, outputs, strict=True):
            spec = self.propagation.specs[number] if wanted is None else wanted
            local = self._version(number, spec, "the result", None)
            self.builder.output(
                self.exchanges.of_first_rank(local, self.fusion.values[number].where) if decides else local
            )
            specs.append(spec)
        return LocalFusion(
            self.builder.build(), tuple(specs), self.mesh.names, tuple(self.wholes), tuple(self.exchanges.planned),
            self.extents.facts,
        )  # fmt: skip

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _input(self, number: int) -> None:
        value = self.fusion.values[number]
        if not value.is_tensor:
            self.builder.scalar_input(
                value.dtype, name=value.name, where=value.where, extent=value.extent, number=number
            )  # fmt: skip
            self.scalars[number] = number
            return
        spec = self.propagation.specs[number]
        known = []
        for extent, names in zip(value.shape, spec, strict=True):
            static = isinstance(extent, int) and self.extents.is_even(extent, names)
            known.append(self.extents.ceiling(extent, names) if static else -1)
        self.builder.tensor_input(
            value.dtype, [e if isinstance(e, int) else -1 for e in known], name=value.name, where=value.where,
            number=number,
        )  # fmt: skip
        self._add(number, spec, number)
        local_shape = self.builder.values[number].shape
        for extent, local, names in zip(self.fusion.shape_of(number), local_shape, spec, strict=True):
            symbol = as_symbol(extent)
            if self.extents.is_even(extent, names):
                if symbol is not None:
                    self.extents.complete.setdefault(symbol, local * self.extents.count(names))
            else:
                self.extents.lengths.setdefault((extent, names), local)

    def _whole_extents(self) -> None:
        """Adds the extents of whole axes that no part determines: those with parts that are not equal."""
        for number in self.fusion.tensor_inputs:
            for axis, (extent, names) in enumerate(
                zip(self.fusion.shape_of(number), self.first[number][0], strict=True)
            ):
                symbol = as_symbol(extent)
                if symbol is None or symbol in self.extents.complete or self.extents.is_even(extent, names):
                    continue
                scalar = self.builder.scalar_input(COORDINATE_TYPE, name=f"extent of axis {axis}")
                complete = self.builder.values[scalar].extent
                assert complete is not None
                self.extents.complete[symbol] = complete
                self.wholes.append((number, axis))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _scalar_node(self, node: Node) -> None:
        operands = [o if isinstance(o, Literal) else self.scalars[o] for o in node.operands]
        values = [self.fusion.values[number] for number in node.outputs]
        extents = [None if v.extent is None else self.extents.of_whole(v.extent) for v in values]
        attributes = {key: map_extents(value, self.extents.of_whole) for key, value in node.attributes.items()}
        results = self.builder.node(
            node.op, operands, attributes, node.compute, [v.dtype for v in values], where=node.where,
            names=[v.name for v in values], extents=extents,
        )  # fmt: skip
        self.scalars.update(zip(node.outputs, results, strict=True))

    def _bodies(self, node: Node, placed: PlacedBodies) -> None:
        """Records a loop or a branch, whose bodies become fusions of this rank."""
        operands = [self._operand(node, position, spec) for position, spec in enumerate(placed.operands)]
        results = self.bodies.record(node, placed, operands, self._local_body)
        for output, spec, local in zip(node.outputs, placed.results, results, strict=True):
            self._add(output, spec, local)

    def _local_body(self, body: BodyShardings, wanted: Sequence[Spec], decides: bool) -> LocalFusion:
        assert isinstance(body, Propagation)
        return _Localizer(body, self.exchanges.group_of, self.pipelined.mode).run(wanted, decides)

    def _tensor_node(self, node: Node) -> None:
        number = node.outputs[0]
        placed = self.propagation.placed[number]
        if isinstance(placed, PlacedBodies):
            self._bodies(node, placed)
            return
        attributes = self.nodes.fitting(node, placed)
        if attributes is None:
            placed = Placed((), ((),) * len(placed.result), placed.terms, placed.stays)
            attributes = self.nodes.fitting(node, placed)
            for operand in node.inputs:
                self._compute_deferred(operand)
        if attributes is None:
            raise UnsupportedError(
                f"{node.op.name} over ranks: its sizes do not divide",
                hint="call it outside the function, on the whole array", where=node.where,
            )  # fmt: skip
        if self._pipeline(node, placed):
            return
        specs = [self._spec_of_operand(node, position, placed) for position in range(len(node.operands))]
        operands = [self._operand(node, position, spec) for position, spec in enumerate(specs)]
        if self._defer(node, placed, operands, specs, attributes):
            return
        kinds = [self.fusion.values[output].dtype for output in node.outputs]
        kind = kinds[0]
        holds_terms = placed.summed or placed.terms
        kinds[0] = kind.compute if holds_terms and kind.is_half and node.op.kind != "library" else kind
        results = self.nodes.record(node, placed, operands, attributes, kinds, specs)
        spec, local = self._combined(node, placed, results[0], kind)
        self._add(number, spec, local)
        for output, other in zip(node.outputs[1:], results[1:], strict=True):
            self._add(output, self.propagation.specs[output], other)
        if number in self.propagation.specs and (number, self.propagation.placed[number].result) not in self.versions:
            self._version(number, self.propagation.placed[number].result, node.op.name, node.where)

    def _pipeline(self, node: Node, placed: Placed) -> bool:
        """Records a product in chunks that overlap with the exchange of its rows, if the option requests it."""
        number, factors = node.outputs[0], node.inputs
        rows = self.pipelined.rows_of(self.fusion, node, placed, self.first.get(factors[0]) if factors else None)
        if rows is None or (rows.gathers and len(self.readers[factors[0]]) > 1):
            return False  # one gather serves several readers
        other = self._operand(node, 1, placed.operand(1, 2))
        dtype = self.fusion.values[number].dtype

        def multiply(chunk: int) -> int:
            return self.builder.node(
                node.op, (chunk, other), node.attributes, node.compute, (dtype,), where=node.where
            )[0]  # fmt: skip

        kind, reason = ("AllGather", "reads") if rows.gathers else ("ReduceScatter", "sends")
        value = factors[0] if rows.gathers else number
        self.plan(kind, rows.name, value, node.where, f"{node.op.name} {reason} rows in pieces")
        if rows.gathers:
            local = self.pipelined.of_gathered(self.first[factors[0]][1], multiply, rows.name, node.where)
        else:
            operand = self._operand(node, 0, placed.operand(0, 2))
            assert isinstance(operand, int)
            local = self.pipelined.of_scattered(operand, multiply, rows.name, node.where)
        self._add(number, placed.result, local)
        return True

    def _defer(
        self, node: Node, placed: Placed, operands: Sequence[Operand], specs: Sequence[Spec],
        attributes: Mapping[str, Any],
    ) -> bool:  # fmt: skip
        """Leaves a movement to its readers, if all of them read neighbours' parts themselves."""
        number, shifts = node.outputs[0], self.nodes.shifts
        if len(operands) != 1 or not isinstance(operands[0], int) or node.inputs[:1] == ():
            return False
        if not specs[0] or not shifts.can_wait(node, placed, self.readers.get(number, ()), specs[0]):
            return False
        shifts.defer(node, placed, operands[0], specs[0], attributes)
        return True

    def _compute_deferred(self, number: int) -> None:
        if number in self.nodes.shifts.deferred:
            self._add(number, self.propagation.placed[number].computed, self.nodes.shifts.compute(number))

    def _combined(self, node: Node, placed: Placed, local: int, kind: DType) -> tuple[Spec, int]:
        """Combines the parts of sums that do not stay terms. Returns the sharding of the result, and the result."""
        number, spec = node.outputs[0], list(placed.computed)
        pending = [(link.combine, name) for link, names in placed.splits if link.result is None for name in names]
        pending += [("sum", name) for name in self.mesh.names if name in placed.terms]
        for combine, name in pending:
            assert combine is not None
            if name in placed.stays:
                continue
            scatter = next((a for a, n in enumerate(placed.result) if n == (name,) and not spec[a]), None)
            reason = "adds up" if name in placed.terms else "combines over an axis that is split"
            self.plan("AllReduce" if scatter is None else "ReduceScatter", name, number, node.where,
                      f"{node.op.name} {reason}")  # fmt: skip
            extent = 0 if scatter is None else self.fusion.shape_of(number)[scatter]
            operation = "sum" if combine == "mean" else combine
            local = self.exchanges.combined(local, operation, name, scatter, extent, node.where)
            if scatter is not None:
                spec[scatter] = (name,)
        if not placed.stays and self.builder.values[local].dtype != kind:
            local = self.exchanges.rounded(local, kind, node.where)
        return tuple(spec), local

    # -- values -------------------------------------------------------------------------------------------------------

    def _add(self, number: int, spec: Spec, local: int) -> None:
        self.versions[number, spec] = local
        self.first[number] = spec, local

    def _spec_of_operand(self, node: Node, position: int, placed: Placed) -> Spec:
        operand = node.operands[position]
        if isinstance(operand, Literal) or operand in self.scalars:
            return ()
        spec = placed.operand(position, len(self.fusion.values[operand].shape))
        if operand in self.nodes.shifts.deferred:
            return spec
        return self.nodes.spec_of_operand(position, placed, spec, self.first[operand][0])

    def _operand(self, node: Node, position: int, spec: Spec) -> Operand:
        operand = node.operands[position]
        if isinstance(operand, Literal):
            return operand
        if operand in self.scalars:
            return self.scalars[operand]
        deferred = self.nodes.shifts.deferred.get(operand)
        return self._version(operand, spec, node.op.name, node.where) if deferred is None else deferred.base

    def _version(self, number: int, spec: Spec, reader: str, where: str | None) -> int:
        """Returns the local number of a value in a sharding, recording exchanges if there is no such version."""
        known = self.versions.get((number, spec))
        if known is None:
            before, local = self.first[number]
            for axis, names in enumerate(before):
                moved = any(n == names and not before[a] for a, n in enumerate(spec))
                kind = "AllToAll" if moved and len(names) == 1 and not spec[axis] else "AllGather"
                for name in names[len(shared(names, spec[axis])) :]:
                    self.plan(kind, name, number, where, f"{reader} reads another part")
            shape = self.fusion.shape_of(number)
            known = self.versions[number, spec] = self.exchanges.change(local, shape, before, spec, where)
        return known

    def plan(
        self, kind: str, name: str, number: int, where: str | None, reason: str,
        share: tuple[Extent, Extent] = (1, 1),
    ) -> None:  # fmt: skip
        """Adds to the list of exchanges. share: what is moved of the value, as extents of the rank's fusion."""
        part, complete = (
            evaluate(extent, self._sizes()) if not isinstance(extent, int) else extent for extent in share
        )
        size = self.propagation.bytes_of(number) * part // max(complete, 1)
        self.exchanges.planned.append(PlannedExchange(kind, name, number, size, where, reason))

    def _sizes(self) -> dict[int, int]:
        """Returns the extents and scalars of the rank's fusion, for the sizes of the call and the first rank."""
        sizes: dict[int, int] = {}
        for number in self.fusion.tensor_inputs:
            local_shape = self.builder.values[number].shape
            for extent, local, names in zip(
                self.fusion.shape_of(number), local_shape, self.first[number][0], strict=True
            ):
                symbol = as_symbol(local)
                if symbol is not None and symbol.id is not None:
                    size = evaluate(extent, self.extents.facts.sizes)
                    sizes[symbol.id] = -(-size // self.extents.count(names))
        for number in self.fusion.scalar_inputs:
            sizes[number] = self.extents.facts.sizes[number]
        sizes.update(dict.fromkeys(self.extents.scalars.values(), 0))
        for symbol, complete in self.extents.complete.items():
            size_symbol = as_symbol(complete)
            if size_symbol is not None and size_symbol.id is not None and symbol.id is not None:
                sizes[size_symbol.id] = self.extents.facts.sizes[symbol.id]
        return sizes
