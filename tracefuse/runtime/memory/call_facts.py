"""What a call is like: its arguments as a device takes them, and every fact that a plan may depend on.

Arguments are checked here against what the fusion says of its inputs, before anything runs. A `ShapeDtype` stands for
an array that is contiguous and aligned.

Knows: fusions, layouts, what a device says of an array. Must not know: plans, kernels, frontends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse.dtypes import check_fits
from tracefuse.dynamic.layouts import LayoutKey, Strided, stride_name, strided
from tracefuse.errors import DtypeError, FusionError, ScalarError, ShapeError, TraceError, shown
from tracefuse.ir.fusion import Fusion, Value
from tracefuse.ir.reference import extent_values
from tracefuse.runtime.devices.arrays import ShapeDtype, dtype_of_argument
from tracefuse.runtime.targets.array_device import ArrayDevice


@dataclass(frozen=True, slots=True)
class CallFacts:
    """values: extents and integer scalars by id. strides: of arguments that are not plain, by symbol name.

    aligned: the arguments that start at a multiple of 16 bytes, where that matters to the device.
    """

    arguments: list[Any]
    values: dict[int, int]
    layouts: LayoutKey
    strides: dict[str, int]
    aligned: frozenset[int]


def read_facts(fusion: Fusion, device: ArrayDevice, arguments: Sequence[Any], *, described: bool = False) -> CallFacts:
    """The facts of a call. described: nothing will run, so arrays of any library are taken for what they say they are.

    Raises FusionError, ShapeError, DtypeError or ScalarError for arguments that the fusion does not take, DeviceError
    for arrays that the device does not.
    """
    check_arguments(fusion, arguments)
    taken: list[Any] = []
    layouts: list[Strided | None] = []
    strides: dict[str, int] = {}
    aligned: list[int] = []
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        value = fusion.values[number]
        if not value.is_tensor:
            taken.append(_number(value, argument))
            continue
        array = _taken(device, argument, value, described)
        taken.append(array)
        if isinstance(array, ShapeDtype):
            layouts.append(None)
            is_wide = device.uses_alignment
        else:
            layouts.append(_layout(device, array, number, strides))
            is_wide = device.is_wide(array)
        if is_wide:
            aligned.append(number)
    values = extent_values(fusion, taken)
    return CallFacts(taken, values, tuple(layouts), strides, frozenset(aligned))


def _taken(device: ArrayDevice, argument: Any, value: Value, described: bool) -> Any:
    if not described:
        return device.as_array(argument)
    if isinstance(argument, device.array_type | ShapeDtype):
        return argument
    return ShapeDtype(tuple(argument.shape), value.dtype.numpy)


def _layout(device: ArrayDevice, array: Any, number: int, strides: dict[str, int]) -> Strided | None:
    if device.is_plain(array):
        return None
    itemsize = array.dtype.itemsize
    for axis, stride in enumerate(array.strides):
        strides[stride_name(number, axis)] = stride // itemsize
    return strided(array.shape, array.strides, itemsize, device.is_aligned(array))


def check_list(given: Any, parameter: str) -> None:
    """TraceError for what is no list of arrays and numbers."""
    if not isinstance(given, list | tuple):
        raise TraceError(
            f"{parameter} cannot be a {type(given).__name__}", hint="give a list with one array or number for each"
        )


def check_names(given: Any, parameter: str) -> None:
    """TraceError for what is no list of names."""
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in given):
        raise TraceError(f"{parameter} cannot be {shown(given)}", hint="give a list of names")


def check_arguments(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Raises FusionError, ShapeError or DtypeError for arguments of another count, rank, static size or dtype."""
    check_list(arguments, "inputs")
    if len(arguments) != len(fusion.inputs):
        raise FusionError(
            f"the definition takes {len(fusion.inputs)} inputs, got {len(arguments)}",
            hint="give one for each define_tensor and define_scalar(None), in order",
        )
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        value = fusion.values[number]
        if value.is_tensor:
            _check_array(value, argument)
        elif type(argument) not in _KINDS:
            _number(value, argument)


def _check_array(value: Value, array: Any) -> None:
    name = f"input T{value.number}"
    dtype = dtype_of_argument(array, name)
    shape = tuple(array.shape)
    if len(shape) != len(value.shape):
        raise ShapeError(
            f"{name} has {len(shape)} axes, not {len(value.shape)}", hint=f"its shape is {shape}", where=value.where
        )
    for axis, (size, extent) in enumerate(zip(shape, value.shape, strict=True)):
        if isinstance(extent, int) and size != extent:
            raise ShapeError(
                f"{name} has {size} elements on axis {axis}, not {extent}",
                hint="define the axis with -1 for any number of elements", where=value.where,
            )  # fmt: skip
    if dtype is not value.dtype:
        raise DtypeError(
            f"{name} is {dtype}, not {value.dtype}", hint=f"pass x.astype({value.dtype.name!r})", where=value.where
        )


_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}
_HOLDS = {
    "bool": ("bool",), "int": ("bool", "int"), "uint": ("bool", "int"), "float": ("bool", "int", "float"),
    "complex": ("bool", "int", "float", "complex"),
}  # fmt: skip
_MAKE = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}


def _number(value: Value, argument: Any) -> Any:
    """A host scalar as a Python number of the input's kind. Raises DtypeError, ScalarError."""
    name, kind = f"input S{value.number}", value.dtype.kind
    item = argument.item() if getattr(argument, "shape", None) == () and hasattr(argument, "item") else argument
    if _KINDS.get(type(item)) not in _HOLDS[kind]:
        raise DtypeError(
            f"{name} is {value.dtype}, got {shown(argument)}", hint=f"pass a Python {_MAKE[kind].__name__}",
            where=value.where,
        )  # fmt: skip
    if value.dtype.is_integer:
        limits = np.iinfo(value.dtype.name)
        if not limits.min <= item <= limits.max:
            hint = f"give an integer from {limits.min} to {limits.max}"
            raise ScalarError(f"{name} is {value.dtype}, got {shown(item)}", hint=hint, where=value.where)
    check_fits(item, value.dtype, name)
    return _MAKE[kind](item)
