"""Arguments that share memory with an argument that is updated in place.

In NumPy, the change is visible through every argument. Arguments with the same memory and type share one tracer, which
records that. For arguments that overlap in another manner the function itself runs, after a warning, where it computes
what a trace does; elsewhere the call raises UnsupportedError.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tracefuse.errors import ReadOnlyError, UnsupportedError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.untraced_calls import FunctionRuns
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.runtime.argument_leaves import Leaf
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.memory.spans import APART, Span, neighbours, relation, span
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


def leave_overlapping(call: CallArguments, changed: str, other: str) -> NoReturn:
    """Ends a call that updates `changed` in place, which shares memory with `other`.

    Raises FunctionRuns, after a warning, where the function itself may run, and UnsupportedError elsewhere.
    """
    what = f"{changed} is changed in place and {other} lies in the same memory"
    if not call.may_run_function:
        raise UnsupportedError(what, hint=f"pass {other}.copy()")
    warnings.warn(
        f"{what}: such calls run the function itself; pass {other}.copy() where {other} need not see the change",
        UserWarning, stacklevel=2,
    )  # fmt: skip
    raise FunctionRuns


def check_no_overlap(traced: Trace, device: ArrayDevice, arguments: Sequence[Any], call: CallArguments) -> None:
    """Ends a call that updates an argument in place that shares bytes with another input, see `leave_overlapping`."""
    _check_numbers_apart(traced, call)
    if not traced.fusion.aliases:
        return
    spans: Mapping[int, Span] = {
        number: span(device, array)
        for number, array in zip(traced.fusion.inputs, arguments, strict=True)
        if number in traced.fusion.tensor_inputs and not isinstance(array, ShapeDtype)
    }
    numbers = list(spans)
    close = dict(zip(numbers, neighbours(list(spans.values())), strict=True))
    for changed in traced.fusion.aliases.values():
        for other in (numbers[k] for k in sorted(close.get(changed, ()))):
            if spans[other].shares_bytes_with(spans[changed]):
                first, second = (traced.fusion.values[n].name or f"input T{n}" for n in (changed, other))
                leave_overlapping(call, first, second)


def can_overwrite(device: ArrayDevice, changed: Sequence[Any], other_arrays: Sequence[Any]) -> bool:
    """Whether arrays can be written: contiguous memory that is writable and that no other of the arrays overlaps.

    False may also mean that it takes a longer test to know, see `check_no_overlap`.
    """
    for position, array in enumerate(changed):
        flags = array.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            return False
        if isinstance(array, np.ndarray):
            if not flags.writeable:
                return False
            if any(np.may_share_memory(array, other) for other in (*other_arrays, *changed[:position])):
                return False
        elif any(relation(device, array, other) != APART for other in (*other_arrays, *changed[:position])):
            return False
    return True


def _check_numbers_apart(traced: Trace, call: CallArguments) -> None:
    """Ends a call that updates a 0-d array in place that shares bytes with another argument."""
    leaves = call.leaves
    for position in traced.updated_numbers:
        changed = leaves[position]
        if not changed.value.flags.writeable:
            raise ReadOnlyError(f"{changed.path}, which is updated in place, is read-only", hint="pass x.copy()")
        for other in leaves:
            array = other.value
            if other is not changed and isinstance(array, np.ndarray) and np.may_share_memory(array, changed.value):
                leave_overlapping(call, changed.path, other.path)


def store_updated_numbers(traced: Trace, leaves: Sequence[Leaf], outputs: list[Any]) -> list[Any]:
    """Writes the new values of 0-d arrays, the last outputs, into the arguments; returns the other outputs."""
    if not traced.updated_numbers:
        return outputs
    count = len(outputs) - len(traced.updated_numbers)
    for position, value in zip(traced.updated_numbers, outputs[count:], strict=True):
        leaves[position].value[...] = value
    return outputs[:count]
