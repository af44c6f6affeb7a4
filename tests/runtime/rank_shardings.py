"""Programs of functions on whole arrays, whose shardings propagate: layers, stencils, sums, products, unequal parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.runtime.rank_registry import numbers, on_device, on_host, program
from tracefuse import (
    FusionError,
    Sharding,
    from_local,
    fuse,
    make_mesh,
    reshard,
    shard,
    unshard,
)


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
