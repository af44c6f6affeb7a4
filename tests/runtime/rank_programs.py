"""Programs over ranks, each compared with NumPy on one device. `mpiexec -n 4 python rank_programs.py` runs them all.

Where ranks exchange GPU memory, the arrays are CuPy's. Names as arguments choose programs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse import (
    CommunicationError,
    DeviceError,
    FusionError,
    Sharding,
    UnsupportedError,
    collectives,
    cond,
    fori_loop,
    from_local,
    fuse,
    make_mesh,
    reshard,
    scan,
    shard,
    shard_map,
    unshard,
    while_loop,
)
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.nccl_world import NcclWorld

PROGRAMS: dict[str, Callable[[int], None]] = {}
"""Every program by name. It takes the number of ranks, and raises AssertionError where results differ."""


def program(function: Callable[[int], None]) -> Callable[[int], None]:
    PROGRAMS[function.__name__] = function
    return function


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(7).standard_normal(shape)
    return (values * 10).astype(dtype) if np.issubdtype(dtype, np.integer) else values.astype(dtype)


def on_device(x: Any) -> Any:
    """Returns an array of the kind that the ranks exchange."""
    if not isinstance(current_world(), NcclWorld):
        return x
    import cupy

    if x.dtype == ml_dtypes.bfloat16:
        return cupy.asarray(x.view(np.uint16)).view(x.dtype)
    return cupy.asarray(x)


def on_host(x: Any) -> Any:
    """Returns a result as a NumPy array."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x
    return x.view(np.uint16).get().view(x.dtype) if x.dtype == ml_dtypes.bfloat16 else x.get()


