"""Cuts nodes out of a recording as a fusion of their own, with local numbers and extents.

The nodes are written in the numbers and extents of the recording. What they read from outside becomes inputs: values,
and extents that no axis of an input carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.extents import Expression, Extent, symbols
from tracefuse.ir.fusion import Fusion, Node, Type, Value
from tracefuse.ir.subfusion import extents_in, map_extents, step_graph


@dataclass(frozen=True, slots=True)
class CutFusion:
    """A fusion cut out of a recording. read: for each of its inputs the value that it reads, or an extent's id."""

    fusion: Fusion
    read: tuple[int, ...]


def cut_fusion(
    values: Mapping[int, Value], nodes: Sequence[Node], outputs: Sequence[int], simplify: Callable[[Extent], Extent]
) -> CutFusion:
    """Cuts out `nodes`, in order. outputs: results of the nodes. simplify: applied to every extent."""
    complete = _with_inputs(values, nodes, outputs, simplify)
    graph = step_graph(complete)
    segment = graph.segment(range(len(nodes)), outputs)
    cut = graph.extract(segment)
    ordered = replace(cut, outputs=tuple(segment.inverse[number] for number in outputs))
    return CutFusion(ordered, tuple(segment.index_map[local] for local in segment.inputs))


def _with_inputs(
    values: Mapping[int, Value], nodes: Sequence[Node], outputs: Sequence[int], simplify: Callable[[Extent], Extent]
) -> Fusion:
    """Returns the nodes as a fusion in the numbers and extents of the recording."""
    simplified = [
        replace(node, attributes={k: map_extents(v, simplify) for k, v in node.attributes.items()}) for node in nodes
    ]
    computed = {n for node in nodes for n in node.outputs}
    read = {n for node in nodes for n in node.inputs} - computed
    extents = [e for node in simplified for e in extents_in(node.attributes)]
    extents += [e for n in (*read, *computed) for e in values[n].shape if isinstance(e, Expression)]
    read |= {s.id for e in extents for s in symbols(simplify(e)) if s.id is not None and s.id >= 0}
    typed = {
        n: replace(values[n], type=Type(values[n].dtype, tuple(map(simplify, values[n].shape))), layout=None)
        for n in (*sorted(read), *computed)
    }
    return Fusion(typed, tuple(sorted(read)), tuple(simplified), tuple(outputs))
