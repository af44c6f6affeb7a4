"""Compiled CUDA kernels, launched through CuPy with low host overhead.

A `CudaFunction` holds machine code, loads it on each device at its first launch there, and launches on CuPy's current
stream. One `struct` call packs all parameters into a buffer whose slot addresses are prepared in advance.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, register
from tracefuse.dtypes import DType
from tracefuse.errors import CompileError, DeviceError, InternalError
from tracefuse.generated_code import compile_function
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.cuda.emit_cuda import emit_cuda, shared_bytes

GRID_LIMITS = (2**31 - 1, 65535, 65535)  # blockIdx.x, y, z on every architecture since sm_30
_MAXIMUM_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES in the driver API
# Each parameter occupies a slot of eight bytes.
_SLOTS = {
    "bool": "?7x",
    "int8": "b7x",
    "int16": "h6x",
    "int32": "i4x",
    "int64": "q",
    "uint8": "B7x",
    "uint16": "H6x",
    "uint32": "I4x",
    "uint64": "Q",
    "float16": "H6x",
    "bfloat16": "H6x",
    "float32": "f4x",
    "float64": "d",
}


# ---------------------------------------------------------------------------------------------------------------------
# grid extents


_PYTHON = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "neg": "(-{0})",
    "abs": "abs({0})",
    "floordiv": "({0} // ({1}) if {1} else 0)",
    "mod": "({0} % ({1}) if {1} else 0)",
    "truncdiv": "({0} // ({1}) if {1} else 0)",  # extents are non-negative, so truncation equals floor
    "truncmod": "({0} % ({1}) if {1} else 0)",
    "minimum": "min({0}, {1})",
    "maximum": "max({0}, {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "shl": "({0} << {1})",
    "shr": "({0} >> {1})",
    "not": "(not {0})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "select": "({1} if {0} else {2})",
}


def _python_text(expression: ir.Expression, names: dict[str, str]) -> str:
    match expression:
        case ir.Constant(bool() | int() as value, _):
            return repr(value)
        case ir.Variable(name, _) if name in names:
            return names[name]
        case ir.Cast(argument, dtype) if dtype.is_integer and (
            argument.dtype.is_integer or argument.dtype.kind == "bool"
        ):
            return _python_text(argument, names)
        case ir.Call(name, arguments, dtype) if name in _PYTHON and not dtype.is_floating:
            return _PYTHON[name].format(*(_python_text(a, names) for a in arguments))
    raise InternalError(f"a grid extent must be an integer expression of parameters, got {expression}")


def grid_texts(kernel: ir.Kernel, names: Sequence[str]) -> list[str]:
    """Return the block counts in x, y and z (at least x) as Python text over `names`, one per kernel parameter."""
    scalars = {p.name: name for p, name in zip(kernel.parameters, names, strict=True) if isinstance(p, ir.Variable)}
    return [_python_text(axis.extent, scalars) for axis in reversed(kernel.grid)] or ["1"]


# ---------------------------------------------------------------------------------------------------------------------
# functions


def _half_bits(dtype: DType) -> Callable[[Any], int]:
    return lambda value: int(np.asarray(value, dtype.numpy).view(np.uint16))


class _Packed(threading.local):
    """One thread's parameter buffer and the array of slot addresses; the driver copies the parameters at launch."""

    def __init__(self, count: int) -> None:
        self.buffer = ctypes.create_string_buffer(8 * max(count, 1))
        start = ctypes.addressof(self.buffer)
        self.pointers = (ctypes.c_void_p * max(count, 1))(*(start + 8 * k for k in range(count)))
        self.address = ctypes.addressof(self.pointers)


@dataclass(frozen=True, slots=True)
class _Runtime:
    """The CuPy functions that launches call, looked up once."""

    launch: Callable[..., None]
    stream: Callable[[], Any]
    device: Callable[[], int]
    error: type[Exception]


