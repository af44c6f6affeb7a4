"""Which parts of a fusion are computed slice by slice on streams: a rule for merging, and what it makes of a part.

Values are marked one by one. Marked values of one kind of slices share a segment, and so does what only they read;
what reads a marked value and is not marked is computed whole, later.

Knows: marks, groups of nodes, slices. Must not know: loops, programs, devices.
"""

from __future__ import annotations

import segments
from segments import Predicate, Verdict, both, no, yes
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.parallel_types import StreamAxis
from tracefuse.partition.predicates import Group
from tracefuse.partition.slicing import Sliced, can_slice, sliced


def on_streams(fusion: Fusion) -> bool:
    """Whether any value of the fusion goes to streams."""
    return any(stream_of(fusion, number) is not None for number in fusion.values)


def stream_of(fusion: Fusion, number: int) -> StreamAxis | None:
    """The axis of a value whose slices go to streams; one of extent 1 has nothing to cut."""
    stream = fusion.values[number].stream
    return None if stream is None or fusion.shape_of(number)[stream.axis] == 1 else stream


def with_streams(fusion: Fusion, merge: Predicate | None) -> Predicate | None:
    """The predicate that a fusion is split with: the user's, and that segments can be computed in slices."""
    if not on_streams(fusion):
        return merge
    return slices_alike if merge is None else both(slices_alike, merge)


def kind_of_slices(fusion: Fusion, number: int) -> tuple[Extent, int | None] | None:
    """What tells loops over slices apart: the extent of the axis, and into how many pieces it is cut."""
    stream = stream_of(fusion, number)
    return None if stream is None else (fusion.shape_of(number)[stream.axis], stream.pieces)


def slices_alike(first: Group, second: Group) -> Verdict:
    """Both groups as one can be computed slice by slice, or have nothing to do with streams."""
    union = first.union(second)
    fusion = union.fusion
    made = [number for node in union.nodes for number in node.outputs]
    kinds = {kind_of_slices(fusion, number) for number in made} - {None}
    if not kinds:
        return yes()
    if len(kinds) > 1:
        return no("slices of different kinds", extents=tuple(kinds))
    reader = _whole_reader(fusion, union.nodes)
    if reader is not None:
        return no("what reads slices is computed whole", reader=reader.op.name)
    cut = {}
    for number in union.outputs:
        stream = stream_of(fusion, number)
        if stream is None:
            return no("a value that is computed whole is needed elsewhere", value=number)
        cut[number] = stream.axis
    for number in made:
        stream = stream_of(fusion, number)
        if stream is not None and cut.setdefault(number, stream.axis) != stream.axis:
            return no("slices along different axes", value=number)
    pieces = any(kind is not None and kind[1] is not None for kind in kinds)
    return can_slice(fusion, union.nodes, cut, pieces=pieces)


def _whole_reader(fusion: Fusion, nodes: tuple[Node, ...]) -> Node | None:
    """A node that makes no slices and reads what depends on slices."""
    marked = {number for node in nodes for number in node.outputs if stream_of(fusion, number) is not None}
    for node in nodes:
        if not marked.isdisjoint(node.inputs) and marked.isdisjoint(node.outputs):
            return node
    return None


def sliced_part(fusion: Fusion, border: segments.Segment, part: Fusion) -> Sliced | None:
    """A segment for one slice of its results, None where it is computed whole.

    Raises UnsupportedError where a value is marked whose slices are made of more than slices.
    """
    streams = {local: stream_of(fusion, border.index_map[local]) for local in part.outputs}
    marked = {local: stream for local, stream in streams.items() if stream is not None}
    if not marked:
        return None
    pieces = {stream.pieces for stream in marked.values()}
    if len(marked) < len(streams) or len(pieces) > 1:
        raise InternalError("a segment is computed whole and in slices", hint=str(border))
    return sliced(part, {local: stream.axis for local, stream in marked.items()}, pieces.pop())
