"""Predicates for `merge=`, which forbid that two groups of nodes become one segment.

A predicate is called with two `Group`s and returns a bool or a Verdict. The first group is the producer, or the earlier
of two groups that read a common value. A predicate can only forbid merges that the templates allow. Predicates combine
with `both`, `any_of` and `negate`.

    fd.segment(merge=rules.both(rules.reduction_ends_segment, rules.library_alone))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property

from segments import Predicate, Verdict, any_of, both, negate, no, yes
from segments.lazy_dataclasses import dataclass
from tracefuse.errors import ScalarError, shown
from tracefuse.ir.extents import Extent, evaluate, product
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.partition.slicing import operand_axes

__all__ = [
    "Group",
    "Verdict",
    "any_of",
    "at_most_bytes",
    "both",
    "library_alone",
    "negate",
    "no",
    "one_op_a_segment",
    "reduction_ends_segment",
    "resharding_alone",
    "same_device",
    "yes",
]


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes of a fusion, in order, that form a segment or a part of one.

    sizes: extent values by id, if they are known.
    """

    fusion: Fusion
    nodes: tuple[Node, ...]
    sizes: Mapping[int, int] | None = field(default=None, repr=False)

    @property
    def ops(self) -> tuple[str, ...]:
        """The name of the op of each node."""
        return tuple(node.op.name for node in self.nodes)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of the op of each node: pointwise, reduction, movement or library."""
        return tuple(node.op.kind for node in self.nodes)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The values that the group reads but does not compute, by number."""
        computed = {output for node in self.nodes for output in node.outputs}
        return tuple(sorted({number for node in self.nodes for number in node.inputs} - computed))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The values that the group computes and that another node reads or the fusion returns, by number."""
        members = set(map(id, self.nodes))
        needed = {number for node in self.fusion.nodes if id(node) not in members for number in node.inputs}
        needed.update(self.fusion.outputs)
        return tuple(sorted(number for node in self.nodes for number in node.outputs if number in needed))

    @cached_property
    def bytes(self) -> Extent:
        """The total bytes of its tensor inputs and outputs, symbolic if their sizes are."""
        return sum_of_bytes(self.fusion, (*self.inputs, *self.outputs))

    def union(self, other: Group) -> Group:
        """Returns both groups as one."""
        members = set(map(id, (*self.nodes, *other.nodes)))
        return Group(self.fusion, tuple(node for node in self.fusion.nodes if id(node) in members), self.sizes)


def sum_of_bytes(fusion: Fusion, numbers: Iterable[int]) -> Extent:
    """Returns the total bytes of the tensors among `numbers`."""
    total: Extent = 0
    for number in numbers:
        value = fusion.values[number]
        if value.is_tensor:
            total = total + product(map(fusion.canonical, value.shape)) * value.dtype.itemsize
    return total


def reduction_ends_segment(first: Group, second: Group) -> Verdict:
    """Allows only movement ops after a reduction. Ops that compute with a reduced value are in a later segment."""
    reduced: dict[int, Node] = {}
    for node in first.union(second).nodes:
        source = next((reduced[number] for number in node.inputs if number in reduced), None)
        if source is not None and node.op.kind != "movement":
            return no("a reduction ends its segment", reduction=source.op.name, reader=node.op.name)
        if source is not None or node.op.kind == "reduction":
            reduced.update(dict.fromkeys(node.outputs, source or node))
    return yes()


def one_op_a_segment(first: Group, second: Group) -> Verdict:
    """Makes every op a segment of its own."""
    return no("one op a segment", first=first.ops, second=second.ops)


def library_alone(first: Group, second: Group) -> Verdict:
    """Makes every library call a segment of its own."""
    for group in (first, second):
        if "library" in group.kinds:
            return no("a library call is alone in its segment", ops=group.ops)
    return yes()


def same_device(first: Group, second: Group) -> Verdict:
    """Keeps all values of a segment on one device mesh. Values without a mesh fit any."""
    union = first.union(second)
    meshes = {s.devices for number in _numbers_of(union) if (s := union.fusion.values[number].sharding) is not None}
    return yes() if len(meshes) < 2 else no("values on different devices", devices=tuple(sorted(meshes)))


def resharding_alone(first: Group, second: Group) -> Verdict:
    """Makes every op that reshards its operand a segment of its own."""
    for group in (first, second):
        for node in group.nodes:
            if is_resharding(group.fusion, node):
                return no("resharding is alone in its segment", op=node.op.name)
    return yes()


def is_resharding(fusion: Fusion, node: Node) -> bool:
    """Whether a node's result is on other devices than an operand, or is sharded along another axis.

    The sharded axis of an operand is compared with the axis that a shard of the result needs.
    """
    result = fusion.values[node.outputs[0]].sharding
    needed: Mapping[int, int | None] | Verdict = dict.fromkeys(range(len(node.operands)))
    if result is not None and result.axis is not None:
        needed = operand_axes(fusion, node, result.axis)
    for position, operand in enumerate(node.operands):
        sharding = fusion.values[operand].sharding if isinstance(operand, int) else None
        if sharding is None or result is None:
            continue
        if isinstance(needed, Verdict) or sharding.devices != result.devices:
            return True
        if sharding.axis != needed.get(position):
            return True
    return False


def _numbers_of(group: Group) -> list[int]:
    return [*group.inputs, *(number for node in group.nodes for number in node.outputs)]


def at_most_bytes(limit: int) -> Predicate:
    """Returns a predicate that limits the bytes of tensors that a segment reads and writes.

    Symbolic sizes must be known, so pass `inputs` to `segment`. Otherwise the predicate raises ScalarError. A `limit`
    that is not a non-negative integer raises ScalarError, too.
    """

    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ScalarError(f"at_most_bytes: limit cannot be {shown(limit)}", hint="give a number of bytes")

    def within_bytes(first: Group, second: Group) -> Verdict:
        union = first.union(second)
        total = union.bytes
        if not isinstance(total, int):
            if union.sizes is None:
                raise ScalarError(
                    f"at_most_bytes: the segment has {total} bytes, and the sizes are not known",
                    hint="pass the arguments, as in fd.segment(inputs, merge=...)",
                )
            total = evaluate(total, union.sizes)
        return yes() if total <= limit else no("the segment would be too large", bytes=total, limit=limit)

    within_bytes.__name__ = f"at_most_bytes({limit})"
    return within_bytes


def viewer(
    fusion: Fusion, nodes: tuple[Node, ...], sizes: Mapping[int, int] | None = None
) -> Callable[[tuple[int, ...]], Group]:
    """Returns the function by which `segments.partition` turns positions of steps into a Group."""
    return lambda steps: Group(fusion, tuple(nodes[step] for step in steps), sizes)
