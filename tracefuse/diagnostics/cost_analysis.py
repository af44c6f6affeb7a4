"""The cost of a plan at given sizes: arithmetic, bytes and launches, with those of loops and branches.

A loop counts its body once for each step, if the number of steps follows from sizes or from numbers of the call, and
else once. A branch counts its costlier side.

Must not know: kernels, single ops, frontends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import config
from tracefuse.diagnostics.operation_counts import is_transcendental, operations_of
from tracefuse.diagnostics.segment_nodes import nodes_of
from tracefuse.ir.control_flow import Branch, ControlFlow, CountedLoop
from tracefuse.ir.extents import Extent, evaluate, symbols
from tracefuse.ir.fusion import Fusion, Literal, Node, SubFusion
from tracefuse.partition.segmentation import Part, Segmentation, segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.peak_memory import tensor_bytes
from tracefuse.runtime.plan import Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of one call.

    flops: arithmetic operations (`operations_of`) without transcendental ones. transcendentals: elements computed by
    functions such as exp and log. bytes: those that the segments read and write, every tensor of a segment once.
    launches: of kernels and of calls of libraries.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes: int = 0
    launches: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes,
            self.launches + other.launches,
        )  # fmt: skip

    def __mul__(self, count: int) -> Cost:
        return Cost(self.flops * count, self.transcendentals * count, self.bytes * count, self.launches * count)


def cost_of(plan: Plan, sizes: Mapping[Any, int]) -> Cost:
    """Returns the cost of a call. sizes: extents and integer scalars by id."""
    launches = [1 if segment.lowered is None else len(segment.lowered.launches) for segment in plan.segments]
    return _cost_of_segments(plan.segmentation, sizes, launches)


def _cost_of_segments(segmentation: Segmentation, sizes: Mapping[Any, int], launches: Sequence[int]) -> Cost:
    total = Cost()
    for part, count in zip(segmentation.segments, launches, strict=True):
        node = segmentation.steps.nodes[part.steps[-1]]
        if isinstance(node.op, ControlFlow):
            total += _cost_of_control_flow(segmentation.fusion, node, sizes)
        else:
            total += _cost_of_part(segmentation, part, sizes, count)
    return total


def _cost_of_part(segmentation: Segmentation, part: Part, sizes: Mapping[Any, int], launches: int) -> Cost:
    computed = nodes_of(segmentation, part, sizes)
    special = [node for node in computed.nodes if is_transcendental(node)]
    transcendentals = operations_of(computed.fusion, special, computed.sizes or {})
    operations = operations_of(computed.fusion, computed.nodes, computed.sizes or {})
    crossing = dict.fromkeys((*part.segment.original_inputs, *part.segment.original_outputs))
    moved = sum(tensor_bytes(segmentation.fusion, number, sizes) for number in crossing if number >= 0)
    return Cost(operations - transcendentals, transcendentals, moved, launches)


def _cost_of_control_flow(fusion: Fusion, node: Node, sizes: Mapping[Any, int]) -> Cost:
    assert isinstance(node.op, ControlFlow)
    costs = [
        _cost_of_sub_fusion(fusion, node, sub_fusion, sizes) for _, sub_fusion in node.op.sub_fusions(node.attributes)
    ]
    if isinstance(node.op, Branch):
        return max(costs, key=lambda cost: (cost.flops + cost.transcendentals, cost.bytes))
    return sum(costs, Cost()) * (_steps(fusion, node, sizes) if isinstance(node.op, CountedLoop) else 1)


def _steps(fusion: Fusion, node: Node, sizes: Mapping[Any, int]) -> int:
    """Returns the number of steps of a counted loop; 1 if nothing that is known before the call gives it."""
    bounds = [_number(fusion, operand, sizes) for operand in node.operands[:2]]
    if None not in bounds:
        return max(bounds[1] - bounds[0], 0)  # type: ignore[operator]
    stacked = [fusion.shape_of(number)[0] for number in node.outputs[node.attributes["carried"] :]]
    return evaluate(stacked[0], sizes) if stacked and _is_known(stacked[0], sizes) else 1


def _number(fusion: Fusion, operand: Any, sizes: Mapping[Any, int]) -> int | None:
    if isinstance(operand, Literal):
        return int(operand.value.real)
    extent = fusion.values[operand].extent
    if extent is not None and _is_known(extent, sizes):
        return evaluate(extent, sizes)
    return sizes.get(operand)


def _is_known(extent: Extent, sizes: Mapping[Any, int]) -> bool:
    return all(symbol.id in sizes for symbol in symbols(extent))


def _cost_of_sub_fusion(fusion: Fusion, node: Node, part: SubFusion, sizes: Mapping[Any, int]) -> Cost:
    """Returns the cost of running a sub-fusion once, in segments as the options in force make them."""
    options = config.resolve()
    inside = dict(_sizes_of_step(fusion, node, part, sizes))
    segmentation = segment_fusion(run_passes(FUSION_PASSES, part.fusion, options), options=options)
    return _cost_of_segments(segmentation, inside, [1] * len(segmentation.segments))


def _sizes_of_step(fusion: Fusion, node: Node, part: SubFusion, sizes: Mapping[Any, int]) -> Iterator[tuple[int, int]]:
    """Yields the sizes of a sub-fusion by id; a sliced operand lacks its first axis there."""
    operands = dict(zip(part.fusion.inputs, part.select(node.operands), strict=True))
    sliced = len(node.operands) - node.attributes.get("sliced", 0)
    positions = dict(zip(part.fusion.inputs, part.inputs, strict=True))
    for key, number, axis in part.fusion.axis_ids():
        yield key, evaluate(fusion.shape_of(operands[number])[axis + (positions[number] >= sliced)], sizes)
    for number in part.fusion.scalar_inputs:
        value = _number(fusion, operands[number], sizes)
        if value is not None:
            yield number, value
