"""How the interpreter joins the states of a group of threads: in the order of the GPU, which the CUDA emitter prints.

Knows: combiners, the order of a butterfly. Must not know: lanes, masks, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.kernel import kernel_ir as ir

WARP = 32

Bound: TypeAlias = Callable[[dict[str, Any], Sequence[ir.Expression]], list[Any]]
"""Evaluates expressions with values for some of their variables."""


def combine_group(combiner: ir.Combiner, states: list[Any], bound: Bound) -> list[Any]:
    """The state of each group from those of its threads: arrays (groups, threads) to flat ones.

    Within a warp, and over the warps where their number is a power of two, neighbours first; else warp after warp.
    """
    group = states[0].shape[1]
    states = _tree(combiner, states, min(group, WARP), bound)
    warps = group // WARP
    if warps > 1:
        states = [s.reshape(-1, warps) for s in states]
        states = (_tree if warps & (warps - 1) == 0 else _in_order)(combiner, states, warps, bound)
    return states


def _combined(combiner: ir.Combiner, left: list[Any], right: list[Any], bound: Bound) -> list[Any]:
    names = (v.name for v in (*combiner.left, *combiner.right))
    results = bound(dict(zip(names, (*left, *right), strict=True)), combiner.results)
    return [np.broadcast_to(result, left[0].shape) for result in results]


def _tree(combiner: ir.Combiner, states: list[Any], size: int, bound: Bound) -> list[Any]:
    """Neighbours first: (0 1) (2 3) ..., then pairs of pairs."""
    states = [s.reshape(-1, size) for s in states]
    while size > 1:
        states = _combined(combiner, [s[:, 0::2] for s in states], [s[:, 1::2] for s in states], bound)
        size //= 2
    return states


def _in_order(combiner: ir.Combiner, states: list[Any], size: int, bound: Bound) -> list[Any]:
    result = [s[:, :1] for s in states]
    for k in range(1, size):
        result = _combined(combiner, result, [s[:, k : k + 1] for s in states], bound)
    return result
