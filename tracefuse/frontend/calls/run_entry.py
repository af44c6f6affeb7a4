"""Runs the executable of a trace for one call.

Must not know: options.
"""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.shared_arguments import store_updated_numbers
from tracefuse.frontend.calls.trace_entry import Entry, finish_call, run_with_prints
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse


def run_entry(
    entry: Entry, arguments: list[Any], call: CallArguments, buffers: list[Any] | None, use: OutputBufferUse
) -> Any:  # fmt: skip
    """Runs an executable and returns the result of the call; see `finish_call`.

    buffers: an output buffer or None for each output of the result; None without `out=`. use: of buffers and donated
    arguments. Raises ConditionFailed if Python computes another number, before the state is written.
    """
    native_buffers = None
    release = arrays.release(entry.kind)
    if release is not None:
        release()
    if buffers is not None:
        buffers = [*buffers, *[None] * (entry.trace.output_count - len(buffers))]
    if buffers is not None and entry.executable is not None:
        arrays.check_can_change(entry.kind, "out=")
        enter = arrays.entering(entry.kind)
        native_buffers = [None if array is None else enter(array) for array in buffers]
        native_buffers += [None] * len(entry.trace.updated_numbers)
    if entry.trace.prints:
        outputs = run_with_prints(entry, arguments, native_buffers)
    else:
        executable = entry.executable
        outputs = [] if executable is None else executable(arguments, native_buffers, use.donated, use.returned)
    arrays.hold(entry.kind, arguments)
    outputs = number_conditions.check(entry.trace, outputs)
    outputs = store_updated_numbers(entry.trace, call.leaves, outputs)
    if entry.kind != "numpy":
        outputs = arrays.left(entry.kind, outputs, entry.trace.weak_outputs)
    if buffers is not None:
        outputs = [out if buffer is None else buffer for out, buffer in zip(outputs, buffers, strict=True)]
    if entry.single:
        return outputs[0]
    return finish_call(entry, [leaf.value for leaf in call.leaves], arguments, outputs, call.roots)
