"""What schedules know of a GPU: a few numbers that follow from its architecture and model.

Knows: NVIDIA's table of compute capabilities. Must not know: regions, templates, how a GPU is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KIB = 1024
_SHARED_BYTES = {90: 228 * _KIB, 100: 228 * _KIB, 103: 228 * _KIB, 110: 228 * _KIB}
_LEAST_SHARED_BYTES = 100 * _KIB
_FIRST_WITH_CLUSTERS = 90


@dataclass(frozen=True, slots=True)
class Chip:
    """multiprocessors: of the model. shared_bytes: of one, for all its blocks together, of which each takes
    BLOCK_BYTES more than it asks for. cluster: the most blocks of a cluster that every such GPU can run; 1 for none."""

    multiprocessors: int
    shared_bytes: int
    cluster: int


BLOCK_BYTES = 1024

MOST_BLOCKS = 8
"""Blocks of a cluster that any GPU with clusters can run."""


def chip_of(architecture: str, multiprocessors: int) -> Chip:
    """The chip of an architecture as compilers name it ("sm_90")."""
    found = re.match(r"sm_(\d+)", architecture)
    number = int(found[1]) if found else 0
    shared = _SHARED_BYTES.get(number, _LEAST_SHARED_BYTES)
    return Chip(multiprocessors, shared, MOST_BLOCKS if number >= _FIRST_WITH_CLUSTERS else 1)
