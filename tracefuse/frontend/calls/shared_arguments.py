"""Arguments that share memory, where one of them is changed in place.

NumPy's statements see such a change through every argument. Arguments that are the same memory get one tracer, so that
this is recorded; where only some bytes are shared the call is refused.

Knows: traces, where arrays lie. Must not know: caches, how anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracing import Trace
from tracefuse.runtime.devices.arrays import ShapeDtype
from tracefuse.runtime.memory.spans import Span, span
from tracefuse.runtime.targets.array_device import ArrayDevice


def same_leaves(traced: Trace, device: ArrayDevice, arguments: Sequence[Any]) -> dict[int, int]:
    """The leaves that are the same memory and type as an earlier one, with that one."""
    first: dict[Any, int] = {}
    same: dict[int, int] = {}
    for number, origin, array in zip(traced.fusion.inputs, traced.sources, arguments, strict=True):
        if origin >= 0 and number in traced.fusion.tensor_inputs and not isinstance(array, ShapeDtype):
            known = first.setdefault((span(device, array), array.dtype), origin)
            if known != origin:
                same[origin] = known
    return same


def check_apart(traced: Trace, device: ArrayDevice, arguments: Sequence[Any]) -> None:
    """Raises UnsupportedError where an argument that is changed in place shares bytes with another input."""
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
