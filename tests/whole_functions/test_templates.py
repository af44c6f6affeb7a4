"""Tests templates through whole functions: one kernel where it is promised, and correct values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tracefuse
from tests.ways import check, results
from tests.whole_functions.model_functions import (
    FUNCTIONS,
    PLAIN,
    TRACED,
    arguments_of,
    in_float64,
    rope,
    rotate_half,
    swapped_halves,
)
from tracefuse import fuse
from tracefuse.compiler.executable import Executable
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.errors import ShapeError
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.partition.segmentation import segment_fusion

TOLERANCE = {"float32": 3e-6, "bfloat16": 2e-2, "float64": 1e-14, "float16": 3e-3}
"""Relative to the largest magnitude of the result: a few roundings of the type."""


def fused(function: Any, **options: Any) -> FusedFunction[..., Any]:
    return fuse(lambda *arguments: function(TRACED, *arguments), **options)


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def assert_close(actual: Any, expected: Any, dtype: Any) -> None:
    for own, wanted in zip(flat(actual), flat(expected), strict=True):
        assert own.shape == wanted.shape
        limit = TOLERANCE[np.dtype(dtype).name] * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(np.asarray(own).astype(np.float64), wanted, rtol=0, atol=limit)


def launches(executable: Executable, arguments: list[Any]) -> list[int]:
    """How many kernels each segment launches."""
    plan, _ = executable.plan_for(arguments)
    return [0 if s.lowered is None else len(s.lowered.launches) for s in plan.segments]


def kernels_of(function: FusedFunction[..., Any], arguments: list[Any]) -> list[int]:
    fusion = function.definition(*arguments)
    made = fusion.fusion if isinstance(fusion, FusionDefinition) else fusion
    return launches(Executable(segment_fusion(made)), arguments)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_models_are_numpys_in_float64(name: str, dtype: Any) -> None:
    arguments = arguments_of(name, dtype)
    actual = fused(FUNCTIONS[name][0])(*arguments)
    assert all(own.dtype == dtype for own in flat(actual))
    assert_close(actual, in_float64(name, arguments), dtype)


@pytest.mark.parametrize("name", [name for name, (_, _, one) in FUNCTIONS.items() if one])
def test_is_one_kernel_with_one_launch(name: str) -> None:
    arguments = arguments_of(name, np.float32)
    function = fused(FUNCTIONS[name][0])
    assert kernels_of(function, arguments) == [1]
    assert len(function.segments(*arguments)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_models_run_three_ways(name: str, backend: str) -> None:
    arguments = arguments_of(name, np.float32)
    fusion = fused(FUNCTIONS[name][0]).definition(*arguments)
    made = fusion.fusion if isinstance(fusion, FusionDefinition) else fusion
    check(made, arguments, backend)


def test_a_tensor_read_at_two_places_is_one_kernel_and_numpy_bit_for_bit() -> None:
    x = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    function = fused(swapped_halves)
    assert kernels_of(function, [x]) == [1]
    np.testing.assert_array_equal(function(x), swapped_halves(PLAIN, x))


def test_rope_is_one_kernel_bit_for_bit_without_contraction_and_within_two_ulp_with_it() -> None:
    random = np.random.default_rng(1)
    x, c, s = (random.normal(size=(6, 10, 32)).astype(np.float32) for _ in range(3))
    assert kernels_of(fused(rope), [x, c, s]) == [1]
    np.testing.assert_array_equal(fused(rope, contract=False)(x, c, s), rope(PLAIN, x, c, s))
    scale = np.abs(x * c) + np.abs(rotate_half(PLAIN, x) * s)
    wide = rope(PLAIN, *(a.astype(np.float64) for a in (x, c, s)))
    assert (np.abs(fused(rope)(x, c, s) - wide) <= 2 * np.spacing(scale)).all()


def test_rope_is_bit_for_bit_numpys_on_every_backend_without_contraction(backend: str) -> None:
    random = np.random.default_rng(2)
    arguments = [random.normal(size=(3, 4, 8)).astype(np.float32) for _ in range(3)]
    fusion = fused(rope).definition(*arguments)
    made = fusion.fusion if isinstance(fusion, FusionDefinition) else fusion
    for way, (actual,) in results(made, arguments, backend, contract=False):
        np.testing.assert_array_equal(actual, rope(PLAIN, *arguments), err_msg=way)


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_a_sum_that_is_the_same_for_every_column_is_read_by_all(backend: str, rows: int) -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 1], True), fd.define_tensor([1, -1], True)
        total = fd.ops.sum(fd.ops.add(x, 1.0))
        fd.add_output(fd.ops.mul(total, fd.ops.add(fd.ops.mul(x, 2.0), y)))
        fd.add_output(total)
    random = np.random.default_rng(rows)
    check(fd, [random.normal(size=shape).astype(np.float32) for shape in ((rows, 1), (1, 40))], backend)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 5), (1,)), ((5, 3), (0,)), ((4, 3, 5, 6), (1, 2)), ((2, 3, 4), (0, 2)), ((7,), (0,)), ((1, 9), (1,)),
    ((40, 300), (1,)), ((300, 40), (0,)), ((3, 2500), (1,)), ((2500, 3), (0,)), ((2, 70000), (1,)), ((70000,), (0,)),
    ((5, 1), (1,)), ((5, 1), (0,)), ((4, 33, 2), (1,)), ((130, 1, 65), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_reductions_of_every_pattern_and_size(backend: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    if np.prod(shape) > {"interpreter": 7000, "interpreter-cuda": 10000}.get(backend, np.inf):
        pytest.skip("too many elements for the interpreter")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * len(shape), True)
        total = fd.ops.sum(x, list(axes), keepdim=True)
        fd.add_output(fd.ops.div(x, fd.ops.add(fd.ops.abs(total), 1.0)))
        fd.add_output(fd.ops.max(x, list(axes)))
        fd.add_output(fd.ops.var(x, list(axes), 0))
    values = np.random.default_rng(4).normal(1, 2, shape).astype(np.float32)
    check(fd, [values], backend)


def test_truth_of_columns_of_floats(backend: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.any(x, [0]))
        fd.add_output(fd.ops.all(x, [0]))
    values = np.array([[0, 2, np.nan, 0.5], [0, 0, 1, -0.25]], np.float32)
    check(fd, [values], backend, bits=True)


def test_products_that_nobody_reads_are_left_out(backend: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.ops.matmul(x, x)
        fd.add_output(fd.ops.neg(x))
    check(fd, [np.ones((3, 3), np.float32)], backend, bits=True)


def test_siblings_share_a_kernel_if_they_share_their_innermost_axis(backend: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], True)
        fd.add_output(fd.ops.sigmoid(x))
        fd.add_output(fd.ops.permute(x, [1, 0, 2]))
        fd.add_output(fd.ops.permute(x, [2, 1, 0]))
    assert [sorted(segment.outputs) for segment in fd.segment()] == [[1, 2], [1]]
    check(fd, [np.arange(24, dtype=np.float32).reshape(2, 3, 4)], backend)


def test_extents_that_turn_out_unequal_are_right_after_equal_ones(backend: str) -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1], True), fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.sum(x, [1]))
        fd.add_output(fd.ops.add(fd.ops.sum(x, [1], keepdim=True), y))
    for columns in (4, 3, 1):
        check(fd, [np.ones((3, 4), np.float32), np.ones((3, columns), np.float32)], backend, bits=True)


def test_one_executable_serves_sizes_that_come_one_after_another() -> None:
    function = fuse(lambda x: x / x.sum(axis=-1, keepdims=True))
    for shape in ((3, 4), (5, 7), (64, 128), (1, 1), (2, 100000), (0, 3), (3, 1)):
        x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
        np.testing.assert_allclose(function(x), x / x.astype(np.float64).sum(axis=-1, keepdims=True), rtol=1e-5)
    before = function.cache_info().compiles
    function(np.ones((9, 11), np.float32))
    assert function.cache_info().compiles == before


def test_a_maximum_over_nothing_is_refused_before_anything_runs() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.max(x, [1]))
    with pytest.raises(ShapeError, match="empty"):
        fd.execute([np.zeros((3, 0), np.float32)])


def test_halves_round_once_where_they_are_stored_and_where_the_user_casts(backend: str) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True, DataType.BFloat16) for _ in range(2))
        product = fd.ops.mul(x, y)
        fd.add_output(fd.ops.add(product, x))
        fd.add_output(fd.ops.add(fd.ops.cast(product, DataType.BFloat16), x))
    random = np.random.default_rng(6)
    arguments = [random.normal(size=200).astype(ml_dtypes.bfloat16) for _ in range(2)]
    check(fd, arguments, backend, bits=True, contract=False, without={
        "segments": "stores what one kernel keeps in float32, and has a reference of its own",
        "printed": "stores what one kernel keeps in float32, and has a reference of its own",
    })  # fmt: skip


def test_public_names_are_enough_to_run_a_function() -> None:
    function = tracefuse.fuse(lambda x: tracefuse.xp.exp(x))
    np.testing.assert_allclose(function(np.zeros(3, np.float32)), 1)
