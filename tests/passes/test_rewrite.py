"""Tests the passes that rewrite fusions: values and numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, float16, float32, int64
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Literal
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY, Reduction
from tracefuse.passes.common_subexpressions import merge_common
from tracefuse.passes.constant_folding import fold_constants
from tracefuse.passes.dead_code import drop_dead
from tracefuse.passes.decompose import decompose
from tracefuse.passes.transposed_products import read_transposed

PASSES: list[Callable[[Fusion], Fusion]] = [drop_dead, merge_common, read_transposed, fold_constants, decompose]


def names(fusion: Fusion) -> list[str]:
    return [node.op.name for node in fusion.nodes]


@pytest.mark.parametrize("rewrite", PASSES, ids=lambda rewrite: rewrite.__name__)
@given(drawn=fusions())
@settings(max_examples=times(60), deadline=None)
def test_a_pass_keeps_the_values_and_the_numbers_of_what_it_keeps(
    rewrite: Callable[[Fusion], Fusion], drawn: tuple[Fusion, list[Any]]
) -> None:
    fusion, arguments = drawn
    result = rewrite(fusion)
    assert (result.inputs, result.outputs) == (fusion.inputs, fusion.outputs)
    for actual, expected in zip(evaluate(result, arguments), evaluate(fusion, arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    for number, value in result.values.items():
        assert value == fusion.values.get(number, value)
        assert number in fusion.values or (number > max(fusion.values) and value.origin in fusion.values)


def test_drop_dead_removes_what_no_output_needs_and_keeps_unread_inputs() -> None:
    with FusionDefinition() as fd:
        x, unread = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.ops.exp(fd.ops.sin(x))
        fd.add_output(fd.ops.neg(x))
    result = drop_dead(fd.fusion)
    assert names(result) == ["neg"]
    assert unread.index in result.inputs


def test_equal_nodes_become_one_and_their_readers_follow() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(fd.ops.neg(fd.ops.exp(x)), fd.ops.neg(fd.ops.exp(x))))
    result = merge_common(fd.fusion)
    assert names(result) == ["exp", "neg", "add"]
    assert result.nodes[-1].operands == (2, 2)


@pytest.mark.parametrize("name", ["set", "segment_set"])
def test_a_distinct_row_is_never_merged(name: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(getattr(fd.ops, name)(x), getattr(fd.ops, name)(x)))
    assert names(merge_common(fd.fusion)) == [name, name, "add"]


def test_a_copy_that_only_library_calls_read_is_removed() -> None:
    with FusionDefinition() as fd:
        x, k = fd.define_tensor([-1]), fd.define_tensor([-1], dtype=DataType.Int)
        read = fd.ops.set(x)
        fd.ops.neg(fd.ops.set(x))
        fd.add_output(fd.ops.index_put(fd.ops.set(fd.ops.set(x)), k, read, how="add", joined_axes=1))
        fd.add_output(fd.ops.neg(read))
    assert names(merge_common(fd.fusion)) == ["set", "neg", "set", "index_put", "neg"]


def test_literals_of_other_type_or_bits_are_other_operands() -> None:
    nan, other_nan = float("nan"), np.frombuffer(np.int64(0x7FF8_0000_0000_0001).tobytes()).item()
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        for constant in (0.0, -0.0, 1, 1.0, True, nan, other_nan, 0.0, 1, nan):
            fd.ops.mul(x, constant, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(x))
    assert names(merge_common(fd.fusion)).count("mul") == 7


def test_a_node_that_makes_an_output_keeps_making_it() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.exp(x))
        fd.add_output(fd.ops.exp(x))
    result = merge_common(fd.fusion)
    assert result.outputs == (1, 2)
    assert names(result) == ["exp", "exp"]


@pytest.mark.parametrize(("first", "second"), [(True, "squeeze"), (False, "broadcast")])
def test_reductions_that_differ_in_keepdim_are_reduced_once(first: bool, second: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(x, [0], keepdim=first))
        fd.add_output(fd.ops.sum(x, [0], keepdim=not first))
    result = merge_common(fd.fusion)
    assert names(result) == ["sum", second]
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for actual, expected in zip(evaluate(result, [array]), evaluate(fd.fusion, [array]), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_scalar_arithmetic_on_constants_becomes_a_literal_with_its_sign() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Double)
        scale = fd.ops.mul(fd.define_scalar(0.0), fd.define_scalar(-3.0))
        fd.add_output(fd.ops.mul(x, scale))
    result = fold_constants(fd.fusion)
    assert names(result) == ["mul"]
    literal = result.nodes[0].operands[1]
    assert isinstance(literal, Literal)
    assert np.signbit(literal.value)


def test_folding_keeps_nan_and_the_precision_of_the_compute_type() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        third = fd.ops.div(fd.define_scalar(1.0, DataType.Float), fd.define_scalar(3.0, DataType.Float))
        nothing = fd.define_scalar(float("inf")) - fd.define_scalar(float("inf"))
        fd.add_output(fd.ops.add(fd.ops.mul(x, third), nothing))
    result = fold_constants(fd.fusion)
    (third_literal, nan_literal) = (node.operands[1] for node in result.nodes)
    assert isinstance(third_literal, Literal)
    assert third_literal.value == float(np.float32(1) / np.float32(3))
    assert isinstance(nan_literal, Literal)
    assert np.isnan(nan_literal.value)


def test_x_plus_zero_is_not_folded_since_it_is_not_x_for_negative_zero() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, 0.0))
    assert names(fold_constants(fd.fusion)) == ["add"]


def test_half_scalars_are_left_to_the_host() -> None:
    builder = FusionBuilder()
    (number,) = builder.node(REGISTRY["add"], [Literal(1.0), Literal(0.0001)], {}, float16, [float16])
    builder.output(builder.node(REGISTRY["full"], [number], {"shape": (2,)}, float16, [float16])[0])
    assert names(fold_constants(builder.build())) == ["add", "full"]


def test_a_scalar_that_is_an_output_keeps_its_node() -> None:
    builder = FusionBuilder()
    (number,) = builder.node(REGISTRY["add"], [Literal(1), Literal(2)], {}, int64, [int64])
    builder.output(number)
    result = fold_constants(builder.build())
    assert names(result) == ["add"]
    assert evaluate(result, [])[0] == 3


def test_every_composite_reduction_is_decomposed_into_simple_ops() -> None:
    composites = [op for op in REGISTRY.values() if isinstance(op, Reduction) and op.steps]
    assert composites
    for op in composites:
        for keepdim in (False, True):
            builder = FusionBuilder()
            x = builder.tensor_input(float32, [-1, -1, 4])
            made = builder.node(op, [x], {"dims": (0, 2), "keepdim": keepdim}, float32, [float32])
            builder.output(made[0])
            fusion = builder.build()
            result = decompose(fusion)
            assert not any(isinstance(node.op, Reduction) and node.op.steps for node in result.nodes)
            assert result.values[made[0]] == fusion.values[made[0]]
            array = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
            np.testing.assert_allclose(evaluate(result, [array])[0], evaluate(fusion, [array])[0], rtol=1e-5)


@pytest.mark.parametrize("keepdim", [False, True])
def test_a_layer_norm_ends_with_one_mean(keepdim: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        mean = fd.ops.mean(x, [1], keepdim=keepdim)
        variance = fd.ops.var(x, [1], correction=0, keepdim=True)
        centre = mean if keepdim else fd.ops.broadcast(mean, [False, True])
        fd.add_output(fd.ops.div(fd.ops.sub(x, centre), fd.ops.sqrt(fd.ops.add(variance, 1e-5))))
    result = decompose(fd.fusion)
    assert names(result).count("mean") == 1
    assert names(result).count("sum") == 1
    assert names(result).count("sub") == 1
    array = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    np.testing.assert_allclose(evaluate(result, [array])[0], evaluate(fd.fusion, [array])[0], rtol=1e-5, atol=1e-6)


def test_the_count_of_a_static_axis_is_a_literal_and_folds_away() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8])
        fd.add_output(fd.ops.var(x, [1], correction=1))
    result = fold_constants(decompose(fd.fusion))
    assert result.nodes[-1].op.name == "div"
    assert result.nodes[-1].operands[1] == Literal(7.0)


def test_half_intermediates_are_in_float32_so_that_nothing_more_is_rounded() -> None:
    builder = FusionBuilder()
    x = builder.tensor_input(float16, [-1])
    builder.output(builder.node(REGISTRY["var"], [x], {"dims": (0,)}, float16, [float16])[0])
    fusion = builder.build()
    result = decompose(fusion)
    made = [result.values[o] for node in result.nodes for o in node.outputs if o not in fusion.values]
    assert {value.dtype.name for value in made} <= {"float32", "int64"}
    array = np.random.default_rng(2).standard_normal(64).astype(np.float16)
    assert evaluate(result, [array])[0] == evaluate(fusion, [array])[0]


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 1, 2), (0, 2, 1)), ((1, 0, 2), (0, 1, 2)), ((1, 2, 0), (2, 0, 1)), ((0, 1, 2), (0, 1, 2))],
)
def test_a_product_of_stacks_reads_permuted_operands_without_a_copy(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    a = random.normal(size=[(2, 3, 4)[left.index(k)] for k in range(3)])
    b = random.normal(size=[(2, 4, 5)[right.index(k)] for k in range(3)])
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1, -1], dtype=DataType.Double) for _ in range(2))
        fd.add_output(fd.ops.matmul(fd.ops.permute(x, list(left)), fd.ops.permute(y, list(right))))
    result = drop_dead(read_transposed(fd.fusion))
    assert len(result.nodes) == 1
    np.testing.assert_allclose(evaluate(result, [a, b])[0], a.transpose(left) @ b.transpose(right))
    np.testing.assert_allclose(fd.execute([a, b])[0], a.transpose(left) @ b.transpose(right))
