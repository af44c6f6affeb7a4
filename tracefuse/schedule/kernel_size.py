"""Estimates of kernel size: the code that a kernel emits for one element, and its number of parameters.

A program may have any number of ops and arrays; a kernel may not. Compiler passes take more than linear time, a
consumer recomputes a value at every place where it reads it, and a GPU kernel has 4 KB of parameters. The merge rule
therefore limits every segment to MOST_CODE and MOST_PARAMETERS.

A place is the position of a read relative to the loops, encoded as a number. Shifts along the axes add up, so a stencil
of a stencil has as many places as there are distinct shifts; any other movement is a place of its own. A conditional
read is emitted in a branch, which shares no code with other branches: each op there counts as another place.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import TypeAlias

from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import movement_reads, own_coordinates, reduces
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.scan_kind import scans

Places: TypeAlias = frozenset[int]

HERE = 0
"""The place of a read at the loops' own coordinates."""

MOST_CODE = 256
"""The most pointwise ops that a segment emits for one element. Up to this size LLVM takes about a millisecond per op;
in kernels of thousands of ops it takes several. Storing one value per so many ops has no measurable cost."""

MOST_PARAMETERS = 64
"""The most tensors and scalars that a segment reads and writes. 4 KB of parameters are 64 bytes for each: an address,
and the sizes and strides of a few axes."""

OF_A_REDUCTION = 16
"""The weight of a reduction or a scan, in pointwise ops: it is a separate loop, which recomputes its operands."""

OF_A_BRANCH = 4
"""The weight of each conditional source of a movement op, in pointwise ops."""

_MODULUS = 2**61 - 1
_ALONG_AN_AXIS = 1_000_000_007


def weight(fusion: Fusion, node: Node) -> int:
    """Returns the code that a kernel emits for one element of a node, in pointwise ops."""
    if reduces(fusion, node) or scans(fusion, node):
        return OF_A_REDUCTION
    return max(1, cost_of_branches(fusion, node)) if isinstance(node.op, Movement) else 1


def cost_of_branches(fusion: Fusion, node: Node) -> int:
    """Returns the weight of the conditional sources of a movement node; 0 if it has none."""
    return OF_A_BRANCH * sum(bool(source.conditions) for source in movement_reads(fusion, node).sources)


def places_read(fusion: Fusion, node: Node) -> dict[int, Places]:
    """Returns the places at which a node reads each tensor, relative to the node's own coordinates."""
    return _places(fusion, node, lambda number, position, at, result, branch: (
        _place(at, result, f"{number}.{position}" if branch else "")
    ))  # fmt: skip


def coordinates_read(fusion: Fusion, node: Node) -> dict[int, Places]:
    """Returns the same, with one place for all conditional reads of a tensor: an element takes one of the branches."""
    return _places(fusion, node, lambda number, position, at, result, branch: (
        _numbered(f"{number}.{node.operands[position]}") if branch else _place(at, result, "")
    ))  # fmt: skip


def _places(
    fusion: Fusion, node: Node, place: Callable[[int, int, Shape, Shape, bool], int]
) -> dict[int, Places]:  # fmt: skip
    tensors = [v for v in node.inputs if fusion.values[v].is_tensor]
    if not isinstance(node.op, Movement):
        return dict.fromkeys(tensors, frozenset((HERE,)))
    read = movement_reads(fusion, node)
    result = own_coordinates(fusion.shape_of(node.outputs[0]))
    places: dict[int, set[int]] = {v: set() for v in tensors}
    for position, at in (*((s.operand, s.coordinates) for s in read.sources), *read.deciding):
        operand = node.operands[position]
        if not isinstance(operand, Literal) and operand in places:
            branch = any(s.conditions for s in read.sources if s.operand == position) or bool(read.deciding)
            places[operand].add(place(node.outputs[0], position, at, result, branch))
    return {v: frozenset(numbers or (HERE,)) for v, numbers in places.items()}


def at_places(read: Places, inner: Places, most: float = math.inf) -> Places:
    """Composes places: those of a value that is read at `inner` by a value that is itself read at `read`.

    If there are more than `most`, returns only some of them, but more than `most`: they multiply with the depth of a
    program, and no kernel has so many.
    """
    if len(read) == 1 and HERE in read:
        return inner
    places: set[int] = set()
    for a in read:
        places.update((a + b) % _MODULUS for b in inner)
        if len(places) > most:
            break
    return frozenset(places)


def _place(coordinates: Shape, result: Shape, branch: str) -> int:
    """Returns the number of a place; `branch` distinguishes branches, which share no code."""
    shifts = [shift for c, x in zip(coordinates, result, strict=False) if isinstance(shift := c - x, int)]
    if not branch and len(shifts) == len(coordinates) == len(result):
        return sum(shift * pow(_ALONG_AN_AXIS, axis + 1, _MODULUS) for axis, shift in enumerate(shifts)) % _MODULUS
    return _numbered(f"{branch}:{', '.join(map(str, coordinates))}")


def _numbered(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % _MODULUS
