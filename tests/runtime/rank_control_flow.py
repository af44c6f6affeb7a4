"""Programs over ranks with questions about values, sizes that data decide, loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.runtime.rank_registry import numbers, on_device, on_host, on_ranks, program
from tracefuse import (
    Sharding,
    UnsupportedError,
    collectives,
    cond,
    fori_loop,
    fuse,
    make_mesh,
    scan,
    shard,
    unshard,
    while_loop,
)
from tracefuse.runtime.communicators.launch import current_world


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
        assert "rank_control_flow.py" in refused, refused
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
