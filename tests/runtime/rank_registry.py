"""The table of the programs over ranks, and what they share: numbers, and arrays of the kind that ranks exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse import (
    Sharding,
    shard,
    shard_map,
    unshard,
)
from tracefuse.ir.shardings import DeviceMesh
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.nccl_world import NcclWorld

PROGRAMS: dict[str, Callable[[int], None]] = {}
"""Every program by name. It takes the number of ranks, and raises AssertionError where results differ."""


def program(function: Callable[[int], None]) -> Callable[[int], None]:
    PROGRAMS[function.__name__] = function
    return function


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(7).standard_normal(shape)
    return (values * 10).astype(dtype) if np.issubdtype(dtype, np.integer) else values.astype(dtype)


def on_device(x: Any) -> Any:
    """Returns an array of the kind that the ranks exchange."""
    if not isinstance(current_world(), NcclWorld):
        return x
    import cupy

    if x.dtype == ml_dtypes.bfloat16:
        return cupy.asarray(x.view(np.uint16)).view(x.dtype)
    return cupy.asarray(x)


def on_host(x: Any) -> Any:
    """Returns a result as a NumPy array."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x
    return x.view(np.uint16).get().view(x.dtype) if x.dtype == ml_dtypes.bfloat16 else x.get()


def on_ranks(f: Any, x: Any, mesh: DeviceMesh, in_spec: Any, out_spec: Any, *, times: int = 2) -> Any:
    """Shards x, runs f on the parts, more than once, and returns the whole result."""
    into, out = Sharding(mesh, in_spec), None if out_spec is None else Sharding(mesh, out_spec)
    mapped = shard_map(f, mesh=mesh, in_specs=into, out_specs=out)
    for _ in range(times):
        result = unshard(mapped(shard(on_device(x), into)))
    return on_host(result)
