"""Dead code elimination: removes nodes that no output depends on."""

from __future__ import annotations

from segments.lazy_dataclasses import replace
from tracefuse.ir.fusion import Fusion
from tracefuse.passes.rewriter import needed_for, with_nodes


def drop_dead(fusion: Fusion) -> Fusion:
    """Removes the nodes that no output depends on.

    Inputs stay, even if nothing reads them.
    """
    return with_nodes(fusion, needed_for(fusion, fusion.outputs))


def drop_dead_tensors(fusion: Fusion) -> Fusion:
    """Removes the tensors that no output depends on.

    Host scalars stay, because a call evaluates the scalars of the recorded fusion.
    """
    live = {number for node in needed_for(fusion, fusion.outputs) for number in node.outputs}
    nodes = [n for n in fusion.nodes if n.outputs[0] in live or not fusion.values[n.outputs[0]].is_tensor]
    result = with_nodes(fusion, nodes)
    return fusion if result is fusion else replace(result, concrete=fusion.concrete)
