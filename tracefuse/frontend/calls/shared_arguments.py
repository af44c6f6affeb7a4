"""Arguments that share memory with an argument that is updated in place.

In NumPy, the change is visible through every argument. Arguments with the same memory and type share one tracer, which
records that. A call whose arguments overlap only in part raises UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracing import Trace
from tracefuse.runtime.devices.arrays import ShapeDtype
from tracefuse.runtime.memory.spans import Span, span
from tracefuse.runtime.targets.array_device import ArrayDevice


def find_shared_leaves(traced: Trace, device: ArrayDevice, arguments: Sequence[Any]) -> dict[int, int]:
    """Maps each leaf that has the memory and type of an earlier leaf to that leaf."""
    first: dict[Any, int] = {}
    same: dict[int, int] = {}
    for number, origin, array in zip(traced.fusion.inputs, traced.sources, arguments, strict=True):
        if origin >= 0 and number in traced.fusion.tensor_inputs and not isinstance(array, ShapeDtype):
            known = first.setdefault((span(device, array), array.dtype), origin)
            if known != origin:
                same[origin] = known
    return same


def check_no_overlap(traced: Trace, device: ArrayDevice, arguments: Sequence[Any]) -> None:
    """Raises UnsupportedError if an argument that is updated in place shares bytes with another input."""
    spans: Mapping[int, Span] = {
        number: span(device, array)
        for number, array in zip(traced.fusion.inputs, arguments, strict=True)
        if number in traced.fusion.tensor_inputs and not isinstance(array, ShapeDtype)
    }
    for changed in traced.fusion.aliases.values():
        for other, where in spans.items():
            if changed in spans and other != changed and where.shares_bytes_with(spans[changed]):
                first, second = (traced.fusion.values[n].name or f"input T{n}" for n in (changed, other))
                raise UnsupportedError(
                    f"{first} is changed in place and {second} lies in the same memory", hint=f"pass {second}.copy()"
                )
