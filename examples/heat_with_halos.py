"""The heat equation on a grid whose rows and columns are split over ranks.

Each rank sends its border rows and columns to its neighbours and computes a step of its part, as one fused segment
after the exchanges. The result has the bits of one device. `python examples/heat_with_halos.py` runs four ranks as
threads, `mpiexec -n 4 python examples/heat_with_halos.py` as processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import Sharding, collectives, make_mesh, shard, shard_map, unshard
from tracefuse.runtime.communicators.launch import current_world, run_job

STEPS, RATE = 20, np.float32(0.2)


def with_halos(u: Any, axis: int, name: str) -> Any:
    """Returns the part with a row of each neighbour; zeros beyond the ends of the grid."""
    count = collectives.axis_size(name)
    first, last = np.split(u, [1], axis)[0], np.split(u, [u.shape[axis] - 1], axis)[1]
    before = collectives.ppermute(last, name, [(k, k + 1) for k in range(count - 1)])
    after = collectives.ppermute(first, name, [(k + 1, k) for k in range(count - 1)])
    return np.concatenate([before, u, after], axis)


def stencil(rows: Any, columns: Any, u: Any) -> Any:
    neighbours = rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:]
    return u + RATE * (neighbours - np.float32(4) * u)


def on_one_device(u: Any) -> Any:
    for _ in range(STEPS):
        u = stencil(np.pad(u, ((1, 1), (0, 0))), np.pad(u, ((0, 0), (1, 1))), u)
    return u


def main() -> str:
    size = current_world().size
    mesh = make_mesh((2, size // 2) if size % 2 == 0 else (size, 1), ("y", "x"))
    grid = Sharding(mesh, ("y", "x"))

    @shard_map(mesh=mesh, in_specs=grid, out_specs=grid, contract=False)
    def step(u: Any) -> Any:
        return stencil(with_halos(u, 0, "y"), with_halos(u, 1, "x"), u)

    start = np.zeros((16 * mesh.shape[0], 16 * mesh.shape[1]), np.float32)
    start[4:9, 5:12] = 100
    u = shard(start, grid)
    for _ in range(STEPS):
        u = step(u)
    same = np.array_equal(unshard(u), on_one_device(start))
    return f"{size} ranks, {u}\nthe bits of one device: {same}\n{step.host_program(u).program}"


if __name__ == "__main__":
    text = run_job(main)
    if text is not None:
        print(text)
