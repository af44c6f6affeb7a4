"""How each resize of a fusion is keyed for the sizes of a call, and what becomes static with it.

An axis is keyed by its extent and what is added at its two ends; it and every size that these are made of are then
static. Or it is keyed by whether it has one element, and stays dynamic. A resize that changes nothing is keyed so.

Knows: fusions, what rows say of resizes, guards. Must not know: how a fusion is made anew, reshapes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tracefuse.dynamic.concretization import ResizedAxis
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Expression, Extent, Symbol, evaluate, floordiv, substitute, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement, Resize
from tracefuse.ir.subfusion import map_extents


@dataclass(frozen=True, slots=True)
class Axis:
    """A resized axis in the terms of the fusion."""

    entry: ResizedAxis
    extent: Extent
    left: Extent
    right: Extent
    step: Extent
    moves: bool

    @property
    def result(self) -> Extent:
        if self.moves:
            return self.extent
        return -floordiv(-(self.extent + self.left + self.right), self.step)

    @property
    def parts(self) -> tuple[Extent, ...]:
        return (self.extent, self.left, self.right, self.step)


class ResizeFacts:
    """What the sizes say of a fusion's resizes. loose: the axes that stay dynamic; None: all.

    axes: of each value that a resize makes. table: the sizes that are static or spelled by others. guards: the facts.
    """

    def __init__(
        self, fusion: Fusion, sizes: Mapping[int, int], loose: Collection[tuple[int, int, int]] | None
    ) -> None:
        self.fusion, self.sizes, self.loose = fusion, sizes, loose
        self.guards: dict[Guard, None] = {}
        self.axes: dict[int, list[Axis]] = {}
        self.table: dict[Symbol, Extent] = {}
        self._spelled_with: dict[Symbol, dict[Symbol, None]] = {}  # the entries that a symbol stands in
        for node in fusion.nodes:
            self.look_at(node)

    def value(self, extent: Extent) -> int:
        """The value in the call at hand."""
        return evaluate(extent, self.sizes)

    def spelled(self, extent: Extent) -> Extent:
        """An extent with what is static, or spelled by other sizes."""
        return substitute(extent, self.table) if self.table else extent

    def guard(self, left: Extent, relation: str, right: Extent, reason: str, where: str | None = None) -> None:
        """Keeps a fact of the call at hand, unless it is one of every call."""
        if not isinstance(right - left, int):
            self.guards[Guard(left, relation, right, reason, where)] = None

    def changes_nothing(self, node: Node) -> bool:
        """Whether a result is its only operand; an operand beside others never is the whole result."""
        axes = self.axes.get(node.outputs[0], ())
        if not axes or len(node.operands) > 1 or not all(axis.entry.is_nothing for axis in axes):
            return False
        seen = {axis.entry.place[2] for axis in axes}
        return all((r.left, r.right, r.step) == (0, 0, 1) for r in self._resizes(node) if r.axis not in seen)

    def _resizes(self, node: Node) -> tuple[Resize, ...]:
        if not isinstance(node.op, Movement) or node.op.resize is None:
            return ()
        attributes = {k: map_extents(v, self.fusion.canonical) for k, v in node.attributes.items()}
        return node.op.resize([self.fusion.shape_of(o) for o in node.operands], attributes)

    def look_at(self, node: Node) -> None:
        """Keys every axis that the node resizes, and keeps the facts."""
        for resize in self._resizes(node):
            extent = self.fusion.shape_of(node.operands[resize.operand])[resize.axis]
            parts = (resize.left, resize.right, resize.step)
            if parts == (0, 0, 1) or all(isinstance(e, int) for e in (extent, *parts)):
                continue
            place = (node.outputs[0], resize.operand, resize.axis)
            found = Axis(self._entry(place, node, extent, *parts, moves=resize.moves), extent, *parts, resize.moves)
            self.axes.setdefault(node.outputs[0], []).append(found)
            self._keep_facts(found, node)

    def _entry(
        self, place: tuple[int, int, int], node: Node, extent: Extent, left: Extent, right: Extent, step: Extent, *,
        moves: bool,
    ) -> ResizedAxis:  # fmt: skip
        operand = node.operands[place[1]]
        assert isinstance(operand, int)
        sizes = self.value(extent), self.value(left), self.value(right)
        if sizes[1:] == (0, 0) and self.value(step) == 1:
            key = (-1, -1, -1)
        elif self.loose is None or place in self.loose:
            count = sizes[0] if moves else -(-sum(sizes) // self.value(step))
            key = (-1, 1, 1) if count == 1 else (-1, 2, 2)
        else:
            key = sizes
        return ResizedAxis(place, node.op.name, operand, key, sizes)

    def _keep_facts(self, axis: Axis, node: Node) -> None:
        """Guards what the key says, and makes static what it keys exactly."""
        entry = axis.entry
        what = f"{node.op.name} of axis {entry.place[2]}"
        if entry.is_nothing:
            for end in (axis.left, axis.right):
                self.guard(end, "==", 0, f"the {what} changes nothing", node.where)
                self._solve(end)
            self.guard(axis.step, "==", 1, f"the {what} changes nothing", node.where)
        elif entry.is_exact:
            self._guard_change(axis, f"the {what} changes it", node.where)
            for part in axis.parts:
                for symbol in symbols(part):
                    assert symbol.id is not None
                    value, own = self.sizes[symbol.id], Expression((((symbol,), 1),))
                    self._enter(symbol, value)
                    self.guard(own, "==", value, f"the {what} is made for it", node.where)
        else:
            self._guard_change(axis, f"the {what} changes it", node.where)
            relation = "==" if entry.key == (-1, 1, 1) else "!="
            self.guard(axis.result, relation, 1, f"the {what} makes a broadcast axis or not", node.where)

    def _solve(self, zero: Extent) -> None:
        """Spells a run-time scalar by the others of an expression that is 0."""
        expression = self.spelled(zero)
        for monomial, coefficient in expression.terms if isinstance(expression, Expression) else ():
            one = monomial[0] if len(monomial) == 1 else None
            if not isinstance(one, Symbol) or one.id is None or one.id < 0 or abs(coefficient) != 1:
                continue
            rest = Expression((((one,), 1),)) - expression * coefficient
            if one not in symbols(rest):
                self._enter(one, rest)
                return

    def _enter(self, one: Symbol, spelling: Extent) -> None:
        """Spells a size by others, also where it stands in what was entered before."""
        if one in self.table and self.table[one] == spelling:
            return
        changed = self._spelled_with.pop(one, {})
        self.table.update((known, substitute(self.table[known], {one: spelling})) for known in changed)
        self.table[one] = spelling
        for found in symbols(spelling):
            self._spelled_with.setdefault(found, {}).update({**changed, one: None})

    def _guard_change(self, axis: Axis, reason: str, where: str | None) -> None:
        """That the resize is none that changes nothing, by the first end for which that shows."""
        ends = ((axis.left, 0), (axis.right, 0), (axis.step, 1))
        if not any(isinstance(end, int) and end != nothing for end, nothing in ends):
            end, nothing = next((end, nothing) for end, nothing in ends if self.value(end) != nothing)
            self.guard(end, "!=", nothing, reason, where)
