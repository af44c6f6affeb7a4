"""Short vector loops of a known length whose last vector is masked.

Between a loop's last whole vector and its end, LLVM runs one iteration at a time, or leaves a loop scalar that has less
than two vectors. Processors with masks for each lane of a vector run such a rest as one more vector. A row of up to
MOST_AT_ONCE vectors is then straight-line code without a scalar iteration.

Only loops whose accesses are contiguous or invariant are masked: LLVM runs other masked accesses lane by lane, with a
branch for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.interleaving import MOST_AT_ONCE, SLOW_INTEGERS, is_long, known_trips, widest

LEAST_LEFT = 2
"""The fewest elements beyond whole vectors that one more vector is faster for; one beyond a single vector of 4-byte
elements, if functions take long: a scalar iteration after it takes as long as the vector. A loop of a single vector has
to fill most of it, since half a vector and scalar iterations take less than the sum of all lanes; less if those take
long."""

ELEMENT_BYTES = (4, 8)
"""The elements of vectors. Masked loads of narrower ones, which are converted, take longer than scalar iterations."""


def masked_vectors(
    loop: ir.For, vector_bytes: int, step: Callable[[ir.Expression], int | None]
) -> int:  # fmt: skip
    """Return how many vectors a loop is that runs at once with its last ones masked; 0 for another loop.

    vector_bytes: of the processor's vectors. step: by how many positions an index grows with an iteration of the loop.
    """
    trips, element, long = known_trips(loop), widest(loop.body), is_long(loop.body)
    if trips is None or element not in ELEMENT_BYTES:
        return 0
    lanes = vector_bytes // element
    whole, rest = divmod(trips, lanes)
    least = lanes * (5 if long else 7) // 8
    if whole:
        least = 1 if long and whole == 1 and element == ELEMENT_BYTES[0] else LEAST_LEFT
    if rest < least or whole >= MOST_AT_ONCE:
        return 0
    return 1 << whole.bit_length() if _is_maskable(loop.body, step, 1 if long else ELEMENT_BYTES[0]) else 0


def _is_maskable(
    body: tuple[ir.Statement, ...], step: Callable[[ir.Expression], int | None], least_bytes: int
) -> bool:  # fmt: skip
    """Return whether statements are arithmetic on contiguous and invariant elements of so many bytes at least."""
    for s in body:
        if not isinstance(s, ir.Let | ir.Declare | ir.Accumulate | ir.Store | ir.Comment):
            return False
        if isinstance(s, ir.Store) and (step(s.index) != 1 or s.cache == "streaming"):
            return False
        if not isinstance(s, ir.Comment) and not all(_is_possible(e, step, least_bytes) for e in _parts(s.value)):
            return False
    return True


def _is_possible(e: ir.Expression, step: Callable[[ir.Expression], int | None], least_bytes: int) -> bool:
    if isinstance(e, ir.Load):
        return step(e.index) in (0, 1) and e.dtype.itemsize >= least_bytes
    return not (isinstance(e, ir.Call) and e.dtype.is_integer and e.name in SLOW_INTEGERS)


def _parts(e: ir.Expression) -> Iterator[ir.Expression]:
    """Yield an expression and its operands, but not the indices of elements."""
    waiting = [e]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, ir.Call):
            waiting += part.arguments
        elif isinstance(part, ir.Cast):
            waiting.append(part.argument)
