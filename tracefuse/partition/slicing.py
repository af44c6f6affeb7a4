"""Derives the fusion that computes one slice of the results of a segment.

The index maps of a node decide which slice of each operand a slice of its result needs. An axis can be cut if each
element depends on the same index of some axis of an operand, or on no index of it at all. The segment is then recorded
again with extent 1 for that axis, or with the extent of a chunk.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from segments import Verdict, no, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Expression, Extent, Symbol, as_symbol, input_extent, substitute, symbol, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Pointwise, Reduction
from tracefuse.ir.scan_kind import is_library_call
from tracefuse.ir.subfusion import map_extents

Axes: TypeAlias = dict[int, int | None]
"""For each value, the axis that is cut, None if it is read whole."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Sliced:
    """The fusion of one slice of a segment.

    fusion: the segment with extent 1, or the extent of a chunk, for each cut axis. axes: the cut axis of each input and
    output, None for an input that every slice reads whole. chunks: the number of chunks, None for one slice per index.
    """

    fusion: Fusion
    axes: Mapping[int, int | None]
    chunks: int | None


def slice_fusion(part: Fusion, cut: Mapping[int, int], chunks: int | None) -> Sliced:
    """Returns `part` for one slice of its outputs along the axes in `cut`.

    Raises UnsupportedError, with the line of the node, if a slice of a result depends on more than slices.
    """
    axes: Axes = dict(cut)
    for node in reversed(part.nodes):
        verdict = _extend_axes(axes, part, node)
        if not verdict:
            raise UnsupportedError(f"{node.op.name}: {verdict}", hint=_HINT, where=node.where)
    return Sliced(
        _SliceRecorder(part, axes, chunks).run(), {n: axes.get(n) for n in (*part.inputs, *part.outputs)}, chunks
    )


_HINT = "leave this value whole, or choose an axis along which its slices are independent"


def can_slice(fusion: Fusion, nodes: Sequence[Node], cut: Mapping[int, int], *, chunks: bool = False) -> Verdict:
    """Whether slices of the values in `cut` depend only on slices and whole inputs of `nodes`.

    chunks: the slices are chunks, so that some input must be cut, too, to give the extent of a chunk.
    """
    axes: Axes = dict(cut)
    for node in reversed(nodes):
        verdict = _extend_axes(axes, fusion, node)
        if not verdict:
            return verdict
    outputs = {number for node in nodes for number in node.outputs}
    if chunks and all(axis is None for number, axis in axes.items() if number not in outputs):
        return no("no operand is cut into chunks")
    return yes()


def _extend_axes(axes: Axes, fusion: Fusion, node: Node) -> Verdict:
    """Adds the operands of a node to `axes`, which contains its outputs."""
    (output,) = node.outputs[:1]
    if output not in axes:
        return yes()  # no cut value depends on it
    axis = axes[output]
    if axis is None:
        needed: dict[int, int | None] | Verdict = dict.fromkeys(range(len(node.operands)))
    else:
        needed = operand_axes(fusion, node, axis)
    if isinstance(needed, Verdict):
        return needed
    if axis is not None and not _can_compute_slice(fusion, node, axis, needed):
        return no("its sizes depend on the whole axis", axis=axis)
    for position, operand in enumerate(node.operands):
        if isinstance(operand, Literal) or not fusion.values[operand].is_tensor:
            continue
        wanted = needed.get(position)
        if axes.setdefault(operand, wanted) != wanted:
            return no("slices along two axes read one value", value=operand, axes=(axes[operand], wanted))
    return yes()


def operand_axes(
    fusion: Fusion, node: Node, axis: int, are_equal: Callable[[Extent, Extent], bool] = operator.eq
) -> dict[int, int | None] | Verdict:  # fmt: skip
    """Returns the axis along which each operand is cut if the result is cut along `axis`, None for a whole operand.

    are_equal: whether two canonical extents are equal. Returns a Verdict with the reason if the result cannot be cut
    along `axis`.
    """
    result = fusion.shape_of(node.outputs[0])
    if result[axis] == 1:
        return no("the axis has extent 1", axis=axis)
    if isinstance(node.op, Library):
        shapes = [fusion.shape_of(operand) for operand in node.operands]
        axes = node.op.slices(axis, shapes, node.attributes) if node.op.slices is not None else None
        if axes is not None:
            return axes
        if is_library_call(node.op):
            return no("the library call cannot be cut along this axis", axis=axis)
        return no("an element depends on all elements before it", axis=axis)
    if isinstance(node.op, Reduction):
        return {0: _operand_axis(node, axis)}
    if isinstance(node.op, Pointwise) and node.op.extra_shape is not None:
        return no("its elements depend on their index", axis=axis)
    return _pulled_axes(fusion, node, axis, are_equal)


