"""Stream-parallel values: the merge rule for them, and the fusion of one slice of a segment.

The user marks values one by one. Marked values with the same extent and chunks can share a segment with each other and
with the unmarked values that only they read. An unmarked value that reads a marked one is computed whole, in a later
segment.
"""

from __future__ import annotations

import segments
from segments import Predicate, Verdict, both, no, yes
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.parallel_types import StreamAxis
from tracefuse.partition.predicates import Group
from tracefuse.partition.slicing import Sliced, can_slice, slice_fusion


def on_streams(fusion: Fusion) -> bool:
    """Whether any value of the fusion is stream-parallel."""
    return any(stream_of(fusion, number) is not None for number in fusion.values)


def stream_of(fusion: Fusion, number: int) -> StreamAxis | None:
    """Returns the stream-parallel axis of a value, None if it has none or if the axis has extent 1."""
    stream = fusion.values[number].stream
    return None if stream is None or fusion.shape_of(number)[stream.axis] == 1 else stream


def with_streams(fusion: Fusion, merge: Predicate | None) -> Predicate | None:
    """Returns the predicate for a fusion: the user's, combined with the rule for stream-parallel values."""
    if not on_streams(fusion):
        return merge
    return slices_alike if merge is None else both(slices_alike, merge)


def kind_of_slices(fusion: Fusion, number: int) -> tuple[Extent, int | None] | None:
    """Returns the extent of the stream-parallel axis and the number of chunks.

    Values must share both to share a loop.
    """
    stream = stream_of(fusion, number)
    return None if stream is None else (fusion.shape_of(number)[stream.axis], stream.chunks)


def slices_alike(first: Group, second: Group) -> Verdict:
    """Allows a merge if the union can be computed slice by slice, or contains no stream-parallel value."""
    union = first.union(second)
    fusion = union.fusion
    outputs = [number for node in union.nodes for number in node.outputs]
    kinds = {kind_of_slices(fusion, number) for number in outputs} - {None}
    if not kinds:
        return yes()
    if len(kinds) > 1:
        return no("slices with different extents or chunks", extents=tuple(kinds))
    reader = _whole_reader(fusion, union.nodes)
    if reader is not None:
        return no("a reader of slices computes a whole value", reader=reader.op.name)
    cut = {}
    for number in union.outputs:
        stream = stream_of(fusion, number)
        if stream is None:
            return no("another segment reads a value that is computed whole", value=number)
        cut[number] = stream.axis
    for number in outputs:
        stream = stream_of(fusion, number)
        if stream is not None and cut.setdefault(number, stream.axis) != stream.axis:
            return no("slices along different axes", value=number)
    in_chunks = any(kind is not None and kind[1] is not None for kind in kinds)
    return can_slice(fusion, union.nodes, cut, chunks=in_chunks)


def _whole_reader(fusion: Fusion, nodes: tuple[Node, ...]) -> Node | None:
    """Returns a node that computes whole values and reads slices, None if there is none."""
    marked = {number for node in nodes for number in node.outputs if stream_of(fusion, number) is not None}
    for node in nodes:
        if not marked.isdisjoint(node.inputs) and marked.isdisjoint(node.outputs):
            return node
    return None


def slice_part(fusion: Fusion, interface: segments.Segment, part: Fusion) -> Sliced | None:
    """Returns the fusion of one slice of a segment, None for a segment that computes whole values.

    Raises UnsupportedError for a marked value whose slices do not depend on slices alone.
    """
    streams = {local: stream_of(fusion, interface.index_map[local]) for local in part.outputs}
    marked = {local: stream for local, stream in streams.items() if stream is not None}
    if not marked:
        return None
    chunks = {stream.chunks for stream in marked.values()}
    if len(marked) < len(streams) or len(chunks) > 1:
        raise InternalError("a segment has both whole results and slices", hint=str(interface))
    return slice_fusion(part, {local: stream.axis for local, stream in marked.items()}, chunks.pop())
