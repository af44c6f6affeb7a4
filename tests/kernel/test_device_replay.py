"""Records of calls on a GPU, with stand-ins for its arrays and for the driver: what fits, and what is launched."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracefuse.kernel.llvm.device_arrays import ArrayLayout
from tracefuse.kernel.llvm.device_records import DeviceCalls, DeviceChain, DeviceLaunch
from tracefuse.kernel.llvm.device_replay import PATCH_ADDRESS, PATCH_DOUBLE, PATCH_SINGLE
from tracefuse.kernel.llvm.replay_records import (
    Allocated,
    Apart,
    ArrayArgument,
    ArrayBytes,
    CallValue,
    Launched,
    Released,
    counts_references,
)

pytestmark = pytest.mark.skipif(not counts_references(), reason="this Python does not count references exactly")

FIELDS = bytes.__basicsize__ - 1
"""The place of the contents of bytes, in which the stand-ins have their fields."""

WORD = ctypes.c_int64
FLOAT = np.dtype(np.float32)


class Memory(bytes):
    """Its fields are words: the address and the device."""

    gpu: Gpu

    def __add__(self, offset: int) -> Memory:  # type: ignore[override]
        return self.gpu.memory(WORD.from_address(id(self) + FIELDS).value + offset)


class Array(bytes):
    """Its fields are words: first and end of the extents, whether it is contiguous, type, memory."""


LAYOUT = ArrayLayout(FIELDS, FIELDS + 16, FIELDS + 24, FIELDS + 32, FIELDS, FIELDS + 8)
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)  # fmt: skip


class Stream:
    ptr = 77


class Gpu:
    """Makes arrays and notes launches: function, grid, threads, bytes, stream, parameters."""

    def __init__(self) -> None:
        self.kernel = KERNEL(self._launch)
        self.reset()

    def reset(self) -> None:
        self.kept: list[Any] = []
        self.launches: list[tuple[Any, ...]] = []
        self.missed: list[Any] = []
        self.allocated: list[int] = []
        self.error = 0
        self.place = 1 << 20
        self.current = 3

    def _launch(self, function: int, *rest: Any) -> int:
        *shape, stream, parameters, _ = rest
        values = [WORD.from_address(parameters[k] or 0).value for k in range(3)]
        self.launches.append((function, *shape, stream, values))
        return self.error

    def memory(self, address: int, device: int = 3) -> Memory:
        memory = Memory(16)
        memory.gpu = self
        (WORD * 2).from_address(id(memory) + FIELDS)[:] = (address, device)
        return memory

    def allocate(self, size: int) -> Any:
        self.allocated.append(size)
        self.place += 1 << 16
        return self.memory(self.place)

    def initialize(self, array: Any, shape: tuple[int, ...], dtype: Any, memory: Any, is_contiguous: int = 1) -> None:
        extents = (WORD * max(len(shape), 1))(*shape)
        self.kept += [extents, memory, dtype]
        first = ctypes.addressof(extents)
        words = (first, first + 8 * len(shape), is_contiguous, id(dtype), id(memory))
        (WORD * 5).from_address(id(array) + FIELDS)[:] = words

    def array(self, shape: tuple[int, ...], address: int, dtype: Any = FLOAT, device: int = 3, **how: int) -> Any:
        array = Array(40)
        self.initialize(array, shape, dtype, self.memory(address, device), **how)
        return array

    def chain(self, several: bool = False) -> DeviceChain:
        def missed(arguments: Any) -> None:
            self.missed.append(arguments)

        def failed(error: int) -> None:
            if error != 201:
                raise RuntimeError(f"error {error}")

        address = ctypes.cast(self.kernel, ctypes.c_void_p).value or 0
        return DeviceChain(missed, DeviceCalls(
            LAYOUT, Array, address, Stream, (lambda: self.current) if several else None, 3, failed, self.allocate,
            lambda kind: kind(40), self.initialize, lambda sizes: 0 if max(sizes) > 1000 else 512,
        ))  # fmt: skip

    def address(self, array: Any) -> int:
        memory = WORD.from_address(id(array) + FIELDS + 32).value
        return WORD.from_address(memory + FIELDS).value


GPU = Gpu()
"""One for all tests, since the machine code calls its kernel."""


@pytest.fixture
def gpu() -> Gpu:
    GPU.reset()
    return GPU


class Kernel:
    """A kernel of three parameters: an address and two numbers."""

    def launches(self, arguments: tuple[Any, ...]) -> list[DeviceLaunch]:
        patches = ((0, 0, PATCH_ADDRESS, 4), (8, 1, PATCH_DOUBLE, 0), (16, 1, PATCH_SINGLE, 0))
        return [DeviceLaunch(123, (4, 5, 6), 256, 48, (0, 8, 16), bytes(24), patches, None)]


def argument(shape: tuple[int, ...], is_updated: bool = False) -> ArrayArgument:
    return ArrayArgument(FLOAT, shape, None, is_updated, 0)


def recorded(gpu: Gpu, several: bool = False) -> Callable[[Any], Any]:
    """A call with an array of 3x4 and a float, which launches a kernel and returns two new arrays."""
    chain = gpu.chain(several)
    call = chain.function()
    arrays = (Allocated(2, (5, 2), FLOAT, None, None), Allocated(3, (6,), FLOAT, None, None))
    own = Allocated(4, (1000,), FLOAT, None, None)
    kernel: Any = Kernel()
    steps = [arrays, own, Launched(kernel, ()), Released(4)]
    assert chain.add([argument((3, 4)), None], steps, [3, 2])
    assert chain.count == 1
    return call


def test_a_record_allocates_and_launches_with_the_arguments_of_the_call(gpu: Gpu) -> None:
    call = recorded(gpu)
    array = gpu.array((3, 4), 4096)
    counts = sys.getrefcount(array), sys.getrefcount(FLOAT)
    for number in (2.5, -1.0):
        first, second = call((array, number))
        bits = [int(np.array(number, t).view(i)) for t, i in ((np.float64, np.int64), (np.float32, np.uint32))]
        assert gpu.launches[-1] == (123, 4, 5, 6, 256, 1, 1, 48, 77, [4100, *bits])
        assert gpu.allocated[-2:] == [2 * 512, 4000]
        assert gpu.address(first) - gpu.address(second) == 512
        assert sys.getrefcount(first) == 2
    assert counts[0] == sys.getrefcount(array)
    assert gpu.missed == []


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 3)}, {"shape": (12,)}, {"address": 4104}, {"dtype": np.dtype(np.int32)}, {"is_contiguous": 0},
        {"device": 2},
    ],
    ids=str,
)  # fmt: skip
def test_an_array_that_differs_fits_no_record(gpu: Gpu, change: dict[str, Any]) -> None:
    call = recorded(gpu, several=True)
    assert call((gpu.array((3, 4), 4096), 1.0)) is not None
    other = gpu.array(**{"shape": (3, 4), "address": 4096, **change})
    assert call((other, 1.0)) is None
    assert len(gpu.missed) == len(gpu.launches) == 1


def test_other_arguments_and_another_device_fit_no_record(gpu: Gpu) -> None:
    call, array = recorded(gpu, several=True), gpu.array((3, 4), 4096)
    for arguments in ((array, 1), (array,), (array, 1.0, 2.0), (1.0, array), (object(), 1.0)):
        assert call(arguments) is None
    gpu.current = 1
    assert call((array, 1.0)) is None
    assert len(gpu.missed) == 6
    gpu.current = 3
    assert call([array, 1.0]) is not None
    assert len(gpu.launches) == 1


def test_an_error_of_the_driver_raises(gpu: Gpu) -> None:
    call, array = recorded(gpu), gpu.array((3, 4), 4096)
    gpu.error = 700
    with pytest.raises(RuntimeError, match="error 700"):
        call((array, 1.0))
    assert gpu.missed == []
    gpu.error = 201  # of a thread without a context
    assert call((array, 1.0)) is None
    assert len(gpu.missed) == 1


def test_a_call_without_memory_starts_again_in_python(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(array: Any, *rest: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(gpu, "initialize", full)
    call = recorded(gpu)
    array = Array(40)
    Gpu.initialize(gpu, array, (3, 4), FLOAT, gpu.memory(4096))
    assert call((array, 1.0)) is None
    assert (len(gpu.missed), gpu.launches) == (1, [])


def test_steps_that_no_record_holds_are_refused(gpu: Gpu) -> None:
    class Refused(Kernel):
        def launches(self, arguments: tuple[Any, ...]) -> Any:
            return None

    kernel: Any = Refused()
    chain = gpu.chain()
    call = chain.function()
    assert not chain.add([argument((3,))], [Launched(kernel, ())], [])
    assert call((gpu.array((3,), 4096),)) is None
    assert chain.count == 0


@settings(max_examples=25)
@given(st.data())
def test_updated_arrays_share_no_byte_with_any_other(data: st.DataObject) -> None:
    gpu = GPU
    gpu.reset()
    places = st.tuples(st.integers(1, 400), st.integers(1, 30))
    spans = data.draw(st.lists(places, min_size=1, max_size=12))
    written = {k for k in range(len(spans)) if data.draw(st.booleans())}
    chain = gpu.chain()
    call = chain.function()
    steps = [Apart(tuple(ArrayBytes(CallValue(k), 4 * size, k in written) for k, (_, size) in enumerate(spans)))]
    chain.add([argument((size,), k in written) for k, (_, size) in enumerate(spans)], steps, [])
    fits = call(tuple(gpu.array((size,), 16 * place) for place, size in spans)) is not None
    bytes_of = [range(16 * place, 16 * place + 4 * size) for place, size in spans]
    shared = any(
        k != other and bytes_of[k].start < bytes_of[other].stop and bytes_of[other].start < bytes_of[k].stop
        for k in written for other in range(len(spans))
    )  # fmt: skip
    assert fits == (not shared)


def test_a_chain_is_freed_with_its_call(gpu: Gpu) -> None:
    call = recorded(gpu)
    chain: Any = call
    freed = weakref.ref(chain.chain)
    del call, chain
    gc.collect()
    assert freed() is None
