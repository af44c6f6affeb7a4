"""Exact comparisons of int64 with uint64, which no one type holds.

A negative number is below every unsigned one; any other is compared as uint64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.dtypes import uint64
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.ops import REGISTRY, Pointwise


def mixes_signs(op: Pointwise, resolved: Sequence[Resolved]) -> bool:
    """Whether an op compares a signed operand with a uint64 one."""
    if op.result != "bool" or len(resolved) != 2 or any(r.weak is not None or r.dtype is None for r in resolved):
        return False
    kinds = {r.dtype.kind for r in resolved if r.dtype is not None}
    return kinds == {"int", "uint"} and any(r.dtype is uint64 for r in resolved)


def compare_mixed_signs(
    op: Pointwise, operands: Sequence[Any], resolved: Sequence[Resolved], record: Callable[..., Any]
) -> Any:
    """Records the comparison. record: records an op by its definition, operands and attributes."""
    signed = 0 if resolved[1].dtype is uint64 else 1
    pair = [*operands]
    below = record(REGISTRY["lt"], (pair[signed], 0))
    pair[signed] = record(REGISTRY["cast"], (pair[signed],), dtype=uint64)
    same_sign = record(op, pair)
    if op.numpy(-1 if signed == 0 else 1, 1 if signed == 0 else -1):  # the outcome for a negative number
        return record(REGISTRY["logical_or"], (below, same_sign))
    return record(REGISTRY["logical_and"], (record(REGISTRY["logical_not"], (below,)), same_sign))
