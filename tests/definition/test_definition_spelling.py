"""Tests that definitions take nvFuser's spelling of operations, sizes and types, and print as what records them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.definition.worked_example import DEFINITION, run_text, worked_example
from tests.random_programs.random_fusions import definitions
from tests.session.samples import times
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, bool_, float32
from tracefuse.errors import DtypeError, FusionError, ShapeError, UnsupportedError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion, Literal
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction
from tracefuse.passes.decompose import decompose


def typed_view(fusion: Fusion) -> str:
    """The typed view without the user's lines."""
    return "\n".join(line.split("  # ")[0].rstrip() for line in str(fusion).splitlines())


def assert_round_trip(fd: FusionDefinition) -> None:
    text = repr(fd)
    again = run_text(text, fd.id())
    assert repr(again) == text
    assert typed_view(again.fusion) == typed_view(fd.fusion), text
    for first, second in zip(fd.fusion.nodes, again.fusion.nodes, strict=True):
        # By their text, since the NaN that pads is not equal to itself.
        assert (first.compute, str(first.attributes)) == (second.compute, str(second.attributes)), text
    assert again.fusion.values.keys() == fd.fusion.values.keys()
    assert [v.extent for v in again.fusion.values.values()] == [v.extent for v in fd.fusion.values.values()]


MOVEMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast": lambda fd, x: fd.ops.broadcast(x, [True, False, False]),
    "expand": lambda fd, x: fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [5, -1, x.size(1)]),
    "full": lambda fd, x: fd.ops.full([2, x.size(0)], float("-inf"), DataType.BFloat16),
    "permute": lambda fd, x: fd.ops.permute(x, [1, 0]),
    "squeeze": lambda fd, x: fd.ops.squeeze(fd.ops.broadcast(x, [False, True, False]), [1]),
    "reshape": lambda fd, x: fd.ops.reshape(x, [-1]),
    "slice": lambda fd, x: fd.ops.slice(x, [1, 0], [3, x.size(1)], [1, 2]),
    "slice_scatter": lambda fd, x: fd.ops.slice_scatter(
        x, fd.ops.slice(x, [0, 0], [2, x.size(1)]), [1, 0], [3, x.size(1)], [1, 1]
    ),
    "diagonal": lambda fd, x: fd.ops.diagonal(x, [1, 0], [3, 2], [1, 1], [0, 1]),
    "diagonal_scatter": lambda fd, x: fd.ops.diagonal_scatter(
        x, fd.ops.diagonal(x, [0, 0], [2, 2], [1, 1], [0, 1]), [1, 0], [3, 2], [1, 1], [0, 1]
    ),
    "pad": lambda fd, x: fd.ops.pad(x, [1, 2], float("nan")),
    "cat": lambda fd, x: fd.ops.cat([x, x], -1),
    "flip": lambda fd, x: fd.ops.flip(x, [-1]),
    "roll": lambda fd, x: fd.ops.roll(x, 1, 0),
    "windows": lambda fd, x: fd.ops.windows(x, 1, 2),
    "take_along_axis": lambda fd, x: fd.ops.take_along_axis(x, fd.ops.cast(x, DataType.Int), 1),
    "unless_empty": lambda fd, x: fd.ops.unless_empty(x, fd.ops.cast(x, DataType.Int), 1),
    "take": lambda fd, x: fd.ops.take(x, fd.ops.cast(x, DataType.Int), 1),
    "scatter": lambda fd, x: fd.ops.scatter(x, fd.ops.cast(x, DataType.Int), x, 1),
    "matmul": lambda fd, x: fd.ops.matmul(x, fd.ops.permute(x, [1, 0])),
    "linear": lambda fd, x: fd.ops.linear(x, fd.ops.full([3, x.size(1)], 1.0), fd.ops.full([3], 1.0)),
    "grouped_mm": lambda fd, x: fd.ops.grouped_mm(x, fd.ops.permute(x, [1, 0]), fd.ops.iota(2, x.size(0), 0)),
    "permuted_matmul": lambda fd, x: fd.ops.permuted_matmul(x, x, a_dims=[0, 1], b_dims=[1, 0]),
    "contract_axes": lambda fd, x: fd.ops.contract_axes(
        x, x, a_dims=[0, 1], b_dims=[1, 0], stack_axes=0, summed_axes=1
    ),
    "index_put": lambda fd, x: fd.ops.index_put(x, fd.ops.iota(x.size(0)), x, "maximum"),
    "index_put_accumulate": lambda fd, x: fd.ops.index_put_accumulate(x, fd.ops.iota(x.size(0)), x),
}


