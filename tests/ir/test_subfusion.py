"""Tests fusions of a part of a fusion's nodes: interfaces, values, and execution in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segments
from tests.compiler.reference_compiler import compile_fusion
from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tracefuse import rules
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.errors import FusionError, ShapeError
from tracefuse.ir.extents import symbols
from tracefuse.ir.fusion import Fusion, verify
from tracefuse.ir.reference import evaluate, extent_values
from tracefuse.ir.subfusion import extents_in, extract, step_graph


def all_values(fusion: Fusion, arguments: Sequence[Any]) -> dict[int, Any]:
    """Every value by number, extents by their negative ids."""
    values = dict(zip(fusion.inputs, arguments, strict=True))
    evaluate(fusion, arguments, on_value=values.__setitem__)
    return {**values, **{k: v for k, v in extent_values(fusion, arguments).items() if k < 0}}


def check_part(fusion: Fusion, steps: Sequence[int], known: Mapping[int, Any]) -> Fusion:
    """The part of `steps` evaluates to what the whole has; returns it."""
    graph = step_graph(fusion)
    made = [o for step in steps for o in graph.nodes[step].outputs]
    border = graph.segment(steps, made)
    part = extract(fusion, steps, border)
    verify(part)
    assert tuple(part.inputs) == border.inputs
    assert tuple(part.outputs) == border.outputs
    results = evaluate(part, [known[n] for n in border.original_inputs])
    for number, result in zip(border.original_outputs, results, strict=True):
        np.testing.assert_allclose(result, known[number], rtol=1e-5, atol=1e-5)
    return part


@given(drawn=fusions(), data=st.data())
@settings(max_examples=times(150), deadline=None)
def test_any_group_of_nodes_evaluates_as_in_the_whole(drawn: tuple[Fusion, list[Any]], data: st.DataObject) -> None:
    fusion, arguments = drawn
    count = len(step_graph(fusion).nodes)
    if count == 0:
        return
    steps = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    part = check_part(fusion, steps, all_values(fusion, arguments))
    known = {s.id for n in part.inputs for e in part.values[n].shape if not isinstance(e, int) for s in symbols(e)}
    known |= {s.id for n in part.scalar_inputs for s in symbols(part.values[n].extent or 0)}
    for node in part.nodes:
        assert {s.id for e in extents_in(node.attributes) for s in symbols(e)} <= known


@given(drawn=fusions(), data=st.data())
@settings(max_examples=times(50), deadline=None)
def test_a_part_prints_as_a_definition_that_computes_the_same(
    drawn: tuple[Fusion, list[Any]], data: st.DataObject
) -> None:
    fusion, arguments = drawn
    graph = step_graph(fusion)
    if not graph.nodes:
        return
    steps = sorted(data.draw(st.sets(st.integers(0, len(graph.nodes) - 1), min_size=1)))
    border = graph.segment(steps, [o for step in steps for o in graph.nodes[step].outputs])
    part = extract(fusion, steps, border)
    text = repr(FusionDefinition.from_fusion(part, ids=iter([1])))
    namespace: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, namespace)
    with FusionDefinition(ids=iter([1])) as fd:
        namespace["nvfuser_fusion_id1"](fd)
    known = all_values(fusion, arguments)
    inputs = [known[n] for n in border.original_inputs]
    for again, expected in zip(evaluate(fd.fusion, inputs), evaluate(part, inputs), strict=True):
        np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("merge", [None, rules.one_op_a_segment, rules.reduction_ends_segment])
@given(drawn=fusions())
@settings(max_examples=times(40), deadline=None)
def test_segments_run_in_order_give_the_values_of_the_whole(
    merge: segments.Predicate | None, drawn: tuple[Fusion, list[Any]]
) -> None:
    fusion, arguments = drawn
    results = compile_fusion(fusion, merge=merge)(arguments)
    for actual, expected in zip(results, evaluate(fusion, arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_axes_that_the_whole_knows_to_be_equal_share_the_first_ones_symbol() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        total = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        fd.add_output(fd.ops.add(y, total))
    graph = step_graph(fd.fusion)
    border = graph.segment([2])
    part = extract(fd.fusion, [2], border)
    assert str(part).splitlines()[0] == "fusion(v0: f32[i0, i1], v1: f32[i0, 1]):"
    assert dict(border.index_map) == {0: 1, 1: 3, 2: 4}
    assert dict(border.extent_map) == {-1: -3, -2: -4, -3: -1}


def test_a_part_that_runs_alone_refuses_what_the_whole_would_refuse() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(fd.ops.add(fd.ops.exp(x), y))
    part = extract(fd.fusion, [1])
    with pytest.raises(ShapeError, match="input 1 has 3 elements on axis 0, not 2"):
        evaluate(part, [np.ones(2, np.float32), np.ones(3, np.float32)])


def test_an_extent_of_a_tensor_that_is_not_read_comes_in_as_a_scalar() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.expand(fd.ops.broadcast(y, [True, False]), [x.size(1), -1]))
    graph = step_graph(fd.fusion)
    border = graph.segment([1, 2])
    part = extract(fd.fusion, [1, 2], border)
    assert border.index_map[1] == -2
    assert not part.values[1].is_tensor
    assert part.values[1].dtype.name == "int64"
    (result,) = evaluate(part, [np.ones(3, np.float32), 5])
    assert result.shape == (5, 3)


def test_an_extent_that_an_input_carries_under_another_id_needs_no_scalar() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        total = fd.ops.add(x, y)
        fd.add_output(total)
        fd.add_output(fd.ops.mul(y, fd.ops.full([x.size(0)], 2.0)))
    border = step_graph(fd.fusion).segment([1, 2])
    assert border.original_inputs == (1,)


def test_a_composite_extent_is_spelled_by_the_parts_that_are_there() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        flat = fd.ops.reshape(fd.ops.exp(x), [-1])
        fd.add_output(fd.ops.mul(flat, fd.ops.reshape(x, [-1])))
    part = extract(fd.fusion, [2, 3])
    assert part.values[1].shape == (part.values[0].shape[0] * part.values[0].shape[1],)
    assert part.values[part.outputs[0]].shape == part.values[1].shape


def test_a_composite_extent_without_its_parts_is_a_symbol_of_its_own_or_made_of_scalars() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        flat = fd.ops.reshape(fd.ops.exp(x), [-1])
        fd.add_output(fd.ops.reshape(fd.ops.neg(flat), [x.size(0), x.size(1)]))
    graph = step_graph(fd.fusion)
    border = graph.segment([2, 3])
    assert border.original_inputs == (2, -1, -2)
    part = extract(fd.fusion, [2, 3], border)
    assert str(part.values[0].shape[0]) == "e1 * e2"
    assert str(extract(fd.fusion, [2]).values[0].shape[0]) == "i0"
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(part, [array, 2, 3])[0], -array.reshape(2, 3))


def test_a_host_scalar_is_no_step_and_comes_in_as_an_input() -> None:
    with FusionDefinition() as fd:
        x, factor = fd.define_tensor([-1]), fd.define_scalar(None, DataType.Float)
        twice = fd.ops.mul(factor, 2.0)
        fd.add_output(fd.ops.mul(x, twice))
    graph = step_graph(fd.fusion)
    assert len(graph.nodes) == 1
    assert graph.segment([0]).original_inputs == (0, 2)


def test_a_scalar_that_is_a_size_of_an_input_is_known_to_be_that_size() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        size = x.size(0)
        fd.add_output(fd.ops.mul(x, size))
    part = extract(fd.fusion, [0])
    assert part.values[1].extent == part.values[0].shape[0]


def test_values_of_a_part_say_where_they_come_from() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(fd.ops.exp(x)))
    part = extract(fd.fusion, [1])
    assert [part.values[n].origin for n in sorted(part.values)] == [1, 2]


def test_a_segment_of_other_steps_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(fd.ops.exp(x)))
    border = step_graph(fd.fusion).segment([0])
    with pytest.raises(FusionError, match=r"the segment has steps \(0,\), not \(1,\)"):
        extract(fd.fusion, [1], border)
