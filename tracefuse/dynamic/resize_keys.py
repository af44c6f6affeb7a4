"""The keys of the resizes of a fusion for the sizes of a call, and the sizes that become static.

A static axis is keyed by its extent and the elements added at its two ends; it and every size in these expressions
become static. A dynamic axis is keyed by whether it has one element. A resize that changes nothing has its own key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.concretization import ResizedAxis
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Expression, Extent, Symbol, evaluate, floordiv, substitute, symbols
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Movement, Resize
from tracefuse.ir.subfusion import map_extents


@dataclass(frozen=True, slots=True)
class ResizeAxis:
    """A resized axis, in symbolic extents."""

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
    """The facts about a fusion's resizes for the sizes of a call.

    dynamic: the axes that stay dynamic; None: all. in_steps: resizes by run-time scalars have one key whether they
    change anything or not, so that the steps of a loop have one plan. axes: the resized axes of each result. table: the
    replacements of sizes: constants for static sizes, or expressions of other sizes. guards: the facts that were used.
    """

    def __init__(
        self, fusion: Fusion, sizes: Mapping[int, int], dynamic: Collection[tuple[int, int, int]] | None,
        in_steps: bool = False,
    ) -> None:  # fmt: skip
        self.fusion, self.sizes, self.dynamic, self.in_steps = fusion, sizes, dynamic, in_steps
        self.guards: dict[Guard, None] = {}
        self.axes: dict[int, list[ResizeAxis]] = {}
        self.table: dict[Symbol, Extent] = {}
        self._users: dict[Symbol, dict[Symbol, None]] = {}  # the sizes whose replacement contains a symbol
        for node in fusion.nodes:
            self._key_axes(node)

    def value(self, extent: Extent) -> int:
        """Returns the value of an extent in this call."""
        return evaluate(extent, self.sizes)

    def resolve(self, extent: Extent) -> Extent:
        """Substitutes the replacements of sizes in an extent."""
        return substitute(extent, self.table) if self.table else extent

    def guard(self, left: Extent, relation: str, right: Extent, reason: str, where: str | None = None) -> None:
        """Records a guard, unless it has the same answer in every call."""
        if not isinstance(right - left, int):
            self.guards[Guard(left, relation, right, reason, where)] = None

    def changes_nothing(self, node: Node) -> bool:
        """Returns whether the result of a node equals its only operand."""
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

    def _key_axes(self, node: Node) -> None:
        """Keys every axis that a node resizes, and records the guards."""
        for resize in self._resizes(node):
            extent = self.fusion.shape_of(node.operands[resize.operand])[resize.axis]
            parts = (resize.left, resize.right, resize.step)
            if parts == (0, 0, 1) or all(isinstance(e, int) for e in (extent, *parts)):
                continue
            place = (node.outputs[0], resize.operand, resize.axis)
            entry = self._entry(place, node, extent, *parts, moves=resize.moves)
            axis = ResizeAxis(entry, extent, *parts, resize.moves)
            self.axes.setdefault(node.outputs[0], []).append(axis)
            self._record_facts(axis, node)

    def _entry(
        self, place: tuple[int, int, int], node: Node, extent: Extent, left: Extent, right: Extent, step: Extent, *,
        moves: bool,
    ) -> ResizedAxis:  # fmt: skip
        operand = node.operands[place[1]]
        assert isinstance(operand, int)
        sizes = self.value(extent), self.value(left), self.value(right)
        stride = self.value(step)
        if sizes[1:] == (0, 0) and stride == 1 and not self._is_of_scalars(left, right, step):
            key = (-1, -1, -1)
        elif self.dynamic is None or place in self.dynamic:
            count = sizes[0] if moves else -(-sum(sizes) // stride)
            key = (-1, 1, 1) if count == 1 else (-1, 2, 2)
        else:
            key = sizes
        return ResizedAxis(place, node.op.name, operand, key, sizes, stride)

    def _is_of_scalars(self, *parts: Extent) -> bool:
        """Whether a resize has no other key if it changes nothing, as a run-time scalar decides in each step."""
        return self.in_steps and any(s.id is not None and s.id >= 0 for part in parts for s in symbols(part))

    def _record_facts(self, axis: ResizeAxis, node: Node) -> None:
        """Guards the key of an axis, and makes the sizes of an exact key static."""
        entry = axis.entry
        resize = f"{node.op.name} of axis {entry.place[2]}"
        if entry.is_nothing:
            for end in (axis.left, axis.right):
                self.guard(end, "==", 0, f"the {resize} changes nothing", node.where)
                self._solve(end)
            self.guard(axis.step, "==", 1, f"the {resize} changes nothing", node.where)
        elif entry.is_exact:
            self._guard_change(axis, f"the {resize} changes it", node.where)
            for part in axis.parts:
                for symbol in symbols(part):
                    assert symbol.id is not None
                    value, size = self.sizes[symbol.id], Expression((((symbol,), 1),))
                    self._enter(symbol, value)
                    self.guard(size, "==", value, f"the {resize} is made for it", node.where)
        else:
            if not self._is_of_scalars(axis.left, axis.right, axis.step):
                self._guard_change(axis, f"the {resize} changes it", node.where)
            relation = "==" if entry.key == (-1, 1, 1) else "!="
            self.guard(axis.result, relation, 1, f"the {resize} makes a broadcast axis or not", node.where)

    def _solve(self, zero: Extent) -> None:
        """Replaces a run-time scalar in an expression that is 0 by an expression of the other sizes."""
        expression = self.resolve(zero)
        for monomial, coefficient in expression.terms if isinstance(expression, Expression) else ():
            scalar = monomial[0] if len(monomial) == 1 else None
            if not isinstance(scalar, Symbol) or scalar.id is None or scalar.id < 0 or abs(coefficient) != 1:
                continue
            rest = Expression((((scalar,), 1),)) - expression * coefficient
            if scalar not in symbols(rest):
                self._enter(scalar, rest)
                return

    def _enter(self, size: Symbol, replacement: Extent) -> None:
        """Replaces a size by an expression of other sizes, also in earlier replacements."""
        if size in self.table and self.table[size] == replacement:
            return
        changed = self._users.pop(size, {})
        self.table.update((known, substitute(self.table[known], {size: replacement})) for known in changed)
        self.table[size] = replacement
        for symbol in symbols(replacement):
            self._users.setdefault(symbol, {}).update({**changed, size: None})

    def _guard_change(self, axis: ResizeAxis, reason: str, where: str | None) -> None:
        """Guards that the resize changes something: by the extent of its result, else by an end or the step.

        Wherever a slice of one element lies, its extent differs from that of its operand.
        """
        ends = ((axis.left + axis.right, 0), (axis.left, 0), (axis.right, 0), (axis.step, 1))
        if not any(isinstance(end, int) and end != nothing for end, nothing in ends):
            end, nothing = next((end, nothing) for end, nothing in ends if self.value(end) != nothing)
            self.guard(end, "!=", nothing, reason, where)
