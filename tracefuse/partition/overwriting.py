"""Decides whether a kernel may write to a buffer that it also reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from tracefuse.ir.data_positions import refuses_elements, takes_positions
from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Fusion, Node, Shape
from tracefuse.ir.indexing import PULLED, sources
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.partition.segmentation import Part
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.merge_rule import segment_facts
from tracefuse.schedule.row_update_facts import RowUpdateFacts
from tracefuse.schedule.row_update_rule import RowUpdateRule


def in_place(part: Part, pairs: Collection[tuple[int, int]]) -> frozenset[int]:
    """Returns the tensors of `pairs` if a kernel may update them in place, otherwise an empty set.

    pairs: an output and an input that are the same array. An update in place is safe if every read of the input, for
    every output, is at the coordinates of the store. The thread that stores has then read everything that it needs from
    those coordinates before it stores the first output.
    """
    if not pairs:
        return frozenset()
    facts = segment_facts(part.rule)
    if isinstance(facts, RowUpdateFacts):
        is_table = all(pair == (facts.result, facts.table) for pair in pairs) and _is_only_table(part, facts)
        return frozenset((facts.result, facts.table)) if is_table else frozenset()
    if not isinstance(facts, Facts) or facts.reduced is not None:
        return frozenset()
    for output, argument in pairs:
        if PULLED in facts.outputs[output] or facts.uses.get(argument) != frozenset((facts.outputs[output],)):
            return frozenset()
    return frozenset(number for pair in pairs for number in pair)


def _is_only_table(part: Part, facts: RowUpdateFacts) -> bool:
    """Whether the table of a row update is an argument that nothing else in the segment reads."""
    reads = [number for node in part.fusion.nodes for number in node.operands if number == facts.table]
    return facts.table in part.fusion.inputs and len(reads) == 1


def raises_before_writing(part: Part) -> bool:
    """Whether a kernel finds everything that may raise in the segment before it writes a result."""
    facts = part.rule.whole.facts if isinstance(part.rule, RowUpdateRule) else None
    if not isinstance(facts, RowUpdateFacts):
        return False
    return not any(takes_positions(n) or refuses_elements(n) for n in part.fusion.nodes if n is not facts.node)


def reads_only_slice(
    part: Part, output: int, argument: int, is_slice: Callable[[Node], bool], is_apart: Callable[[Node], bool]
) -> bool:
    """Whether a kernel may update a slice of an argument in place: it reads that slice alone, element by element.

    is_slice: whether a node takes that slice. is_apart: whether a node takes a slice that shares no element with it;
    those it may read in any way. What the slice reaches must be pointwise, and may drop and add axes of extent 1, so
    that every read is at the coordinates of the store.
    """
    if reads_apart(part, argument, is_apart):
        return True
    fusion = part.fusion
    facts = segment_facts(part.rule)
    if not isinstance(facts, Facts) or facts.reduced is not None:
        return False
    own = _own_axes(fusion.shape_of(output))
    axes: dict[int, _Axes] = {}
    for node in fusion.nodes:
        if argument in node.inputs:
            if not _takes_slice(node):
                return False
            if is_apart(node):
                continue
            if not is_slice(node) or fusion.shape_of(node.outputs[0]) != fusion.shape_of(output):
                return False
            axes[node.outputs[0]] = own
            continue
        reached = {axes[number] for number in node.inputs if number in axes}
        if not reached:
            continue
        moved = _moved_axes(fusion, node, axes)
        if moved is None:
            return False
        axes.update(dict.fromkeys(node.outputs, moved))
    return axes.get(output, own) == own


_Axes: TypeAlias = tuple[int | None, ...]
"""The axis of a slice that each axis of a value follows; None for an axis of extent 1."""


def _own_axes(shape: Shape) -> _Axes:
    return tuple(None if extent == 1 else axis for axis, extent in enumerate(shape))


def _moved_axes(fusion: Fusion, node: Node, axes: Mapping[int, _Axes]) -> _Axes | None:
    """Returns the axes of a node's result, some of whose operands have `axes`; None if elements change their places."""
    result = fusion.shape_of(node.outputs[0])
    if isinstance(node.op, Pointwise):
        operands = [number for number in node.inputs if number in axes]
        same = {axes[number] for number in operands}
        keeps = len(same) == 1 and all(fusion.shape_of(number) == result for number in operands)
        return same.pop() if keeps else None
    if not isinstance(node.op, Movement) or len(node.inputs) != 1:
        return None
    places = [0 if extent == 1 else symbol("place", extent=extent) for extent in result]
    (source, *others) = sources(fusion, node, tuple(places), lambda *_: 0)
    (operand,) = node.inputs
    if others or source.conditions or len(source.coordinates) != len(axes[operand]):
        return None
    moved: list[int | None] = [None] * len(places)
    for axis, coordinate in zip(axes[operand], source.coordinates, strict=True):
        if coordinate == 0 and axis is None:
            continue
        if axis is None or coordinate not in places:
            return None
        moved[places.index(coordinate)] = axis
    followed = sum(axis is not None for axis in moved)
    return tuple(moved) if followed == sum(place != 0 for place in places) else None


def reads_apart(part: Part, argument: int, is_apart: Callable[[Node], bool]) -> bool:
    """Whether a segment reads of an argument only slices for which `is_apart` holds."""
    readers = [node for node in part.fusion.nodes if argument in node.inputs]
    return argument not in part.fusion.outputs and all(_takes_slice(node) and is_apart(node) for node in readers)


def _takes_slice(node: Node) -> bool:
    return isinstance(node.op, Movement) and node.op.slices == "read"


def same_extents(first: tuple[Extent, ...], second: tuple[Extent, ...], values: Callable[[Extent], int]) -> bool:
    """Whether extents are equal. values: their values in this call; a plan guards extents that it made constant."""
    return all(a == b or (isinstance(a, int) and a == values(b)) for a, b in zip(first, second, strict=True))
