"""Tests scans, sorts, gathers, scatters and triangles of definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.session.samples import in_suite
from tests.ways import check
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import ALL, DType, bfloat16, bool_, float32, float64, int16, int64

REAL = [d for d in ALL if d.kind != "complex"]


def values(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Small numbers, many of them equal; NaN among the floats."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, shape).astype(bool)
    array = random.integers(0 if dtype.kind == "uint" else -3, 4, shape).astype(dtype.numpy)
    if dtype.is_floating:
        array[random.random(shape) < 0.1] = np.nan
    return array


def run(definition: Callable[[FusionDefinition, list[Any]], None], types: list[tuple[DType, int]]) -> FusionDefinition:
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * rank, True, dtype) for dtype, rank in types]
        definition(fd, inputs)
    return fd


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "sort", "argsort"])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_scans_and_sorts_are_numpys_along_every_axis(name: str, dtype: DType) -> None:
    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        for dim in (0, 1, -1):
            fd.add_output(getattr(fd.ops, name)(inputs[0], dim))

    bits = name not in ("cumsum", "cumprod") or not dtype.is_floating
    alike = {"printed": "a segment prints alike for every dtype; it runs for some"}
    without = alike if dtype not in in_suite((bool_, bfloat16), REAL) else {}
    check(run(define, [(dtype, 2)]), [values(dtype, (6, 9))], bits=bits, without=without)
    check(run(define, [(dtype, 2)]), [values(dtype, (0, 9))], bits=True, without=without)


@pytest.mark.parametrize("dtype", [d for d in ALL if d.kind == "complex"], ids=str)
def test_scans_and_sorts_of_complex_numbers(dtype: DType) -> None:
    x = (values(REAL[-1], (5, 4)) + 1j * values(REAL[-1], (5, 4), 1)).astype(dtype.numpy)
    fd = run(lambda fd, i: [fd.add_output(getattr(fd.ops, n)(i[0], 1)) for n in ("cumsum", "sort", "argsort")], [(dtype, 2)])  # fmt: skip # noqa: E501
    for own, wanted in zip(fd.execute([x]), [np.cumsum(x, 1), np.sort(x, 1), np.argsort(x, 1, "stable")], strict=True):
        np.testing.assert_array_equal(own, wanted)


def test_descending_order_is_stable_and_begins_with_nan() -> None:
    x = np.array([[1, 3, np.nan, 3, 1, 2]], np.float32)
    fd = run(lambda fd, i: fd.add_output(fd.ops.argsort(i[0], 1, descending=True)), [(float32, 2)])
    assert fd.execute([x])[0].tolist() == [[2, 1, 3, 5, 0, 4]]


def test_topk_gives_the_largest_or_smallest_and_where_they_are() -> None:
    x = values(int64, (4, 7))

    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        for largest in (True, False):
            for result in fd.ops.topk(inputs[0], 3, -1, largest):
                fd.add_output(result)

    fd = run(define, [(int64, 2)])
    check(fd, [x], bits=True)
    large, where, small, _ = fd.execute([x])
    np.testing.assert_array_equal(large, -np.sort(-x, -1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, where, -1), large)
    np.testing.assert_array_equal(small, np.sort(x, -1)[:, :3])


@pytest.mark.parametrize("dtype", [bool_, int16, bfloat16, float32, float64], ids=str)  # each size of an element
def test_slices_are_taken_at_positions_of_any_rank_and_negative_ones_count_from_the_end(
    backend: str, dtype: DType
) -> None:
    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        x, index, rows = inputs
        fd.add_output(fd.ops.index_select(x, index, 1))
        fd.add_output(fd.ops.index_select(x, index, -2))
        fd.add_output(fd.ops.select(x, 2, 0))
        fd.add_output(fd.ops.embedding_fwd(rows, x))
        fd.add_output(fd.ops.add(fd.ops.index_select(x, index, 0), 1))

    fd = run(define, [(dtype, 2), (int64, 1), (int64, 2)])
    check(fd, [values(dtype, (6, 7)), np.array([3, -1, 0, -6, 5]), np.array([[1, -2], [0, 5]])], backend, bits=True)


@pytest.mark.parametrize("shape", [(2, 5, 8), (1, 7, 4), (3, 1, 6), (2, 0, 3)], ids=str)
def test_triangles_of_matrices_keep_one_side_of_a_diagonal(backend: str, shape: tuple[int, ...]) -> None:
    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        # All in the first shape, and one inside and on each side of the others.
        for diagonal in (-20, -2, 0, 1, 3, 20) if shape == (2, 5, 8) else in_suite((-20, 1, 3), (-20, -2, 0, 1, 3, 20)):
            fd.add_output(fd.ops.triu(inputs[0], diagonal))
            fd.add_output(fd.ops.tril(inputs[0], diagonal))
        fd.add_output(fd.ops.sum(fd.ops.triu(inputs[0], 1), [-1]))

    check(run(define, [(int64, 3)]), [values(int64, shape)], backend, bits=True)


def test_tensors_are_stacked_along_a_new_axis(backend: str) -> None:
    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        for dim in (0, 1, -1):
            fd.add_output(fd.ops.stack(inputs, dim))

    arguments = [values(float32, (3, 4), k) for k in range(3)]
    check(run(define, [(float32, 2)] * 3), arguments, backend, bits=True)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_scatter_writes_and_index_put_adds_at_positions(dtype: DType) -> None:
    x, source = values(dtype, (6, 5)), values(dtype, (3, 7), 1)
    index = np.array([[0, 5, 2, 3], [1, -1, 0, 4]])
    fd = run(lambda fd, i: fd.add_output(fd.ops.scatter(i[0], i[1], i[2], 0)), [(dtype, 2), (int64, 2), (dtype, 2)])
    check(fd, [x, index, source], bits=True)
    expected = x.copy()
    np.put_along_axis(expected[:, :4], index, source[:2, :4], 0)
    np.testing.assert_array_equal(fd.execute([x, index, source])[0], expected)
    if dtype is bool_ or dtype.is_half:
        return
    rows, added = np.array([1, 1, -1, 5]), values(dtype, (4, 5), 2)
    fd = run(lambda fd, i: fd.add_output(fd.ops.index_put_accumulate(*i)), [(dtype, 2), (int64, 1), (dtype, 2)])
    np.add.at(x, rows, added)
    np.testing.assert_array_equal(fd.execute([values(dtype, (6, 5)), rows, added])[0], x)


def test_positions_outside_the_axis_are_an_index_error() -> None:
    fd = run(lambda fd, i: fd.add_output(fd.ops.scatter(i[0], i[1], i[2], 0)), [(int64, 1)] * 3)
    with pytest.raises(IndexError, match="outside an axis of 3"):
        fd.execute([np.zeros(3, int), np.array([3]), np.zeros(1, int)])


def test_welford_gives_mean_sum_of_squares_and_count(backend: str) -> None:
    def define(fd: FusionDefinition, inputs: list[Any]) -> None:
        average, squares, count = fd.ops.welford(inputs[0], [1])
        fd.add_output(average)
        fd.add_output(squares)
        fd.add_output(fd.ops.div(squares, count))

    x = np.random.default_rng(0).normal(3, 1, (5, 40)).astype(np.float32)
    check(run(define, [(float32, 2)]), [x], backend)
