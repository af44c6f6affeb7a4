"""Definitions whose values are on a mesh: every rank executes its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, FusionError, ParallelType, TraceError
from tracefuse.ir.shardings import Sharding
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.loopback import run_ranks

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
W = np.linspace(-0.5, 0.5, 24, dtype=np.float32).reshape(4, 6)
X_AXIS, Y_AXIS = ParallelType.mesh_x, ParallelType.mesh_y


def on(tensor: Any, devices: Any, **axes: ParallelType) -> Any:
    tensor.set_device_mesh(devices)
    for name, kind in axes.items():
        tensor.axis(int(name[-1])).parallelize(kind)
    return tensor


def product(devices: Any, result: dict[str, ParallelType]) -> FusionDefinition:
    """exp(x) @ w: rows of x over the first mesh axis; over the second, if any, the summed axis."""
    two = isinstance(devices[0], list)
    with FusionDefinition() as fd:
        x = on(fd.define_tensor([-1, -1], dtype=DataType.Float), devices, a0=X_AXIS, **({"a1": Y_AXIS} if two else {}))
        w = on(fd.define_tensor([-1, -1], dtype=DataType.Float), devices, **({"a0": Y_AXIS} if two else {}))
        fd.add_output(on(fd.ops.matmul(fd.ops.exp(x), w), devices, **result))
    return fd


@pytest.mark.parametrize(
    ("devices", "result"),
    [
        ([0, 1], {"a0": X_AXIS}), ([0, 1], {}), ([1, 0], {"a1": X_AXIS}), ([0, 1, 2, 3], {"a0": X_AXIS}),
        ([[0, 1], [2, 3]], {"a0": X_AXIS}), ([[0, 1], [2, 3]], {"a0": X_AXIS, "a1": Y_AXIS}), ([[3, 1], [2, 0]], {}),
    ],
)  # fmt: skip
def test_each_rank_executes_its_parts(devices: Any, result: dict[str, ParallelType]) -> None:
    def run() -> tuple[Any, int, Sharding, Sharding, Sharding]:
        world = current_world()
        fd = product(devices, result)
        x, w = (fd.fusion.values[number].sharding for number in fd.fusion.inputs)
        out = fd.fusion.values[fd.fusion.outputs[0]].sharding
        assert x is not None
        assert w is not None
        assert out is not None
        parts = [np.ascontiguousarray(a[s.slices(world.rank, a.shape)]) for a, s in ((X, x), (W, w))]
        for _ in range(2):
            (value,) = fd.execute(parts)
        return value, world.rank, x, w, out

    expected = np.exp(X) @ W
    for value, rank, _, _, out in run_ranks(int(np.size(devices)), run):
        np.testing.assert_allclose(value, expected[out.slices(rank, expected.shape)], rtol=1e-5, atol=1e-6)


def test_one_rank_ignores_meshes() -> None:
    (result,) = product([0, 1], {"a0": X_AXIS}).execute([X, W])
    np.testing.assert_allclose(result, np.exp(X) @ W, rtol=1e-5, atol=1e-6)


def test_a_definition_prints_its_mesh_and_reads_it_back() -> None:
    text = repr(product([[0, 1], [2, 3]], {"a1": Y_AXIS}))
    assert "T0.set_device_mesh([[0, 1], [2, 3]])" in text
    assert "T0.axis(1).parallelize(ParallelType.mesh_y)" in text


@pytest.mark.parametrize("devices", [[], [0, 0], [-1], [[0, 1], [2]], 3, "ab", [[[0]]]])
def test_devices_that_make_no_mesh_are_refused(devices: Any) -> None:
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1], dtype=DataType.Float)
        with pytest.raises((FusionError, TraceError), match=r"set_device_mesh: devices.* cannot be"):
            tensor.set_device_mesh(devices)
        fd.add_output(tensor)


def test_an_axis_of_a_mesh_that_does_not_exist_is_refused() -> None:
    with FusionDefinition() as fd:
        tensor = on(fd.define_tensor([-1], dtype=DataType.Float), [0, 1])
        with pytest.raises(FusionError, match="on a mesh with one axis"):
            tensor.axis(0).parallelize(Y_AXIS)
        fd.add_output(tensor)


def split_over_devices(chunks: int, axis: int) -> FusionDefinition:
    """The sums of rows, which are split into chunks over two devices."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        total = fd.ops.sum(x, [1])
        fd.add_output(total)
        for tensor in (x, total):
            tensor.set_device_mesh([0, 1])
            tensor.outer_split(0, chunks)
            tensor.axis(axis).parallelize(X_AXIS)
    return fd


def test_the_outer_axis_of_a_split_into_as_many_chunks_as_devices_is_sharded() -> None:
    def run() -> Any:
        rank = current_world().rank
        return split_over_devices(2, 0).execute([np.ascontiguousarray(X[4 * rank : 4 * rank + 4])])[0]

    np.testing.assert_allclose(np.concatenate(run_ranks(2, run)), X.sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("chunks", "axis", "part"), [(3, 0, "outer"), (2, 1, "inner")])
def test_another_split_over_devices_is_refused(chunks: int, axis: int, part: str) -> None:
    with pytest.raises(FusionError, match=f"the {part} axis of a split into {chunks} chunks over 2 devices"):
        split_over_devices(chunks, axis)
