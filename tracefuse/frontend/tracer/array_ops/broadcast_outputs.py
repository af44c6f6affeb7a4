"""Output buffers that take results of fewer axes, as those of ufuncs do."""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.shaping import broadcast_to
from tracefuse.frontend.tracer.values.traced import Traced


def into_broadcast(target: Any, result: Any) -> Any:
    """Stores a result in an array with more axes, or more elements along axes of extent 1; returns the array."""
    if not isinstance(target, Traced):
        return into(target, result)
    extents, wanted = result.extents, target.extents
    tail = wanted[len(wanted) - len(extents) :]
    is_smaller = len(extents) < len(wanted) or any(a == 1 and b != 1 for a, b in zip(extents, tail, strict=False))
    return into(target, broadcast_to(result, target.recorder.sizes(wanted)) if is_smaller else result)
