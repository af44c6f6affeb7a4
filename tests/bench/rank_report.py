"""Programs over four ranks beside jax.jit: time of a step, number of exchanges, bytes that a rank receives.

    mpiexec -n 4 python tests/bench/rank_report.py      # tracefuse, through MPI
    python tests/bench/rank_report.py --jax             # jax.jit, four devices of one process

The least possible bytes are those of the sums, gathers and borders that every distribution with these shardings moves:
2 (n - 1) / n of a sum that every rank gets, (n - 1) / n of what is gathered or scattered. Asserts nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

JAX, RANKS = "--jax" in sys.argv, 4
if JAX:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"

import numpy as np  # noqa: E402

ROWS, WIDTH, INNER, HEAD, GRID, CLUSTERS, STEPS = 512, 256, 1024, 32, 512, 8, 10
FLOAT = 4


def train(np: Any, loop: Any, x: Any, y: Any, w: Any, v: Any) -> Any:
    hidden = np.tanh(x @ w)
    error = (hidden @ v - y) * (2.0 / x.shape[0])
    back = (error @ v.T) * (1.0 - hidden * hidden)
    return w - 0.1 * (x.T @ back), v - 0.1 * (hidden.T @ error)


def mlp(np: Any, loop: Any, x: Any, up: Any, down: Any) -> Any:
    return np.tanh(x @ up) @ down


def attention(np: Any, loop: Any, x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    q, k, v = ((x @ one).reshape(x.shape[0], -1, HEAD).transpose(1, 0, 2) for one in (wq, wk, wv))
    scores = q @ k.transpose(0, 2, 1) * HEAD**-0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    seen = (powers / powers.sum(-1, keepdims=True)) @ v
    return seen.transpose(1, 0, 2).reshape(x.shape[0], -1) @ wo


def layer_norm(np: Any, loop: Any, x: Any) -> Any:
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(1, keepdims=True) + 1e-5)


def heat(np: Any, loop: Any, u: Any) -> Any:
    def step(_: Any, u: Any) -> Any:
        p = np.pad(u, 1)
        return u + (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4.0 * u) * 0.2

    return loop(0, STEPS, step, u)


def clusters(np: Any, loop: Any, points: Any, start: Any) -> Any:
    def step(_: Any, centers: Any) -> Any:
        distances = ((points[:, None, :] - centers[None]) ** 2).sum(2)
        member = (distances.argmin(1)[:, None] == np.arange(CLUSTERS)[None]).astype(points.dtype)
        return (member.T @ points) / np.maximum(member.sum(0), 1.0)[:, None]

    return loop(0, STEPS, step, start)


@dataclass(frozen=True)
class Program:
    """A function of whole arrays. shapes, shardings: of its arguments. results: the shardings of its results.

    steps: in a call. least: the bytes that each rank must receive in a step.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    shardings: tuple[tuple[Any, ...], ...]
    results: tuple[tuple[Any, ...], ...]
    least: float
    steps: int = 1
    axes: tuple[tuple[int, ...], tuple[str, ...]] = ((RANKS,), ("r",))


SPLIT, COLUMNS, WHOLE = ("r",), (None, "r"), ()
SHARE = (RANKS - 1) / RANKS
PROGRAMS = (
    Program("training step", train, ((ROWS, WIDTH), (ROWS, 1), (WIDTH, WIDTH), (WIDTH, 1)),
            (SPLIT, SPLIT, WHOLE, WHOLE), (WHOLE, WHOLE), 2 * SHARE * FLOAT * (WIDTH * WIDTH + WIDTH)),
    Program("column-then-row MLP", mlp, ((ROWS, WIDTH), (WIDTH, INNER), (INNER, WIDTH)), (WHOLE, COLUMNS, SPLIT),
            (WHOLE,), 2 * SHARE * FLOAT * ROWS * WIDTH),
    Program("attention block", attention, ((ROWS, WIDTH), *[(WIDTH, WIDTH)] * 4), (WHOLE, COLUMNS, COLUMNS, COLUMNS,
            SPLIT), (WHOLE,), 2 * SHARE * FLOAT * ROWS * WIDTH),
    Program("layer norm, split columns", layer_norm, ((4 * ROWS, INNER),), (COLUMNS,), (COLUMNS,),
            2 * 2 * SHARE * FLOAT * 4 * ROWS),
    Program("heat, 2 x 2 ranks", heat, ((2 * GRID, 2 * GRID),), (("y", "x"),), (("y", "x"),), 2 * FLOAT * GRID, STEPS,
            ((2, 2), ("y", "x"))),
    Program("k-means", clusters, ((32 * ROWS, 16), (CLUSTERS, 16)), (SPLIT, WHOLE), (WHOLE,),
            2 * SHARE * FLOAT * CLUSTERS * 17, STEPS),
)  # fmt: skip


