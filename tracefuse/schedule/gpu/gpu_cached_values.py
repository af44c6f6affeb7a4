"""Selects the values that a GPU kernel caches for later phases, instead of rereading or recomputing them.

The criteria differ for registers, the ring of a row_column launch, and shared memory.
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
    """Selects the values to cache in registers: inputs, expensive values, and values of several inputs."""
    inputs, weight, sources = frozenset(fusion.tensor_inputs), weights(fusion), _sources(fusion)
    return lambda number: number in inputs or weight[number] > 0 or len(sources[number] - {_REDUCED}) > 1


def worth_keeping_in_ring(fusion: Fusion) -> IsWorthKeeping:
    """Selects the values to cache for a row of a row_column region: inputs and expensive values."""
    inputs, weight = frozenset(fusion.tensor_inputs), weights(fusion)
    return lambda number: number in inputs or weight[number] > 0


def worth_holding(fusion: Fusion) -> IsWorthKeeping:
    """Selects the values to cache in shared memory: inputs, and values of several inputs before any reduction."""
    inputs, sources = frozenset(fusion.tensor_inputs), _sources(fusion)
    return lambda number: number in inputs or (len(sources[number]) > 1 and _REDUCED not in sources[number])


def _sources(fusion: Fusion) -> Mapping[int, frozenset[int]]:
    """Returns for each value the inputs that it depends on, and _REDUCED if a non-pointwise op is on the path."""
    sources = {number: frozenset((number,)) for number in fusion.tensor_inputs}
    for node in fusion.nodes:
        inputs = frozenset(s for v in node.inputs for s in sources.get(v, ()))
        sources.update(dict.fromkeys(node.outputs, inputs if isinstance(node.op, Pointwise) else inputs | {_REDUCED}))
    return sources
