"""How large a kernel would get: what it emits for one element, and how many parameters it takes.

A program may be any number of ops long and take any number of arrays. A kernel may not: compilers' own passes take more
than linear time, a reader pulls each value from every place where it needs it, and a kernel on the GPU has 4 KB of
parameters. So a segment holds at most MOST_CODE and MOST_PARAMETERS, which the merge rule asks of every union.

A place is where a value is read relative to the loops, as a number: shifts along the axes add up, so that a stencil
over a stencil reads at as many places as there are different shifts, and any other movement is a number of its own.
What is read under a condition is emitted in a branch, which shares nothing with others: there each op is another place.

Knows: index maps, ops by kind. Must not know: how loops are identified, kernels, targets, sizes.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Fusion, Literal, Node, Shape
from tracefuse.ir.indexing import reduces, sources
from tracefuse.ir.op_kinds import Movement, Source

Places: TypeAlias = frozenset[int]

HERE = 0
"""The place of the loops themselves."""

MOST_CODE = 256
"""What a segment emits for one element at most, in pointwise ops. LLVM takes about a millisecond for each then, as many
as there are; in kernels of thousands it takes several. A value that goes through memory once in so many ops costs
nothing that can be measured."""

MOST_PARAMETERS = 64
"""Tensors and scalars that a segment reads and writes at most: 4 KB of parameters are 64 bytes for each, an address and
the sizes and strides of a few axes."""

OF_A_REDUCTION = 16
"""Pointwise ops that a reduction counts for: it is a loop of its own, in which what it needs is computed again."""

OF_A_BRANCH = 4
"""Pointwise ops that each operand of a movement op counts for that is read under a condition."""

_MODULUS = 2**61 - 1
_ALONG_AN_AXIS = 1_000_000_007


def weight(fusion: Fusion, node: Node) -> int:
    """What a kernel emits for one element of a node, in pointwise ops."""
    if reduces(fusion, node):
        return OF_A_REDUCTION
    if isinstance(node.op, Movement):
        return max(1, OF_A_BRANCH * sum(bool(source.conditions) for source in _sources(fusion, node)[0]))
    return 1


def places_read(fusion: Fusion, node: Node) -> dict[int, Places]:
    """The places, relative to a node's own, at which it reads each tensor."""
    tensors = [v for v in node.inputs if fusion.values[v].is_tensor]
    if not isinstance(node.op, Movement):
        return dict.fromkeys(tensors, frozenset((HERE,)))
    pulled, deciding = _sources(fusion, node)
    own = _own(fusion, node)
    found: dict[int, set[int]] = {v: set() for v in tensors}
    for position, at in (*((s.operand, s.coordinates) for s in pulled), *deciding):
        operand = node.operands[position]
        if not isinstance(operand, Literal) and operand in found:
            branch = any(s.conditions for s in pulled if s.operand == position) or bool(deciding)
            found[operand].add(_place(at, own, f"{node.outputs[0]}.{position}" if branch else ""))
    return {v: frozenset(places or (HERE,)) for v, places in found.items()}


def through(read: Places, own: Places) -> Places:
    """The places of what is read at `own`, by what is itself read at `read`."""
    if read == {HERE}:
        return own
    return frozenset((a + b) % _MODULUS for a in read for b in own)


def _sources(fusion: Fusion, node: Node) -> tuple[tuple[Source, ...], list[tuple[int, Shape]]]:
    """The sources of a node's element, and (operand, coordinates) of what decides a coordinate."""
    deciding: list[tuple[int, Shape]] = []

    def index_of(position: int, at: Shape) -> Extent:
        deciding.append((position, at))
        return symbol("taken")

    return sources(fusion, node, _own(fusion, node), index_of), deciding


def _own(fusion: Fusion, node: Node) -> Shape:
    """The coordinates of an element of a node's result."""
    shape = fusion.shape_of(node.outputs[0])
    return tuple(0 if extent == 1 else symbol(f"x{axis}", extent=extent) for axis, extent in enumerate(shape))


def _place(coordinates: Shape, own: Shape, branch: str) -> int:
    """The number of a place; `branch` tells those apart that share no code."""
    shifts = [shift for c, x in zip(coordinates, own, strict=False) if isinstance(shift := c - x, int)]
    if not branch and len(shifts) == len(coordinates) == len(own):
        return sum(shift * pow(_ALONG_AN_AXIS, axis + 1, _MODULUS) for axis, shift in enumerate(shifts)) % _MODULUS
    text = f"{branch}:{', '.join(map(str, coordinates))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % _MODULUS
