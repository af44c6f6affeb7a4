"""Tests how a launch packs its parameters and computes its grid, with a driver that records the calls."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernel import cuda_algorithms
from tests.kernel import cuda_kernels as cases
from tracefuse import dtypes
from tracefuse.dtypes import float32
from tracefuse.errors import CompileError, DeviceError, InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_functions import CudaFunction, _Runtime
from tracefuse.kernel.cuda.emit_cuda import emit_cuda, entry_name


class DriverError(RuntimeError):
    pass


class Driver:
    """Takes launches: the grid, block, shared bytes, stream, and the first 8 bytes of each parameter."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self.launches: list[tuple[Any, ...]] = []
        self.refuses = False

    def launch(self, function: int, *facts: int) -> None:
        if self.refuses:
            raise DriverError("CUDA_ERROR_INVALID_VALUE")
        *shape, shared, stream, address, extra = facts
        pointers = (ctypes.c_void_p * self.parameters).from_address(address)
        self.launches.append((function, tuple(shape), shared, stream, [ctypes.string_at(p, 8) for p in pointers]))
        assert extra == 0


def on_driver(kernel: ir.Kernel) -> tuple[CudaFunction, Driver]:
    function = CudaFunction(kernel, "", b"", entry_name(kernel), "sm_90")
    driver = Driver(len(kernel.parameters))
    stream = SimpleNamespace(ptr=77)
    function._runtime = _Runtime(driver.launch, lambda: stream, lambda: 0, DriverError)
    function._loaded[0] = (None, 123)
    return function, driver


def array(address: int) -> SimpleNamespace:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def test_arrays_become_addresses_and_scalars_their_own_bytes():
    function, driver = on_driver(cuda_algorithms.column_sum(float32))
    function.launch(array(2**40), 5, 10, 130, np.int64(-4))
    ((entry, shape, shared, stream, parameters),) = driver.launches
    assert (entry, shape, shared, stream) == (123, (3, 1, 1, 64, 1, 1), 0, 77)
    assert [struct.unpack("=q", p)[0] for p in parameters] == [2**40, 5, 10, 130, -4]


@pytest.mark.parametrize("dtype", cases.REAL, ids=str)
def test_a_scalar_of_every_type_is_packed_as_numpy_stores_it(dtype):
    value = ir.Variable("value", dtype)
    base = cases.elementwise("fill", (), dtype, lambda: value)
    kernel = ir.Kernel("fill", (*base.parameters, value), base.grid, base.body, "cuda", 128, cases.THREAD)
    function, driver = on_driver(kernel)
    number = 1 if dtype.kind in ("bool", "uint", "int") else 1.5
    for given in (number, dtype.numpy.type(number)):
        function.launch(0, 3, given)
        stored = driver.launches[-1][-1][-1]
        assert stored[: dtype.itemsize] == np.array(number, dtype.numpy).tobytes()
    assert ml_dtypes.bfloat16(1.5) == 1.5


def test_an_empty_grid_launches_nothing():
    function, driver = on_driver(cuda_algorithms.transpose(float32))
    function.launch(0, 0, 0, 70)
    function.launch(0, 0, 45, 0)
    assert driver.launches == []
    function.launch(0, 0, 45, 70)
    assert driver.launches[0][1] == (3, 2, 1, 256, 1, 1)


def test_what_cannot_be_launched_raises_with_the_values():
    function, driver = on_driver(cuda_algorithms.transpose(float32))
    with pytest.raises(DeviceError, match="1 x 65537 x 1 blocks exceeds the limit of 2147483647 x 65535 x 65535"):
        function.launch(0, 0, 65537 * 32, 32)
    with pytest.raises(DeviceError, match="takes 4 arguments, got 2"):
        function.launch(0, 0)
    function, driver = on_driver(cuda_algorithms.column_sum(float32))
    with pytest.raises(DeviceError, match="do not fit"):
        function.launch(0, 0, 2**70, 64, 1)
    driver.refuses = True
    with pytest.raises(DeviceError, match="the driver rejected a launch of 1 x 1 x 1 blocks of 64 threads"):
        function.launch(0, 0, 4, 64, 64)


def test_large_shared_memory_is_asked_for_at_the_launch():
    function, driver = on_driver(cuda_algorithms.large_shared(10000))
    function.launch(0, 0)
    assert driver.launches[0][2] == 80000


def test_complex_scalars_are_refused_when_compiling():
    kernel = ir.Kernel("k", (ir.Variable("z", dtypes.complex64),), (), (), "cuda", 32)
    with pytest.raises(InternalError, match="complex64"):
        emit_cuda(kernel)
    with pytest.raises(CompileError, match="complex64 is not supported as a CUDA kernel argument"):
        CudaFunction(kernel, "", b"", "k", "sm_90")
