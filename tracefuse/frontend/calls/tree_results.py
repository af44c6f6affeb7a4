"""The end of a call that ran along a tree of questions: writes what the function changed, and returns the result.

Every check comes before the first write, so that a call that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import Environment
from tracefuse.frontend.calls.output_buffers import output_buffers
from tracefuse.frontend.calls.shared_arguments import (
    check_no_overlap,
    find_shared_leaves,
    leave_overlapping,
    store_updated_numbers,
)
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.recorded_trace import FROM_STAGE
from tracefuse.ir.extents import symbols
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import read_output_buffers, returned
from tracefuse.runtime.memory.call_facts import read_facts


def finish(entry: Entry, environment: Environment, call: CallArguments, out: Any = None) -> Any:
    """Writes the arguments, the output buffers and the state that a call changes, and returns its result.

    out: as of the call. Raises as `FusedFunction.into` for buffers that the result does not fit.
    """
    traced, values = entry.trace, environment.values
    arguments = [values[number] for number in traced.fusion.inputs]
    numbers = returned(traced.fusion)
    number_conditions.check(traced, [values[number] for number in numbers])
    numbers = numbers[: number_conditions.position(traced)]
    buffers = [None] * len(numbers) if out is None else _buffers(entry, out, len(numbers))
    if traced.fusion.aliases or traced.updated_numbers or out is not None:
        may_run = call.may_run_function and environment.is_repeatable
        _check_writes(entry, arguments, call._replace(may_run_function=may_run), None if out is None else buffers)
    device = entry.array_device
    for number, owner in traced.fusion.aliases.items():
        device.copy(values[number], values[owner])
    outputs = store_updated_numbers(traced, call.leaves, [values[number] for number in numbers])
    enter, left = arrays.entering(entry.kind), arrays.left(entry.kind, outputs, traced.weak_outputs)
    for position, output in enumerate(outputs):
        buffer = buffers[position]
        if buffer is not None:
            device.copy(output, enter(buffer))
        outputs[position] = left[position] if buffer is None else buffer
    arrays.hold(entry.kind, arguments)
    return finish_call(entry, [leaf.value for leaf in call.leaves], arguments, outputs, call.roots)


def _buffers(entry: Entry, out: Any, count: int) -> list[Any]:
    """The output buffer of each of `count` outputs, or None."""
    arrays.check_can_change(entry.kind, "out=")
    buffers = output_buffers(entry.trace.structure, entry.trace.results, out)
    fusion = entry.trace.fusion
    decided = {n for n, origin in zip(fusion.inputs, entry.trace.sources, strict=True) if origin == FROM_STAGE}
    ids = {key for key, number, _ in fusion.axis_ids() if number in decided} if decided else set()
    for number, buffer in zip(returned(fusion), buffers, strict=False):
        if buffer is not None and any(
            symbol.id in ids for extent in fusion.shape_of(number) for symbol in symbols(extent)
        ):
            raise UnsupportedError(
                "out= for a result whose size the data decide", hint="give None for it, or copy the result",
                where=fusion.values[number].where,
            )  # fmt: skip
    return [*buffers, *[None] * (count - len(buffers))]


def _check_writes(
    entry: Entry, arguments: Sequence[Any], call: CallArguments, buffers: Sequence[Any] | None
) -> None:  # fmt: skip
    """Raises for memory that the call cannot write, and ends a call with arguments that share what it updates."""
    device, fusion = entry.array_device, entry.trace.fusion
    for second, first in (find_shared_leaves(entry.trace, device, arguments) if fusion.aliases else {}).items():
        leave_overlapping(call, call.leaves[first].path, call.leaves[second].path)
    check_no_overlap(entry.trace, device, arguments, call)
    enter = arrays.entering(entry.kind)
    entered = None if buffers is None else [None if buffer is None else enter(buffer) for buffer in buffers]
    if entered is not None:
        entered += [None] * (len(returned(fusion)) - len(entered))  # whether the conditions hold
    read_output_buffers(fusion, device, read_facts(fusion, device, arguments), entered)
