"""Makes many calls of every kind and checks for leaks: `python -m tests.soaks.calls [calls]`, 100,000 by default.

Plain calls, in-place changes, given buffers, donation, products, several segments, sizes in turn, errors. Prints how
many objects that Python's collector knows, and how many bytes that Python and NumPy hold, came to stay; both are about
zero.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import numpy as np

from tracefuse import FusionDefinition, fuse, rules
from tracefuse.errors import ShapeError


def _adds(x: Any, y: Any) -> None:
    x += y


def _calls() -> Any:
    """A function that makes one round of calls."""
    softmax = fuse(lambda x: np.exp(x - x.max(-1, keepdims=True)) / x.shape[-1])
    product, changing = fuse(lambda x, y: x @ y + 1), fuse(_adds)
    donating = fuse(lambda x: x + 1, donate_argnums=0, donation="ignore")
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.exp(fd.ops.neg(t)))
    fd.segment(merge=rules.one_op_a_segment)
    x, out = np.ones((16, 16), np.float32), np.empty((16, 16), np.float32)
    wide, state = np.empty((16, 32), np.float32)[:, ::2], [np.zeros((16, 16), np.float32)]
    trees = fuse(lambda t: {"w": t["w"] * 2, "b": (t["b"] + 1, 3)})
    tree = {"w": np.empty((16, 16), np.float32), "b": (None, None)}
    sizes = [np.ones((n, 4), np.float32) for n in (2, 5, 9)]

    def round_of_calls() -> None:
        softmax(x)
        softmax(x, out=out)
        for array in sizes:
            softmax(array)
        product(x, x)
        changing(out, x)
        donating(x.copy())
        state[0] = donating(state[0])
        softmax(x, out=wide)
        donating(out, out=out)
        trees({"w": x, "b": out}, out=tree)
        fd.execute([x])
        fd.execute([x], outputs=[out])
        try:
            product(x, sizes[0])
        except ShapeError:
            return
        raise AssertionError("sizes that do not fit were taken")

    return round_of_calls


def growth_of(calls: int) -> tuple[int, int]:
    """(objects, bytes) that came to stay in so many rounds, after some to warm up."""
    round_of_calls = _calls()
    for _ in range(80):
        round_of_calls()
    tracemalloc.start()
    try:
        for _ in range(50):
            round_of_calls()
        gc.collect()
        objects, (size, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        for _ in range(calls):
            round_of_calls()
        gc.collect()
        return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0] - size
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    # Fifteen calls a round.
    rounds = int([*sys.argv[1:], "100000"][0]) // 15
    objects, size = growth_of(rounds)
    print(f"{15 * rounds} calls: {objects:+} objects, {size:+} bytes")
    sys.exit(objects > 100 or size > 100_000)
