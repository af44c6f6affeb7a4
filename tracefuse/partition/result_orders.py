"""The order in memory of results: that of the operands of elementwise functions, as in NumPy.

NumPy computes `2 * x` of an array in Fortran order along its memory, and the result has the same order. A kernel's
loops follow its outputs, so a permuted output, which the call permutes back, makes the kernel do the same. The order of
a value is its axes from the outermost to the innermost in memory. It follows from those operands that have all of the
value's elements, if they agree; otherwise it is row-major. The same holds for reductions, and for ops that extend, join
or shift axes, such as `np.concatenate`, `np.pad` and `np.roll`. Copies are row-major, as `np.ascontiguousarray(x.T)`
is, and so are other results that only move elements.

Must not know: kernels, targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import BROADCAST, Strided, symbolic_strides
from tracefuse.ir.extents import evaluate, substitute, symbols
from tracefuse.ir.fusion import Fusion, Layout, Node
from tracefuse.ir.indexing import AxisMap, flat, is_along, use_maps
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.ir.scan_kind import is_library_call
from tracefuse.ops.roles import COPY, PERMUTE
from tracefuse.passes.rewriter import Rewriter, renamed

Order: TypeAlias = tuple[int, ...]

REASON = "results have the order in memory of the operands"


def result_orders(
    fusion: Fusion, layouts: Sequence[Strided | None], sizes: Mapping[int, int], strides: Mapping[str, int]
) -> tuple[dict[int, Order], tuple[Guard, ...]]:
    """Returns the orders of values that are not row-major, if an output is not, and the guards of that.

    The values are inputs, outputs, and others that may be stored.

    layouts: of the tensor inputs, None for C order. sizes: extent values by id. strides: those of other inputs, by the
    names of their symbols. Outputs that update an argument stay as they are.
    """
    producers = fusion.producers
    computed = [
        number for number in fusion.outputs
        if number not in fusion.aliases and len(fusion.shape_of(number)) > 1 and _keeps_order(producers.get(number))
    ]  # fmt: skip
    if not computed or (not any(layouts) and not any(node.op is PERMUTE for node in fusion.nodes)):
        return {}, ()
    orders: dict[int, Order | None] = {}
    guards: list[Guard] = []
    for number, layout in zip(fusion.tensor_inputs, layouts, strict=True):
        orders[number], needed = _order_of_input(fusion, number, layout, sizes, strides)
        guards += needed
    for node in fusion.nodes:
        _add_orders(fusion, node, orders)
    read = {number for node in fusion.nodes if not _keeps_order(node) for number in node.inputs}
    other = {n: order for n, order in orders.items() if order is not None and order != _row_major(len(order))}
    chosen = {number: other[number] for number in computed if number not in read and number in other}
    inputs = {number: other[number] for number in fusion.tensor_inputs if number in other}
    return {**inputs, **_read_again(fusion, other), **chosen} if chosen else {}, tuple(guards)


def _read_again(fusion: Fusion, orders: Mapping[int, Order]) -> dict[int, Order]:
    """Returns the orders of joined values that several nodes read, which may be stored."""
    readers = Counter(number for node in fusion.nodes for number in {*node.inputs})
    joined = (node.outputs[0] for node in fusion.nodes if len(node.inputs) > 1 and _shifts(node))
    return {n: orders[n] for n in joined if readers[n] > 1 and n in orders and n not in fusion.outputs}


def with_orders(fusion: Fusion, orders: Mapping[int, Order]) -> Fusion:
    """Returns the fusion with outputs that are permuted to be row-major in memory, and inputs of declared orders.

    Others are permuted and back, so that what is stored of them is row-major.
    """
    rewriter = Rewriter(fusion)
    again: dict[int, int] = {}
    ends = {*fusion.inputs, *fusion.outputs}
    for node in fusion.nodes:
        rewriter.keep(renamed(node, again))
        for number in orders.keys() & {*node.outputs} - ends:
            value, again[number] = fusion.values[number], number
            for dims in (orders[number], inverse(orders[number])):
                (again[number],) = rewriter.node(
                    PERMUTE, (again[number],), {"dims": dims}, value.dtype, (value.dtype,), where=value.where
                )  # fmt: skip
    for number, order in orders.items():
        if number not in ends:
            continue
        value = fusion.values[number]
        if number in fusion.inputs:
            ranks = tuple(len(order) - 1 - place for place in inverse(order))
            rewriter.values[number] = replace(value, layout=Layout(stride_order=ranks))
            continue
        (permuted,) = rewriter.node(PERMUTE, (number,), {"dims": order}, value.dtype, (value.dtype,), where=value.where)
        rewriter.mark(permuted, number)
        rewriter.outputs = [permuted if output == number else output for output in rewriter.outputs]
    return rewriter.build()


def inverse(order: Order) -> Order:
    """Returns the permutation that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _keeps_order(node: Node | None) -> bool:
    """Whether the results of a node are in the order of its operands."""
    return node is not None and node.op is not COPY and (isinstance(node.op, Pointwise | Reduction) or _shifts(node))


