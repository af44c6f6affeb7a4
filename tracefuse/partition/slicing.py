"""What a part of a fusion computes for one slice of its results, as a fusion of its own.

Which slice of each operand a slice of a result needs follows from where the result's elements come from. An axis is
cut where each element comes from the same index of some axis of an operand, or from no index of it at all; the part is
then recorded again with that axis of extent 1, or of the extent of a piece.

Knows: fusions, index maps, rows' kinds. Must not know: streams, devices, programs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from segments import Verdict, no, yes
from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Expression, Extent, Symbol, as_symbol, input_extent, substitute, symbol, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Library, Pointwise, Reduction
from tracefuse.ir.subfusion import map_extents

Axes: TypeAlias = dict[int, int | None]
"""For each value the axis that is cut, None where it is read whole."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Sliced:
    """A part for one slice of its results.

    fusion: the part with the cut axes of extent 1, or of the extent of a piece. axes: the axis that is cut of each
    input and output; None for an input that every slice reads whole. pieces: into how many parts; None is one an index.
    """

    fusion: Fusion
    axes: Mapping[int, int | None]
    pieces: int | None


def sliced(part: Fusion, cut: Mapping[int, int], pieces: int | None) -> Sliced:
    """`part` for one slice of its outputs along the axes in `cut`.

    Raises UnsupportedError, with the line of the node, where a slice of a result is made of more than slices.
    """
    axes: Axes = dict(cut)
    for node in reversed(part.nodes):
        verdict = extend(axes, part, node)
        if not verdict:
            raise UnsupportedError(f"{node.op.name}: {verdict}", hint=_HINT, where=node.where)
    return Sliced(_Slicing(part, axes, pieces).run(), {n: axes.get(n) for n in (*part.inputs, *part.outputs)}, pieces)


_HINT = "leave this value whole, or choose an axis along which its slices are independent"


def can_slice(fusion: Fusion, nodes: Sequence[Node], cut: Mapping[int, int], *, pieces: bool = False) -> Verdict:
    """Whether slices of the values in `cut` need slices of what `nodes` read, or all of it.

    pieces: they are pieces, whose extent is that of a piece of something that is read.
    """
    axes: Axes = dict(cut)
    for node in reversed(nodes):
        verdict = extend(axes, fusion, node)
        if not verdict:
            return verdict
    made = {number for node in nodes for number in node.outputs}
    if pieces and all(axis is None for number, axis in axes.items() if number not in made):
        return no("pieces of no operand")
    return yes()


def extend(axes: Axes, fusion: Fusion, node: Node) -> Verdict:
    """Adds what a node reads to `axes`, which has what it makes."""
    (output,) = node.outputs[:1]
    if output not in axes:
        return yes()  # nothing here needs it
    axis = axes[output]
    if axis is None:
        needed: dict[int, int | None] | Verdict = dict.fromkeys(range(len(node.operands)))
    else:
        needed = operand_axes(fusion, node, axis)
    if isinstance(needed, Verdict):
        return needed
    if axis is not None and not _has_slice(fusion, node, axis, needed):
        return no("its sizes depend on the whole axis", axis=axis)
    for position, operand in enumerate(node.operands):
        if isinstance(operand, Literal) or not fusion.values[operand].is_tensor:
            continue
        wanted = needed.get(position)
        if axes.setdefault(operand, wanted) != wanted:
            return no("a value is needed by slices of two kinds", value=operand, axes=(axes[operand], wanted))
    return yes()


def operand_axes(fusion: Fusion, node: Node, axis: int) -> dict[int, int | None] | Verdict:
    """For each operand the axis whose slice a slice of the result along `axis` needs; None: all of it. Or why not."""
    result = fusion.shape_of(node.outputs[0])
    if result[axis] == 1:
        return no("the axis has extent 1", axis=axis)
    if isinstance(node.op, Library):
        shapes = [fusion.shape_of(operand) for operand in node.operands]
        found = node.op.slices(axis, shapes, node.attributes) if node.op.slices is not None else None
        return no("the library call is not cut along this axis", axis=axis) if found is None else found
    if isinstance(node.op, Reduction):
        return {0: _kept_axis(node, axis)}
    if isinstance(node.op, Pointwise) and node.op.extra_shape is not None:
        return no("its elements depend on their position", axis=axis)
    return _pulled_axes(fusion, node, axis)


