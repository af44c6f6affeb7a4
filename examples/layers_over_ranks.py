"""A block of a network over a mesh of ranks: layer norm, then a column-parallel and a row-parallel matrix product.

`@fuse(in_shardings=, out_shardings=)` takes the function of whole arrays and adds the exchanges. Rows are split over
"data", the weights over "model". Where the reader wants parts of the features, the second product ends in a
ReduceScatter. `python examples/layers_over_ranks.py` runs four ranks as threads, `mpiexec -n 4 python
examples/layers_over_ranks.py` as processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import Sharding, fuse, make_mesh, shard, unshard
from tracefuse.runtime.communicators.launch import current_world, run_job


def block(x: Any, up: Any, down: Any) -> Any:
    centered = x - x.mean(1, keepdims=True)
    normalized = centered / np.sqrt((centered * centered).mean(1, keepdims=True) + 1e-5)
    return np.maximum(normalized @ up, 0) @ down


def main() -> str:
    size = current_world().size
    mesh = make_mesh((2, size // 2) if size % 2 == 0 else (size, 1), ("data", "model"))
    rows, columns, inner = Sharding(mesh, ("data",)), Sharding(mesh, (None, "model")), Sharding(mesh, ("model",))
    random = np.random.default_rng(0)
    x, up, down = (random.standard_normal(s, np.float32) / 4 for s in ((8 * size, 16), (16, 8 * size), (8 * size, 16)))
    arguments = shard(x, rows), shard(up, columns), shard(down, inner)
    lines = [f"{size} ranks"]
    for name, out in (
        ("replicated over model", rows),
        ("features split over model", Sharding(mesh, ("data", "model"))),
    ):
        over_ranks = fuse(block, in_shardings=(rows, columns, inner), out_shardings=out)
        result = over_ranks(*arguments)
        error = np.abs(unshard(result) - block(x, up, down)).max()
        lines += ["", f"result {name}: {result}, right: {error < 1e-4}"]
        lines += [f"  {exchange}" for exchange in over_ranks.exchanges(*arguments)]
    return "\n".join(lines)


if __name__ == "__main__":
    text = run_job(main)
    if text is not None:
        print(text)
