"""Several launches of one compiled kernel as one launch, with a table of their arguments."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import Cache, register
from tracefuse.generated_code import compile_function
from tracefuse.kernel.cuda.cuda_functions import GRID_LIMITS, CudaFunction, grid_texts, launch_runtime
from tracefuse.kernel.cuda.emit_table import entries

SLOT_BYTES = 8
"""Each parameter and the last block of a launch occupy a slot of so many bytes."""

LARGE = 2048
"""Launches of more blocks than this, on average, run one by one: they fill a GPU longer than a launch takes."""


class _Table(threading.local):
    """One thread's parameters: the table and the number of launches in it."""

    def __init__(self, size: int) -> None:
        self.buffer, self.count = ctypes.create_string_buffer(size), ctypes.c_int()
        self.pointers = (ctypes.c_void_p * 2)(ctypes.addressof(self.buffer), ctypes.addressof(self.count))
        self.address = ctypes.addressof(self.pointers)


class CudaTable:
    """Launches of `function` on a GPU, as many as a table holds at once by `kernel`, its source from `emit_table`.

    Called with the address of a stream and the arguments of each launch, which are those of `CudaFunction.launcher`.
    The launches must be independent. Raises DeviceError like them. Thread-safe.
    """

    def __init__(self, function: CudaFunction, kernel: CudaFunction, device: int) -> None:
        self._most, self._function, self._device = entries(function.kernel), function, device
        self._kept, self._handle = kernel.load(device)
        self._slots = function.slots + "I4x"
        self._packers: dict[int, Callable[..., None]] = {}
        self._table = _Table(SLOT_BYTES * (len(function.kernel.parameters) + 1) * self._most)
        self._runtime = launch_runtime()
        self._collect = self._generate_collect()

    def __call__(self, stream: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        for first in range(0, len(arguments), self._most):
            self._launch(stream, arguments[first : first + self._most])

    def _launch(self, stream: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        blocks, values = self._collect(arguments)
        if not 0 < blocks <= min(GRID_LIMITS[0], LARGE * len(arguments)):
            launch = self._function.launcher(self._device)
            for kernel_arguments in arguments if blocks else ():
                launch(stream, *kernel_arguments)
            return
        count = len(values) // (len(self._function.kernel.parameters) + 1)
        pack = self._packers.get(count)
        if pack is None:
            pack = self._packers[count] = struct.Struct("=" + self._slots * count).pack_into
        table = self._table
        try:
            pack(table.buffer, 0, *values)
            table.count.value = count
            threads = self._function.kernel.threads
            self._runtime.launch(self._handle, blocks, 1, 1, threads, 1, 1, 0, stream, table.address, 0)
        except (struct.error, self._runtime.error) as error:
            raise self._function.failed(error, (blocks, 1, 1), tuple(values)) from error

    def _generate_collect(self) -> Callable[..., tuple[int, list[Any]]]:
        """Returns a function that adds up the blocks of launches and lists the slots of those that have any."""
        names, packed, bits = self._function.packing()
        (blocks,) = grid_texts(self._function.kernel, names)
        lines = [
            "def collect(arguments):", "    end, values = 0, []", f"    for {', '.join(names)}, in arguments:",
            f"        blocks = {blocks}", "        if blocks > 0:", "            end += blocks",
            f"            values += ({', '.join([*packed, 'end'])})", "    return end, values",
        ]  # fmt: skip
        purpose = f"table of {self._function.kernel.name}"
        return compile_function("\n".join(lines), "collect", bits, purpose)  # type: ignore[no-any-return]


register(Cache(
    "kernel.cuda.cuda_table.CudaTable._packers", "the function that packs a table", "number of launches",
    "launches that a table holds", "a compiled kernel",
))  # fmt: skip
