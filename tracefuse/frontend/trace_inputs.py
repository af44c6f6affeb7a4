"""The inputs of a trace: arguments, captured arrays and numbers, and the outputs of those that it updates in place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.frontend.numpy_api.library_calls.random_calls import twin_of
from tracefuse.frontend.recorded_trace import Captured
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.state.overlays import Overlays
from tracefuse.frontend.tracer.values.traced import Memory
from tracefuse.runtime.argument_leaves import Leaf, array_key
from tracefuse.runtime.devices.arrays import dtype_of_array, element_strides


@dataclass(slots=True)
class TraceInputs:
    """The leaves of a call as the traced function receives them."""

    values: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # value number -> leaf


def _first_line(function: Any) -> str | None:
    """The line where a function begins; None for a callable without Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else source.line_of(code)


def record_inputs(
    recorder: Recorder, leaves: Sequence[Leaf], function: Any, dynamic: bool, same: Mapping[int, int]
) -> TraceInputs:
    """Returns the leaves of a call as inputs of its trace.

    dynamic: whether extents are symbols. same: the position of the leaf that is the same array, by position.
    """
    where = _first_line(function)
    inputs = TraceInputs()
    for position, leaf in enumerate(leaves):
        if leaf.is_static:
            inputs.values.append(leaf.value if leaf.generator is None else twin_of(leaf.value, leaf.generator))
            continue
        if position in same:
            inputs.values.append(inputs.values[same[position]])
            continue
        assert leaf.dtype is not None
        if leaf.is_array:
            traced = recorder.tensor_argument(leaf.value.shape, leaf.dtype, leaf.path, where)
            if getattr(leaf.value, "weak_type", False):
                recorder.weak_inputs.add(traced.number)
            traced.layout = recorder.add_strides(traced.number, traced.extents, element_strides(leaf.value))
            if not dynamic:
                for extent in traced.extents:
                    recorder.pin(extent, "option dynamic=False")
        else:
            traced = recorder.scalar_argument(leaf.number, leaf.dtype, leaf.weak, leaf.path, where)
            if leaf.of_array:
                traced.memory = Memory(leaf.path, traced.number)
        inputs.numbers[recorder.builder.inputs[-1]] = position
        inputs.values.append(traced)
    return inputs


def add_updates(recorder: Recorder, inputs: TraceInputs) -> tuple[int, ...]:
    """Adds an output for each argument or captured array that was updated in place, after all other outputs.

    Outputs for arrays are aliased. Returns the leaves of updated arguments without axes, in the order of their outputs.
    """
    builder = recorder.builder
    numbers = [number for number in recorder.updated if not builder.values[number].is_tensor]
    for number in numbers:
        builder.output(traced_ops.copy(traced_ops.as_tensor(recorder.updated[number])).number)
    for number, traced in recorder.updated.items():
        if number in numbers:
            continue
        if traced.number in builder.inputs or traced.number in builder.outputs:
            traced = traced_ops.copy(traced)
        builder.output(traced.number, number)
    return tuple(inputs.numbers[number] for number in numbers)


def _constant(array: Any, overlays: Overlays) -> Any:
    """An array that every call reads: a copy of one in memory that later calls compare with its contents now."""
    compared = (place.value for place in overlays.reads.unrecorded if isinstance(place.value, np.ndarray))
    is_copied = isinstance(array, np.ndarray) and any(np.may_share_memory(array, other) for other in compared)
    return array.copy() if is_copied else array


def collect_captures(recorder: Recorder, overlays: Overlays) -> tuple[tuple[Captured, ...], dict[int, int]]:
    """The captured arrays and numbers that are inputs, and their positions by input number."""
    captured: list[Captured] = []
    order: dict[int, int] = {}
    for capture in sorted(recorder.captures.values(), key=lambda capture: capture.number or 0):
        if capture.number is None:
            continue
        place = capture.place or next(iter(overlays.reads.arrays.get(id(capture.array), ())), None)
        order[capture.number] = len(captured)
        array = capture.array if place is not None else _constant(capture.constant, overlays)
        captured.append(Captured(place, array, array_key(array, dtype_of_array(array))))
    for number in recorder.numbers:
        assert number.number is not None
        order[number.number] = len(captured)
        captured.append(Captured(number.place, number.array, type(number.array), scalar=True))
    order.update((number, len(captured) + k) for k, number in enumerate(recorder.contents.inputs))
    return tuple(captured), order
