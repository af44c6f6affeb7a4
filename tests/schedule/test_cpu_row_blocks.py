"""Tests of rows that the CPU computes in blocks, where adjacent rows or planes read the same elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.compiler.executable import Executable
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser


def neighbours(x: Any, axes: Sequence[int]) -> Any:
    """The sums of the interior and of the elements beside it along some axes."""
    inner = [slice(1, -1)] * x.ndim
    total = x[tuple(inner)] * 2
    for axis in axes:
        for part in (slice(None, -2), slice(2, None)):
            total = total + x[(*inner[:axis], part, *inner[axis + 1 :])]
    return total


def filtered(x: Any) -> Any:
    """Three taps along the last axis, then along the first, whose rows share the sums of the former."""
    along = x[..., :-2] + x[..., 1:-1] * 3 + x[..., 2:]
    return along[:-2] + along[1:-1] * 3 + along[2:]


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], type, tuple[tuple[int, ...], ...], set[str]]] = {
    "2 axes": (lambda x: neighbours(x, (0, 1)), np.float32, ((101, 333),), {"-2"}),
    "3 axes": (lambda x: neighbours(x, (0, 1, 2)), np.int16, ((31, 35, 86),), {"-2", "-3"}),
    "one loop": (lambda x: x[:-3] + x[1:-2] * 3 + x[3:], np.float32, ((102, 340),), {"-2"}),
    "filters": (filtered, np.float32, ((101, 333),), {"-2"}),
}


def priced_tilings(function: Callable[[Any], Any], x: Any) -> tuple[Any, tuple[PricedTiling, ...]]:
    segmentation = segment_fusion(fuse(function).definition(x).fusion)
    plan, _ = Executable(segmentation, cpu_target()).plan_for([x])
    (segment,) = plan.segments
    assert segment.lowered is not None
    return segmentation, segment.lowered.tilings["s0"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_of_rows_compute_what_rows_do(name: str) -> None:
    function, dtype, shapes, loops = FUNCTIONS[name]
    arrays = [np.random.default_rng(0).integers(-9, 9, shape).astype(dtype) for shape in shapes]
    segmentation, priced = priced_tilings(function, arrays[0])
    assert {str(one.tiling.get("along", 0)) for one in priced} == {*loops, "0"}
    for one in priced[1:]:
        run = Executable(segmentation, cpu_target(), tilings=TilingChooser(forced={"s0": one.tiling}))
        for x in arrays:
            np.testing.assert_array_equal(run([x])[0], function(x), strict=True, err_msg=f"{x.shape} {one.tiling}")


def test_rows_are_in_blocks_only_where_they_share_elements_and_arrays_are_not_small() -> None:
    x, row = np.ones((300, 400), np.float32), np.ones(400, np.float32)
    for function, arguments in (
        (lambda x: neighbours(x, (0, 1)), (x[:40],)),
        (lambda x, row: x * row + row, (x, row)),
        (lambda x: x[1:] * 2 + x[:-1], (x.reshape(-1, 200),)),
    ):
        assert "along" not in str(fuse(function).explain(*arguments))
