"""Memory that results go into: buffers given with `out=`, and arguments that are updated in place.

Everything is checked here, before anything runs: shape, element type, device, whether it can be written. What a plan
depends on is in `Given`: how the memory lies, and which other memory of the call it shares bytes with.

Knows: fusions, layouts, what a device says of an array. Must not know: plans, kernels, frontends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracefuse.dynamic.layouts import Strided, broadcast_axis, is_nested, stride_name, strided
from tracefuse.errors import DtypeError, FusionError, ReadOnlyError, ShapeError, UnsupportedError
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.devices.arrays import ShapeDtype, check_can_change, dtype_of_argument, kind_of
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.spans import APART, SAME, relation
from tracefuse.runtime.targets.array_device import ArrayDevice

FIRST_MEMORY = 1 << 20
"""The number of the first given memory that is no argument: above those of all values, also of those that are added
when sizes are known."""


@dataclass(frozen=True, slots=True)
class Given:
    """Memory that an output goes into, and what a plan depends on of it.

    memory: the number under which a program knows it: the argument that is updated, or one from FIRST_MEMORY on.
    layout: None where it is contiguous. is_wide: it starts at a multiple of 16 bytes, where that matters. is_nested: no
    two elements of it share bytes. same: the arguments that are this very array. shares: those that share bytes of it
    otherwise.
    """

    value: int
    memory: int
    layout: Strided | None
    is_wide: bool
    is_nested: bool
    same: tuple[int, ...]
    shares: tuple[int, ...] = ()


class MemoryUse(NamedTuple):
    """Which memory a call has for what is made. given: the positions of the results that go into buffers. donated: the
    inputs, by number, whose memory may be taken; kept: those of them that are returned as they are."""

    given: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()

    @classmethod
    def of(cls, outputs: Sequence[Any] | None, donated: Iterable[int] = (), kept: Iterable[int] = ()) -> MemoryUse:
        """That of a call with these `outputs`, one entry a result, None for a new array."""
        given = () if outputs is None else (k for k, buffer in enumerate(outputs) if buffer is not None)
        return cls(tuple(given), tuple(donated), tuple(kept))


NO_USE = MemoryUse()
"""Of a call whose results all get new memory, or update arguments."""


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """All of a call. key: what a plan depends on. buffers: those that are no arguments, in order. objects: what the
    caller gave, by value. strides: of what is not contiguous, by symbol name."""

    key: tuple[Given, ...] = ()
    buffers: tuple[Any, ...] = ()
    objects: Mapping[int, Any] | None = None
    strides: Mapping[str, int] | None = None


NOTHING_GIVEN = GivenMemory()
"""Of a call whose results all get new memory."""


def returned(fusion: Fusion) -> tuple[int, ...]:
    """The outputs that a call returns: those that update no argument."""
    return tuple(number for number in fusion.outputs if number not in fusion.aliases)


def read_given(
    fusion: Fusion, device: ArrayDevice, facts: CallFacts, outputs: Sequence[Any] | None, *, apart: bool = False
) -> GivenMemory:
    """What `outputs` (one entry for each output that is returned, None for a new array) and the aliases give.

    apart: `outputs` are arrays of the device that are known to share no byte with anything.

    Raises FusionError for another count or memory that is given twice, ShapeError, DtypeError or DeviceError for what
    does not fit the result, UnsupportedError for memory that cannot be written.
    """
    arguments = dict(zip(fusion.inputs, facts.arguments, strict=True))
    taken: list[tuple[int, int, Any]] = []  # value, memory, array
    objects: dict[int, Any] = {}
    for value, owner in fusion.aliases.items():
        name = fusion.values[owner].name or f"input T{owner}"
        _check_writable(device, arguments[owner], f"{name}, which is updated in place,")
        taken.append((value, owner, arguments[owner]))
    free = FIRST_MEMORY
    for position, (value, given) in enumerate(_pairs(fusion, outputs)):
        if given is None:
            continue
        array = _checked(fusion, device, facts, value, given, f"out of output {position}", apart)
        objects[value] = given
        taken.append((value, free, array))
        free += 1
    strides: dict[str, int] = {}
    others = None if apart else taken
    key = tuple(_given(fusion, device, entry, others, arguments, strides) for entry in taken)
    return GivenMemory(key, tuple(array for _, memory, array in taken if memory not in arguments), objects, strides)


def _pairs(fusion: Fusion, outputs: Sequence[Any] | None) -> list[tuple[int, Any]]:
    if outputs is None:
        return []
    numbers = returned(fusion)
    if len(outputs) != len(numbers):
        raise FusionError(
            f"{len(outputs)} arrays are given for {len(numbers)} results",
            hint="give one for each output that is returned, None for a new array",
        )
    if len(set(numbers)) < len(numbers):
        raise FusionError("an output is returned twice", hint="return a copy of it to give it memory: fd.ops.set(x)")
    return list(zip(numbers, outputs, strict=True))


def _checked(
    fusion: Fusion, device: ArrayDevice, facts: CallFacts, value: int, given: Any, name: str, apart: bool
) -> Any:
    """A buffer as an array of the device; raises for one that the result does not fit."""
    expected = fusion.values[value]
    if not expected.is_tensor:
        raise FusionError(f"{name}: the result is a number", hint="give None for it")
    if value in fusion.inputs:
        raise FusionError(f"{name}: the result is input T{value} itself", hint="give None, or return fd.ops.set of it")
    dtype = dtype_of_argument(given, name)
    check_can_change(kind_of(given), name)
    shape = tuple(evaluate(extent, facts.values) for extent in fusion.shape_of(value))
    if tuple(given.shape) != shape:
        raise ShapeError(f"{name} has shape {tuple(given.shape)}, the result has {shape}", hint="pass another buffer")
    if dtype is not expected.dtype:
        raise DtypeError(
            f"{name} is {dtype}, the result is {expected.dtype}", hint="pass another buffer, or cast the result"
        )
    array = given if apart else device.as_array(given)
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
            f"{name} is broadcast: its {array.shape[axis]} elements on axis {axis} are one in memory",
            hint="pass x.copy()",
        )


def _given(
    fusion: Fusion, device: ArrayDevice, entry: tuple[int, int, Any],
    taken: Sequence[tuple[int, int, Any]] | None, arguments: Mapping[int, Any], strides: dict[str, int],
) -> Given:  # fmt: skip
    """taken: the memory of all results, None where it is known to share no byte with anything."""
    value, memory, array = entry
    if isinstance(array, ShapeDtype):
        return Given(value, memory, None, True, True, (memory,))
    same, shares = ((), ()) if taken is None else _shared(fusion, device, entry, taken, arguments)
    layout = None
    if not device.is_plain(array):
        layout = strided(array.shape, array.strides, array.dtype.itemsize, device.is_aligned(array))
        for axis, stride in enumerate(array.strides):
            strides[stride_name(value, axis)] = stride // array.dtype.itemsize
    is_wide = not device.uses_alignment or device.is_wide(array)
    nested = is_nested(array.shape, array.strides, array.dtype.itemsize)
    return Given(value, memory, layout, is_wide, nested, same, shares)


def _shared(
    fusion: Fusion, device: ArrayDevice, entry: tuple[int, int, Any], taken: Sequence[tuple[int, int, Any]],
    arguments: Mapping[int, Any],
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """(same, shares) of `Given`. Raises FusionError where two results share bytes."""
    value, memory, array = entry
    same: list[int] = []
    shares: list[int] = []
    for number in fusion.tensor_inputs:
        found = SAME if number == memory else relation(device, array, arguments[number])
        if found != APART:
            (same if found == SAME else shares).append(number)
    for other_value, _, other_array in taken:
        if other_value != value and relation(device, array, other_array) != APART:
            raise FusionError(
                f"the results T{other_value} and T{value} go into the same memory", hint="pass two arrays"
            )
    return tuple(same), tuple(shares)
