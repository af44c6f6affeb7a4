"""Reads the facts of a call that a plan may depend on, and converts arguments to arrays of the device.

This module checks the arguments against the inputs of the fusion before anything runs. A `ShapeDtype` stands for a
contiguous, aligned array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import check_fits
from tracefuse.dynamic.layouts import LayoutKey, Strided, stride_name, strided
from tracefuse.errors import DtypeError, FusionError, ScalarError, ShapeError, TraceError, shown
from tracefuse.ir.fusion import Fusion, Value
from tracefuse.ir.reference import extent_values
from tracefuse.runtime.devices.arrays import dtype_of_argument, without_subclass
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.targets.array_device import ArrayDevice


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The facts of one call.

    arguments: arrays of the device and Python scalars. values: extents and integer scalars by id. layouts: one for each
    tensor input, None if it is contiguous and aligned. strides: those of the other arguments, by symbol name. aligned:
    the arguments that start at a multiple of 16 bytes, if the device uses alignment.
    """

    arguments: list[Any]
    values: dict[int, int]
    layouts: LayoutKey
    strides: dict[str, int]
    aligned: frozenset[int]


def read_facts(fusion: Fusion, device: ArrayDevice, arguments: Sequence[Any], *, described: bool = False) -> CallFacts:
    """Reads the facts of a call. described: nothing will run, so only the shapes and dtypes of arrays are read.

    Raises FusionError, ShapeError, DtypeError or ScalarError for arguments that do not fit the inputs of the fusion,
    DeviceError for arrays on another device than the device.
    """
    check_arguments(fusion, arguments)
    converted: list[Any] = []
    layouts: list[Strided | None] = []
    strides: dict[str, int] = {}
    aligned: list[int] = []
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        value = fusion.values[number]
        if not value.is_tensor:
            converted.append(_to_number(value, argument))
            continue
        array = _convert(device, argument, value, described)
        converted.append(array)
        if isinstance(array, ShapeDtype):
            layouts.append(None)
            is_wide = device.uses_alignment
        else:
            layouts.append(_layout(device, array, number, strides))
            is_wide = device.is_wide(array)
        if is_wide:
            aligned.append(number)
    values = extent_values(fusion, converted)
    return CallFacts(converted, values, tuple(layouts), strides, frozenset(aligned))


def _convert(device: ArrayDevice, argument: Any, value: Value, described: bool) -> Any:
    if not described:
        return device.as_array(without_subclass(argument))
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


def check_list(argument: Any, parameter: str) -> None:
    """Raises TraceError for anything but a list or tuple."""
    if not isinstance(argument, list | tuple):
        raise TraceError(
            f"{parameter} cannot be a {type(argument).__name__}", hint="pass a list with one array or number for each"
        )


def check_names(argument: Any, parameter: str) -> None:
    """Raises TraceError for anything but a collection of strings."""
    if not isinstance(argument, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in argument):
        raise TraceError(f"{parameter} cannot be {shown(argument)}", hint="pass a list of names")


def check_arguments(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Raises FusionError, ShapeError or DtypeError for a wrong count, rank, static extent or dtype."""
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
            _to_number(value, argument)


def _check_array(value: Value, array: Any) -> None:
    name = f"input T{value.number}"
    dtype = dtype_of_argument(without_subclass(array), name)
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


def _to_number(value: Value, argument: Any) -> Any:
    """Converts a host scalar to a Python number of the input's kind. Raises DtypeError or ScalarError."""
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