def define_with(op: Any, fd: FusionDefinition) -> Any:
    """One use of an op in a definition."""
    x = fd.define_tensor([-1, -1], True)
    match op:
        case Reduction():
            return getattr(fd.ops, op.name)(x, [0], keepdim=True)
        case Movement() | Library() if op.name in MOVEMENTS:
            return MOVEMENTS[op.name](fd, x)
        case Movement() | Library():
            return getattr(fd.ops, op.name)(*[x] * (op.arity or 2))
        case Pointwise(name="iota"):
            return fd.ops.iota(x.size(0), 0, 2, DataType.Int32)
        case Pointwise(name="random_bits"):
            return fd.ops.random_bits(fd.ops.fresh_seed(), 3, [x.size(0), 2], 1)
        case Pointwise(name="fresh_seed"):
            return fd.ops.full([2], fd.ops.fresh_seed(), DataType.Int)
        case Pointwise(name="extent"):
            return fd.ops.full([fd.ops.extent(fd.extent(-1) * 2 + fd.extent_max(fd.extent(-2), 3))], 1.0)
        case Pointwise(name="cast"):
            return fd.ops.cast(x, DataType.Half)
    kind = next(d for d in (float32, bool_, *op.domain) if d in op.domain)
    operand = x if kind is float32 else fd.ops.cast(x, kind)
    return getattr(fd.ops, op.name)(*[operand] * (op.arity or 0))


@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if not isinstance(op, WholeArrayOp)])
def test_every_op_prints_as_the_call_that_records_it(name: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(define_with(REGISTRY[name], fd))
    assert name in [node.op.name for node in fd.fusion.nodes]
    assert_round_trip(fd)


@given(drawn=definitions())
@settings(max_examples=times(75), deadline=None)
def test_random_definitions_print_as_what_records_them(drawn: tuple[FusionDefinition, list[Any]]) -> None:
    assert_round_trip(drawn[0])


def test_types_that_nvfuser_would_not_choose_are_printed() -> None:
    builder = FusionBuilder()
    x = builder.tensor_input(REGISTRY_DTYPES["int64"], [-1])
    y = builder.tensor_input(REGISTRY_DTYPES["float32"], [-1])
    both = builder.node(REGISTRY["add"], [x, y], {}, REGISTRY_DTYPES["float64"], [REGISTRY_DTYPES["float64"]])[0]
    less = builder.node(REGISTRY["lt"], [x, y], {}, REGISTRY_DTYPES["float64"], [REGISTRY_DTYPES["bool"]])[0]
    half = builder.node(REGISTRY["mul"], [y, Literal(2.0)], {}, float32, [REGISTRY_DTYPES["float16"]])[0]
    for number in (both, less, half):
        builder.output(number)
    fd = FusionDefinition.from_fusion(builder.build())
    text = repr(fd)
    assert "fd.ops.add(T0, T1, dtype=DataType.Double)" in text
    assert "fd.ops.lt(T0, T1, dtype=DataType.Double)" in text
    assert "fd.ops.mul(T1, 2.0, dtype=DataType.Half, compute=DataType.Float)" in text
    assert_round_trip(fd)


REGISTRY_DTYPES = {d.name: d for op in REGISTRY.values() if isinstance(op, Pointwise) for d in op.domain}


def test_a_decomposed_half_variance_keeps_its_types() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Half)
        fd.add_output(fd.ops.var(x, [1]))
    result = decompose(fd.fusion)
    again = run_text(repr(FusionDefinition.from_fusion(result, ids=itertools.count(7))), 7)
    array = np.random.default_rng(0).standard_normal((2, 9)).astype(np.float16)
    np.testing.assert_array_equal(evaluate(again.fusion, [array])[0], evaluate(result, [array])[0])


def test_tensors_scalars_and_vectors_share_one_numbering() -> None:
    with FusionDefinition(ids=itertools.count(1)) as fd:
        x = fd.define_tensor([-1, -1], True)
        shape = fd.ops.shape(x)
        rows = fd.ops.at(shape, 0)
        scale = fd.define_scalar(None, dtype=DataType.Double)
        constant = fd.define_scalar(3.0)
        vector = fd.define_vector([rows, 4])
        y = fd.ops.full(vector, constant, DataType.Float)
        fd.add_output(fd.ops.mul(y, scale))
    assert [shape.index, rows.index, scale.index, constant.index, vector.index, y.index] == [1, 2, 3, 4, 5, 6]
    assert repr(fd) == (
        "def nvfuser_fusion_id1(fd : FusionDefinition) -> None :\n"
        "    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    V1 = fd.ops.shape(T0)\n"
        "    S2 = fd.ops.size(T0, dim=0)\n"
        "    S3 = fd.define_scalar(None, dtype=DataType.Double)\n"
        "    S4 = fd.define_scalar(3.0, dtype=DataType.Double)\n"
        "    V5 = fd.define_vector([S2, 4], dtype=DataType.Int)\n"
        "    T6 = fd.ops.full(shape=V5, fill_value=S4, dtype=DataType.Float)\n"
        "    T7 = fd.ops.mul(T6, S3)\n"
        "    fd.add_output(T7)"
    )
    assert_round_trip(fd)