def on_ranks(f: Any, x: Any, mesh: DeviceMesh, in_spec: Any, out_spec: Any, *, times: int = 2) -> Any:
    """Shards x, runs f on the parts, more than once, and returns the whole result."""
    into, out = Sharding(mesh, in_spec), None if out_spec is None else Sharding(mesh, out_spec)
    mapped = shard_map(f, mesh=mesh, in_specs=into, out_specs=out)
    for _ in range(times):
        result = unshard(mapped(shard(on_device(x), into)))
    return on_host(result)


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
def layers_of_whole_arrays(ranks: int) -> None:
    if ranks % 2:
        return
    mesh = make_mesh((2, ranks // 2), ("data", "model"))
    x, up, down = numbers(4, 2 * ranks), numbers(2 * ranks, 4 * ranks), numbers(4 * ranks, 2 * ranks)
    rows, columns, inner = Sharding(mesh, ("data",)), Sharding(mesh, (None, "model")), Sharding(mesh, ("model",))

    def layers(x: Any, up: Any, down: Any) -> Any:
        hidden = np.tanh(x @ up) @ down + x
        centered = hidden - hidden.mean(1, keepdims=True)
        return centered / np.sqrt(hidden.var(1, keepdims=True) + 1e-5), hidden.sum(0)

    over_ranks = fuse(
        layers, in_shardings=(rows, columns, inner), out_shardings=(Sharding(mesh, ("data", "model")), None)
    )
    parts = [shard(on_device(a), s) for a, s in ((x, rows), (up, columns), (down, inner))]
    for _ in range(2):
        normalized, total = over_ranks(*parts)
    assert normalized.sharding == Sharding(mesh, ("data", "model"))
    assert normalized.shape == x.shape
    expected = layers(x, up, down)
    np.testing.assert_allclose(on_host(unshard(normalized)), expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(on_host(unshard(total)), expected[1], rtol=1e-3, atol=1e-4)
    assert "exchanges between ranks:" in str(over_ranks.explain(*parts))
    assert "communicate" in str(over_ranks.host_program(*parts).program)
    kinds = [one.kind for one in over_ranks.exchanges(*parts)]
    assert kinds.count("AllGather") == 0, kinds


@program
def sizes_change_without_another_trace(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))
    scaled = fuse(lambda x, y: (x - x.mean(0)) * y.shape[0] + y.T.sum(1), in_shardings=rows)
    for length in (2, 3, 5):
        x, y = numbers(length * ranks, 4), numbers(length * ranks, 4) + 1
        result = unshard(scaled(*(shard(on_device(a), rows) for a in (x, y))))
        np.testing.assert_allclose(on_host(result), (x - x.mean(0)) * len(y) + y.sum(0), rtol=1e-4, atol=1e-4)
    assert scaled.cache_info().traces == 1


@program
def parts_that_are_not_equal_are_gathered(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows, columns = Sharding(mesh, ("data",)), Sharding(mesh, (None, "data"))
    for extent in (0, 1, ranks - 1, ranks + 1, 3 * ranks + 1):
        x = numbers(extent, 5)
        sharded = shard(on_device(x), rows)
        np.testing.assert_array_equal(on_host(unshard(sharded)), x)
        np.testing.assert_array_equal(on_host(unshard(reshard(sharded, columns))), x)
        rebuilt = from_local(sharded.local, rows, x.shape)
        np.testing.assert_array_equal(on_host(unshard(rebuilt)), x)


STENCILS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "padded": (lambda u: np.pad(u, ((1, 1), (0, 0)))[:-2] + np.pad(u, ((1, 1), (0, 0)))[2:] - 2 * u, {"SendRecv"}),
    "interior": (lambda u: 2 * u[1:-1] - u[:-2] - u[2:], {"SendRecv"}),
    "rolled": (lambda u: u + np.roll(u, 1, 0) - np.roll(u, -2, 0), {"SendRecv"}),
    "differences": (lambda u: np.diff(u, axis=0), {"SendRecv"}),
    "joined": (lambda u: np.concatenate([u[:1], u[1:] - u[:-1]], 0), {"SendRecv"}),
    "reversed": (lambda u: u[::-1] - u, {"SendRecv"}),
    "running sums": (lambda u: np.cumsum(u, 0) - u, {"AllGather"}),
    "running extremes": (lambda u: np.maximum.accumulate(u, 0), {"AllGather"}),
    "pairs": (lambda u: u[::2][: u.shape[0] // 2] - u[1::2], set()),
    "every third": (lambda u: u[1::3] * 2, {"SendRecv"}),
    "split rows": (lambda u: u.reshape(-1, 2, u.shape[1]).sum(1), set()),
}
"""Functions of whole numbers, with the exchanges for axes that divide. Running values exchange a row of each rank."""


@program
def windows_move_the_rows_of_neighbours(ranks: int) -> None:
    if ranks == 1:
        return
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))
    for name, (function, kinds) in STENCILS.items():
        over_ranks = fuse(function, in_shardings=rows)
        for extent in (4 * ranks, 2 * ranks + 1):
            if name == "split rows" and extent % (2 * ranks):
                continue
            x = np.round(numbers(extent, 3) * 4)
            sharded = shard(on_device(x), rows)
            result = over_ranks(sharded)
            np.testing.assert_array_equal(on_host(unshard(result)), function(x), err_msg=f"{name} of {extent} rows")
            found = {one.kind for one in over_ranks.exchanges(sharded)}
            assert ranks < 4 or extent != 4 * ranks or found == kinds, (name, found)
            assert result.sharding == rows
        assert over_ranks.cache_info().traces == 1


@program
def heat_of_whole_arrays(ranks: int) -> None:
    if ranks % 2:
        return
    mesh = make_mesh((2, ranks // 2), ("y", "x"))
    grid = Sharding(mesh, ("y", "x"))

    def step(u: Any) -> Any:
        p = np.pad(u, 1)
        return u + (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * u) * 0.25 + p[:-2, 2:]

    over_ranks = fuse(step, in_shardings=grid, out_shardings=grid)
    for shape in ((8, 2 * ranks), (9, 2 * ranks + 1)):
        x = np.round(numbers(*shape) * 4)
        sharded = shard(on_device(x), grid)
        np.testing.assert_array_equal(on_host(unshard(over_ranks(sharded))), step(x))
        assert {one.kind for one in over_ranks.exchanges(sharded)} <= {"SendRecv"}


@program
def terms_of_sums_are_added_once(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("model",))
    columns, rows = Sharding(mesh, (None, "model")), Sharding(mesh, ("model",))

    def scaled(x: Any, w: Any, y: Any, v: Any) -> Any:
        return ((x @ w - y @ v) * 0.5).T[1:]

    def shifted(x: Any, w: Any, y: Any, v: Any) -> Any:
        return x @ w + 1.0 + (y @ v).astype(np.float64)

    for function, count in ((scaled, 1), (shifted, 2)):
        for out in (None, Sharding(mesh, (None, "model"))):
            over_ranks = fuse(function, in_shardings=(columns, rows, columns, rows), out_shardings=out)
            for inner in (4 * ranks, 4 * ranks + 3):
                arrays = [numbers(*shape) for shape in ((5, inner), (inner, 6)) * 2]
                parts = [shard(on_device(a), s) for a, s in zip(arrays, (columns, rows) * 2, strict=True)]
                result = on_host(unshard(over_ranks(*parts)))
                np.testing.assert_allclose(result, function(*arrays), rtol=1e-4, atol=1e-4)
                kinds = [one.kind for one in over_ranks.exchanges(*parts)]
                assert len(kinds) == count, kinds
                assert set(kinds) <= {"AllReduce", "ReduceScatter"}, kinds


@program
def products_overlap_with_the_exchange_of_their_rows(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("model",))
    rows, columns = Sharding(mesh, ("model",)), Sharding(mesh, (None, "model"))
    x, up, inner, down = (numbers(*s) for s in ((2 * ranks, 6), (6, 8 * ranks), (2 * ranks, 8 * ranks), (8 * ranks, 6)))
    pieces = {"broadcast": ("broadcast_from", ranks), "ring": ("send_receive", ranks - 1)}
    for mode, (kind, count) in pieces.items():
        gathered = fuse(lambda x, w: np.tanh(x @ w), in_shardings=(rows, columns), pipelined_exchanges=mode)
        parts = shard(on_device(x), rows), shard(on_device(up), columns)
        np.testing.assert_allclose(on_host(unshard(gathered(*parts))), np.tanh(x @ up), rtol=1e-3, atol=1e-4)
        assert str(gathered.host_program(*parts).program).count(f"communicate {kind}") == count
        scattered = fuse(
            lambda x, w: x @ w, in_shardings=(columns, rows), out_shardings=rows, pipelined_exchanges=mode,
            communication_sync=True,
        )  # fmt: skip
        terms = shard(on_device(inner), columns), shard(on_device(down), rows)
        np.testing.assert_allclose(on_host(unshard(scattered(*terms))), inner @ down, rtol=1e-3, atol=1e-3)
        assert str(scattered.host_program(*terms).program).count("communicate send_receive") == ranks - 1


@program
def known_calls_follow_sizes_and_shardings(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows, columns = Sharding(mesh, ("data",)), Sharding(mesh, (None, "data"))
    over_ranks = fuse(lambda x, y: (x - y.sum(0), x + y), in_shardings=(rows, None))
    for extent in (2 * ranks, ranks + 1, 2 * ranks, ranks + 1):
        for seed in (1, 2):
            x, y = numbers(extent, ranks + 2) * seed, numbers(extent, ranks + 2) + seed
            for other in (rows, columns):
                found = over_ranks(shard(on_device(x), rows), shard(on_device(y), other))
                for one, wanted in zip(found, (x - y.sum(0), x + y), strict=True):
                    assert one.shape == wanted.shape
                    np.testing.assert_allclose(on_host(unshard(one)), wanted, rtol=1e-4, atol=1e-4)
    assert over_ranks.cache_info().traces == 2
    refused = ""
    try:
        over_ranks(shard(on_device(x), columns), shard(on_device(y), rows))
    except FusionError as error:
        refused = str(error)
    assert "reshard" in refused
    over_ranks.cache_clear()
    assert over_ranks.cache_info().hits == 0


@program
def statistics_of_parts_that_are_not_equal(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))

    def statistics(x: Any) -> Any:
        return x.mean(0), x.max(), x.min(0), (x - x.mean(0)) / x.std(0), (x > 0).any(0), x.sum(1)

    over_ranks = fuse(statistics, in_shardings=rows)
    for extent in (2, 3 * ranks + 2):
        x = numbers(extent, 4) - 5
        with np.errstate(all="ignore"):
            for found, wanted in zip(over_ranks(shard(on_device(x), rows)), statistics(x), strict=True):
                np.testing.assert_allclose(on_host(unshard(found)), wanted, rtol=2e-3, atol=1e-4, equal_nan=True)


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


def halved(x: Any) -> Any:
    error, steps = x.mean(), 0
    while abs(float(error)) > 1e-2:
        x = x * 0.5
        error, steps = x.mean(), steps + 1
    return x, error, steps * x[0]


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "branch": lambda x: x + 1 if x.sum() > 0 else x - 1,
    "two branches": lambda x: (x if x.min() < 1 else -x) if x.max() > 3 else x * 0,
    "loop": halved,
    "number": lambda x: x * max(float(x.sum()), 2.0) + x.max().item(),
    "size": lambda x: np.zeros(int(abs(x.sum()) / 4) + 1) + x[0, 0],
    "count": lambda x: sum((x * k for k in range(int(abs(x[0, 1])) + 3)), x),
    "distinct values": lambda x: np.unique(np.floor(x.sum(0) / 100)),
}
"""Functions of an array that ask about computed values."""


@program
def all_ranks_take_the_answers_of_the_first(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))
    for name, function in QUESTIONS.items():
        over_ranks = fuse(function, in_shardings=rows)
        for seed in (1, -1, 3):
            for extent in (2 * ranks, ranks + 1):
                x = np.round(numbers(extent, 3) * 4) * seed
                found, expected = over_ranks(shard(on_device(x), rows)), function(x)
                pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
                for one, wanted in pairs:
                    np.testing.assert_allclose(on_host(unshard(one)), wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        traces = over_ranks.cache_info().traces
        over_ranks(shard(on_device(x), rows))
        assert over_ranks.cache_info().traces == traces
    chosen = fuse(lambda x, limit: x + 1 if limit[0] > 0 else x - 1, in_shardings=(rows, None))
    differs = on_device(np.array([1.0 if current_world().rank == 0 else -1.0]))
    np.testing.assert_array_equal(on_host(unshard(chosen(shard(on_device(x), rows), differs))), x + 1)
    kinds = [one.kind for one in chosen.exchanges(shard(on_device(x), rows), differs)]
    assert kinds == ["Broadcast"] * (ranks > 1), kinds


@program
def sizes_along_split_axes_are_refused(ranks: int) -> None:
    if ranks == 1:
        return
    rows = Sharding(make_mesh((ranks,), ("data",)), ("data",))
    x = numbers(2 * ranks, 3)
    for function in (lambda x: np.nonzero(x)[0], lambda x: x[x > 0]):
        refused = ""
        try:
            fuse(function, in_shardings=rows)(shard(on_device(x), rows))
        except UnsupportedError as error:
            refused = str(error)
        assert "split over ranks" in refused, refused
        assert "rank_programs.py" in refused, refused
        replaced = fuse(function, in_shardings=None, out_shardings=rows)
        np.testing.assert_array_equal(on_host(unshard(replaced(unshard(shard(on_device(x), rows))))), function(x))


@program
def functions_on_parts_ask_about_exchanged_values(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))

    def signed(x: Any) -> Any:
        total = collectives.psum(x.sum(), "data")
        return collectives.psum(x, "data") + total if total > 0 else x

    for sign in (1, -1):
        x = np.abs(numbers(2 * ranks, 3)) * sign
        expected = np.tile(x.reshape(ranks, 2, 3).sum(0) + x.sum(), (ranks, 1)) if sign > 0 else x
        np.testing.assert_allclose(on_ranks(signed, x, mesh, ("data",), ("data",)), expected, rtol=1e-5)


def heat_steps(u: Any) -> Any:
    def step(_: Any, u: Any) -> Any:
        padded = np.pad(u, ((1, 1), (0, 0)))
        return u + (padded[:-2] + padded[2:] - 2 * u) * 0.25

    return fori_loop(0, 4, step, u)


def conjugate_gradients(a: Any) -> Any:
    matrix, b = a @ a.T + 4 * np.eye(a.shape[0], dtype=np.float32), a.sum(1)

    def step(state: Any) -> Any:
        x, residual, direction, square, count = state
        product = matrix @ direction
        length = square / (direction @ product)
        x, residual = x + length * direction, residual - length * product
        new_square = residual @ residual
        return x, residual, residual + new_square / square * direction, new_square, count + 1

    start = (np.zeros_like(b), b, b, b @ b, 0)
    return while_loop(lambda state: (state[3] > 1e-4) & (state[4] < 20), step, start)[0]


def means_of_clusters(points: Any) -> Any:
    def step(_: Any, centers: Any) -> Any:
        distances = ((points[:, None, :] - centers[None]) ** 2).sum(2)
        member = (distances.argmin(1)[:, None] == np.arange(2)[None]).astype(np.float32)
        return (member.T @ points) / np.maximum(member.sum(0), 1)[:, None]

    return fori_loop(0, 3, step, points[:2])


def running_totals(x: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        total = total + row.sum()
        return total, row * total

    return scan(step, np.float32(0), x)


LOOPS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "stencil": (heat_steps, ["SendRecv", "SendRecv"]),
    "conjugate gradients": (
        conjugate_gradients, ["AllGather", "AllReduce", "Broadcast", "AllGather", "AllReduce", "AllReduce"]
    ),
    "clusters": (means_of_clusters, ["SendRecv", "AllGather", "AllReduce", "AllReduce"]),
    "rows": (running_totals, ["AllGather"]),
    "start in full": (lambda x: fori_loop(0, 3, lambda i, u: u * 0.5 + x * i, np.zeros_like(x)), []),
    "inner loop": (
        lambda x: fori_loop(0, 3, lambda i, u: fori_loop(0, 2, lambda j, v: v * 0.5 + v.mean(0) + i, u), x),
        ["AllReduce"],
    ),
    "branch": (
        lambda x: cond(x.sum() > 0, lambda a: a + a.sum(0), lambda a: a - a.max(0), x),
        ["AllReduce", "Broadcast", "AllReduce", "AllReduce"],
    ),
    "before and after": (
        lambda x: (x.max(0), fori_loop(0, 2, lambda i, u: u * 0.5 + u.sum(0), x).sum(0) + x.mean(0)),
        ["AllReduce", "AllReduce", "AllReduce"],
    ),
}  # fmt: skip
"""Functions of an array with a loop or a branch, with their exchanges, those of bodies once, where parts are equal."""


@program
def bodies_of_loops_exchange_what_they_need(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    rows = Sharding(mesh, ("data",))
    for name, (function, kinds) in LOOPS.items():
        over_ranks = fuse(function, in_shardings=rows)
        x = numbers(2 * ranks + ranks % 2, 3)  # parts that are not equal, for an odd number of ranks
        found, expected = over_ranks(shard(on_device(x), rows)), function(x)
        pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
        for one, wanted in pairs:
            np.testing.assert_allclose(on_host(unshard(one)), wanted, rtol=1e-3, atol=1e-4, err_msg=name)
        exchanges = [one.kind for one in over_ranks.exchanges(shard(on_device(x), rows))]
        assert ranks != 4 or exchanges == kinds, (name, exchanges)


@program
def loops_on_parts_exchange_in_order(ranks: int) -> None:
    mesh = make_mesh((ranks,), ("data",))
    right = [(k, (k + 1) % ranks) for k in range(ranks)]

    def around(x: Any) -> Any:
        first = collectives.psum(x.sum(), "data")
        moved = fori_loop(0, ranks, lambda i, u: collectives.ppermute(u, "data", right) + 1, x)
        return while_loop(
            lambda u: collectives.pmax(u.max(), "data") < 100, lambda u: u * 2 + collectives.psum(u, "data") * 0, moved
        ) + 0 * collectives.psum(first + moved, "data")  # fmt: skip

    x = np.abs(numbers(2 * ranks, 3)) + 1
    expected = x + ranks
    while expected.max() < 100:
        expected = expected * 2
    np.testing.assert_allclose(on_ranks(around, x, mesh, ("data",), ("data",)), expected, rtol=1e-5)


def run_all(names: Sequence[str]) -> int:
    """Runs programs by name and returns the number of those that failed on this rank."""
    world, failed = current_world(), 0
    for name in names:
        try:
            PROGRAMS[name](world.size)
        except (CommunicationError, DeviceError):
            raise
        except Exception:
            failed += 1
            print(f"FAILED {name} on rank {world.rank}\n{traceback.format_exc()}", flush=True)
        else:
            if world.rank == 0:
                print(f"ok {name}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(run_all(sys.argv[1:] or list(PROGRAMS))))
