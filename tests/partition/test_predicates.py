"""Tests merge predicates and the segments that they allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import segments
from segments import SegmentationError
from tracefuse import ParallelType, fuse, rules
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.ir.subfusion import step_graph
from tracefuse.partition.predicates import Group
from tracefuse.schedule.merge_rule import FusionRule


def softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        largest = fd.ops.max(x, [1], keepdim=True)
        e = fd.ops.exp(fd.ops.sub(x, largest))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)))
    return fd


def ops_of(fd: FusionDefinition) -> list[list[str]]:
    return [[node.op.name for node in segment.definition.fusion.nodes] for segment in fd.segments]


def groups_of(fd: FusionDefinition, *positions: tuple[int, ...]) -> list[Group]:
    graph = step_graph(fd.fusion)
    return [Group(fd.fusion, tuple(graph.nodes[k] for k in group)) for group in positions]


def test_a_group_has_its_nodes_ops_kinds_and_interface() -> None:
    (group,) = groups_of(softmax(), (0, 1, 2))
    assert group.ops == ("max", "sub", "exp")
    assert group.kinds == ("reduction", "pointwise", "pointwise")
    assert group.inputs == (0,)
    assert group.outputs == (3,)
    assert [node.op.name for node in group.nodes] == list(group.ops)


def test_the_bytes_of_a_group_are_those_of_its_interface() -> None:
    (group,) = groups_of(softmax(), (0, 1, 2))
    assert str(group.bytes) == "8 * i0 * i1"


def test_without_a_predicate_everything_that_may_merge_does() -> None:
    fd = softmax()
    assert len(fd.segment()) == 1


def test_a_reduction_ends_its_segment() -> None:
    fd = softmax()
    fd.segment(merge=rules.reduction_ends_segment)
    assert ops_of(fd) == [["max"], ["sub", "exp", "sum"], ["div"]]


def test_movement_ops_may_follow_a_reduction_and_others_say_why_not() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        wide = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        fd.add_output(fd.ops.add(x, wide))
    total, wide_group, sum_and_wide, add = groups_of(fd, (0,), (1,), (0, 1), (2,))
    assert rules.reduction_ends_segment(total, wide_group)
    verdict = rules.reduction_ends_segment(sum_and_wide, add)
    assert not verdict
    assert str(verdict) == "a reduction ends its segment (reduction='sum', reader='add')"


def test_two_reductions_that_do_not_read_each_other_may_share_a_segment() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(x, [1]))
        fd.add_output(fd.ops.max(x, [1]))
    assert rules.reduction_ends_segment(*groups_of(fd, (0,), (1,)))


def test_one_op_a_segment_makes_each_op_a_segment() -> None:
    fd = softmax()
    assert len(fd.segment(merge=rules.one_op_a_segment)) == 5


def test_a_library_call_is_alone_with_a_reason() -> None:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.exp(fd.ops.matmul(fd.ops.neg(a), b)))
    neg, matmul = groups_of(fd, (0,), (1,))
    verdict = rules.library_alone(neg, matmul)
    assert "alone in its segment" in str(verdict)
    fd.segment(merge=rules.library_alone)
    assert ops_of(fd) == [["neg"], ["matmul"], ["exp"]]


def test_at_most_bytes_uses_the_sizes_of_the_arguments() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(fd.ops.mul(fd.ops.neg(x), y))
    arguments = [np.ones(100, np.float32), np.ones(100, np.float32)]
    fd.segment(arguments, merge=rules.at_most_bytes(1200))
    assert len(fd.segments) == 1
    fd.segment(arguments, merge=rules.at_most_bytes(1199))
    assert len(fd.segments) == 2
    assert "bytes=1200" in str(fd.explain())


def test_at_most_bytes_needs_no_arguments_where_sizes_are_static() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([100], dtype=DataType.Double)
        fd.add_output(fd.ops.neg(fd.ops.exp(x)))
    fd.segment(merge=rules.at_most_bytes(1600))
    assert len(fd.segments) == 1


def test_at_most_bytes_says_that_it_needs_the_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(fd.ops.exp(x)))
    with pytest.raises(SegmentationError, match="the sizes are not known"):
        fd.segment(merge=rules.at_most_bytes(100))


def test_predicates_combine() -> None:
    fd = softmax()
    fd.segment(merge=rules.both(rules.reduction_ends_segment, rules.negate(rules.one_op_a_segment)))
    assert len(fd.segments) == 3
    fd.segment(merge=rules.any_of(rules.reduction_ends_segment, rules.negate(rules.one_op_a_segment)))
    assert len(fd.segments) == 1


def test_an_op_that_ends_a_segment_does_so_without_a_predicate() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.exp(x))))
    fd.segment()
    assert ops_of(fd) == [["exp", "segment_set"], ["neg"]]


def model(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    hidden = np.exp((x - x.max(-1, keepdims=True)) @ w)
    return hidden / hidden.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "merge", [rules.one_op_a_segment, rules.reduction_ends_segment, rules.at_most_bytes(200), rules.library_alone]
)
def test_a_fused_function_is_split_as_its_predicate_says(merge: Any) -> None:
    x, w = np.linspace(0, 1, 12).reshape(3, 4), np.linspace(-1, 1, 20).reshape(4, 5)
    fused = fuse(model, merge=merge)
    for rows in (3, 2, 7):
        given = np.resize(x, (rows, 4))
        np.testing.assert_allclose(fused(given, w), model(given, w), rtol=1e-12)
    assert len(fused.segments(x, w)) > len(fuse(model).segments(x, w)) or merge is rules.library_alone


def test_a_predicate_of_a_fused_function_that_fails_is_reported_with_the_groups() -> None:
    def fails(first: Group, second: Group) -> bool:
        raise KeyError("seven")

    with pytest.raises(SegmentationError, match=r"fails failed on groups \(0,\) and \(1,\): KeyError: 'seven'"):
        fuse(lambda x: np.exp(x) + 1, merge=fails)(np.ones(3))


def sharded(*meshes: tuple[list[int], int | None]) -> FusionDefinition:
    """A chain of copies on meshes of devices."""
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1])
        for position, (devices, axis) in enumerate(meshes):
            tensor = tensor if position == 0 else fd.ops.neg(tensor)
            tensor.set_device_mesh(devices)
            if axis is not None:
                tensor.axis(axis).parallelize(ParallelType.mesh_x)
        fd.add_output(tensor)
    return fd


def test_values_on_different_devices_share_no_segment() -> None:
    fd = sharded(([0, 1], None), ([0, 1], None), ([2, 3], None), ([2, 3], None))
    fd.segment(merge=rules.same_device)
    assert ops_of(fd) == [["neg"], ["neg"], ["neg"]]
    fd.segment()
    assert ops_of(fd) == [["neg", "neg", "neg"]]


def test_resharding_is_alone() -> None:
    fd = sharded(([0, 1], 0), ([0, 1], 0), ([0, 1], 1), ([0, 1], 1), ([0, 1], 1))
    fd.segment(merge=rules.resharding_alone)
    assert ops_of(fd) == [["neg"], ["neg"], ["neg", "neg"]]
    assert "T2.set_device_mesh([0, 1])\n    T2.axis(1).parallelize(ParallelType.mesh_x)" in repr(fd)


def test_one_partitioner_splits_for_kernels_and_for_the_host() -> None:
    """On one graph: kernels by what one kernel holds, the host program by what stays on the same devices."""
    fd = sharded(([0, 1], 0), ([0, 1], 0), ([0, 1], 1), ([0, 1], 1))
    graph = step_graph(fd.fusion)
    rule = FusionRule(fd.fusion, graph.graph, graph.nodes)
    view = rules.viewer(fd.fusion, graph.nodes)
    assert segments.partition(graph.graph, rule).groups == ((0, 1, 2),)
    host = segments.partition(graph.graph, rule, merge=rules.resharding_alone, view=view)
    assert host.groups == ((0,), (1,), (2,))
    assert host.boundaries[0, 1].reason == "resharding is alone in its segment"
