"""Tests argmax and argmin, whose state has two variables, in every template of both targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ways import check
from tracefuse import fuse
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import ALL, DType, bfloat16, bool_, float32, int32

REAL = [d for d in ALL if d.kind != "complex"]

SPLIT = (bool_, int32, bfloat16, float32)
"""The types whose segments also run one by one and as they print."""


def values(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Many equal elements, and NaN among the floats."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, shape).astype(bool)
    array = random.integers(0, 7, shape).astype(dtype.numpy)
    if dtype.kind != "uint":
        array = (array - array.dtype.type(4)).astype(dtype.numpy)
    if dtype.is_floating and array.size:
        array[random.random(shape) < 0.01] = np.nan
        array[random.random(shape) < 0.02] = -np.inf
    return array


def positions(dtype: DType, rank: int, dims: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, True, dtype)
        fd.add_output(fd.ops.argmax(x, dims))
        fd.add_output(fd.ops.argmin(x, dims, keepdim=True))
        fd.add_output(fd.ops.max(x, dims))
    return fd


AXES = ([0], [1], [0, 1])
CASES = [(d, axes) for k, d in enumerate(REAL) for j, axes in enumerate(AXES) if d in SPLIT or j == k % len(AXES)]
"""Every axis for the types in `SPLIT`; each of the others over one choice of axes."""


@pytest.mark.parametrize(("dtype", "dims"), CASES, ids=str)
def test_the_first_extreme_is_found_and_nan_is_more_extreme_than_any_number(
    backend: str, dtype: DType, dims: list[int]
) -> None:
    # How a definition splits and prints does not depend on the type.
    without = {} if dtype in SPLIT else dict.fromkeys(("segments", "printed"), f"runs for {', '.join(map(str, SPLIT))}")
    check(positions(dtype, 2, dims), [values(dtype, (9, 34))], backend, bits=True, without=without)


@pytest.mark.parametrize(("shape", "dims"), [
    ((3, 4, 5), [0, 2]), ((3, 4, 5), [1, 2]), ((3, 1, 5), [1]), ((1, 40), [0]), ((7, 1), [0, 1]), ((0, 4), [1]),
])  # fmt: skip
def test_positions_over_several_axes_are_row_major(backend: str, shape: tuple[int, ...], dims: list[int]) -> None:
    dtype = REAL[-2]
    check(positions(dtype, len(shape), dims), [values(dtype, shape)], backend, bits=True)


@pytest.mark.parametrize(
    ("shape", "dims"), [((2, 70_000), [1]), ((70_000, 2), [0]), ((3000, 40), [0]), ((70_000,), [0])]
)
def test_long_axes_are_split_and_joined(backend: str, shape: tuple[int, ...], dims: list[int]) -> None:
    if backend.startswith("interpreter"):
        shape = tuple(min(e, 70) for e in shape)  # the interpreter takes a while for what the CPU's kernels split
    array = np.random.default_rng(1).integers(0, 1000, shape).astype(np.float32)
    check(positions(REAL[-2], len(shape), dims), [array], backend, bits=True)


def test_transposed_arrays_keep_the_order_of_their_axes(backend: str) -> None:
    array = values(REAL[-2], (6, 5, 4)).T
    for dims in ([0], [0, 1], [0, 1, 2]):
        check(positions(REAL[-2], 3, dims), [array], backend, bits=True)


def test_fused_functions_find_positions_as_numpy_does() -> None:
    x = np.random.default_rng(2).normal(size=(5, 8))
    for axis in (None, 0, 1, -1):
        found = fuse(lambda a, axis=axis: np.argmax(a * 2, axis=axis) + np.argmin(a, axis=axis))(x)
        np.testing.assert_array_equal(found, np.argmax(x, axis=axis) + np.argmin(x, axis=axis))
