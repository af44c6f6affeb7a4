"""Gives each output of a fusion its own buffer."""

from __future__ import annotations

from tracefuse.ir.fusion import Fusion
from tracefuse.ops.roles import ORDERED_COPY
from tracefuse.passes.rewriter import Rewriter


def separate_outputs(fusion: Fusion) -> Fusion:
    """Copies a value that is an output twice, so that each output has a buffer of its own.

    An input that is an output stays one; the frontends return the same object.
    """
    seen: dict[int, None] = {}
    if len(set(fusion.outputs)) == len(fusion.outputs):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        rewriter.keep(node)
    outputs = []
    for number in fusion.outputs:
        if number in seen and fusion.values[number].is_tensor:
            dtype = fusion.values[number].dtype
            (number,) = rewriter.node(ORDERED_COPY, (number,), {}, dtype, (dtype,))
        seen[number] = None
        outputs.append(number)
    rewriter.outputs = outputs
    return rewriter.build()
