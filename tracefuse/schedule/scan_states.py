"""The states of a scan: how they join, and how an element is defined from the state up to it.

Must not know: targets, sizes.
"""

from __future__ import annotations

from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Node
from tracefuse.ir.scan_kind import Scan
from tracefuse.kernel.kernel_ir import Expression, call
from tracefuse.kernel.scalar_code import constant, convert
from tracefuse.schedule.body import Body
from tracefuse.schedule.reduction_states import state_types
from tracefuse.schedule.region_phases import Region, combining
from tracefuse.schedule.scopes import Lanes


def joined(node: Node, earlier: Expression, later: Expression) -> Expression:
    """Returns the state of adjacent elements from the states of two parts of them."""
    return call(combining(node).combine, earlier, later)


def state_after(body: Body, node: Node, index: Extent, state: Expression, element: Expression) -> Expression:
    """Returns the state up to an element, from the state before it. index: that of the loop along the scan."""
    assert isinstance(node.op, Scan)
    (dtype,) = state_types(node)
    after = joined(node, state, element)
    return after if node.op.has_neutral(dtype) else call("select", body.index.compare("eq", index, 0), element, after)


def neutral_state(node: Node) -> Expression:
    """Returns the state of no elements."""
    assert isinstance(node.op, Scan)
    (dtype,) = state_types(node)
    return constant(node.op.neutral(dtype), dtype)


def as_element(body: Body, region: Region, node: Node, state: Expression) -> Expression:
    """Returns the element of a scan from the state up to it, rounded if it is stored as a half."""
    value = region.fusion.values[node.outputs[0]]
    element = convert(state, value.dtype.compute)
    if value.dtype.is_half and node.outputs[0] in body.outputs:
        return convert(convert(element, value.dtype), value.dtype.compute)
    return element


def define_element(body: Body, region: Region, node: Node, lanes: Lanes) -> None:
    """Defines a scan's element at the current loop indices, one expression per lane."""
    body.levels[-1].memo[(node.outputs[0], region.at[node.outputs[0]][0])] = lanes
