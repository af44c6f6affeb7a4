"""The graph that a view draws: ops, the segments that hold them, and the values that cross their borders.

A picture is plain data: texts, integers and tuples of them, so that it is JSON, DOT and SVG alike. An op that several
segments compute has a box in each. Host scalars belong to no segment.

Must not know: single ops, frontends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import source
from tracefuse.diagnostics.segment_nodes import SegmentNodes, nodes_of
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Literal, Node, SubFusion
from tracefuse.partition import segment_table
from tracefuse.partition.predicates import sum_of_bytes
from tracefuse.partition.segmentation import Part, Segmentation
from tracefuse.runtime.peak_memory import tensor_bytes


@dataclass(frozen=True, slots=True)
class DrawnValue:
    """A value. name: T3 or S3. label: the user's name. type: its dtype and extents, as numbers if sizes are known.

    bytes: None if sizes are unknown; `size` is its text or symbolic expression, "" for a scalar. where, line: the
    user's line and its source.
    """

    number: int
    name: str
    label: str
    type: str
    bytes: int | None
    size: str
    where: str
    line: str


@dataclass(frozen=True, slots=True)
class DrawnOp:
    """An op. id: unique in the picture. segment: the position of its segment, None on the host. text: the op as a call.

    inputs, outputs: values by number.
    """

    id: str
    op: str
    kind: str
    segment: int | None
    text: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str
    line: str


@dataclass(frozen=True, slots=True)
class DrawnSegment:
    """A segment. kind: "pointwise", "reduction", "scan", "library" or the name of a control-flow op, which gives its
    colour. ops: ids. bytes: as for a value, of all tensors that cross its border.
    """

    position: int
    template: str
    kind: str
    ops: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bytes: int | None
    size: str


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """Values that go from one box to another. Boxes: input:N, output:N, host:N by value, segment:K by position."""

    source: str
    target: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Why two segments, by position, are not one."""

    first: int
    second: int
    reason: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A fusion as boxes and edges. segments: empty if the fusion is not segmented."""

    values: tuple[DrawnValue, ...]
    ops: tuple[DrawnOp, ...]
    segments: tuple[DrawnSegment, ...]
    edges: tuple[DrawnEdge, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    boundaries: tuple[Boundary, ...]


def picture_of(
    segmentation: Segmentation, templates: Sequence[str] = (), sizes: Mapping[int, int] | None = None
) -> Picture:
    """Returns the picture of a segmented fusion. templates: of each segment. sizes: extent values by id, if known."""
    fusion, steps = segmentation.fusion, segmentation.steps
    values = tuple(_drawn_value(fusion, number, sizes) for number in sorted(fusion.values))
    known = {value.number: value for value in values}
    on_steps = {id(node) for node in steps.nodes}
    host = [_drawn_op(fusion, node, None, k) for k, node in enumerate(fusion.nodes) if id(node) not in on_steps]
    ops, drawn = list(host), []
    inside: list[DrawnValue] = []
    for position, part in enumerate(segmentation.segments):
        computed = nodes_of(segmentation, part, sizes)
        if computed.fusion is fusion:
            boxes = [_drawn_op(fusion, steps.nodes[step], position, step) for step in part.steps]
        else:
            boxes = [_drawn_op(fusion, node, position, k) for k, node in enumerate(computed.originals)]
            inside += _drawn_inside(computed, known)
        ops += boxes
        template = templates[position] if templates else part.template
        drawn.append(_drawn_segment(fusion, part, position, template, boxes, known, sizes is not None))
    reasons = sorted(segmentation.partition.boundaries.items())
    boundaries = tuple(Boundary(first, second, str(verdict)) for (first, second), verdict in reasons)
    edges = tuple(_edges(fusion, drawn, host))
    return Picture((*values, *inside), tuple(ops), tuple(drawn), edges, fusion.inputs, fusion.outputs, boundaries)


def picture_of_fusion(fusion: Fusion) -> Picture:
    """Returns the picture of a fusion that is not segmented: ops with symbolic extents, no edges between boxes."""
    values = tuple(_drawn_value(fusion, number, None) for number in sorted(fusion.values))
    ops = tuple(_drawn_op(fusion, node, None, k) for k, node in enumerate(fusion.nodes))
    return Picture(values, ops, (), (), fusion.inputs, fusion.outputs, ())


def _drawn_value(fusion: Fusion, number: int, sizes: Mapping[int, int] | None) -> DrawnValue:
    value = fusion.values[number]
    extents = fusion.shape_of(number)
    shape = [str(extent if sizes is None else evaluate(extent, sizes)) for extent in extents]
    size = None if sizes is None else tensor_bytes(fusion, number, sizes)
    symbolic = sum_of_bytes(fusion, [number]) if value.is_tensor else 0
    return DrawnValue(
        number,
        f"{'T' if value.is_tensor else 'S'}{number}",
        value.name or "",
        f"{value.dtype.short}[{', '.join(shape)}]" if value.is_tensor else value.dtype.short,
        size,
        segment_table.bytes_text(symbolic if size is None else size) if value.is_tensor else "",
        value.where or "",
        source.text_at(value.where) if value.where else "",
    )


def _drawn_op(fusion: Fusion, node: Node, segment: int | None, step: int) -> DrawnOp:
    owner = "host" if segment is None else segment
    where = node.where or ""
    return DrawnOp(
        f"{owner}.{step}", node.op.name, node.op.kind, segment, _call_text(fusion, node), node.inputs, node.outputs,
        where, source.text_at(where) if where else "",
    )  # fmt: skip


def _drawn_inside(computed: SegmentNodes, known: Mapping[int, DrawnValue]) -> Iterator[DrawnValue]:
    """Yields the values between the nodes of a segment that one node of the fusion stands for."""
    for node, original in zip(computed.nodes, computed.originals, strict=True):
        for local, number in zip(node.outputs, original.outputs, strict=True):
            if number not in known:
                yield replace(_drawn_value(computed.fusion, local, computed.sizes), number=number, name=f"T{number}")


def _call_text(fusion: Fusion, node: Node) -> str:
    """Returns a node as a call, such as `T3 = sum(T2, dims=(1,))`."""
    operands = [str(o.value) if isinstance(o, Literal) else _name(fusion, o) for o in node.operands]
    operands += [f"{key}={value}" for key, value in node.attributes.items() if not isinstance(value, SubFusion)]
    outputs = ", ".join(_name(fusion, number) for number in node.outputs)
    return f"{outputs}{' = ' if outputs else ''}{node.op.name}({', '.join(operands)})"


def _name(fusion: Fusion, number: int) -> str:
    value = fusion.values.get(number)
    return f"{'T' if value is None or value.is_tensor else 'S'}{number}"


def _drawn_segment(
    fusion: Fusion, part: Part, position: int, template: str, boxes: Sequence[DrawnOp],
    known: Mapping[int, DrawnValue], has_sizes: bool,
) -> DrawnSegment:  # fmt: skip
    inputs = tuple(number for number in part.segment.original_inputs if number in known)
    outputs = tuple(number for number in part.segment.original_outputs if number in known)
    crossing = tuple(dict.fromkeys((*inputs, *outputs)))
    size = sum(known[number].bytes or 0 for number in crossing) if has_sizes else None
    text = segment_table.bytes_text(sum_of_bytes(fusion, crossing) if size is None else size)
    ids = tuple(box.id for box in boxes)
    return DrawnSegment(position, template, part.template, ids, inputs, outputs, size, text)


def _edges(fusion: Fusion, segments: Sequence[DrawnSegment], host: Sequence[DrawnOp]) -> Iterator[DrawnEdge]:
    """Yields the edges between boxes, one for each pair of boxes."""
    origin = {number: f"input:{number}" for number in fusion.inputs}
    origin |= {number: f"host:{op.outputs[0]}" for op in host for number in op.outputs}
    origin |= {number: f"segment:{segment.position}" for segment in segments for number in segment.outputs}
    crossing: dict[tuple[str, str], list[int]] = {}
    readers: list[tuple[str, Sequence[int]]] = [(f"host:{op.outputs[0]}", op.inputs) for op in host if op.outputs]
    readers += [(f"segment:{segment.position}", segment.inputs) for segment in segments]
    readers += [(f"output:{number}", (number,)) for number in dict.fromkeys(fusion.outputs)]
    for target, numbers in readers:
        for number in numbers:
            if number in origin:
                crossing.setdefault((origin[number], target), []).append(number)
    for (start, target), numbers in crossing.items():
        yield DrawnEdge(start, target, tuple(numbers))
