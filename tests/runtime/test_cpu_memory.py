"""Memory of the CPU device: alignment, reuse of freed buffers, and never two live arrays on one buffer."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import dtypes
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.devices.cpu_memory import BufferCache


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (100, 300), (2, 1, 7)])
def test_a_new_array_is_contiguous_aligned_and_of_its_type(shape: tuple[int, ...], dtype: dtypes.DType) -> None:
    array = cpu_memory.empty(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype.numpy
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert cpu_memory.address(array) % 64 == 0


def test_a_freed_buffer_is_used_again() -> None:
    cache = BufferCache()
    first = cache.empty((1000, 1000), dtypes.float32)
    place = cpu_memory.address(first)
    del first
    again = cache.empty((1000, 1000), dtypes.float32)
    assert cpu_memory.address(again) == place
    # Another shape of about that size shares the buffer once it is free.
    del again
    assert cpu_memory.address(cache.empty((999, 1000), dtypes.float32)) == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[5:7],
        lambda a: a.T[::2],
        lambda a: memoryview(a),
        lambda a: memoryview(a)[1:],
        lambda a: a.__dlpack__(),
        lambda a: np.from_dlpack(a),
        lambda a: a.view(np.uint8)[3:].view(),
        lambda a: np.lib.stride_tricks.as_strided(a, (3,), (4,)),
        lambda a: iter(a),
        lambda a: a.flat,
        lambda a: a.data,
    ],
)
def test_a_buffer_is_not_reused_while_any_view_of_it_lives(hold: Any) -> None:
    cache = BufferCache()
    array = cache.empty((64, 64), dtypes.float32)
    place = cpu_memory.address(array)
    held = hold(array)
    del array
    others = [cache.empty((64, 64), dtypes.float32) for _ in range(20)]
    assert place not in [cpu_memory.address(other) for other in others]
    del held, others
    freed = [cache.empty((64, 64), dtypes.float32) for _ in range(21)]
    assert place in [cpu_memory.address(array) for array in freed]


@settings(max_examples=times(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 19), st.integers(1, 60)), max_size=120))
def test_live_arrays_never_overlap_under_pressure(steps: list[tuple[int, int, int]]) -> None:
    cache = BufferCache(limit=64 * 1024)
    live: dict[int, tuple[Any, int]] = {}
    for number, (action, slot, size) in enumerate(steps):
        if action == 0:
            live.pop(slot, None)
            continue
        array: Any = cache.empty((size, 64), dtypes.int64)
        array[...] = number
        kept = array if action == 1 else array[size // 2 :] if action == 2 else memoryview(array)
        live[slot] = (kept, number)
        del array, kept
        for value, mark in live.values():
            assert (np.asarray(value) == mark).all()


def test_the_cache_holds_at_most_its_limit() -> None:
    cache = BufferCache(limit=1 << 20)
    arrays = [cache.empty((100 * 1024,), dtypes.uint8) for _ in range(40)]
    assert cache.nbytes <= 1 << 20
    for k, array in enumerate(arrays):
        array[...] = k
    assert all((array == k).all() for k, array in enumerate(arrays))
    big = cache.empty((2 << 20,), dtypes.uint8)
    assert big.size == 2 << 20
    assert cache.nbytes <= 1 << 20
    cache.clear()
    assert cache.nbytes == 0


def test_many_threads_never_get_the_same_buffer() -> None:
    cache = BufferCache()
    failures: list[str] = []

    def work(mark: int) -> None:
        choose = random.Random(mark)
        held: list[Any] = []
        for _ in range(1500):
            array: Any = cache.empty((choose.choice((8, 9, 500)),), dtypes.int64)
            array[...] = mark
            held.append(array)
            del array
            if len(held) > 5:
                held.pop(choose.randrange(len(held)))
            if not all((a == mark).all() for a in held):
                failures.append(f"thread {mark} saw another's values")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.clear()
    assert cache.nbytes == 0


def test_without_a_cache_arrays_are_still_aligned() -> None:
    cache = BufferCache(limit=0)
    array = cache.empty((17, 3), dtypes.float64)
    assert cpu_memory.address(array) % 64 == 0
    assert cache.nbytes == 0
