"""What the iterations of a region do, for the cost model: its bytes, its elements and its ops by class.

Must not know: targets, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracefuse.ir.extents import Extent, product
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.tilings import SizeClasses


def moved_bytes(region: Region) -> Extent:
    """Returns the bytes of the tensors that a region reads and writes, each once."""
    fusion = region.fusion
    moved: Extent = 0
    for number in {*fusion.tensor_inputs, *fusion.outputs}:
        moved = moved + product(fusion.shape_of(number)) * fusion.values[number].dtype.itemsize
    return moved


def bytes_of_iteration(region: Region) -> int:
    """Returns the bytes that an iteration of all loops reads and writes: an element of each full tensor."""
    fusion = region.fusion
    rank = max((len(fusion.shape_of(n)) for n in (*fusion.tensor_inputs, *fusion.outputs)), default=0)
    full = (n for n in {*fusion.tensor_inputs, *fusion.outputs} if len(fusion.shape_of(n)) == rank)
    return max(sum(fusion.values[n].dtype.itemsize for n in full), 1)


def operations(region: Region, elements: float) -> Mapping[str, float]:
    """Returns the elements of vectorized ops by class, if each iteration of the loops evaluates every op once."""
    count: dict[str, float] = {}
    for node in region.fusion.nodes:
        if isinstance(node.op, Movement) or not region.fusion.values[node.outputs[0]].is_tensor:
            continue
        expensive = isinstance(node.op, Pointwise) and node.op.expensive
        wide = region.fusion.values[node.outputs[0]].dtype.compute.itemsize / 4
        kind = "function" if expensive else "plain"
        count[kind] = count.get(kind, 0.0) + wide * elements
    return count


def byte_classes(region: Region, edges: tuple[int, ...]) -> SizeClasses:
    """Returns the classes of a region's bytes."""
    return SizeClasses(moved_bytes(region), edges, "the cost of a tiling depends on where the arrays are")