def _kept_axis(node: Node, axis: int) -> int:
    """The operand's axis that is `axis` of the result."""
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    if keepdim:
        return axis
    for dim in sorted(dims):
        axis += dim <= axis
    return axis


def _pulled_axes(fusion: Fusion, node: Node, axis: int) -> dict[int, int | None] | Verdict:
    result = fusion.shape_of(node.outputs[0])
    coordinates: Shape = tuple(symbol(f"x{a}", extent=e) if e != 1 else 0 for a, e in enumerate(result))
    own = as_symbol(coordinates[axis])
    assert own is not None
    reads: list[tuple[int, Shape]] = []

    def index_of(position: int, at: Shape) -> Extent:
        reads.append((position, at))
        return symbol(f"taken{len(reads)}", extent=None)

    for source in sources(fusion, node, coordinates, index_of):
        if any(own in symbols(e) for w in source.conditions for e in (w.index, w.low, w.high)):
            return no("which operand an element comes from depends on its index", axis=axis)
        reads.append((source.operand, source.coordinates))
    found: dict[int, int | None] = {}
    for position, at in reads:
        along = [a for a, coordinate in enumerate(at) if own in symbols(coordinate)]
        shape = fusion.shape_of(node.operands[position])
        if len(along) > 1 or any(as_symbol(at[a]) != own or shape[a] != result[axis] for a in along):
            return no("an element comes from another index of its operand", axis=axis)
        wanted = along[0] if along else None
        if found.setdefault(position, wanted) != wanted:
            return no("an operand is read along two axes", axis=axis)
    return found


class _Slicing:
    """A part while it is recorded again.

    rest: what stands for the extents of cut axes where an axis that is not cut has them, too. piece: the cut extent.
    """

    def __init__(self, part: Fusion, axes: Axes, pieces: int | None) -> None:
        self.part, self.axes = part, axes
        self.builder = FusionBuilder()
        cut = [part.shape_of(n)[a] for n, a in axes.items() if a is not None]
        self.gone = {found for extent in cut for found in symbols(extent)}
        self.piece: Extent = 1
        self.rest: dict[Symbol, Extent] = {}
        first = None
        for key, number, axis in part.axis_ids():
            own = input_extent(-key - 1)
            if axes.get(number) == axis:
                first = own if first is None else first
            else:
                known = as_symbol(part.shape_of(number)[axis])
                if known in self.gone and known is not None:
                    self.rest.setdefault(known, own)
        if pieces is not None:
            if first is None:
                raise UnsupportedError("an axis of no input is cut into pieces", hint="cut it one slice an index")
            self.piece = first
        self.own = {(number, axis): input_extent(-key - 1) for key, number, axis in part.axis_ids()}

    def run(self) -> Fusion:
        for number in self.part.inputs:
            self._input(number)
        for requirement in self.part.requirements:
            if self.gone.isdisjoint((*symbols(requirement.left), *symbols(requirement.right))):
                self.builder.requirements.append(requirement)
        for node in self.part.nodes:
            if node.outputs[0] in self.axes:
                self._node(node)
        for number in self.part.outputs:
            self.builder.output(number)
        return self.builder.build()

    def _shape(self, number: int) -> tuple[Extent | None, ...]:
        """The shape of a value in the slice's terms; None for an extent that is not known there."""
        cut = self.axes.get(number)
        return tuple(
            self.piece if axis == cut else self._whole(extent) for axis, extent in enumerate(self.part.shape_of(number))
        )

    def _whole(self, extent: Extent) -> Extent | None:
        """An extent that has nothing to do with the slice."""
        if any(found in self.gone and found not in self.rest for found in symbols(extent)):
            return None
        return substitute(extent, self.rest)

    def _input(self, number: int) -> None:
        value = self.part.values[number]
        if value.is_tensor:
            known = self._shape(number)
            shape = [self.own[number, axis] if e is None else e for axis, e in enumerate(known)]
            sizes = [e if isinstance(e, int) else -1 for e in shape]
            self.builder.tensor_input(value.dtype, sizes, name=value.name, number=number, extents=shape)
            return
        extent = value.extent
        if extent is not None and not self.gone.isdisjoint(symbols(extent)):
            extent = None  # it is the whole extent, which no axis of a slice has
        self.builder.scalar_input(value.dtype, name=value.name, number=number, extent=extent)

    def _node(self, node: Node) -> None:
        values = self.part.values
        wanted = [self._shape(number) for number in node.outputs]
        shape, axis = self.part.shape_of(node.outputs[0]), self.axes[node.outputs[0]]
        known = _canonical(self.part, node)
        for attributes in _attributes_of_slice(known, shape, axis, self.gone, self.rest, self.piece):
            trial = _copy(self.builder)
            try:
                trial.node(
                    node.op, node.operands, attributes, node.compute, [values[o].dtype for o in node.outputs],
                    where=node.where, names=[values[o].name for o in node.outputs], numbers=node.outputs,
                )  # fmt: skip
            except TracefuseError:
                continue
            if all(map(self._is_shape, (trial.values[number].shape for number in node.outputs), wanted)):
                self.builder = trial
                return
        raise UnsupportedError(f"{node.op.name}: its sizes depend on the whole axis", hint=_HINT, where=node.where)

    def _is_shape(self, made: Shape, wanted: tuple[Extent | None, ...]) -> bool:
        if made == wanted:
            return True
        # Equal by what the part requires; not where one extent is that of a slice and of a whole axis.
        return not self.rest and tuple(map(self.part.canonical, made)) == wanted


