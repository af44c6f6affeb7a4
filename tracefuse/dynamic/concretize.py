"""Concretizes dynamic reshapes and resizes for the sizes of a call.

A definition may be recorded before its sizes are known. Concretization decides what depends on them: how a reshape
merges and splits axes, whether a resized axis has one element and therefore broadcasts, and which resizes change
nothing and are removed. An exactly keyed axis becomes static, in the operand too; all other extents stay symbolic.
Every fact that is used becomes a guard: sizes that satisfy the guards have the same concretization.

Must not know: single ops, segments, kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from segments.lazy_dataclasses import replace
from tracefuse.dynamic.concretization import Concretization, Regrouped
from tracefuse.dynamic.regrouping import Group, common_factors, groups_of, transforms_of, wide_axes
from tracefuse.dynamic.resize_keys import ResizeFacts
from tracefuse.errors import FusionError
from tracefuse.ir.extents import (
    Binary,
    Extent,
    Symbol,
    as_symbol,
    floordiv,
    product,
    substitute,
    symbol_of,
    symbols,
    terms_of,
)
from tracefuse.ir.fusion import Fusion, Node, Operand, Shape, is_input_extent, verify
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.row_major import axis_groups
from tracefuse.ir.subfusion import map_extents
from tracefuse.ops.roles import BROADCAST, COPY, SQUEEZE
from tracefuse.passes.rewriter import Rewriter


def concretize(
    fusion: Fusion, sizes: Mapping[int, int], *, dynamic: Collection[tuple[int, int, int]] | None = (),
    in_steps: bool = False,
) -> Concretization:  # fmt: skip
    """Concretizes `fusion` for `sizes`: extents and integer scalars by id. Does not modify `fusion`.

    dynamic: the resized axes (see `ResizedAxis.place`) that stay dynamic, keyed by whether they have one element; None:
    all. in_steps: resizes by run-time scalars have one key whether they change anything or not. Raises ShapeError if
    the fusion is not defined for the sizes.
    """
    return _Concretizer(ResizeFacts(fusion, sizes, dynamic, in_steps)).run()


def depends_on_sizes(fusion: Fusion) -> bool:
    """Returns whether concretization may depend on sizes; if not, the recorded fusion serves all sizes."""
    movements = (node.op for node in fusion.nodes if isinstance(node.op, Movement))
    if any(op.resize is not None or op.regroups for op in movements):
        return True
    return not all(is_input_extent(extent) for value in fusion.values.values() for extent in value.shape)


class _Concretizer:
    """Concretizes a fusion in two passes: the first keys the resizes, the second rebuilds the nodes."""

    def __init__(self, facts: ResizeFacts) -> None:
        self.fusion, self.facts = facts.fusion, facts
        self.regrouped: list[Regrouped] = []
        self.names: dict[int, int] = {}
        self.changed = False
        self.builder = Rewriter(facts.fusion)
        self.multiples: dict[Symbol, Extent] = {}
        """Extents of inputs in terms of the numbers that divide them."""

    def run(self) -> Concretization:
        self._start()
        for node in self.fusion.nodes:
            self._concretize_node(node)
        entries = tuple(axis.entry for axes in self.facts.axes.values() for axis in axes)
        for number, value in self.fusion.values.items():
            if value.stream is not None:
                self.builder.values[number] = replace(self.builder.values[number], stream=value.stream)
        concrete = replace(self.builder.build() if self.changed else self.fusion, concrete=True)
        verify(concrete, lowerable=True)
        return Concretization(self.fusion, concrete, entries, tuple(self.regrouped), tuple(self.facts.guards))

    # -- rebuilding -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Adds the inputs and the requirements, with the static extents."""
        builder, fusion = self.builder, self.fusion
        builder.start_over()
        if not self.facts.table:
            self._require_all()
            return
        self.changed = True
        for number in fusion.inputs:
            value = fusion.values[number]
            shape = tuple(map(self.facts.resolve, value.shape))
            builder.values[number] = replace(value, type=replace(value.type, shape=shape))
        self._require_all()

    def _require_all(self) -> None:
        for requirement in self.fusion.requirements:
            left, right = (self.facts.resolve(e) for e in (requirement.left, requirement.right))
            self.builder.require(
                left, requirement.relation, right, requirement.message, requirement.hint, requirement.where
            )

    def _concretize_node(self, node: Node) -> None:
        number = node.outputs[0]
        operands = [self.names.get(o, o) if isinstance(o, int) else o for o in node.operands]
        attributes = {k: map_extents(v, self.facts.resolve) for k, v in node.attributes.items()}
        if self.facts.changes_nothing(node):
            self._drop(node, operands[0])
            return
        concrete = replace(node, operands=tuple(operands), attributes=attributes)
        if node.op.broadcasts:
            concrete = replace(concrete, operands=tuple(self._broadcast_operands(concrete)))
        if isinstance(node.op, Movement) and node.op.regroups:
            concrete = self._regroup(node, concrete)
        axes = self.facts.axes.get(number, ())
        ones = {axis.entry.place[2] for axis in axes if axis.entry.key == (-1, 1, 1)}
        if ones:
            self._rebuild_with_ones(concrete, ones)
        else:
            self._rebuild(concrete, node.outputs)

    def _rebuild(self, node: Node, numbers: Sequence[int]) -> None:
        """Adds the node to the new fusion, with its results under `numbers`."""
        olds = [self.fusion.values[n] for n in node.outputs]
        same_numbers = numbers == node.outputs
        scalars = [None if v.extent is None else self.facts.resolve(v.extent) for v in olds]
        self.builder.node(
            node.op, node.operands, node.attributes, node.compute, [v.dtype for v in olds], where=node.where,
            names=[v.name for v in olds], numbers=numbers, extents=scalars,
        )  # fmt: skip
        for number, old in zip(numbers, olds, strict=True):
            new = self.builder.values[number]
            is_pointwise = node.op.kind == "pointwise"
            shape = tuple(map(self._choose_extent, old.shape, new.shape)) if is_pointwise else new.shape
            origin = old.origin if same_numbers else old.number
            changed = replace(new, type=replace(new.type, shape=shape), origin=origin)
            self.builder.values[number] = changed
            self.changed = self.changed or changed.shape != old.shape
        if same_numbers:
            return
        self.changed = True

    def _choose_extent(self, old: Extent, new: Extent) -> Extent:
        """Returns the symbol of an input axis even if another operand has a constant extent."""
        resolved = self.facts.resolve(old)
        return resolved if isinstance(new, int) and new != 1 and is_input_extent(resolved) else new

    def _drop(self, node: Node, operand: Operand) -> None:
        """Removes a node whose result equals its operand; consumers read the operand."""
        assert isinstance(operand, int)
        (number,) = node.outputs
        self.changed = True
        old, source = self.fusion.values[number], self.builder.values[operand]
        for extent, source_extent in zip(old.shape, source.shape, strict=True):
            message, hint = "{left} elements and {right}", "these sizes are equal here"
            self.builder.require(self.facts.resolve(extent), "==", source_extent, message, hint, node.where)
        if number in self.fusion.outputs or old.dtype is not source.dtype or old.stream is not None:
            self.builder.node(
                COPY, (operand,), {}, node.compute, (old.dtype,), where=node.where, names=(old.name,), numbers=(number,)
            )
            return
        self.names[number] = operand
        del self.builder.values[number]

    def _rebuild_with_ones(self, node: Node, axes: Collection[int]) -> None:
        """Rebuilds a node whose result has the static extent 1 on `axes`."""
        (number,) = node.outputs
        shape, dtype = self.fusion.values[number].shape, self.fusion.values[number].dtype
        resized = self.builder.new_number()
        self._rebuild(node, (resized,))
        flags = tuple(k in axes for k in range(len(shape)))
        (dropped,) = self.builder.node(
            SQUEEZE, (resized,), {"dims": tuple(sorted(axes))}, dtype, (dtype,), where=node.where
        )
        self.builder.mark(dropped, number)
        self.builder.node(
            BROADCAST, (dropped,), {"is_broadcast_dim": flags}, dtype, (dtype,), where=node.where,
            names=(self.fusion.values[number].name,), numbers=(number,),
        )  # fmt: skip

    # -- broadcasting -----------------------------------------------------------------------------------------------

    def _broadcast_operands(self, node: Node) -> list[Operand]:
        """Returns the operands, with the static extent 1 on axes whose computed extent is 1 and broadcasts."""
        result = list(node.operands)
        shapes = [self.builder.values[o].shape if isinstance(o, int) else () for o in result]
        if isinstance(node.op, Movement):  # it broadcasts to the shape of its result
            shapes.append(tuple(map(self.facts.resolve, self.fusion.values[node.outputs[0]].shape)))
        for position, shape in enumerate(shapes[: len(result)]):
            ones = set()
            for axis, extent in enumerate(shape):
                other_extents = {s[axis - len(shape)] for s in shapes if len(s) >= len(shape) - axis} - {extent, 1}
                if is_input_extent(extent) or all(self.builder.equates(extent, other) for other in other_extents):
                    continue
                is_one = self.facts.value(extent) == 1
                reason = "whether a computed extent is 1, and broadcasts"
                self.facts.guard(extent, "==" if is_one else "!=", 1, reason, node.where)
                self.changed = True
                if is_one:
                    ones.add(axis)
            if ones:
                result[position] = self._set_ones(result[position], ones, node)
        return result

    def _set_ones(self, operand: Operand, axes: Collection[int], node: Node) -> int:
        """Gives an operand the static extent 1 on `axes`, by a squeeze and a broadcast."""
        assert isinstance(operand, int)
        value = self.builder.values[operand]
        dims = tuple(sorted(axes))
        dtype, where = value.dtype, node.where
        (dropped,) = self.builder.node(SQUEEZE, (operand,), {"dims": dims}, dtype, (dtype,), where=where)
        flags = {"is_broadcast_dim": tuple(k in axes for k in range(len(value.shape)))}
        (expanded,) = self.builder.node(BROADCAST, (dropped,), flags, dtype, (dtype,), where=where)
        for number in (dropped, expanded):
            self.builder.mark(number, operand)
        return expanded

    # -- reshapes ---------------------------------------------------------------------------------------------------

    def _regroup(self, original: Node, node: Node) -> Node:
        """A reshape whose groups follow from the sizes of the call; the node itself where every size has its groups."""
        operand = node.operands[0]
        assert isinstance(operand, int)
        number = node.outputs[0]
        source = self.builder.values[operand].shape
        target = tuple(map(self.facts.resolve, self.fusion.values[number].shape))
        sizes, wanted = [tuple(map(self.facts.value, shape)) for shape in (source, target)]
        if prod(sizes) != prod(wanted):
            raise FusionError(f"value {number}: {prod(sizes)} elements for {wanted}", where=node.where)
        self._split_multiples((*source, *target), node.where)
        canonical = [tuple(self.fusion.canonical(e) for e in shape) for shape in (source, target)]
        if not original.attributes["inferable"] and _has_groups(*canonical):
            self.regrouped.append(Regrouped(number, original.inputs[0], False, (), transforms_of(sizes, wanted)))
            pairs = axis_groups(*canonical)
            wide = [
                tuple(tuple(k for k in axes if shape[k] != 1) for axes, shape in zip(pair, canonical, strict=True))
                for pair in pairs
            ]
            return self._through_factors(node, canonical[0], canonical[1], [(m, t) for m, t in wide if m])
        self.changed = True
        if not prod(sizes):
            self.facts.guard(product(source), "==", 0, "there are no elements to reshape", node.where)
            self.regrouped.append(Regrouped(number, original.inputs[0], True, (), ()))
            groups: tuple[Group, ...] = ((tuple(range(len(source))), tuple(range(len(target)))),)
            return replace(node, attributes={"new_shape": target, "groups": groups, "inferable": ()})
        groups = groups_of(sizes, wanted)
        entries = tuple(map(self.facts.resolve, original.attributes["new_shape"]))
        shape = self._grouped_shape(groups, source, target, entries, node.where)
        transforms = transforms_of(sizes, wanted)
        self.regrouped.append(Regrouped(number, original.inputs[0], True, groups, transforms))
        node = replace(node, attributes={"new_shape": shape, "groups": groups, "inferable": ()})
        return self._through_factors(node, source, shape, groups)

    def _through_factors(self, node: Node, source: Shape, target: Shape, groups: Sequence[Group]) -> Node:
        """Divides a reshape that regroups several axes into several: first it splits to common factors, then merges.

        Loops over the factors then serve what precedes the reshape and what follows it.
        """
        if all(min(map(len, group)) == 1 for group in groups) or 0 in (*source, *target):
            return node
        between: list[Extent] = []
        splits: list[Group] = []
        merges: list[Group] = []
        for source_axes, target_axes in groups:
            extents, result = (
                tuple(substitute(s[k], self.multiples) for k in axes)
                for s, axes in ((source, source_axes), (target, target_axes))
            )
            merges_all, splits_all = len(target_axes) == 1, len(source_axes) == 1
            factors = extents if merges_all else result if splits_all else common_factors(extents, result)
            if factors is None:
                return node
            start = len(between)
            between += factors
            splits += _runs(source_axes, extents, factors, start)
            merges += [(axes, (axis,)) for (axis,), axes in _runs(target_axes, result, factors, start)]
        self.changed = True
        (operand,), dtype = node.inputs, node.compute
        attributes = {"new_shape": tuple(between), "groups": tuple(splits), "inferable": ()}
        (split,) = self.builder.node(
            node.op, (operand,), attributes, dtype, (self.builder.values[operand].dtype,), where=node.where
        )
        self.builder.mark(split, operand)
        return replace(
            node, operands=(split,), attributes={"new_shape": target, "groups": tuple(merges), "inferable": ()}
        )

    def _grouped_shape(
        self, groups: Sequence[Group], source: Shape, target: Shape, entries: Shape, where: str | None
    ) -> Shape:
        """Returns the result's extents in terms of the operand's extents and the factors; guards the groups."""
        reason = "how a reshape merges and splits axes"
        result: list[Extent] = [1] * len(target)
        grouped = {axis for _, target_axes in groups for axis in target_axes}
        wide = wide_axes([self.facts.value(e) for e in source])
        for axis, extent in enumerate(source):
            self.facts.guard(extent, "!=" if axis in wide else "==", 1, reason, where)
        for axis in sorted(set(range(len(target))) - grouped):
            self._guard_entry(entries[axis], target[axis], 1, 1, where)
        for group in groups:
            self._add_group(group, result, source, target, entries, where)
        return tuple(result)

    def _add_group(
        self, group: Group, result: list[Extent], source: Shape, target: Shape, entries: Shape, where: str | None
    ) -> None:
        """Sets the result extents of a group: its factors, and the quotient for the entry -1 or for a merged axis."""
        reason = "how a reshape merges and splits axes"
        source_axes, target_axes = group
        elements = product(source[k] for k in source_axes)
        unknown = next((k for k in target_axes if self.facts.value(entries[k]) == -1), target_axes[-1])
        factors = [k for k in target_axes if k != unknown]
        for axis in factors:
            result[axis] = entries[axis]
            self.facts.guard(2, "<=", entries[axis], reason, where)
        outer = product(result[k] for k in factors)
        if len(source_axes) > 1 and isinstance(outer, int):
            self._split_multiple(source[source_axes[0]], outer, where)
        # The user's entry is simpler than the quotient, which a guard proves equal; a merged axis keeps its factors.
        names = (s.id for s in symbols(entries[unknown]))
        is_size = all(number is not None and number < 0 for number in names)
        is_given = bool(factors) and entries[unknown] == target[unknown] and is_size
        result[unknown] = entries[unknown] if is_given else floordiv(elements, outer)
        if unknown == target_axes[-1]:
            self._guard_entry(entries[unknown], target[unknown], elements, outer, where)
        else:
            self.facts.guard(entries[unknown], "==", -1, reason, where)
            self.facts.guard(elements, "==", outer * result[unknown], reason, where)
        if factors:
            self.facts.guard(outer, "!=", elements, reason, where)
        for count in range(1, len(source_axes)):
            for other in range(1, len(target_axes)):
                left = product(source[k] for k in source_axes[:count])
                self.facts.guard(left, "!=", product(result[k] for k in target_axes[:other]), reason, where)

    def _split_multiples(self, extents: Sequence[Extent], where: str | None) -> None:
        """Records that an extent of an input is a multiple of the numbers that divide it in `extents`, if it is."""
        for extent in extents:
            for monomial, _ in terms_of(extent):
                for atom in monomial:
                    if isinstance(atom, Binary) and atom.operation == "//" and isinstance(atom.right, int):
                        self._split_multiple(atom.left, atom.right, where)

    def _split_multiple(self, extent: Extent, factor: int, where: str | None) -> None:
        if factor < 2 or not is_input_extent(extent) or isinstance(extent, int) or self.facts.value(extent) % factor:
            return
        self.changed = True
        reason = "an axis that is split is a product of its factors"
        self.facts.guard(extent % factor, "==", 0, reason, where)
        message = f"{{left}} elements are no multiple of {factor}"
        self.builder.require(extent, "==", extent // factor * factor, message, reason, where)
        self.multiples.setdefault(symbol_of(extent), extent // factor * factor)

    def _guard_entry(self, entry: Extent, extent: Extent, elements: Extent, outer: Extent, where: str | None) -> None:
        """Guards that `outer` times an extent of the new shape is `elements`, or that its entry is -1."""
        reason = "how a reshape merges and splits axes"
        if entry != extent:
            self.facts.guard((outer * entry - elements) * (entry + 1), "==", 0, reason, where)
            return
        self.facts.guard(outer * extent, "==", elements, reason, where)
        if outer == 1 and as_symbol(extent) is not None:
            self.builder.require(
                extent, "==", elements, "{left} elements and {right}", "these sizes are equal here", where
            )  # fmt: skip


def _runs(axes: Sequence[int], extents: Shape, factors: Shape, start: int) -> list[Group]:
    """Returns each axis beside the places of its factors; the first factor has the place `start`."""
    if len(axes) == 1:  # a guard proves the product, which may have another form
        return [(tuple(axes), tuple(range(start, start + len(factors))))]
    runs: list[Group] = []
    place = 0
    for axis, extent in zip(axes, extents, strict=True):
        first, covered = place, factors[place]
        while covered != extent:
            place += 1
            covered = covered * factors[place]
        place += 1
        runs.append(((axis,), tuple(range(start + first, start + place))))
    return runs


def _has_groups(source: Shape, target: Shape) -> bool:
    """Returns whether the groups are the same for all sizes.

    If all products but one are proved equal, the last pair is equal too, since both shapes have the same number of
    elements. If that pair is a merge or a split, no sizes group it differently.
    """
    pairs = axis_groups(source, target)
    left = [(m, t) for m, t in pairs if product(source[k] for k in m) != product(target[k] for k in t)]
    return not left or (len(left) == 1 and min(map(len, left[0])) == 1)
