"""Tests of memory that is shared with JAX on the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import dtypes, fuse
from tracefuse.runtime.devices import cpu_memory, jax_arrays

jax = pytest.importorskip("jax")

DTYPES = (np.bool_, np.int8, np.uint32, np.float16, ml_dtypes.bfloat16, np.float32, np.complex64)
WIDE = (np.int64, np.float64, np.complex128)


@pytest.fixture(params=["one call", "public functions"])
def given_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "public functions":
        monkeypatch.setattr(jax_arrays, "_host_put", lambda is_weak: None)
    return jax_arrays.given_out


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (0, 2)])
def test_arrays_are_given_out_as_jax_numpy_takes_them(given_out: Any, shape: tuple[int, ...]) -> None:
    for dtype in (*DTYPES, *WIDE):
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        for one in (array, array.T, array[()]):
            result, expected = given_out(one), jax.numpy.asarray(one)
            assert (result.shape, result.dtype, result.weak_type) == (expected.shape, expected.dtype, False)
            assert (result.committed, result.devices()) == (expected.committed, expected.devices())
            np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


def test_aligned_memory_is_shared_in_both_directions_and_kept() -> None:
    cache = cpu_memory.BufferCache()
    array = cache.empty((8, 16), dtypes.float32)
    array[...] = 3
    result = jax_arrays.given_out(array)
    assert result.unsafe_buffer_pointer() == cpu_memory.address(array) == cpu_memory.address(jax_arrays.entered(result))
    del array
    for other in [cache.empty((8, 16), dtypes.float32) for _ in range(20)]:
        other[...] = 0
    assert float(result.sum()) == 3 * 8 * 16


def test_a_default_device_of_jax_receives_the_results() -> None:
    with jax.default_device(jax.devices("cpu")[-1]):
        assert jax_arrays.given_out(np.ones(3)).devices() == {jax.devices("cpu")[-1]}


def test_results_that_promote_as_python_numbers_share_memory_too(given_out: Any) -> None:
    array = cpu_memory.BufferCache().empty((8, 16), dtypes.float32)
    result = jax_arrays.given_out_weakly(array)
    assert (result.weak_type, result.dtype, result.shape) == (True, np.float32, (8, 16))
    assert (result * np.ones(1, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16


def test_memory_of_dropped_results_is_used_again() -> None:
    function = fuse(lambda x: x + 1)
    x = jax.numpy.ones((64, 64))
    addresses = set()
    for _ in range(8):
        result = function(x)
        addresses.add(result.unsafe_buffer_pointer())
        del result
    assert len(addresses) <= 2
