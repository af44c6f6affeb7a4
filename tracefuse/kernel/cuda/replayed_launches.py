"""What the launches of compiled CUDA kernels pass to the driver, for records of calls that are replayed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import dtypes
from tracefuse.generated_code import compile_function
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_functions import GRID_LIMITS, CudaFunction, grid_texts
from tracefuse.kernel.cuda.cuda_table import LARGE, SLOT_BYTES
from tracefuse.kernel.cuda.emit_table import entries
from tracefuse.kernel.llvm.device_records import DeviceLaunch
from tracefuse.kernel.llvm.device_replay import PATCH_ADDRESS, PATCH_DOUBLE, PATCH_SINGLE
from tracefuse.kernel.llvm.replay_records import CallValue


class _Unknown(Exception):
    """A parameter has no slot that a record can fill."""


class ReplayedKernel:
    """The launches of a kernel on a GPU, from the arguments of `CudaFunction.launcher`."""

    def __init__(self, function: CudaFunction, device: int) -> None:
        self._function, self._device = function, device

    def launches(self, arguments: tuple[Any, ...]) -> list[DeviceLaunch] | None:
        """See `DeviceKernel.launches`."""
        function = self._function
        grid = _grid_of(function)(*arguments)
        if not any(extent <= 0 for extent in grid) and any(map(int.__gt__, grid, GRID_LIMITS)):
            return None
        kept, handle = function.load(self._device)
        slots = _Slots(function)
        try:
            slots.add(arguments)
        except _Unknown:
            return None
        if not all(extent > 0 for extent in grid):
            return []
        places = tuple(range(0, SLOT_BYTES * len(arguments), SLOT_BYTES))
        shape = (grid, function.kernel.threads, function.shared_bytes, places)
        return [DeviceLaunch(handle, *shape, bytes(slots.contents), tuple(slots.patches), kept)]


class ReplayedTable:
    """The launches of a kernel of several at once, `table` (`emit_table`), from the arguments of `CudaTable`."""

    def __init__(self, function: CudaFunction, table: CudaFunction, device: int) -> None:
        self._alone, self._function, self._table = ReplayedKernel(function, device), function, table
        self._device = device

    def launches(self, arguments: tuple[Any, ...]) -> list[DeviceLaunch] | None:
        """See `DeviceKernel.launches`."""
        launches: list[DeviceLaunch] = []
        most = entries(self._function.kernel)
        for first in range(0, len(arguments), most):
            some = self._together(arguments[first : first + most])
            if some is None:
                return None
            launches += some
        return launches

    def _together(self, arguments: Sequence[tuple[Any, ...]]) -> list[DeviceLaunch] | None:
        grid = _grid_of(self._function)
        blocks = [grid(*one)[0] for one in arguments]
        if not 0 < sum(blocks) <= min(GRID_LIMITS[0], LARGE * len(arguments)):
            found = [self._alone.launches(one) for one in arguments]
            return None if None in found else [launch for some in found for launch in some or ()]
        slots, end = _Slots(self._function), 0
        try:
            for one, count in zip(arguments, blocks, strict=True):
                if count > 0:
                    end += count
                    slots.add(one, struct.pack("=I4x", end))
        except _Unknown:
            return None
        width = SLOT_BYTES * (len(self._function.kernel.parameters) + 1)
        count = len(slots.contents) // width
        size = width * entries(self._function.kernel)
        contents = bytes(slots.contents).ljust(size, b"\0") + struct.pack("=i4x", count)
        kept, handle = self._table.load(self._device)
        shape = ((end, 1, 1), self._function.kernel.threads, 0, (0, size))
        return [DeviceLaunch(handle, *shape, contents, tuple(slots.patches), kept)]


class _Slots:
    """The slots of parameters, 8 bytes each, and what calls write there."""

    def __init__(self, function: CudaFunction) -> None:
        self._parameters = function.kernel.parameters
        self.contents = bytearray()
        self.patches: list[tuple[int, int, int, int]] = []

    def add(self, arguments: Sequence[Any], last: bytes = b"") -> None:
        """Adds the slots of a launch. last: those behind its parameters."""
        for parameter, argument in zip(self._parameters, arguments, strict=True):
            if isinstance(argument, CallValue):
                self.patches.append((len(self.contents), argument.number, _patch(parameter), argument.offset))
                self.contents += bytes(SLOT_BYTES)
            else:
                self.contents += _packed(parameter, argument)
        self.contents += last


def _patch(parameter: ir.Buffer | ir.Variable) -> int:
    if isinstance(parameter, ir.Buffer):
        return PATCH_ADDRESS
    if parameter.dtype is dtypes.float64:
        return PATCH_DOUBLE
    if parameter.dtype is dtypes.float32:
        return PATCH_SINGLE
    raise _Unknown


def _packed(parameter: ir.Buffer | ir.Variable, argument: Any) -> bytes:
    if isinstance(parameter, ir.Variable) and parameter.dtype.is_half:
        raise _Unknown
    try:
        return struct.pack(f"={CudaFunction.slot(parameter)}", argument)
    except struct.error:
        raise _Unknown from None


def _grid_of(function: CudaFunction) -> Callable[..., tuple[int, int, int]]:
    """Returns the function of the arguments of a kernel that gives its blocks in x, y and z."""
    names, _, _ = function.packing()
    axes = [*grid_texts(function.kernel, names), "1", "1"][:3]
    lines = [f"def grid({', '.join(names)}):", f"    return ({', '.join(axes)})"]
    return compile_function("\n".join(lines), "grid", {}, f"grid of {function.kernel.name}")  # type: ignore[no-any-return]
