"""The hardware limits of a GPU that schedules depend on, by architecture and model."""

from __future__ import annotations

import re

from segments.lazy_dataclasses import dataclass

_KIB = 1024
_SHARED_BYTES = {90: 228 * _KIB, 100: 228 * _KIB, 103: 228 * _KIB, 110: 228 * _KIB}
_LEAST_SHARED_BYTES = 100 * _KIB
_FIRST_WITH_CLUSTERS = 90
_MULTIPLIES_TILES = 90


@dataclass(frozen=True, slots=True)
class Chip:
    """The limits of a GPU.

    multiprocessors: the number of multiprocessors. shared_bytes: the shared memory of a multiprocessor, for all its
    resident blocks; each block takes BLOCK_BYTES more than it allocates. cluster: the largest portable cluster size in
    blocks; 1 without cluster support. multiplies_tiles: whether groups of warps multiply tiles in shared memory.
    """

    multiprocessors: int
    shared_bytes: int
    cluster: int
    multiplies_tiles: bool = False


BLOCK_BYTES = 1024

MOST_BLOCKS = 8
"""The largest cluster that every GPU with cluster support can run, in blocks."""


def chip_of(architecture: str, multiprocessors: int) -> Chip:
    """Returns the chip of an architecture, named as compilers do ("sm_90")."""
    match = re.match(r"sm_(\d+)", architecture)
    number = int(match[1]) if match else 0
    shared = _SHARED_BYTES.get(number, _LEAST_SHARED_BYTES)
    return Chip(
        multiprocessors, shared, MOST_BLOCKS if number >= _FIRST_WITH_CLUSTERS else 1, number == _MULTIPLIES_TILES
    )