def _shifts(node: Node) -> bool:
    """Whether each axis of the result is the same axis of the operands, extended, cut, shifted or reversed."""
    return isinstance(node.op, Movement) and node.op.shifts is not None


def _row_major(rank: int) -> Order:
    return tuple(range(rank))


def _order_of_input(
    fusion: Fusion, number: int, layout: Strided | None, sizes: Mapping[int, int], strides: Mapping[str, int]
) -> tuple[Order | None, list[Guard]]:
    """Returns the order of an input, None if an axis is broadcast or reversed, and the guards of that."""
    shape = fusion.values[number].shape
    if layout is None:
        return _row_major(len(shape)), []
    if BROADCAST in layout.axes:
        return None, []
    steps = symbolic_strides(layout, shape, number)
    free = {s: strides[s.name] for step in steps for s in symbols(step) if s.id is None}
    known = [evaluate(substitute(step, free), sizes) for step in steps]
    if min(known) < 0:
        return None, [Guard(step, "<=", -1, REASON) for step, size in zip(steps, known, strict=True) if size < 0]
    order = tuple(sorted(range(len(shape)), key=lambda axis: -known[axis]))
    pairs = [(steps[inner], steps[outer]) for outer, inner in pairwise(order)]
    return order, [Guard(i, "<=", o, REASON) for i, o in pairs if not (isinstance(i, int) and isinstance(o, int))]


def _add_orders(fusion: Fusion, node: Node, orders: dict[int, Order | None]) -> None:
    """Adds the orders of what a node computes; None for a value whose operands have fewer elements."""
    if not fusion.values[node.outputs[0]].is_tensor:
        return
    for number in node.outputs:
        orders[number] = _row_major(len(fusion.shape_of(number)))
    if is_library_call(node.op) or node.op is COPY or len(node.outputs) > 1:
        return
    if _shifts(node):
        found = {order for number in node.inputs if (order := orders.get(number)) is not None}
        if len(found) < 2:
            orders[node.outputs[0]] = next(iter(found), None)
        return
    _, result, reads = use_maps(fusion, node)
    wide = set(flat(result))
    votes = {vote for number, read in reads if (vote := _vote(wide, orders.get(number), read)) is not None}
    if len(votes) > 1 or () in votes or not all(map(is_along, result)):
        return
    places = {loop: place for place, loop in enumerate(next(iter(votes), ()))}
    place_of = [max((places.get(loop, -1) for loop in flat((entry,))), default=-1) for entry in result]
    orders[node.outputs[0]] = _sorted_axes(place_of) if votes else None


def _sorted_axes(places: Sequence[int]) -> Order:
    """Returns the axes by their places. One without a place, -1, stays behind the axis before it, as in NumPy."""
    order: list[int] = []
    for axis, place in enumerate(places):
        behind = [k for k, other in enumerate(order) if -1 < place < places[other]]
        order.insert(behind[0] if behind else len(order), axis)
    return tuple(order)


def _vote(wide: set[int], order: Order | None, read: AxisMap) -> tuple[int, ...] | None:
    """Returns a result's loops in the order of an operand; None if it lacks some, () if it has other coordinates."""
    if order is None:
        return None
    if not all(map(is_along, read)):
        return ()
    loops = flat(tuple(read[axis] for axis in order))
    vote = tuple(loop for loop in loops if loop in wide)
    return vote if wide <= set(vote) else None
