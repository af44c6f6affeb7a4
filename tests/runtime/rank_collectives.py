"""Programs of functions on the parts of ranks: collectives, meshes with two axes, and when exchanges start and end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.runtime.rank_registry import numbers, on_device, on_host, on_ranks, program
from tracefuse import (
    Sharding,
    collectives,
    fuse,
    make_mesh,
    shard,
    shard_map,
    unshard,
)
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.nccl_world import NcclWorld


@program
def sum_between_fused_segments(ranks: int) -> None:
    x = numbers(4 * ranks, 6)
    mesh = make_mesh((ranks,), ("data",))

    def normalize(x: Any) -> Any:
        return np.exp(x) / collectives.psum(np.exp(x).sum(0), "data") + collectives.axis_index("data")

    result = on_ranks(normalize, x, mesh, ("data",), ("data",))
    np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum(0) + np.arange(ranks).repeat(4)[:, None], rtol=1e-5)


@program
def every_reduction_and_type(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    kinds = [np.float32, np.float64, np.int8, np.int64, np.complex64, np.float16, ml_dtypes.bfloat16]
    kinds += [] if isinstance(current_world(), NcclWorld) else [np.uint16]  # which NCCL does not combine
    for dtype in kinds:
        for length in (3, 20_001):  # below and above the size that is sent in one round
            x = numbers(ranks, length, dtype=dtype)
            result = on_ranks(lambda x: collectives.psum(x, "data"), x, mesh, ("data",), None, times=1)
            wide = np.float32 if dtype in (np.float16, ml_dtypes.bfloat16) else dtype
            expected = x[0].astype(wide)
            for row in x[1:]:
                expected = expected + row.astype(wide)
            if isinstance(current_world(), NcclWorld) and not np.issubdtype(dtype, np.integer):
                error = np.abs(result[0].astype(expected.dtype) - expected).max()
                assert error <= float(np.abs(x).max()) * ranks * 2.0**-7, (dtype, error)  # NCCL's order of additions
            else:
                np.testing.assert_array_equal(result[0], expected.astype(dtype))
            if dtype is not np.complex64:
                most = on_ranks(lambda x: collectives.pmax(x, "data"), x, mesh, ("data",), None, times=1)
                least = on_ranks(lambda x: collectives.pmin(x, "data"), x, mesh, ("data",), None, times=1)
                np.testing.assert_array_equal(most[0], x.max(0))
                np.testing.assert_array_equal(least[0], x.min(0))


@program
def not_a_number_is_the_maximum(ranks: int) -> None:
    if isinstance(current_world(), NcclWorld):
        return  # NCCL does not say what the maximum is
    x = numbers(ranks, 5)
    x[ranks - 1, 2] = np.nan
    mesh = make_mesh((ranks,), ("data",))
    result = on_ranks(lambda x: collectives.pmax(x, "data"), x, mesh, ("data",), None)
    np.testing.assert_array_equal(result[0], x.max(0))


@program
def gathers_and_scatters(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    x = numbers(2 * ranks, 3 * ranks)
    for axis in (0, 1):
        spec = ("data",) if axis == 0 else (None, "data")
        gathered = on_ranks(
            lambda x, axis=axis: collectives.all_gather(x + 1, "data", axis=axis, tiled=True) * 2, x, mesh, spec, None
        )
        np.testing.assert_array_equal(gathered, (x + 1) * 2)
        stacked = on_ranks(lambda x, axis=axis: collectives.all_gather(x, "data", axis=axis), x, mesh, spec, None)
        parts = np.split(x, ranks, axis)
        np.testing.assert_array_equal(stacked, np.stack(parts, axis))
        scattered = on_ranks(
            lambda x, axis=axis: collectives.psum_scatter(x, "data", scatter_dimension=axis, tiled=True),
            x, mesh, (), spec,
        )  # fmt: skip
        np.testing.assert_allclose(scattered, x * ranks, rtol=1e-6)
    moved = on_ranks(lambda x: collectives.all_to_all(x, "data", 1, 0, tiled=True), x, mesh, ("data",), (None, "data"))
    np.testing.assert_array_equal(moved, x)


@program
def rows_move_between_neighbours(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    x = numbers(3 * ranks, 4)
    pairs = [(rank, rank + 1) for rank in range(ranks - 1)]

    def difference(x: Any) -> Any:
        before = collectives.ppermute(x[-1:], "data", pairs)
        return x - np.concatenate([before, x[:-1]])

    expected = x - np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    np.testing.assert_array_equal(on_ranks(difference, x, mesh, ("data",), ("data",)), expected)


@program
def a_mesh_with_two_axes(ranks: int) -> None:
    if ranks % 2:
        return
    mesh = make_mesh((2, ranks // 2), ("data", "model"))
    x, w = numbers(6, 4 * ranks), numbers(4 * ranks, 5)
    x_spec, w_spec = Sharding(mesh, ("data", "model")), Sharding(mesh, ("model",))
    multiply = shard_map(
        lambda x, w: collectives.psum(np.tanh(x) @ w, "model"), mesh=mesh, in_specs=(x_spec, w_spec),
        out_specs=Sharding(mesh, ("data",)),
    )  # fmt: skip
    result = unshard(multiply(shard(on_device(x), x_spec), shard(on_device(w), w_spec)))
    np.testing.assert_allclose(on_host(result), np.tanh(x) @ w, rtol=1e-4, atol=1e-5)
    total = shard_map(
        lambda x: collectives.pmean(x.sum(), ("data", "model")), mesh=mesh, in_specs=x_spec, out_specs=None
    )
    np.testing.assert_allclose(on_host(total(shard(on_device(x), x_spec))), x.sum() / ranks, rtol=1e-4)
    both = Sharding(mesh, (None, ("data", "model")))
    np.testing.assert_array_equal(on_host(unshard(shard(on_device(x), both))), x)


@program
def exchanges_do_not_wait_where_work_is_independent(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    x = numbers(2 * ranks, 8)

    def two(x: Any) -> Any:
        return collectives.psum(x.sum(0), "data") + collectives.psum((x * x).sum(0), "data") + np.sort(x, 1).sum(0)

    result = on_ranks(two, x, mesh, ("data",), None)
    own = np.sort(shard(x, Sharding(mesh, ("data",))).local, 1).sum(0)
    np.testing.assert_allclose(result, x.sum(0) + (x * x).sum(0) + own, rtol=1e-4)


@program
def independent_work_stands_before_a_wait(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))

    def scaled(x: Any) -> Any:
        total = collectives.psum(x.sum(0), "data")
        return (x * total).sum(1), x @ x.T

    mapped = shard_map(scaled, mesh=mesh, in_specs=rows, out_specs=rows)
    x = numbers(2 * ranks, 6)
    lines = str(mapped.host_program(shard(on_device(x), rows)).program).split("\n")
    start, wait = (next(k for k, line in enumerate(lines) if text in line) for text in (" communicate ", "wait for"))
    launches = [k for k, line in enumerate(lines) if "launch" in line]  # of templates that differ between targets
    assert [k for k in launches if start < k < wait], lines
    assert max(launches) > wait, lines
    found = on_host(unshard(mapped(shard(on_device(x), rows))[0]))
    np.testing.assert_allclose(found, (x * x.sum(0)).sum(1), rtol=1e-3, atol=1e-4)


@program
def short_work_after_an_exchange_is_not_stored(ranks: int) -> None:
    columns = Sharding(make_mesh((ranks,), ("model",)), (None, "model"))

    def normalized(x: Any) -> Any:
        centered = x - x.mean(1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)

    over_ranks = fuse(normalized, in_shardings=columns)
    x = numbers(6, 4 * ranks)
    part = shard(on_device(x), columns)
    np.testing.assert_allclose(on_host(unshard(over_ranks(part))), normalized(x), rtol=1e-3, atol=1e-5)
    program = str(over_ranks.host_program(part).program)
    assert program.count("launch") == 3, program
    assert program.count("allocate(f32[i0, i1])") == 1, program  # the result alone


@program
def independent_exchanges_start_together(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))
    right, left = ([(k, (k + step) % ranks) for k in range(ranks)] for step in (1, -1))

    def neighbours(x: Any) -> Any:
        return collectives.ppermute(x[-1:], "data", right) + x + collectives.ppermute(x[:1], "data", left)

    def there_and_back(x: Any) -> Any:
        return collectives.ppermute(collectives.ppermute(x, "data", right) + 1, "data", left)

    def around_a_product(x: Any) -> Any:
        first = collectives.psum(x, "data")
        return first + collectives.psum(np.linalg.svd(x)[1].sum() + x, "data")

    x = numbers(3 * ranks, 4)
    for function, count in ((neighbours, 1), (there_and_back, 0), (around_a_product, 0)):
        mapped = shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows)
        part = shard(on_device(x), rows)
        assert str(mapped.host_program(part).program).count("start coalescing") == count
        mapped(part)
    parts = np.split(x, ranks)
    expected = [parts[k - 1][-1:] + part + parts[(k + 1) % ranks][:1] for k, part in enumerate(parts)]
    np.testing.assert_array_equal(on_ranks(neighbours, x, mesh, ("data",), ("data",)), np.concatenate(expected))
    np.testing.assert_array_equal(on_ranks(there_and_back, x, mesh, ("data",), ("data",)), x + 1)
