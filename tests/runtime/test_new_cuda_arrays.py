"""New CuPy arrays: as CuPy makes them, and several in one allocation; with stand-ins where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse.runtime.devices import cuda_arrays, new_cuda_arrays


class Memory:
    """A place in an allocation."""

    def __init__(self, size: int, ptr: int = 4096) -> None:
        self.size, self.ptr = size, ptr

    def __add__(self, offset: int) -> Memory:
        return Memory(self.size, self.ptr + offset)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the allocations that are made."""
    sizes: list[int] = []

    def allocate(size: int) -> Memory:
        sizes.append(size)
        return Memory(size, 4096 * len(sizes))

    monkeypatch.setattr(cuda_arrays, "allocator", lambda: allocate)
    return sizes


def made(*shapes: tuple[int, ...]) -> tuple[list[Any], list[int]]:
    dtype = np.dtype(np.float32)
    asked = [(shape, dtype, int(np.prod(shape)) * 4) for shape in shapes]
    results = new_cuda_arrays.several(lambda shape, dtype, memory: (shape, dtype, memory.ptr))(*asked)
    return results[: len(shapes)], results[len(shapes) :]


def test_small_arrays_of_about_equal_size_share_an_allocation(allocated: list[int]) -> None:
    arrays, addresses = made((64, 3), (10, 10), (150,))
    assert allocated == [3 * 1024]
    assert addresses == [4096, 5120, 6144] == [address for _, _, address in arrays]
    assert [shape for shape, _, _ in arrays] == [(64, 3), (10, 10), (150,)]


@pytest.mark.parametrize("shapes", [((64, 64), (64, 257)), ((30_000,), (30_000,)), ((0, 3), (5,))])
def test_arrays_that_are_large_or_differ_in_size_have_an_allocation_each(
    allocated: list[int], shapes: tuple[tuple[int, ...], ...]
) -> None:
    _, addresses = made(*shapes)
    assert allocated == [int(np.prod(shape)) * 4 for shape in shapes]
    assert addresses == [4096, 8192]


def test_arrays_without_elements_are_made(allocated: list[int]) -> None:
    arrays, _ = made((0, 3), (4, 0))
    assert [shape for shape, _, _ in arrays] == [(0, 3), (4, 0)]
    assert allocated == [0, 0]


class Array:
    """An array type that takes its arguments by its constructor alone, unlike CuPy's."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, memory: Any) -> None:
        self.shape, self.dtype, self.data = shape, dtype, memory
        self.strides, self.size, self.nbytes, self.base = (), 0, 0, None
        self._c_contiguous = True
        self.flags = np.empty(1).flags


class Cuda:
    UnownedMemory = staticmethod(lambda *arguments: arguments)
    MemoryPointer = staticmethod(lambda memory, offset: Memory(512))


class Cupy:
    cuda, ndarray = Cuda, Array


def test_an_array_type_of_another_kind_makes_its_arrays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_arrays, "namespace", lambda: Cupy)
    monkeypatch.setattr(cuda_arrays, "array_type", lambda: Array)
    assert new_cuda_arrays.constructor() is Array