def _operand_axis(node: Node, axis: int) -> int:
    """Returns the axis of the operand that becomes `axis` of the result."""
    dims, keepdim = node.attributes["dims"], node.attributes["keepdim"]
    if keepdim:
        return axis
    for dim in sorted(dims):
        axis += dim <= axis
    return axis


def _pulled_axes(
    fusion: Fusion, node: Node, axis: int, are_equal: Callable[[Extent, Extent], bool]
) -> dict[int, int | None] | Verdict:  # fmt: skip
    result = fusion.shape_of(node.outputs[0])
    coordinates: Shape = tuple(symbol(f"x{a}", extent=e) if e != 1 else 0 for a, e in enumerate(result))
    index = as_symbol(coordinates[axis])
    assert index is not None
    reads: list[tuple[int, Shape]] = []

    def index_of(position: int, at: Shape) -> Extent:
        reads.append((position, at))
        return symbol(f"index{len(reads)}", extent=None)

    for source in sources(fusion, node, coordinates, index_of):
        if any(index in symbols(e) for w in source.conditions for e in (w.index, w.low, w.high)):
            return no("which operand an element comes from depends on its index", axis=axis)
        reads.append((source.operand, source.coordinates))
    axes: dict[int, int | None] = {}
    for position, at in reads:
        along = [a for a, coordinate in enumerate(at) if index in symbols(coordinate)]
        shape = fusion.shape_of(node.operands[position])
        if len(along) > 1 or any(
            as_symbol(at[a]) != index or not are_equal(shape[a], result[axis]) for a in along
        ):  # fmt: skip
            return no("an element comes from another index of its operand", axis=axis)
        wanted = along[0] if along else None
        if axes.setdefault(position, wanted) != wanted:
            return no("an operand is read along two axes", axis=axis)
    return axes


class _SliceRecorder:
    """Records a segment again for one slice.

    rest: replacements for the extents of cut axes, where an axis that is not cut has the same extent. slice_extent: the
    extent of a slice.
    """

    def __init__(self, part: Fusion, axes: Axes, chunks: int | None) -> None:
        self.part, self.axes = part, axes
        self.builder = FusionBuilder()
        cut = [part.shape_of(n)[a] for n, a in axes.items() if a is not None]
        self.cut_symbols = {size for extent in cut for size in symbols(extent)}
        self.slice_extent: Extent = 1
        self.rest: dict[Symbol, Extent] = {}
        first = None
        for key, number, axis in part.axis_ids():
            extent = input_extent(-key - 1)
            if axes.get(number) == axis:
                first = extent if first is None else first
            else:
                known = as_symbol(part.shape_of(number)[axis])
                if known in self.cut_symbols and known is not None:
                    self.rest.setdefault(known, extent)
        if chunks is not None:
            if first is None:
                raise UnsupportedError(
                    "no input is cut, so the extent of a chunk is not known", hint="use one slice per index"
                )
            self.slice_extent = first
        self.input_extents = {(number, axis): input_extent(-key - 1) for key, number, axis in part.axis_ids()}

    def run(self) -> Fusion:
        for number in self.part.inputs:
            self._input(number)
        for requirement in self.part.requirements:
            if self.cut_symbols.isdisjoint((*symbols(requirement.left), *symbols(requirement.right))):
                self.builder.requirements.append(requirement)
        for node in self.part.nodes:
            if node.outputs[0] in self.axes:
                self._node(node)
        for number in self.part.outputs:
            self.builder.output(number)
        return self.builder.build()

    def _shape(self, number: int) -> tuple[Extent | None, ...]:
        """Returns the shape of a value in the fusion of a slice, None for an extent that is not known there."""
        cut = self.axes.get(number)
        return tuple(
            self.slice_extent if axis == cut else self._whole(extent)
            for axis, extent in enumerate(self.part.shape_of(number))
        )

    def _whole(self, extent: Extent) -> Extent | None:
        """Returns the extent of an axis that is not cut, None if it depends on the whole extent of a cut axis."""
        if any(size in self.cut_symbols and size not in self.rest for size in symbols(extent)):
            return None
        return substitute(extent, self.rest)

    def _input(self, number: int) -> None:
        value = self.part.values[number]
        if value.is_tensor:
            known = self._shape(number)
            shape = [self.input_extents[number, axis] if e is None else e for axis, e in enumerate(known)]
            sizes = [e if isinstance(e, int) else -1 for e in shape]
            self.builder.tensor_input(value.dtype, sizes, name=value.name, number=number, extents=shape)
            return
        extent = value.extent
        if extent is not None and not self.cut_symbols.isdisjoint(symbols(extent)):
            extent = None  # the whole extent of a cut axis, which is unknown in a slice
        self.builder.scalar_input(value.dtype, name=value.name, number=number, extent=extent)

    def _node(self, node: Node) -> None:
        values = self.part.values
        wanted = [self._shape(number) for number in node.outputs]
        shape, axis = self.part.shape_of(node.outputs[0]), self.axes[node.outputs[0]]
        known = _canonical(self.part, node)
        for attributes in _slice_attributes(known, shape, axis, self.cut_symbols, self.rest, self.slice_extent):
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

    def _is_shape(self, shape: Shape, wanted: tuple[Extent | None, ...]) -> bool:
        if shape == wanted:
            return True
        # Shapes can also be equal by the requirements of the part, unless a slice and a whole axis share an extent.
        return not self.rest and tuple(map(self.part.canonical, shape)) == wanted


