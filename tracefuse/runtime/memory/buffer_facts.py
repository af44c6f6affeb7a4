"""Output buffers: arrays passed with `out=`, and arguments that a call updates in place.

This module checks the shape, dtype, device and writability of every buffer before anything runs. `OutputBuffer` holds
what a plan depends on: the layout of the buffer, and the arguments that it shares bytes with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dynamic.layouts import Strided, broadcast_axis, is_nested, stride_name, strided
from tracefuse.errors import DtypeError, FusionError, ReadOnlyError, ShapeError, UnsupportedError
from tracefuse.ir.extents import Extent, evaluate
from tracefuse.ir.fusion import Fusion
from tracefuse.ops.movement_diagonals import diagonal_view
from tracefuse.passes.slice_updates import diagonal_axes
from tracefuse.runtime.devices.arrays import check_can_change, dtype_of_argument, kind_of, without_subclass
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.spans import APART, SAME, neighbours, relation, span
from tracefuse.runtime.targets.array_device import ArrayDevice

FIRST_MEMORY = 1 << 20
"""The number of the first output buffer that is not an argument. Value numbers stay below it, including those of values
that are added when sizes are known."""


@dataclass(frozen=True, slots=True)
class OutputBuffer:
    """The buffer of an output, as far as a plan depends on it.

    value: the output. memory: the number of the buffer in the program, which is the updated argument or a number from
    FIRST_MEMORY on. layout: None if it is contiguous. is_wide: it starts at a multiple of 16 bytes, or the device does
    not use alignment. is_nested: no two of its elements share bytes. same: the arguments that are this array. shares:
    the arguments that overlap it in any other way. owner: the updated argument of which the buffer is a slice, if it is
    one (see `Fusion.slice_updates`).
    """

    value: int
    memory: int
    layout: Strided | None
    is_wide: bool
    is_nested: bool
    same: tuple[int, ...]
    shares: tuple[int, ...] = ()
    owner: int | None = None


class OutputBufferUse(NamedTuple):
    """Which buffers of the caller a call may write to.

    outputs: the positions of the results that have an output buffer. donated: the donated inputs, by number. returned:
    the donated inputs that the call returns unchanged.
    """

    outputs: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, outputs: Sequence[Any] | None, donated: Iterable[int] = (), returned: Iterable[int] = ()
    ) -> OutputBufferUse:
        """Returns the use of a call. outputs: a buffer for each result, None for a new array."""
        positions = () if outputs is None else (k for k, buffer in enumerate(outputs) if buffer is not None)
        return cls(tuple(positions), tuple(donated), tuple(returned))


NO_BUFFER_USE = OutputBufferUse()
"""For a call whose results are all new arrays or updated arguments."""


@dataclass(frozen=True, slots=True)
class OutputBuffers:
    """All output buffers of a call.

    key: what a plan depends on. buffers: the arrays that are not arguments, in order; slices of arguments come first.
    passed: those of them that a call takes. objects: the caller's own objects, by value. strides: those of buffers that
    are not contiguous, by symbol name.
    """

    key: tuple[OutputBuffer, ...] = ()
    buffers: tuple[Any, ...] = ()
    passed: tuple[Any, ...] = ()
    objects: Mapping[int, Any] | None = None
    strides: Mapping[str, int] | None = None


NO_OUTPUT_BUFFERS = OutputBuffers()
"""For a call whose results are all new arrays."""


def returned(fusion: Fusion) -> tuple[int, ...]:
    """Returns the outputs that a call returns, which are those that do not update an argument."""
    return tuple(number for number in fusion.outputs if number not in fusion.aliases)


def read_output_buffers(
    fusion: Fusion, device: ArrayDevice, facts: CallFacts, outputs: Sequence[Any] | None, *, apart: bool = False
) -> OutputBuffers:
    """Checks the output buffers of a call and collects what a plan depends on.

    outputs: one entry for each returned output, None for a new array. apart: `outputs` are arrays of the device that
    are known not to overlap any other array.

    Raises FusionError for a wrong count or two results in one buffer, ShapeError, DtypeError or DeviceError for a
    buffer that does not fit its result, ReadOnlyError or UnsupportedError for a buffer that cannot be written.
    """
    arguments = dict(zip(fusion.inputs, facts.arguments, strict=True))
    entries: list[tuple[int, int, Any]] = []  # value, memory, array
    objects: dict[int, Any] = {}
    owners: dict[int, int] = {}
    free = FIRST_MEMORY
    for value, owner in fusion.aliases.items():
        name = fusion.values[owner].name or f"input T{owner}"
        _check_writable(device, arguments[owner], f"{name}, which is updated in place,")
        if value not in fusion.slice_updates:
            entries.append((value, owner, arguments[owner]))
            continue
        entries.append((value, free, updated_slice(fusion, value, arguments[owner], facts.values)))
        owners[free] = owner
        free += 1
    for position, (value, buffer) in enumerate(_pair_with_results(fusion, outputs)):
        if buffer is None:
            continue
        array = _check_buffer(fusion, device, facts, value, buffer, f"out of output {position}", apart)
        objects[value] = buffer
        entries.append((value, free, array))
        free += 1
    strides: dict[str, int] = {}
    close = {} if apart else _close_arrays(fusion, device, entries, arguments)
    described = (_describe(fusion, device, entry, close, strides) for entry in entries)
    key = tuple(replace(buffer, owner=owners.get(buffer.memory)) for buffer in described)
    buffers = tuple(array for _, memory, array in entries if memory not in arguments)
    return OutputBuffers(key, buffers, buffers[len(owners) :], objects, strides)


def updated_slice(fusion: Fusion, value: int, array: Any, facts: Mapping[int, int]) -> Any:
    """Returns the slice of an argument that an output updates. facts: extents and scalars by id."""
    if isinstance(array, ShapeDtype):
        return ShapeDtype(tuple(evaluate(extent, facts) for extent in fusion.shape_of(value)), array.dtype)
    bounds = slice_bounds(fusion, value)
    part = array[tuple(slice(*(evaluate(entry, facts) for entry in bounds_of_axis)) for bounds_of_axis in bounds)]
    axes = diagonal_axes(fusion.slice_updates[value])
    return diagonal_view(part, axes) if axes else part


def slice_bounds(fusion: Fusion, value: int) -> list[tuple[Extent, Extent, Extent]]:
    """Returns (start, end, step) on each axis of the slice of an argument that an output updates."""
    attributes = fusion.slice_updates[value].attributes
    return list(zip(attributes["start_indices"], attributes["end_indices"], attributes["strides"], strict=True))


def _pair_with_results(fusion: Fusion, outputs: Sequence[Any] | None) -> list[tuple[int, Any]]:
    if outputs is None:
        return []
    numbers = returned(fusion)
    if len(outputs) != len(numbers):
        raise FusionError(
            f"got {len(outputs)} output buffers for {len(numbers)} results",
            hint="pass one for each output that is returned, None for a new array",
        )
    if len(set(numbers)) < len(numbers):
        raise FusionError(
            "an output is returned twice", hint="return a copy of it, which can have a buffer of its own: fd.ops.set(x)"
        )
    return list(zip(numbers, outputs, strict=True))


def _check_buffer(
    fusion: Fusion, device: ArrayDevice, facts: CallFacts, value: int, buffer: Any, name: str, apart: bool
) -> Any:
    """Returns a buffer as an array of the device. Raises if it does not fit its result."""
    expected = fusion.values[value]
    if not expected.is_tensor:
        raise FusionError(f"{name}: the result is a number", hint="give None for it")
    if value in fusion.inputs:
        raise FusionError(f"{name}: the result is input T{value} itself", hint="give None, or return fd.ops.set of it")
    buffer = without_subclass(buffer)
    dtype = dtype_of_argument(buffer, name)
    check_can_change(kind_of(buffer), name)
    shape = tuple(evaluate(extent, facts.values) for extent in fusion.shape_of(value))
    if tuple(buffer.shape) != shape:
        raise ShapeError(f"{name} has shape {tuple(buffer.shape)}, the result has {shape}", hint="pass another buffer")
    if dtype is not expected.dtype:
        raise DtypeError(
            f"{name} is {dtype}, the result is {expected.dtype}", hint="pass another buffer, or cast the result"
        )
    array = buffer if apart else device.as_array(buffer)
    _check_writable(device, array, name)
    return array


def _check_writable(device: ArrayDevice, array: Any, name: str) -> None:
    if isinstance(array, ShapeDtype):
        return
    if not device.is_writable(array):
        raise ReadOnlyError(f"{name} is read-only", hint="pass an array that can be written, such as x.copy()")
    axis = broadcast_axis(array.shape, array.strides)
    if axis is not None:
        raise UnsupportedError(
            f"{name} is broadcast: its {array.shape[axis]} elements on axis {axis} share one address",
            hint="pass x.copy()",
        )


def _describe(
    fusion: Fusion, device: ArrayDevice, entry: tuple[int, int, Any], close: Mapping[int, _Close],
    strides: dict[str, int],
) -> OutputBuffer:  # fmt: skip
    """Describes a buffer and records its strides. close: by value, what it may overlap; nothing if it has no entry."""
    value, memory, array = entry
    if isinstance(array, ShapeDtype):
        return OutputBuffer(value, memory, None, True, True, (memory,))
    same, shares = _find_overlaps(fusion, device, entry, close[value]) if value in close else ((), ())
    layout = None
    if not device.is_plain(array):
        layout = strided(array.shape, array.strides, array.dtype.itemsize, device.is_aligned(array))
        for axis, stride in enumerate(array.strides):
            strides[stride_name(value, axis)] = stride // array.dtype.itemsize
    is_wide = not device.uses_alignment or device.is_wide(array)
    nested = is_nested(array.shape, array.strides, array.dtype.itemsize)
    return OutputBuffer(value, memory, layout, is_wide, nested, same, shares)


@dataclass(frozen=True, slots=True)
class _Close:
    """The arrays that a buffer may share bytes with: arguments by number, other buffers by value."""

    arguments: Mapping[int, Any]
    buffers: Mapping[int, Any]


def _close_arrays(
    fusion: Fusion, device: ArrayDevice, entries: Sequence[tuple[int, int, Any]], arguments: Mapping[int, Any]
) -> dict[int, _Close]:
    """Returns what each buffer of `entries` may share bytes with."""
    inputs = {number: arguments[number] for number in fusion.tensor_inputs}
    named = [*((False, number, array) for number, array in inputs.items()), *((True, e[0], e[2]) for e in entries)]
    named = [one for one in named if not isinstance(one[2], ShapeDtype)]
    found: dict[int, _Close] = {}
    for (is_buffer, value, _), around in zip(
        named, neighbours([span(device, array) for _, _, array in named]), strict=True
    ):
        if is_buffer:
            close = [named[k] for k in sorted(around)]
            found[value] = _Close(
                {number: array for is_other, number, array in close if not is_other},
                {other: array for is_other, other, array in close if is_other},
            )
    return found


def _find_overlaps(
    fusion: Fusion, device: ArrayDevice, entry: tuple[int, int, Any], close: _Close
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns `same` and `shares` of `OutputBuffer`. Raises FusionError if two results share bytes."""
    value, memory, array = entry
    owner = fusion.aliases[value] if value in fusion.slice_updates else None
    # An owner counts also where the slice of this call is empty or is all of it: the plan serves others.
    overlaps = {n: relation(device, array, other) for n, other in close.arguments.items() if n not in (memory, owner)}
    same = {n for n, overlap in overlaps.items() if overlap == SAME}
    same |= {memory} & {*fusion.tensor_inputs}
    shares = {n for n, overlap in overlaps.items() if overlap not in (APART, SAME)} | ({owner} - {None})
    for other, other_array in close.buffers.items():
        if owner is not None and fusion.slice_updates.get(other) is not None and fusion.aliases[other] == owner:
            continue  # slices of one argument are copied one after another
        if relation(device, array, other_array) != APART:
            raise FusionError(f"the output buffers of T{other} and T{value} overlap", hint="pass two separate arrays")
    order = fusion.tensor_inputs
    return tuple(n for n in order if n in same), tuple(n for n in order if n in shares)