def launch_runtime() -> _Runtime:
    """Returns the CuPy functions that launches call."""
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    return _Runtime(driver.launchKernel, cupy.cuda.get_current_stream, runtime.getDevice, driver.CUDADriverError)


class CudaFunction:
    """One kernel's machine code and its launchers. Thread-safe.

    `source` is readable CUDA C++, `cubin` the machine code, and `entry` the function's name in both. `disk` is the
    cache on disk for kernels that are made from it.
    """

    disk: DiskCache | None = None

    def __init__(self, kernel: ir.Kernel, source: str | None, cubin: bytes, entry: str, architecture: str) -> None:
        self.kernel, self._source, self.cubin = kernel, source, cubin
        self.entry, self.architecture = entry, architecture
        self.shared_bytes = shared_bytes(kernel)
        self.slots = "".join(self.slot(p) for p in kernel.parameters)
        self.pack = struct.Struct("=" + self.slots).pack_into
        self._buffers = tuple(k for k, p in enumerate(kernel.parameters) if isinstance(p, ir.Buffer))
        self._count = len(kernel.parameters)
        self._lock = threading.Lock()
        self._loaded: dict[int, tuple[Any, int]] = {}
        self._launchers: dict[int, Callable[..., None]] = {}
        self._runtime: _Runtime | None = None

    @property
    def source(self) -> str:
        """Readable CUDA C++, emitted on first access if the machine code came from disk."""
        if self._source is None:
            self._source = emit_cuda(self.kernel)
        return self._source

    @staticmethod
    def slot(parameter: ir.Buffer | ir.Variable) -> str:
        """Return the format of a parameter in its slot, as the module struct has it."""
        if isinstance(parameter, ir.Buffer):
            return "Q"
        if parameter.dtype.name not in _SLOTS:
            raise CompileError(
                f"parameter {parameter.name}: {parameter.dtype} is not supported as a CUDA kernel argument"
            )
        return _SLOTS[parameter.dtype.name]

    def launch(self, *arguments: Any) -> None:
        """Launch on CuPy's current stream, with CuPy arrays for buffers and numbers for scalars in parameter order.

        A buffer may also be passed as its address (an int). If a grid extent is 0, nothing is launched. Raises
        DeviceError for a wrong number of arguments, a grid beyond the hardware limits, and a launch that the driver
        rejects.
        """
        values = list(arguments)
        if len(values) != self._count:
            raise DeviceError(f"kernel {self.kernel.name} takes {self._count} arguments, got {len(values)}")
        for k in self._buffers:
            if type(values[k]) is not int:
                values[k] = values[k].data.ptr
        runtime = self._driver()
        self.launcher(runtime.device())(runtime.stream().ptr, *values)

    def launcher(self, device: int) -> Callable[..., None]:
        """Return the fast launch function for a GPU, which must be current when it is called.

        It takes the address of a stream, then addresses for buffers and numbers for scalars in parameter order. It
        checks the grid and the ranges of the numbers, and raises like `launch`. It keeps the kernel loaded.
        """
        launch = self._launchers.get(device)
        if launch is None:
            launch = self._launchers[device] = self._generate_launcher(device)
        return launch

    def packing(self) -> tuple[list[str], list[str], dict[str, Any]]:
        """Return the parameter names, the Python text that packs each, and the scope of that text."""
        names = [f"p{k}" for k in range(self._count)]
        packed, bits = list(names), {}
        for k, parameter in enumerate(self.kernel.parameters):
            if isinstance(parameter, ir.Variable) and parameter.dtype.is_half:
                packed[k] = f"bits{k}(p{k})"
                bits[f"bits{k}"] = _half_bits(parameter.dtype)
        return names, packed, bits

    def _generate_launcher(self, device: int) -> Callable[..., None]:
        names, packed, bits = self.packing()
        grid = grid_texts(self.kernel, names)
        axes = "xyz"[: len(grid)]
        blocks = ", ".join([*axes, "1", "1", "1"][:3])
        lines = [f"def launch({', '.join(['stream', *names])}):"]
        lines += [f"    {axis} = {text}" for axis, text in zip(axes, grid, strict=True)]
        inside = " and ".join(f"0 < {axis} <= {most}" for axis, most in zip(axes, GRID_LIMITS, strict=False))
        values = "".join(f"{name}, " for name in names)
        shape = f"{blocks}, {self.kernel.threads}, 1, 1, {self.shared_bytes}"
        lines += [
            f"    if not ({inside}):",
            f"        return no_grid({blocks})",
            "    try:",
            f"        pack(packed.buffer, 0, {', '.join(packed)})",
            f"        run(function, {shape}, stream, packed.address, 0)",
            "    except failures as error:",
            f"        raise failed(error, ({blocks}), ({values})) from error",
        ]
        runtime, (module, function) = self._driver(), self.load(device)
        scope = {
            "run": runtime.launch, "function": function, "module": module, "pack": self.pack, "failed": self.failed,
            "packed": _Packed(self._count), "no_grid": self.no_grid, "failures": (struct.error, runtime.error), **bits,
        }  # fmt: skip
        purpose = f"launch of {self.kernel.name}"
        return compile_function("\n".join(lines), "launch", scope, purpose)  # type: ignore[no-any-return]

    def _driver(self) -> _Runtime:
        if self._runtime is None:
            self._runtime = launch_runtime()
        return self._runtime

    def no_grid(self, x: int, y: int, z: int) -> None:
        """Return if the grid has no blocks; raise DeviceError if it exceeds the hardware limits."""
        if x > 0 and y > 0 and z > 0:
            most = " x ".join(map(str, GRID_LIMITS))
            grid = f"{x} x {y} x {z}"
            raise DeviceError(f"kernel {self.kernel.name}: a grid of {grid} blocks exceeds the limit of {most}")

    def failed(self, error: Exception, grid: tuple[int, int, int], values: tuple[Any, ...]) -> DeviceError:
        """Return the error for a launch of `grid` blocks that failed in packing its arguments or in the driver."""
        if isinstance(error, struct.error):
            return DeviceError(f"kernel {self.kernel.name}: arguments {list(values)} do not fit: {error}")
        x, y, z = grid
        return DeviceError(
            f"kernel {self.kernel.name}: the driver rejected a launch of {x} x {y} x {z} blocks of "
            f"{self.kernel.threads} threads with {self.shared_bytes} bytes of dynamic shared memory: {error}"
        )

    def load(self, device: int) -> tuple[Any, int]:
        """Load the kernel on a GPU; return an object that keeps it loaded and its driver handle."""
        with self._lock:
            if device in self._loaded:
                return self._loaded[device]
            from cupy.cuda.function import Module
            from cupy_backends.cuda.api import driver

            module = Module()
            try:
                module.load(self.cubin)
                function = module.get_function(self.entry)
                if self.shared_bytes:
                    driver.funcSetAttribute(function.ptr, _MAXIMUM_DYNAMIC_SHARED, self.shared_bytes)
            except driver.CUDADriverError as error:
                raise DeviceError(
                    f"kernel {self.kernel.name}, compiled for {self.architecture}, cannot be loaded: {error}"
                ) from error
            self._loaded[device] = (function, int(function.ptr))  # the function keeps its module loaded
            return self._loaded[device]

    def unload(self) -> None:
        """Drop the loaded modules. Existing launchers keep theirs; the next launch loads the kernel again."""
        with self._lock:
            self._loaded.clear()
            self._launchers.clear()


register(Cache(
    "kernel.cuda.cuda_functions.CudaFunction._loaded", "the kernel as the driver loaded it", "device", "GPUs",
    "a compiled kernel", "`unload()`",
))  # fmt: skip
register(Cache(
    "kernel.cuda.cuda_functions.CudaFunction._launchers", "the Python function that launches the kernel", "device",
    "GPUs", "a compiled kernel", "`unload()`",
))  # fmt: skip
