"""Exchanges and functions over ranks: bandwidth, host time, whole calls, beside NCCL's own calls and jax.jit.

Under a launcher (tests/gpu/launch_ranks.py, mpiexec) it measures the ranks; `--jax N` runs the functions under jax.jit
with the same shardings on N devices of one process. Prints tables and asserts nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SMALL = bool(os.environ.get("BENCH_SMALL"))
ROWS, HIDDEN, INNER = (256, 256, 512) if SMALL else (4096, 4096, 16384)
NORM = (512, 1024) if SMALL else (16384, 8192)
SIZES = (1 << 12, 1 << 18) if SMALL else (1 << 12, 1 << 20, 1 << 24, 1 << 28)


def inputs() -> dict[str, Any]:
    random = np.random.default_rng(0)
    half = np.float32 if SMALL else np.float16
    return {
        "x": (random.standard_normal((ROWS, HIDDEN)) / 8).astype(half),
        "up": (random.standard_normal((HIDDEN, INNER)) / 64).astype(half),
        "down": (random.standard_normal((INNER, HIDDEN)) / 64).astype(half),
        "norm": random.standard_normal(NORM).astype(np.float32),
    }


def mean_time(call: Callable[[], Any], ready: Callable[[], None], seconds: float = 1.0) -> float:
    """Returns the seconds of a call, over as many calls as fit; every rank makes as many."""
    for _ in range(5):
        call()
    ready()
    start = time.perf_counter()
    for _ in range(5):
        call()
    ready()
    count = agreed_count(seconds / max((time.perf_counter() - start) / 5, 1e-7))
    best = float("inf")
    for _ in range(3):
        ready()
        start = time.perf_counter()
        for _ in range(count):
            call()
        ready()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def agreed_count(wanted: float) -> int:
    """Returns the number of calls that all ranks make, from rank 0's time."""
    if "--jax" in sys.argv:
        return int(min(max(wanted / 3, 3), 2000))
    from tracefuse.runtime.communicators.launch import current_world
    from tracefuse.runtime.communicators.rank_groups import RankGroup

    mesh = the_mesh()
    count = np.array([int(min(max(wanted / 3, 3), 2000))], np.int64)
    group = RankGroup(axis_of(mesh))
    gathered = group.run("all_gather", as_device_array(count), (group.size, 1), {})
    assert current_world().failure is None
    return int(gathered[0, 0])


def the_mesh() -> Any:
    from tracefuse import make_mesh
    from tracefuse.runtime.communicators.launch import current_world

    return make_mesh((current_world().size,), ("model",))


def axis_of(mesh: Any) -> Any:
    from tracefuse.ir.shardings import MeshAxis

    return MeshAxis(mesh, "model")


def is_nccl() -> bool:
    from tracefuse.runtime.communicators.launch import current_world
    from tracefuse.runtime.communicators.nccl_world import NcclWorld

    return isinstance(current_world(), NcclWorld)


def as_device_array(x: Any) -> Any:
    if not is_nccl():
        return x
    import cupy

    return cupy.asarray(x)


