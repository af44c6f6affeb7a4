"""Contiguity and stride order of sizes and strides, in nvFuser's terms.

An axis of extent 1 or of stride 0 is a broadcast axis: its contiguity is None, and it takes no part in that of others.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.errors import ShapeError


def compute_contiguity(sizes: Sequence[int], strides: Sequence[int]) -> list[bool | None]:
    """Returns the contiguity of each axis of an array whose axes are in the order of memory.

    An axis is contiguous if its stride is the span of the next inner axis that is no broadcast axis; None for a
    broadcast axis. Raises ShapeError for lists of different lengths.
    """
    _check_lengths(sizes, strides)
    contiguity: list[bool | None] = [None] * len(sizes)
    expected = 1
    for axis in reversed(range(len(sizes))):
        if sizes[axis] != 1 and strides[axis] != 0:
            contiguity[axis] = strides[axis] == expected
            expected = strides[axis] * sizes[axis]
    return contiguity


def compute_tensor_descriptor(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """Returns (contiguity by rank from the outermost axis in memory, rank of each axis by stride).

    An axis with a stride of 0 has no order of its own: the others are sorted by swaps around it. Raises ShapeError for
    lists of different lengths.
    """
    _check_lengths(sizes, strides)
    outer_first = list(range(len(sizes)))
    for start in outer_first[1:]:
        place = start
        for k in reversed(range(start)):
            outer, inner = strides[outer_first[k]], strides[outer_first[place]]
            if outer == 0 or inner == 0:
                continue
            if outer >= inner:
                break
            outer_first[k], outer_first[place] = outer_first[place], outer_first[k]
            place = k
    contiguity = compute_contiguity([sizes[a] for a in outer_first], [strides[a] for a in outer_first])
    order = [0] * len(sizes)
    for place, axis in enumerate(outer_first):
        order[axis] = len(sizes) - 1 - place
    return contiguity, order


def _check_lengths(sizes: Sequence[int], strides: Sequence[int]) -> None:
    if len(sizes) != len(strides):
        raise ShapeError(f"{len(sizes)} sizes and {len(strides)} strides", hint="give one of each for every axis")
