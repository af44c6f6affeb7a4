"""Symbols of the tests of extents."""

from __future__ import annotations

from typing import Any

from tracefuse.ir.extents import (
    Extent,
    floordiv,
    input_extent,
    maximum,
    minimum,
    mod,
    scalar_extent,
    symbol,
)

N, M, K = input_extent(0), input_extent(1), input_extent(2)
S = scalar_extent(7)
I, J = symbol("i", 100, extent=N), symbol("j", 101, extent=M)
T = symbol("t", 102, extent=6)
ATOMS = {"n": N, "m": M, "s": S, "i": I, "j": J, "t": T}
Tree = Any
"""An int, the name of an atom, or (operation, tree, tree)."""
OPERATIONS: dict[str, tuple[Any, Any]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (floordiv, lambda a, b: a // b),
    "%": (mod, lambda a, b: a % b),
    "min": (minimum, min),
    "max": (maximum, max),
}


def extent(tree: Tree) -> Extent:
    """What the tree is as an extent; division by a constant below 1 is never built."""
    if not isinstance(tree, tuple):
        return ATOMS[tree] if isinstance(tree, str) else tree
    left, right = extent(tree[1]), extent(tree[2])
    if tree[0] in ("//", "%") and isinstance(right, int) and right < 1:
        right = 1 - right
    result: Extent = OPERATIONS[tree[0]][0](left, right)
    return result
