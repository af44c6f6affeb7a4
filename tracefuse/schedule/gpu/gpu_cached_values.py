"""Which values a GPU kernel keeps for later phases: what it would else reread, or recompute at some expense.

Knows: fusions, ops by kind. Must not know: regions, where values are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tracefuse.ir.fusion import Fusion
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.schedule.probe import weights

IsWorthKeeping: TypeAlias = Callable[[int], bool]

_REDUCED = -1


def worth_keeping(fusion: Fusion) -> IsWorthKeeping:
    """What a row in registers keeps: inputs, and what is expensive or made of several inputs."""
    inputs, weight, sources = frozenset(fusion.tensor_inputs), weights(fusion), _sources(fusion)
    return lambda number: number in inputs or weight[number] > 0 or len(sources[number] - {_REDUCED}) > 1


def worth_keeping_in_ring(fusion: Fusion) -> IsWorthKeeping:
    """What a row of a row_column region keeps: inputs, which may come through shared memory, and what is expensive."""
    inputs, weight = frozenset(fusion.tensor_inputs), weights(fusion)
    return lambda number: number in inputs or weight[number] > 0


def worth_holding(fusion: Fusion) -> IsWorthKeeping:
    """What a row in shared memory keeps: inputs, and what is made of several before a reduction."""
    inputs, sources = frozenset(fusion.tensor_inputs), _sources(fusion)
    return lambda number: number in inputs or (len(sources[number]) > 1 and _REDUCED not in sources[number])


def _sources(fusion: Fusion) -> Mapping[int, frozenset[int]]:
    """For each value the inputs that it is made of, and _REDUCED where an op that is not pointwise is on the way."""
    sources = {number: frozenset((number,)) for number in fusion.tensor_inputs}
    for node in fusion.nodes:
        own = frozenset(s for v in node.inputs for s in sources.get(v, ()))
        sources.update(dict.fromkeys(node.outputs, own if isinstance(node.op, Pointwise) else own | {_REDUCED}))
    return sources
