"""An attention block over a mesh: heads are split over "model", and the sequence between the products of the block.

The layer norm runs on parts of the sequence. Its rows are gathered for the projections to queries, keys and values, of
which each rank computes those of its heads (column-parallel); the projection back adds the heads (row-parallel), and
ends in a ReduceScatter over the sequence. `python examples/attention_over_ranks.py` runs four ranks as threads,
`mpiexec -n 4 python examples/attention_over_ranks.py` as processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import Sharding, fuse, make_mesh, shard, unshard
from tracefuse.runtime.communicators.launch import current_world, run_job

WIDTH = 8
"""Elements of a head."""


def layer_norm(x: Any) -> Any:
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(1, keepdims=True) + np.float32(1e-5))


def heads_of(rows: Any, weight: Any) -> Any:
    projected = rows @ weight
    return projected.reshape(projected.shape[0], -1, WIDTH).transpose(1, 0, 2)


def block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    rows = layer_norm(x)
    q, k, v = (heads_of(rows, weight) for weight in (wq, wk, wv))
    scores = q @ k.transpose(0, 2, 1) * np.float32(WIDTH**-0.5)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    seen = (powers / powers.sum(-1, keepdims=True)) @ v
    return x + seen.transpose(1, 0, 2).reshape(x.shape[0], -1) @ wo


def main() -> str:
    size = current_world().size
    mesh = make_mesh((size,), ("model",))
    sequence, columns, heads = Sharding(mesh, ("model",)), Sharding(mesh, (None, "model")), Sharding(mesh, ("model",))
    random, features = np.random.default_rng(0), 2 * size * WIDTH
    x = random.standard_normal((4 * size, features), np.float32)
    weights = [random.standard_normal((features, features), np.float32) / 8 for _ in range(4)]
    over_ranks = fuse(block, in_shardings=(sequence, columns, columns, columns, heads), out_shardings=sequence)
    arguments = [shard(a, s) for a, s in zip((x, *weights), (sequence, columns, columns, columns, heads), strict=True)]
    result = over_ranks(*arguments)
    error = np.abs(unshard(result) - block(x, *weights)).max()
    lines = [f"{size} ranks: {result}, right: {error < 1e-3}"]
    return "\n".join([*lines, *(f"  {one}" for one in over_ranks.exchanges(*arguments))])


if __name__ == "__main__":
    text = run_job(main)
    if text is not None:
        print(text)
