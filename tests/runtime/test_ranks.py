"""Sharded values: the transfers that a fusion needs, and that ranks in one process give the results of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_fusions import fusions

from segments import Communicate
from tracefuse import DataType, FusionDefinition, FusionError, ParallelType
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.parallel_types import Sharding
from tracefuse.ir.reference import evaluate
from tracefuse.runtime.host_text import host_text
from tracefuse.runtime.rank_program import LoopBack, rank_program, run_on_ranks

X = np.arange(28, dtype=np.float32).reshape(7, 4)


def on(tensor: Any, devices: list[int], axis: int | None = None) -> Any:
    tensor.set_device_mesh(devices)
    if axis is not None:
        tensor.axis(axis).parallelize(ParallelType.mesh_x)
    return tensor


def copies(*places: tuple[list[int], int | None]) -> Fusion:
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], dtype=DataType.Float)
        for position, (devices, axis) in enumerate(places):
            tensor = on(tensor if position == 0 else fd.ops.set(tensor), devices, axis)
        fd.add_output(tensor)
    return fd.fusion


@pytest.mark.parametrize(
    ("places", "moves"),
    [
        ([([0, 1], 0), ([0, 1], None)], ["AllGather"]),
        ([([0, 1], None), ([0, 1], 1)], ["Scatter"]),
        ([([0, 1, 2], 0), ([0, 1, 2], 1)], ["AllToAll"]),
        ([([0, 1], 0), ([2], None)], ["SendRecv"]),
        ([([0, 1], 0), ([0, 1], 0)], []),
        ([([3], None), ([0, 1, 2, 3], 0), ([1, 2], 1)], ["SendRecv", "SendRecv"]),
    ],
)
def test_a_copy_between_shardings_is_a_transfer(places: list[tuple[list[int], int | None]], moves: list[str]) -> None:
    device = LoopBack()
    (result,) = run_on_ranks(copies(*places), [X], 4, device)
    np.testing.assert_array_equal(result, X)
    assert device.exchanges == moves


def test_operands_are_transferred_to_the_devices_of_the_result() -> None:
    with FusionDefinition() as fd:
        x = on(fd.define_tensor([-1, -1], dtype=DataType.Float), [0, 1], 0)
        w = on(fd.define_tensor([-1, -1], dtype=DataType.Float), [0, 1], 1)
        hidden = on(fd.ops.exp(fd.ops.matmul(x, w)), [0, 1], 0)
        fd.add_output(on(fd.ops.sum(hidden, [0]), [0, 1]))
    w_array = np.linspace(-0.1, 0.1, 12, dtype=np.float32).reshape(4, 3)
    moving, program = rank_program(fd.fusion, 2)
    text = host_text(moving, program)
    assert "= AllGather( T1_g_float" in text
    assert "= Exp( T" in text
    device = LoopBack()
    (result,) = run_on_ranks(fd.fusion, [X, w_array], 2, device)
    np.testing.assert_allclose(result, np.exp(X @ w_array).sum(0), rtol=1e-6)
    assert device.exchanges.count("AllGather") >= 2
    assert all(isinstance(i, Communicate) or "communicate" not in str(i) for i in program.instructions)


def test_a_mesh_with_a_device_that_is_not_a_rank_is_refused() -> None:
    with pytest.raises(FusionError, match="T0 is on device 5, and there are 2 ranks"):
        rank_program(copies(([5], None), ([0], None)), 2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_fusions_on_ranks_give_the_same_results(data: st.DataObject) -> None:
    fusion, arguments = data.draw(fusions("exact"))
    assume(not fusion.aliases)
    values = dict(fusion.values)
    for number, value in fusion.values.items():
        if value.is_tensor and data.draw(st.booleans()):
            devices = tuple(data.draw(st.permutations([0, 1, 2]))[: data.draw(st.integers(1, 3))])
            axes = [k for k, extent in enumerate(value.shape) if extent != 1]
            axis = data.draw(st.sampled_from([None, *axes]))
            values[number] = replace(value, sharding=Sharding(devices, axis))
    placed = replace(fusion, values=values)
    expected = evaluate(fusion, arguments)
    for result, wanted in zip(run_on_ranks(placed, arguments, 3), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