def synchronize() -> None:
    if is_nccl():
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def say(text: str) -> None:
    from tracefuse.runtime.communicators.launch import current_world

    if current_world().rank == 0:
        print(text, flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# exchanges


def bench_exchanges() -> None:
    from tracefuse.runtime.communicators.launch import current_world
    from tracefuse.runtime.communicators.rank_groups import RankGroup

    mesh = the_mesh()
    group, size = RankGroup(axis_of(mesh)), mesh.size("model")
    communicator = current_world().communicator(axis_of(mesh))
    say(f"\n{'exchange':<12}{'bytes':>12}{'time':>12}{'GB/s':>9}{'bare call':>12}{'ratio':>7}")
    for kind, parameters in (("all_reduce", {"combine": "sum"}), ("all_gather", {})):
        for count in SIZES:
            shape = (count // 4,)
            source = as_device_array(np.ones(shape, np.float32))
            target = as_device_array(np.empty((size, *shape) if kind == "all_gather" else shape, np.float32))

            def exchange(kind: Any = kind, source: Any = source, target: Any = target, more: Any = parameters) -> None:
                group.start(kind, source, target, more, None).finish()

            ours = mean_time(exchange, synchronize)
            bare = mean_time(bare_call(communicator, kind, source, target), synchronize) if is_nccl() else float("nan")
            moved = target.nbytes * (size - 1) / size * (2 if kind == "all_reduce" else 1)
            say(
                f"{kind:<12}{count:>12}{ours * 1e6:>9.1f} us{moved / ours / 1e9:>9.1f}{bare * 1e6:>9.1f} us"
                f"{bare / ours:>7.2f}"
            )
    if is_nccl():
        bench_host_time(group, communicator)


def bare_call(communicator: Any, kind: str, source: Any, target: Any) -> Callable[[], None]:
    """Returns NCCL's own call, on the current stream."""
    import cupy

    made, stream = communicator._made, cupy.cuda.get_current_stream().ptr
    a, b, count = source.data.ptr, target.data.ptr, source.size
    if kind == "all_reduce":
        return lambda: made.allReduce(a, b, count, 7, 0, stream)
    return lambda: made.allGather(a, b, count, 7, stream)


def bench_host_time(group: Any, communicator: Any) -> None:
    """Prints the host time of an exchange as host programs start it, of a group of two, and of NCCL's own call."""
    from tracefuse.runtime.communicators.launch import current_world
    from tracefuse.runtime.communicators.rank_groups import ExchangeLabel

    source, target, other = (as_device_array(np.ones(8, np.float32)) for _ in range(3))
    plain = ExchangeLabel("all_reduce", group, {"combine": "sum"}, None, tuple)
    hidden = ExchangeLabel("all_reduce", group, {"combine": "sum"}, None, tuple, overlaps=True)
    world = current_world()

    def together() -> None:
        world.start_group()
        requests = [hidden.start(source, one) for one in (target, other)]
        world.end_group()
        for request in requests:
            hidden.finish(request)

    for name, call in (
        ("bare call", bare_call(communicator, "all_reduce", source, target)),
        ("exchange", lambda: plain.finish(plain.start(source, target))),
        ("exchange that overlaps", lambda: hidden.finish(hidden.start(source, target))),
        ("two coalesced exchanges", together),
    ):
        best = float("inf")
        for _ in range(20):
            synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            best = min(best, (time.perf_counter() - start) / 50)
        synchronize()
        say(f"host time of {name}: {best * 1e6:.1f} us")


# ---------------------------------------------------------------------------------------------------------------------
# functions


def gelu(np_like: Any, x: Any) -> Any:
    return x * (0.5 + 0.5 * np_like.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def bench_functions() -> None:
    from tracefuse import Sharding, collectives, shard, shard_map

    mesh = the_mesh()
    columns, rows = Sharding(mesh, (None, "model")), Sharding(mesh, ("model",))
    given = inputs()

    @shard_map(mesh=mesh, in_specs=(None, columns, rows), out_specs=None)
    def mlp(x: Any, up: Any, down: Any) -> Any:
        return collectives.psum(gelu(np, x @ up) @ down, "model")

    @shard_map(mesh=mesh, in_specs=columns, out_specs=columns)
    def layer_norm(x: Any) -> Any:
        width = x.shape[1] * collectives.axis_size("model")
        mean = collectives.psum(x.sum(1), "model")[:, None] / width
        variance = collectives.psum(((x - mean) ** 2).sum(1), "model")[:, None] / width
        return (x - mean) / np.sqrt(variance + 1e-5)

    x = as_device_array(given["x"])
    up, down = (shard(as_device_array(given[n]), s) for n, s in (("up", columns), ("down", rows)))
    norm = shard(as_device_array(given["norm"]), columns)
    say("")
    for name, call in (
        ("tensor-parallel MLP", lambda: mlp(x, up, down)),
        ("sharded layer norm", lambda: layer_norm(norm)),
    ):
        say(f"{name}: {mean_time(call, synchronize) * 1e3:.3f} ms")
    error = abs(np.asarray(_host(mlp(x, up, down)), np.float32) - reference_mlp(given)).max() if SMALL else None
    say(f"largest error of the MLP: {error}" if SMALL else "")


def bench_pipelined() -> None:
    """Times products whose rows are gathered, and whose sums are scattered, in one exchange and in pieces."""
    from tracefuse import Sharding, fuse, shard

    mesh = the_mesh()
    rows, columns = Sharding(mesh, ("model",)), Sharding(mesh, (None, "model"))
    given = inputs()
    x, up = shard(as_device_array(given["x"]), rows), shard(as_device_array(given["up"]), columns)
    inner = shard(as_device_array(np.ascontiguousarray(given["up"][:ROWS])), columns)
    down = shard(as_device_array(given["down"]), rows)
    say("")
    for mode in ("off", "broadcast", "ring"):
        gathered = fuse(lambda x, w: x @ w, in_shardings=(rows, columns), pipelined_exchanges=mode)
        scattered = fuse(lambda x, w: x @ w, in_shardings=(columns, rows), out_shardings=rows, pipelined_exchanges=mode)
        first = mean_time(lambda f=gathered: f(x, up), synchronize) * 1e3
        second = mean_time(lambda f=scattered: f(inner, down), synchronize) * 1e3
        say(f"pipelined_exchanges={mode!r}: rows gathered {first:.3f} ms, sums scattered {second:.3f} ms")


def _host(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else x.get()


def reference_mlp(given: dict[str, Any]) -> Any:
    return gelu(np, given["x"] @ given["up"]) @ given["down"]


def bench_jax(devices: int) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
    columns, rows, whole = (NamedSharding(mesh, PartitionSpec(*s)) for s in ((None, "model"), ("model",), ()))
    given = inputs()

    def mlp(x: Any, up: Any, down: Any) -> Any:
        return gelu(jnp, x @ up) @ down

    def layer_norm(x: Any) -> Any:
        mean = x.mean(1, keepdims=True)
        variance = ((x - mean) ** 2).mean(1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-5)

    jitted = jax.jit(mlp, in_shardings=(whole, columns, rows), out_shardings=whole)
    normed = jax.jit(layer_norm, in_shardings=columns, out_shardings=columns)
    x, up, down = (jax.device_put(given[n], s) for n, s in (("x", whole), ("up", columns), ("down", rows)))
    norm = jax.device_put(given["norm"], columns)
    last: list[Any] = []
    for name, call in (
        ("tensor-parallel MLP", lambda: last.append(jitted(x, up, down))),
        ("sharded layer norm", lambda: last.append(normed(norm))),
    ):

        def ready() -> None:
            jax.block_until_ready(last)
            last.clear()

        def one(call: Callable[[], Any] = call) -> None:
            call()
            if jax.default_backend() == "cpu":  # calls in flight together wait for each other's threads
                jax.block_until_ready(last)
            del last[:-2]

        print(f"jax.jit, {name}: {mean_time(one, ready) * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    if "--jax" in sys.argv:
        bench_jax(int(sys.argv[sys.argv.index("--jax") + 1]))
    else:
        if "--pipelined" not in sys.argv:
            bench_exchanges()
            bench_functions()
        bench_pipelined()
