"""Fusions of square arrays: every extent is the same, so that extents tell no loop from another."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ways import backend_of, run_whole

from tracefuse.compiler import run_passes
from tracefuse.definition import FusionDefinition
from tracefuse.evaluate import evaluate
from tracefuse.ir import Fusion
from tracefuse.segmentation import segment_fusion


def drawn(seed: int) -> Fusion:
    """A fusion of one square array: sums and maxima over either axis, transposes, and what is made of them."""
    choose = random.Random(seed)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        arrays: list[Any] = [fd.ops.add(x, fd.ops.permute(x, [1, 0]))]
        reduced: list[Any] = []
        for _ in range(choose.randint(3, 12)):
            one, kind = choose.choice(arrays), choose.randrange(4)
            if kind == 0:
                arrays.append(fd.ops.add(one, choose.choice(arrays)))
            elif kind == 1:
                arrays.append(fd.ops.permute(one, [1, 0]))
            elif kind == 2:
                row = getattr(fd.ops, choose.choice(["sum", "max"]))
                reduced.append(row(one, [choose.randrange(2)], True))
            elif reduced:
                arrays.append(fd.ops.sub(one, choose.choice(reduced)))
        made = [*arrays, *reduced]
        for output in choose.sample(made, min(len(made), choose.randint(1, 4))):
            fd.add_output(output)
    return fd.fusion


def test_what_merges_piece_by_piece_is_accepted_as_a_whole() -> None:
    for seed in range(300):
        segment_fusion(run_passes(drawn(seed)))


@pytest.mark.parametrize("target", ["interpreter", "interpreter-cuda"])
def test_each_result_is_read_along_its_own_loops(target: str) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3) % 5
    for seed in range(60):
        fusion = drawn(seed)
        for own, wanted in zip(run_whole(fusion, [x], backend_of(target)), evaluate(fusion, [x]), strict=True):
            np.testing.assert_array_equal(own, wanted, err_msg=f"seed {seed}")