def test_a_vector_of_inputs_is_that_many_scalars() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        shape = fd.define_vector(2)
        fd.add_output(fd.ops.reshape(x, shape))
    assert_round_trip(fd)
    (result,) = fd.execute([np.arange(6, dtype=np.float32), 2, 3])
    assert result.shape == (2, 3)


def run(record: Callable[[FusionDefinition, Any], Any], array: Any, *more: Any, **define: Any) -> Any:
    with FusionDefinition() as fd:
        dtype = DataType(np.asarray(array).dtype.name)
        x = fd.define_tensor([-1] * np.ndim(array), dtype=dtype, **define)
        fd.add_output(record(fd, x))
    assert_round_trip(fd)
    return fd.execute([array, *more])[0]


GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_reductions_take_all_axes_one_axis_or_several() -> None:
    assert run(lambda fd, x: fd.ops.sum(x), GRID) == 15
    assert run(lambda fd, x: fd.ops.sum(x, DataType.Double), GRID).dtype == np.float64
    np.testing.assert_array_equal(run(lambda fd, x: fd.ops.max(x, 0), GRID), GRID.max(0))
    np.testing.assert_array_equal(run(lambda fd, x: fd.ops.sum(x, [-1], True), GRID), GRID.sum(1, keepdims=True))
    assert run(lambda fd, x: fd.ops.sum(x, dim=1, dtype=DataType.Int), GRID.astype(np.int32)).dtype == np.int64


def test_variance_divides_by_one_less_unless_told_otherwise() -> None:
    np.testing.assert_allclose(run(lambda fd, x: fd.ops.var(x, [1]), GRID), GRID.var(1, ddof=1))
    np.testing.assert_allclose(run(lambda fd, x: fd.ops.var(x, [1], 0), GRID), GRID.var(1))
    np.testing.assert_allclose(run(lambda fd, x: fd.ops.var_mean(x, [1])[1], GRID), GRID.mean(1))


def test_padding_pairs_go_from_the_last_axis_backwards() -> None:
    result = run(lambda fd, x: fd.ops.pad(x, [1, 2], 9), GRID)
    np.testing.assert_array_equal(result, np.pad(GRID, [(0, 0), (1, 2)], constant_values=9))
    result = run(lambda fd, x: fd.ops.pad(x, [0, 1, 2, 0]), GRID)
    np.testing.assert_array_equal(result, np.pad(GRID, [(2, 0), (0, 1)]))


def test_padding_takes_a_constant_scalar_and_no_other() -> None:
    result = run(lambda fd, x: fd.ops.pad(x, [0, 1], fd.ops.neg(2.0)), GRID)
    np.testing.assert_array_equal(result[:, 3], [-2, -2])
    with FusionDefinition() as fd:
        x, size = fd.define_tensor([-1]), fd.define_scalar(None, DataType.Float)
        with pytest.raises(UnsupportedError, match="pad: value must be a constant"):
            fd.ops.pad(x, [0, 1], size)
        with pytest.raises(UnsupportedError, match="pad: value must be a constant"):
            fd.ops.pad(x, [0, 1], x.size(0))


def test_slices_beyond_the_axis_are_cut_to_it() -> None:
    np.testing.assert_array_equal(run(lambda fd, x: fd.ops.slice(x, [0, 1], [9, 9]), GRID), GRID[:9, 1:9])
    np.testing.assert_array_equal(run(lambda fd, x: fd.ops.slice(x, [0, 0], [2, 3], [1, 2]), GRID), GRID[:, ::2])


def test_reshape_and_expand_take_minus_one_and_scalars() -> None:
    assert run(lambda fd, x: fd.ops.reshape(x, [3, -1]), GRID).shape == (3, 2)
    assert run(lambda fd, x: fd.ops.reshape(x, [x.size(1), x.size(0)]), GRID).shape == (3, 2)
    assert run(lambda fd, x: fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [4, -1, -1]), GRID).shape == (
        4, 2, 3,
    )  # fmt: skip
    column = run(lambda fd, x: fd.ops.broadcast_in_dim(fd.ops.sum(x, [1]), [x.size(0), 7], [0]), GRID)
    np.testing.assert_array_equal(column, np.repeat(GRID.sum(1)[:, None], 7, 1))


