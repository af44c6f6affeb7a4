"""Tests objects of Python that share their bytes with arrays: read at every call, or refused, never left changed."""

from __future__ import annotations

import array
import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fuse

X = np.arange(3.0)
reference = functools.partial(fuse, target="reference")


def _in_memory() -> mmap.mmap:
    buffer = mmap.mmap(-1, 24)
    buffer[:] = np.ones(3).tobytes()
    return buffer


MAKERS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(np.ones(3).tobytes()),
    "array": lambda: array.array("d", [1.0] * 3),
    "memoryview": lambda: memoryview(np.ones(3)),
    "mmap": _in_memory,
    "ctypes array": lambda: (ctypes.c_double * 3)(1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_bytes_of_state_are_read_at_every_call_and_refused_where_the_call_changes_them(make: Any) -> None:
    buffer = make()
    shared = np.asarray(buffer) if isinstance(buffer, memoryview) else np.frombuffer(buffer)
    others = [np.zeros(3)]

    def read(x: Any) -> Any:
        return x + buffer[1]

    def update_memory(x: Any) -> Any:
        others[0][:] = x
        return x + buffer[1]

    def write(x: Any) -> Any:
        buffer[0] = 7
        return x

    reading, updating = reference(read), reference(update_memory)
    for value in (1.0, 5.0):
        shared[:] = value
        np.testing.assert_array_equal(reading(X), read(X))
        np.testing.assert_array_equal(updating(X), X + buffer[1])
    np.testing.assert_array_equal(others[0], X)
    others[0] = shared
    before = bytes(shared)
    with pytest.raises(UnsupportedError, match=r"others\[0\] is changed in place and buffer lies in the same memory"):
        updating(X)
    assert bytes(shared) == before
    with pytest.raises(UnsupportedError, match="the function changes buffer, whose type is"):
        reference(write)(X)
    assert bytes(shared) == before


def test_a_function_that_changes_an_argument_in_the_memory_of_such_an_object_is_refused() -> None:
    buffer = bytearray(24)
    shared, apart = np.frombuffer(buffer), np.zeros(3)

    @reference
    def f(target: Any, x: Any) -> Any:
        target += x
        return target + buffer[7]

    np.testing.assert_array_equal(f(apart, X), X)
    with pytest.raises(UnsupportedError, match="target is changed in place and buffer lies in the same memory"):
        f(shared, X)
    assert not shared.any()
    np.testing.assert_array_equal(f(apart, X), X * 2)


def test_a_captured_pointer_is_refused_with_an_array_in_its_place() -> None:
    numbers = (ctypes.c_double * 3)(1.0, 2.0, 3.0)
    pointer = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_double))
    with pytest.raises(UnsupportedError, match="points to memory that no call can compare") as error:
        reference(lambda x: x * pointer[1])(X)
    assert "np.ctypeslib.as_array(pointer, shape)" in str(error.value)
    values = np.ctypeslib.as_array(pointer, (3,))
    np.testing.assert_array_equal(reference(lambda x: x * values[1])(X), X * 2)