def _canonical(fusion: Fusion, node: Node) -> dict[str, Any]:
    return {key: map_extents(value, fusion.canonical) for key, value in node.attributes.items()}


def _slice_attributes(
    attributes: Mapping[str, Any], shape: Shape, axis: int | None, cut_symbols: Collection[Symbol],
    rest: Mapping[Symbol, Extent], slice_extent: Extent,
) -> Iterator[Mapping[str, Any]]:  # fmt: skip
    """Yields candidates for the attributes of a node in a slice, where an extent can mean the slice or the whole axis.

    shape: of the result. axis: the axis of it that is cut. cut_symbols: those of cut extents. rest: their replacements
    where the whole axis is meant. slice_extent: the extent of the slice.
    """
    if set(cut_symbols).isdisjoint(_symbols_of(attributes.values())):
        yield attributes
    complete = {k: map_extents(v, lambda e: substitute(e, rest)) for k, v in attributes.items()}
    of_slice: dict[Symbol, Extent] = dict.fromkeys(cut_symbols, slice_extent)
    cut = {k: map_extents(v, lambda e: substitute(e, of_slice)) for k, v in attributes.items()}

    def along(key: str) -> Any:
        """Returns an attribute with one entry per axis, in which the entry of the cut axis refers to the slice."""
        entries = attributes[key]
        if axis is None or not isinstance(entries, tuple) or len(entries) != len(shape):
            return complete[key]
        entry = slice_extent if entries[axis] == shape[axis] else cut[key][axis]
        return (*complete[key][:axis], entry, *complete[key][axis + 1 :])

    if axis is not None:
        yield {key: along(key) for key in attributes}
        yield cut
    yield complete


def _can_compute_slice(fusion: Fusion, node: Node, axis: int, needed: Mapping[int, int | None]) -> bool:
    """Whether the op computes a slice of its result from slices of its operands."""
    result = fusion.shape_of(node.outputs[0])
    shapes = [fusion.shape_of(operand) for operand in node.operands]
    cut = [tuple(1 if a == needed.get(k) else e for a, e in enumerate(shape)) for k, shape in enumerate(shapes)]
    wanted = tuple(1 if a == axis else e for a, e in enumerate(result))
    cut_symbols = set(symbols(result[axis]))
    for attributes in _slice_attributes(_canonical(fusion, node), result, axis, cut_symbols, {}, 1):
        try:
            if tuple(map(fusion.canonical, node.op.shapes(cut, attributes, _assume)[0])) == wanted:
                return True
        except TracefuseError:
            continue
    return False


def _assume(*_: Any) -> None:
    """Accepts every requirement. The fusion of the whole axis has already checked them."""


def _symbols_of(attributes: Iterable[Any]) -> Iterator[Symbol]:
    for attribute in attributes:
        if isinstance(attribute, Expression):
            yield from symbols(attribute)
        elif isinstance(attribute, tuple):
            yield from _symbols_of(attribute)


def _copy(builder: FusionBuilder) -> FusionBuilder:
    """Returns a builder with the same state, whose changes do not affect `builder`."""
    other = FusionBuilder()
    other.__dict__.update(builder.__dict__)
    other.values, other.nodes = dict(builder.values), list(builder.nodes)
    other.inputs, other.requirements = list(builder.inputs), list(builder.requirements)
    return other
