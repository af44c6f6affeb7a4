"""A data-parallel training step and k-means over ranks: each rank has a part of the rows, sums meet in an AllReduce.

The backward pass is written by hand. Gradients of both layers are exchanged while other work runs.
`python examples/training_over_ranks.py` runs four ranks as threads, `mpiexec -n 4 python
examples/training_over_ranks.py` as processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import Sharding, collectives, fuse, make_mesh, shard, shard_map, unshard
from tracefuse.runtime.communicators.launch import current_world, run_job

LEARNING_RATE = np.float32(0.3)


def gradients(x: Any, y: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    """Returns the sum of squared errors, and its gradients, over the given rows."""
    hidden = np.tanh(x @ first)
    error = hidden @ second - y
    back = (error @ second.T) * (1 - hidden * hidden)
    return (error * error).sum(), x.T @ back, hidden.T @ error


def train(mesh: Any) -> str:
    rows, size = Sharding(mesh, ("data",)), mesh.size("data")
    random = np.random.default_rng(1)
    x = random.standard_normal((32 * size, 8), np.float32)
    y = np.tanh(x[:, :1] - x[:, 1:2])
    first, second = (random.standard_normal(s, np.float32) / 4 for s in ((8, 16), (16, 1)))

    @shard_map(mesh=mesh, in_specs=(rows, rows, None, None))
    def step(x: Any, y: Any, first: Any, second: Any) -> Any:
        loss, down, up = collectives.psum(gradients(x, y, first, second), "data")
        count = x.shape[0] * collectives.axis_size("data")
        return loss / count, first - LEARNING_RATE * down / count, second - LEARNING_RATE * up / count

    losses = []
    parts = shard(x, rows), shard(y, rows)
    for _ in range(60):
        loss, first, second = step(*parts, first, second)
        losses.append(float(loss))
    return f"training: the loss falls below a half of its start: {losses[-1] < losses[0] / 2}"


def assign(x: Any, centers: Any) -> tuple[Any, Any]:
    """Returns the sums and counts of the points nearest to each center."""
    distances = ((x[:, None, :] - centers[None]) ** 2).sum(2)
    nearest = (distances == distances.min(1, keepdims=True)).astype(np.float32)
    return nearest.T @ x, nearest.sum(0)


def cluster(mesh: Any) -> str:
    rows, size = Sharding(mesh, ("data",)), mesh.size("data")
    random = np.random.default_rng(2)
    true = np.array([[0, 0], [6, 0], [0, 6]], np.float32)
    x = (true[:, None] + random.standard_normal((3, 16 * size, 2), np.float32)).reshape(-1, 2)
    over_ranks = fuse(assign, in_shardings=(rows, None), out_shardings=(Sharding(mesh), Sharding(mesh)))
    points, centers = shard(x, rows), x[[0, 16 * size, 32 * size]]
    for _ in range(10):
        sums, counts = (unshard(one) for one in over_ranks(points, centers))
        centers = sums / counts[:, None]
    found = np.abs(centers - true).max() < 1
    listing = "\n".join(f"  {exchange}" for exchange in over_ranks.exchanges(points, centers))
    return f"k-means: centers found: {found}\n{listing}"


def main() -> str:
    mesh = make_mesh((current_world().size,), ("data",))
    return f"{current_world().size} ranks\n{train(mesh)}\n{cluster(mesh)}"


if __name__ == "__main__":
    text = run_job(main)
    if text is not None:
        print(text)