def test_sizes_can_be_computed_with() -> None:
    result = run(lambda fd, x: fd.ops.reshape(x, [x.size(0) * x.size(1) // 2, 2]), GRID)
    assert result.shape == (3, 2)


def test_a_size_that_is_no_polynomial_is_refused_with_what_can_be() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        with pytest.raises(ShapeError, match="an integer that a shape can depend on"):
            fd.ops.full([fd.ops.abs(x.size(0))], 1.0)


def test_gather_takes_an_index_smaller_than_the_data() -> None:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1], dtype=DataType.Int)
        fd.add_output(fd.ops.gather(x, index, 1))
    assert_round_trip(fd)
    np.testing.assert_array_equal(fd.execute([GRID, np.array([[2, 0]])])[0], [[2, 0]])


def test_integer_division_truncates_and_true_division_does_not() -> None:
    numbers = np.array([7, -7, 6, -6], np.int64)
    np.testing.assert_array_equal(run(lambda fd, x: fd.ops.div(x, 2), numbers), [3, -3, 3, -3])
    np.testing.assert_array_equal(run(lambda fd, x: x / 2, numbers), numbers / 2)
    assert run(lambda fd, x: fd.ops.div(x, 2.0), numbers).dtype == np.float32


def test_promotion_is_that_of_pytorch() -> None:
    assert run(lambda fd, x: fd.ops.add(x, 1.5), np.ones(2, np.int64)).dtype == np.float32
    assert run(lambda fd, x: fd.ops.add(x, fd.define_scalar(1.5)), np.ones(2, np.float16)).dtype == np.float16
    assert run(lambda fd, x: fd.ops.exp(x), np.ones(2, np.int32)).dtype == np.float32


def test_operators_are_operations() -> None:
    expected = 2 * (GRID + 1) - GRID / 2 + GRID**2
    np.testing.assert_allclose(run(lambda fd, x: 2 * (x + 1) - x / 2 + (-x) ** 2, GRID), expected, rtol=1e-6)
    np.testing.assert_array_equal(run(lambda fd, x: (x > 1) & (x != 3) | ~(x >= 0), GRID), (GRID > 1) & (GRID != 3))


def test_an_input_can_be_described_by_an_array() -> None:
    array = np.ones((4, 1, 3), np.float32).transpose(2, 1, 0)
    with FusionDefinition(ids=itertools.count(1)) as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(array)))
        fd.from_array(array, static_sizes=True)
    lines = repr(fd).splitlines()
    assert lines[1].endswith(
        "fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, True], dtype=DataType.Float, is_cpu=False, "
        "stride_order=[0, 2, 1])"
    )
    assert "shape=[3, 1, 4]" in lines[3]
    assert_round_trip(fd)


def test_sizes_and_strides_define_a_tensor() -> None:
    with FusionDefinition() as fd:
        fd.define_tensor(sizes=[4, 8], strides=[16, 1], dtype=DataType.Half)
    assert "shape=[-1, -1], contiguity=[False, True], dtype=DataType.Half" in repr(fd)


def test_execute_needs_fitting_arguments() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        fd.add_output(fd.ops.neg(x))
    with pytest.raises(FusionError, match="takes 1 inputs, got 2"):
        fd.execute([GRID, GRID])
    with pytest.raises(ShapeError, match="has 1 axes, not 2"):
        fd.execute([GRID[0]])
    with pytest.raises(ShapeError, match="has 2 elements on axis 1, not 3"):
        fd.execute([GRID[:, :2]])
    with pytest.raises(DtypeError, match="is float64, not float32"):
        fd.execute([GRID.astype(np.float64)])


def test_validate_compares_with_the_reference() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.exp(x))
    fd.validate([GRID])
    fd.validate([GRID], [np.exp(GRID)])
    with pytest.raises(AssertionError, match="output 1"):
        fd.validate([GRID], [GRID])


def test_a_repro_script_records_and_runs_the_definition() -> None:
    fd = worked_example()
    script = fd.repro_script_for([GRID, GRID])
    assert script.startswith("import numpy as np\nfrom tracefuse import *\n")
    assert DEFINITION in script
    assert "uniform(0, 5, (2, 3)).astype('float32')" in script
    with pytest.raises(FusionError, match="save_repro_inputs=True"):
        fd.last_repro_script()
    fd.execute([GRID, GRID], save_repro_inputs=True)
    assert fd.last_repro_script() == script
