"""Sums of narrow integers on the CPU, such as counts of booleans.

The sum of bytes is an int64, and LLVM would widen every element to it: four to a vector. So lanes hold sums that are
at most twice as wide as an element, of as many elements as cannot overflow them, which a block has at most.

Must not know: sizes.
"""

from __future__ import annotations

from tracefuse.dtypes import DType, bool_, int8, int16, int32, uint8, uint16, uint32
from tracefuse.ir.extents import Extent, floordiv, symbol
from tracefuse.kernel.kernel_ir import Accumulate, Allocate, Buffer, Expression, Load, Store, call
from tracefuse.kernel.scalar_code import constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.nest import Loop
from tracefuse.schedule.probe import weights
from tracefuse.schedule.reduction_states import Accumulator, accumulate, lifted
from tracefuse.schedule.region_phases import Region

_LANE_BYTES = 64
_TERMS = 255
"""The bytes of the lanes: one or two vectors; the elements that each lane adds at most."""

_LANES: dict[DType, DType] = {bool_: uint8, int8: int16, uint8: uint16, int16: int32, uint16: uint32}
"""The type of a lane, which holds the sum of _TERMS elements, by the type of an element."""


def is_narrow(region: Region, state: Accumulator, *, alone: bool) -> bool:
    """Whether a state is a sum of integers that are narrower than it.

    alone: no other reduction or output needs the elements; else they are computed twice, and have to be cheap.
    """
    operand = state.node.operands[0]
    if state.op.combine != "add" or state.op.lift != "a" or not isinstance(operand, int):
        return False
    lane = _LANES.get(region.fusion.values[operand].dtype)
    total = state.variables[0].dtype
    fits = lane is not None and total.is_integer and total.itemsize > lane.itemsize
    return fits and (alone or not weights(region.fusion)[operand])


def narrow_elements(region: Region, state: Accumulator) -> int:
    """Returns the most elements of a block of a state that `is_narrow`."""
    return _lane_count(_lane_type(region, state)) * _TERMS


def _lane_type(region: Region, state: Accumulator) -> DType:
    operand = state.node.operands[0]
    assert isinstance(operand, int)
    return _LANES[region.fusion.values[operand].dtype]


def _lane_count(dtype: DType) -> int:
    return _LANE_BYTES // dtype.itemsize


def add_block(body: Body, region: Region, state: Accumulator, inner: Loop, first: Extent, last: Extent) -> None:
    """Adds the elements from `first` to `last` of the loop `inner`, a block, to a running sum."""
    dtype, total = _lane_type(region, state), state.variables[0]
    count = _lane_count(dtype)
    lanes = Buffer(body.fresh(f"lanes{state.node.outputs[0]}"), dtype, "local", count)
    body.append(Allocate(lanes))
    base, lane = symbol("base", extent=inner.extent), symbol("lane", extent=count)

    def at() -> Expression:
        return body.index.code(lane)  # the variable of the symbol differs between loops

    with body.loop(lane, count, "vector"):
        body.append(Store(lanes, at(), constant(0, dtype)))
    with body.loop(base, last - (count - 1), start=first, step=count), body.loop(lane, count, "vector"):
        body.bind(inner.index, body.index.code(base + lane))
        ((element,),) = lifted(body, region, state.node)
        body.append(Store(lanes, at(), call("add", Load(lanes, at()), convert(element, dtype))))
    with body.loop(lane, count, "vector"):
        body.append(Accumulate(total, "add", convert(Load(lanes, at()), total.dtype)))
    with body.loop(inner.index, last, "vector", start=first + floordiv(last - first, count) * count):
        accumulate(body, region, state)