def _canonical(fusion: Fusion, node: Node) -> dict[str, Any]:
    return {key: map_extents(value, fusion.canonical) for key, value in node.attributes.items()}


def _attributes_of_slice(
    attributes: Mapping[str, Any], shape: Shape, axis: int | None, gone: Collection[Symbol],
    rest: Mapping[Symbol, Extent], piece: Extent,
) -> Iterator[Mapping[str, Any]]:  # fmt: skip
    """What the attributes of a node may be for a slice: an extent of the cut axis may be the slice's or the whole's.

    shape, axis: of the result, and which of it is cut. gone: the symbols of cut extents; rest: what stands for them
    where the whole is meant. piece: the extent of the slice.
    """
    if set(gone).isdisjoint(_symbols_of(attributes.values())):
        yield attributes
    whole = {k: map_extents(v, lambda e: substitute(e, rest)) for k, v in attributes.items()}
    pieces: dict[Symbol, Extent] = dict.fromkeys(gone, piece)
    cut = {k: map_extents(v, lambda e: substitute(e, pieces)) for k, v in attributes.items()}

    def along(key: str) -> Any:
        """An attribute with one entry an axis, of which that of the cut axis stands for the slice."""
        own = attributes[key]
        if axis is None or not isinstance(own, tuple) or len(own) != len(shape):
            return whole[key]
        entry = piece if own[axis] == shape[axis] else cut[key][axis]
        return (*whole[key][:axis], entry, *whole[key][axis + 1 :])

    if axis is not None:
        yield {key: along(key) for key in attributes}
        yield cut
    yield whole


def _has_slice(fusion: Fusion, node: Node, axis: int, needed: Mapping[int, int | None]) -> bool:
    """Whether the row makes a slice of its result from slices of its operands."""
    result = fusion.shape_of(node.outputs[0])
    shapes = [fusion.shape_of(operand) for operand in node.operands]
    cut = [tuple(1 if a == needed.get(k) else e for a, e in enumerate(shape)) for k, shape in enumerate(shapes)]
    wanted = tuple(1 if a == axis else e for a, e in enumerate(result))
    gone = set(symbols(result[axis]))
    for attributes in _attributes_of_slice(_canonical(fusion, node), result, axis, gone, {}, 1):
        try:
            if tuple(map(fusion.canonical, node.op.shapes(cut, attributes, _known)[0])) == wanted:
                return True
        except TracefuseError:
            continue
    return False


def _known(left: Extent, relation: str, right: Extent, message: str, hint: str) -> None:
    """What the whole requires of extents has been asked for."""


def _symbols_of(attributes: Iterable[Any]) -> Iterator[Symbol]:
    for attribute in attributes:
        if isinstance(attribute, Expression):
            yield from symbols(attribute)
        elif isinstance(attribute, tuple):
            yield from _symbols_of(attribute)


def _copy(builder: FusionBuilder) -> FusionBuilder:
    """A builder that goes on from the same place without changing `builder`."""
    other = FusionBuilder()
    other.__dict__.update(builder.__dict__)
    other.values, other.nodes = dict(builder.values), list(builder.nodes)
    other.inputs, other.requirements = list(builder.inputs), list(builder.requirements)
    return other
