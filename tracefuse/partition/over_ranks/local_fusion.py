"""Derives the fusion that one rank runs from a fusion over a mesh and the sharding of its inputs and outputs.

The rank's fusion has the same inputs, with the extents of its parts, and its place along each mesh axis as further
scalars. Exchanges are nodes of it. An extent of the whole array is a multiple of the extent of a part, so that sizes
stay symbolic.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Extent, Symbol, as_symbol, substitute
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.ir.subfusion import map_extents
from tracefuse.partition.over_ranks.exchange_recorder import COORDINATE_TYPE, ExchangeRecorder, PlannedExchange, shared
from tracefuse.partition.over_ranks.propagation import Placed, Propagation, Spec


@dataclass(frozen=True, slots=True, eq=False)
class LocalFusion:
    """The fusion of one rank. outputs: the sharding of each output. coordinates: the mesh axes of the last inputs."""

    fusion: Fusion
    outputs: tuple[Spec, ...]
    coordinates: tuple[str, ...]
    exchanges: tuple[PlannedExchange, ...]


def localize(
    fusion: Fusion, mesh: DeviceMesh, sizes: Mapping[int, int], inputs: Mapping[int, Spec],
    outputs: Sequence[Spec | None], group_of: Callable[[MeshAxis], Any],
    marks: Mapping[int, Spec] = MappingProxyType({}),
) -> LocalFusion:  # fmt: skip
    """Returns the fusion of one rank.

    sizes: extents and integer scalars of the traced call. inputs: the sharding of inputs by value, others are equal on
    all ranks. outputs: the wanted sharding of each output, None for what propagation gives. group_of: the ranks along a
    mesh axis, as collectives take them. marks: the wanted sharding of other values.
    """
    propagation = Propagation(fusion, mesh, sizes)
    wanted: dict[int, Spec] = dict(marks)
    for number, spec in zip(fusion.outputs, outputs, strict=True):
        if spec is not None and number not in fusion.inputs:
            wanted.setdefault(number, spec)
    propagation.run(inputs, wanted)
    return _Localizer(propagation, group_of).run(outputs)


class _Localizer:
    """parts: for symbols of split axes, the extent of the whole axis. versions: local numbers by value and sharding.

    first: the sharding in which a value is computed, and its local number.
    """

    def __init__(self, propagation: Propagation, group_of: Callable[[MeshAxis], Any]) -> None:
        self.propagation, self.fusion, self.mesh = propagation, propagation.fusion, propagation.mesh
        self.builder = FusionBuilder()
        self.whole: dict[Symbol, Extent] = {}
        self.versions: dict[tuple[int, Spec], int] = {}
        self.first: dict[int, tuple[Spec, int]] = {}
        self.scalars: dict[int, int] = {}
        self.group_of = group_of

    def run(self, outputs: Sequence[Spec | None]) -> LocalFusion:
        for number in self.fusion.inputs:
            self._input(number)
        coordinates = {
            name: self.builder.scalar_input(COORDINATE_TYPE, name=f"place in {name}") for name in self.mesh.names
        }
        self.exchanges = ExchangeRecorder(self.builder, self.mesh, coordinates, self.group_of)
        for one in self.fusion.requirements:
            left, right = self._global(one.left), self._global(one.right)
            self.builder.require(left, one.relation, right, one.message, one.hint, one.where, one.kind)
        for node in self.fusion.nodes:
            if self.fusion.values[node.outputs[0]].is_tensor:
                self._tensor_node(node)
            else:
                self._scalar_node(node)
        specs = []
        for number, wanted in zip(self.fusion.outputs, outputs, strict=True):
            spec = self.propagation.specs[number] if wanted is None else wanted
            self.builder.output(self._version(number, spec, "the result", None))
            specs.append(spec)
        return LocalFusion(self.builder.build(), tuple(specs), self.mesh.names, tuple(self.exchanges.planned))

    def _parts(self, names: Sequence[str]) -> int:
        parts = 1
        for name in names:
            parts *= self.mesh.size(name)
        return parts

    def _input(self, number: int) -> None:
        value = self.fusion.values[number]
        if not value.is_tensor:
            self.builder.scalar_input(value.dtype, name=value.name, number=number, where=value.where)
            self.scalars[number] = number
            return
        spec = self.propagation.specs[number]
        known = []
        for extent, names in zip(value.shape, spec, strict=True):
            known.append(extent // self._parts(names) if isinstance(extent, int) else -1)
        self.builder.tensor_input(value.dtype, known, name=value.name, where=value.where, number=number)
        self._add(number, spec, number)
        for extent, local, names in zip(value.shape, self.builder.values[number].shape, spec, strict=True):
            symbol = as_symbol(extent)
            if symbol is not None:
                self.whole[symbol] = local * self._parts(names)

    def _global(self, extent: Extent) -> Extent:
        """Returns an extent of the fusion over the mesh in the extents of parts."""
        return substitute(self.fusion.canonical(extent), self.whole)

    def _local_shape(self, number: int, spec: Spec) -> Shape:
        """Returns the shape of a part."""
        extents = zip(self.fusion.shape_of(number), spec, strict=True)
        return tuple(self.exchanges.part_of(self._global(extent), self._parts(names)) for extent, names in extents)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _scalar_node(self, node: Node) -> None:
        operands = [o if isinstance(o, Literal) else self.scalars[o] for o in node.operands]
        values = [self.fusion.values[number] for number in node.outputs]
        extents = [None if v.extent is None else self._global(v.extent) for v in values]
        results = self.builder.node(
            node.op, operands, self._attributes(node), node.compute, [v.dtype for v in values], where=node.where,
            names=[v.name for v in values], extents=extents,
        )  # fmt: skip
        self.scalars.update(zip(node.outputs, results, strict=True))

    def _attributes(self, node: Node) -> dict[str, Any]:
        return {key: map_extents(value, self._global) for key, value in node.attributes.items()}

    def _tensor_node(self, node: Node) -> None:
        number = node.outputs[0]
        placed = self.propagation.placed[number]
        if not self._record(node, placed):
            whole = Placed((), ((),) * len(placed.result))
            if not self._record(node, whole):
                raise UnsupportedError(
                    f"{node.op.name} over ranks: its sizes do not divide",
                    hint="call it outside the function, on the whole array", where=node.where,
                )  # fmt: skip
        if number in self.propagation.specs and (number, placed.result) not in self.versions:
            self._version(number, placed.result, node.op.name, node.where)

    def _record(self, node: Node, placed: Placed) -> bool:
        """Records a node on parts, with the exchanges that it needs. Returns False if its attributes do not divide."""
        number = node.outputs[0]
        shape = self._local_shape(number, placed.computed)
        attributes = self._fitting(node, placed, shape)
        if attributes is None:
            return False
        operands = [self._operand(node, position, placed) for position in range(len(node.operands))]
        values = [self.fusion.values[output] for output in node.outputs]
        kinds = [v.dtype for v in values]
        summed = [(link, name) for link, names in placed.splits if link.result is None for name in names]
        rounds = bool(summed) and kinds[0].is_half and node.op.kind == "reduction"
        results = self.builder.node(
            node.op, operands, attributes, node.compute, [kinds[0].compute, *kinds[1:]] if rounds else kinds,
            where=node.where, names=[v.name for v in values],
        )  # fmt: skip
        result = results[0]
        for link, name in summed:
            assert link.combine is not None
            scatter = next((a for a, n in enumerate(placed.result) if n == (name,) and not placed.computed[a]), None)
            kind = "AllReduce" if scatter is None else "ReduceScatter"
            self._plan(kind, name, number, node.where, f"{node.op.name} combines over an axis that is split")
            result = self.exchanges.combined(result, link.combine, name, scatter, node.where)
        if rounds:
            (result,) = self.exchanges.rounded(result, kinds[0], node.where)
        self._add(number, placed.result, result)
        for output, local in zip(node.outputs[1:], results[1:], strict=True):
            self._add(output, self.propagation.specs[output], local)
        return True

    def _add(self, number: int, spec: Spec, local: int) -> None:
        self.versions[number, spec] = local
        self.first[number] = spec, local

    def _fitting(self, node: Node, placed: Placed, shape: Shape) -> dict[str, Any] | None:
        """Returns the attributes with which the node gives parts of this shape, None if there are none."""
        shapes: list[Shape] = []
        for position, operand in enumerate(node.operands):
            if isinstance(operand, Literal) or not self.fusion.values[operand].is_tensor:
                shapes.append(())
                continue
            own = self._local_shape(operand, placed.operand(position, len(self.fusion.values[operand].shape)))
            shapes.append(own)
        for attributes in self._candidates(node, placed.computed, shape):
            try:
                results = node.op.shapes(shapes, attributes, _assume)
            except TracefuseError:
                continue
            if tuple(results[0]) == shape:
                return attributes
        return None

    def _candidates(self, node: Node, spec: Spec, shape: Shape) -> Iterator[dict[str, Any]]:
        """Yields the attributes in extents of whole arrays, then with entries for axes that mean parts."""
        attributes = self._attributes(node)
        if not any(spec):
            yield attributes
            return
        extents = [self._global(extent) for extent in self.fusion.shape_of(node.outputs[0])]

        def along(value: Any) -> Any:
            if not isinstance(value, tuple) or len(value) != len(shape):
                return value
            return tuple(
                part if names and entry == extent else entry
                for entry, extent, part, names in zip(value, extents, shape, spec, strict=True)
            )

        yield {key: along(value) for key, value in attributes.items()}
        yield attributes

    # -- values -------------------------------------------------------------------------------------------------------

    def _operand(self, node: Node, position: int, placed: Placed) -> Any:
        operand = node.operands[position]
        if isinstance(operand, Literal):
            return operand
        if operand in self.scalars:
            return self.scalars[operand]
        spec = placed.operand(position, len(self.fusion.values[operand].shape))
        return self._version(operand, spec, node.op.name, node.where)

    def _version(self, number: int, spec: Spec, reader: str, where: str | None) -> int:
        """Returns the local number of a value in a sharding, recording exchanges if there is no such version."""
        known = self.versions.get((number, spec))
        if known is None:
            before, local = self.first[number]
            for axis, names in enumerate(before):
                moved = any(n == names and not before[a] for a, n in enumerate(spec))
                kind = "AllToAll" if moved and len(names) == 1 and not spec[axis] else "AllGather"
                for name in names[len(shared(names, spec[axis])) :]:
                    self._plan(kind, name, number, where, f"{reader} reads another part")
            known = self.versions[number, spec] = self.exchanges.change(local, before, spec, where)
        return known

    def _plan(self, kind: str, name: str, number: int, where: str | None, reason: str) -> None:
        size = self.propagation.bytes_of(number)
        self.exchanges.planned.append(PlannedExchange(kind, name, number, size, where, reason))


def _assume(*_: Any) -> None:
    """Accepts every requirement. The fusion over the mesh has already checked them."""