def arguments_of(program: Program) -> list[Any]:
    random = np.random.default_rng(0)
    return [(random.standard_normal(shape) / 8).astype(np.float32) for shape in program.shapes]


def milliseconds_of(call: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Returns the shortest and the median time of a step; every rank makes as many calls."""
    for _ in range(5):
        call()
    times = []
    for _ in range(100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) / steps * 1e3, sorted(times)[len(times) // 2] / steps * 1e3


# ---------------------------------------------------------------------------------------------------------------------
# tracefuse


class CountedRecords(deque[Any]):
    """The exchanges that a rank starts, with the bytes that it receives."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.count, self.bytes = rank, 0, 0.0

    def append(self, record: Any) -> None:
        super().append(record)
        if len(record) > 1:
            self.count += 1
            self.bytes += self.received(*record[:5])

    def received(self, kind: str, axis: Any, parameters: Any, shape: Any, dtype: Any) -> float:
        from tracefuse.runtime.communicators.host_exchanges import SMALL

        size, count = int(np.prod(shape)) * np.dtype(dtype).itemsize, axis.size
        if kind == "send_receive":
            place = axis.mesh.coordinates(self.rank)[axis.mesh.place(axis.name)]
            return size * sum(receiver == place != sender for sender, receiver in parameters["pairs"])
        if kind == "all_reduce":  # a small sum takes one round, in which all send to all
            return size * (count - 1) if size <= SMALL else 2 * size * (count - 1) / count
        return size * {"all_gather": count - 1, "broadcast_from": 1}.get(kind, (count - 1) / count)


def report() -> None:
    from tracefuse import Sharding, fori_loop, fuse, make_mesh, shard, unshard
    from tracefuse.runtime.communicators.launch import current_world

    world = current_world()
    records = world.records = CountedRecords(world.rank)
    lines = [f"{'':<28}{'best':>10}{'median':>10}{'exchanges':>11}{'bytes':>10}{'least':>10}"]
    for program in PROGRAMS:
        mesh = make_mesh(*program.axes)
        into, out = ([Sharding(mesh, spec) for spec in specs] for specs in (program.shardings, program.results))

        def function(*args: Any, program: Program = program) -> Any:
            return program.function(np, fori_loop, *args)

        over_ranks = fuse(function, in_shardings=tuple(into), out_shardings=tuple(out))
        arguments = arguments_of(program)
        parts = [shard(a, s) for a, s in zip(arguments, into, strict=True)]
        results = over_ranks(*parts)
        before = records.count, records.bytes
        over_ranks(*parts)
        count, size = records.count - before[0], records.bytes - before[1]
        best, median = milliseconds_of(lambda f=over_ranks, parts=parts: f(*parts), program.steps)
        expected = program.function(np, plain_loop, *arguments)
        pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
        for result, reference in pairs:
            np.testing.assert_allclose(unshard(result), reference, rtol=1e-3, atol=1e-3)
        steps = program.steps
        lines.append(
            f"{program.name:<28}{best:>7.2f} ms{median:>7.2f} ms{count / steps:>11.1f}{size / steps:>10.0f}"
            f"{program.least:>10.0f}"
        )
    if world.rank == 0:
        print("\n".join(lines), flush=True)


def plain_loop(lower: int, upper: int, step: Callable[[int, Any], Any], value: Any) -> Any:
    for k in range(lower, upper):
        value = step(k, value)
    return value


# ---------------------------------------------------------------------------------------------------------------------
# jax


def report_jax() -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    for program in PROGRAMS:
        shape, names = program.axes
        mesh = Mesh(np.array(jax.devices()[:RANKS]).reshape(shape), names)
        into, out = (
            [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
            for specs in (program.shardings, program.results)
        )

        def function(*args: Any, program: Program = program) -> Any:
            return program.function(jnp, jax.lax.fori_loop, *args)

        jitted = jax.jit(
            function, in_shardings=tuple(into), out_shardings=tuple(out) if len(out) > 1 else out[0]
        )  # fmt: skip
        parts = [jax.device_put(a, s) for a, s in zip(arguments_of(program), into, strict=True)]
        best, median = milliseconds_of(
            lambda f=jitted, parts=parts: jax.block_until_ready(f(*parts)), program.steps
        )  # fmt: skip
        print(f"jax.jit {program.name:<28}{best:>7.2f} ms{median:>7.2f} ms", flush=True)


if __name__ == "__main__":
    report_jax() if JAX else report()
