"""Group reductions of the interpreter, in the same order as the code that the CUDA emitter prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.kernel import kernel_ir as ir

WARP = 32

EvaluateBound: TypeAlias = Callable[[dict[str, Any], Sequence[ir.Expression]], list[Any]]
"""Evaluates expressions with the given values bound to variables."""


def combine_group(combiner: ir.Combiner, states: list[Any], evaluate: EvaluateBound) -> list[Any]:
    """Reduce states of shape (groups, threads) to one state per group, as flat arrays.

    The order is a tree of adjacent pairs within each warp, and across warps if their number is a power of two;
    otherwise the warps are combined one after another.
    """
    group = states[0].shape[1]
    states = _tree(combiner, states, min(group, WARP), evaluate)
    warps = group // WARP
    if warps > 1:
        states = [s.reshape(-1, warps) for s in states]
        states = (_tree if warps & (warps - 1) == 0 else _in_order)(combiner, states, warps, evaluate)
    return states


def scan_group(
    combiner: ir.Combiner, states: list[Any], neutral: list[Any], evaluate: EvaluateBound
) -> tuple[list[Any], list[Any]]:
    """Combine states of shape (groups, threads) over the earlier threads of each group, and over all of them.

    Returns both in that shape. Within a warp, a thread combines with those 1, 2, 4, ... before it; the warps are
    combined one after another. neutral: the results of each group's first thread.
    """
    group = states[0].shape[1]
    size = min(group, WARP)
    before = [n.reshape(-1, size).copy() for n in neutral]
    inclusive = [s.reshape(-1, size) for s in states]
    offset = 1
    while offset < size:
        later = _combine(combiner, [s[:, :-offset] for s in inclusive], [s[:, offset:] for s in inclusive], evaluate)
        inclusive = [np.concatenate([s[:, :offset], new], 1) for s, new in zip(inclusive, later, strict=True)]
        offset *= 2
    for exclusive, state in zip(before, inclusive, strict=True):
        exclusive[:, 1:] = state[:, :-1]
    warps = group // size
    totals = [s[:, -1].reshape(-1, warps) for s in inclusive]
    before = [b.reshape(-1, warps, size) for b in before]
    running = [t[:, :1] for t in totals]
    for warp in range(1, warps):
        spread = [np.repeat(r, size, 1) for r in running]
        joined = _combine(combiner, spread, [b[:, warp] for b in before], evaluate)
        for exclusive, new in zip(before, joined, strict=True):
            exclusive[:, warp] = new
        running = _combine(combiner, running, [t[:, warp : warp + 1] for t in totals], evaluate)
    return [b.reshape(-1, group) for b in before], [np.repeat(r, group, 1) for r in running]


def _combine(combiner: ir.Combiner, left: list[Any], right: list[Any], evaluate: EvaluateBound) -> list[Any]:
    names = (v.name for v in (*combiner.left, *combiner.right))
    results = evaluate(dict(zip(names, (*left, *right), strict=True)), combiner.results)
    return [np.broadcast_to(result, left[0].shape) for result in results]


def _tree(combiner: ir.Combiner, states: list[Any], size: int, evaluate: EvaluateBound) -> list[Any]:
    """Combine adjacent pairs (0 1) (2 3) ..., then pairs of pairs."""
    states = [s.reshape(-1, size) for s in states]
    while size > 1:
        states = _combine(combiner, [s[:, 0::2] for s in states], [s[:, 1::2] for s in states], evaluate)
        size //= 2
    return states


def _in_order(combiner: ir.Combiner, states: list[Any], size: int, evaluate: EvaluateBound) -> list[Any]:
    result = [s[:, :1] for s in states]
    for k in range(1, size):
        result = _combine(combiner, result, [s[:, k : k + 1] for s in states], evaluate)
    return result
