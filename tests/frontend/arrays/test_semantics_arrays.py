"""Tests the contract for array arguments and results, one test per sentence.

Where arrays share memory, and what runs on a GPU, is tested in test_output_buffers.py, test_aliases.py and tests/gpu.
"""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse
from tracefuse.runtime.argument_leaves import LeafKind, classify

A = np.arange(24, dtype=np.float32).reshape(4, 6)
MIB = 1 << 20


def misaligned(shape: tuple[int, ...], dtype: Any) -> Any:
    count = int(np.prod(shape))
    memory = np.zeros(count * np.dtype(dtype).itemsize + 1, np.uint8)[1:]
    array = memory.view(dtype).reshape(shape)
    array[...] = np.arange(count).reshape(shape)
    return array


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


# -- arrays in --------------------------------------------------------------------------------------------------------

TAKEN: dict[str, Any] = {
    "strided": lambda: A[::2, 1::2], "reversed": lambda: A[::-1, ::-1], "transposed": lambda: A.T,
    "broadcast": lambda: np.broadcast_to(A[0], (5, 6)), "read-only": lambda: read_only(A),
    "zero-size": lambda: A[:0], "misaligned": lambda: misaligned((4, 6), np.float32),
    "misaligned doubles": lambda: misaligned((3, 5), np.float64), "Fortran": lambda: np.asfortranarray(A),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_arrays_of_every_layout_are_taken_as_they_are(name: str) -> None:
    x = TAKEN[name]()
    f = fuse(lambda x: (x * 2 + 1, x.sum(0), x.T))
    for _ in range(2):
        for found, expected in zip(f(x), (x * 2 + 1, x.sum(0), x.T), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_memory_mapped_arrays_are_read_where_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", A)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(x, np.memmap)
    result = fuse(lambda x: x + 1)(x)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, A + 1)


@pytest.mark.parametrize("order", ["transposed", "strided", "broadcast"])
def test_no_layout_is_copied_silently(order: str) -> None:
    base = np.ones((1024, 1024), np.float32)  # 4 MiB
    x = {"transposed": base.T, "strided": base[:, ::2], "broadcast": np.broadcast_to(base[0], (1024, 1024))}[order]
    f = fuse(lambda x: x.max())
    f(x)
    tracemalloc.start()
    f(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB // 2


@pytest.mark.parametrize("value", [np.float64(2), np.array(2.0), np.int8(3), np.array(True)])
def test_numpy_scalars_and_arrays_without_axes_are_scalars_of_any_device(value: Any) -> None:
    assert classify(value, "x").kind is LeafKind.SCALAR
    result = fuse(lambda x, s: x * s)(A, value)
    assert result.dtype == (A * value).dtype
    np.testing.assert_array_equal(result, A * value)


def stand_in(module: str, name: str, **attributes: Any) -> Any:
    """An object that says of itself that it is an array of another library."""
    members = {"shape": (2, 2), "dtype": np.dtype(float), "__module__": module, **attributes}
    return type(name, (), members)()


REFUSED = [
    (np.ma.array([1.0]), "x['w'] is a numpy MaskedArray", "pass x['w'].filled(value) and the mask as arrays"),
    (
        stand_in("pandas.core.frame", "DataFrame"),
        "x['w'] is a pandas DataFrame",
        "pass the columns that it reads as arrays: x['w'][name].to_numpy()",
    ),
    (stand_in("pandas.core.series", "Series"), "x['w'] is a pandas Series", "pass x['w'].to_numpy()"),
    (stand_in("scipy.sparse._csr", "csr_array"), "x['w'] is a scipy csr_array", "pass x['w'].toarray()"),
    (stand_in("sparse.numba_backend", "COO"), "x['w'] is a sparse COO", "pass x['w'].todense()"),
    (stand_in("xarray.core", "DataArray"), "x['w'] is a xarray DataArray", "pass x['w'].values"),
    (
        stand_in("torch", "Tensor", requires_grad=True),
        "x['w'] is a tensor that requires grad",
        "pass x['w'].detach()",
    ),
    (
        np.array([None]),
        "x['w'] has dtype object, which is not supported",
        "pass np.asarray(x['w'], dtype=float), or the numbers in it",
    ),
    (np.array(["a"]), "x['w'] has dtype <U1, which is not supported", "pass integers that stand for the strings"),
    (np.array([b"a"]), "x['w'] has dtype |S1, which is not supported", "pass integers that stand for the strings"),
    (
        np.zeros(2, "i4,f4"),
        "x['w'] has dtype [('f0', '<i4'), ('f1', '<f4')], which is not supported",
        "pass the fields one by one, as in x['w']['name']",
    ),
    (
        np.array(["2020"], "M8[D]"),
        "x['w'] has dtype datetime64[D], which is not supported",
        "pass x['w'].astype('int64')",
    ),
    (
        np.zeros(2, "m8[s]"),
        "x['w'] has dtype timedelta64[s], which is not supported",
        "pass x['w'].astype('int64')",
    ),
    (
        np.zeros(2, np.longdouble),
        f"x['w'] has dtype {np.dtype(np.longdouble)}, which is not supported",
        "pass x['w'].astype('float64')",
    ),
    (np.zeros(2, ">f4"), "x['w'] has non-native byte order (dtype('>f4'))", "pass x['w'].astype('float32')"),
]


@pytest.mark.parametrize(("array", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_is_refused_says_the_kind_the_path_and_what_to_write(array: Any, message: str, hint: str) -> None:
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(lambda x: x["w"])({"w": array})
    assert (error.value.message, error.value.hint) == (message, hint)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrices_are_refused() -> None:
    with pytest.raises(tracefuse.UnsupportedError) as error:
        fuse(lambda x: x)(np.matrix([[1.0]]))
    assert (error.value.message, error.value.hint) == ("x is a numpy matrix", "pass np.asarray(x)")


def test_a_numpy_array_beside_cupy_arrays_names_cupy_asarray_and_the_line() -> None:
    gpu = on_gpu("cupy", "ndarray", 0)
    with pytest.raises(tracefuse.DeviceError) as error:
        fuse(lambda x, w: x + w)(gpu, A)
    assert error.value.message == "w is a NumPy array beside CuPy arrays (x)"
    assert error.value.hint == "pass cupy.asarray(w)"
    assert str(error.value.where).startswith("test_semantics_arrays.py:")


def on_gpu(module: str, name: str, number: int) -> Any:
    """Something that says of itself that it is an array on a GPU."""
    gpu = type(name, (), {"__module__": module, "shape": (3,), "dtype": np.dtype("f4"), "requires_grad": False})()
    if module == "jaxlib":
        gpu.devices = lambda: (SimpleNamespace(platform="gpu", local_hardware_id=number),)
    else:
        gpu.device = SimpleNamespace(id=number, type="cuda", index=number)
    return gpu


@pytest.mark.parametrize(
    ("x", "y", "second"),
    [
        (on_gpu("cupy", "ndarray", 0), on_gpu("cupy", "ndarray", 1), "on GPU 1"),
        (on_gpu("jaxlib", "ArrayImpl", 0), A, "on the host"),
        (on_gpu("jaxlib", "ArrayImpl", 0), on_gpu("cupy", "ndarray", 1), "on GPU 1"),
    ],
    ids=["two GPUs", "JAX and the host", "JAX and CuPy"],
)
def test_arrays_on_two_devices_are_refused_before_anything_is_traced(x: Any, y: Any, second: str) -> None:
    def never(x: Any, y: Any) -> Any:
        raise AssertionError("it was traced")

    with pytest.raises(tracefuse.DeviceError) as error:
        fuse(never)(x, y)
    assert error.value.message == f"arrays on two devices: x is on GPU 0, y is {second}"
    assert error.value.hint == "copy one of them to the other's device"


# -- foreign arrays ---------------------------------------------------------------------------------------------------


def test_a_foreign_buffer_lives_until_its_last_reader_has_passed() -> None:
    """The only reference to each input goes at the call, while another thread takes and fills memory of its size."""
    jax = pytest.importorskip("jax")
    f = fuse(lambda x: (x * 2, x.sum(0)))
    shape, stop = (64, 1024), threading.Event()

    def pressure() -> None:
        while not stop.is_set():
            for _ in range(4):
                np.full(shape, np.nan, np.float32)
            jax.numpy.full(shape, np.nan, np.float32)

    thread = threading.Thread(target=pressure)
    thread.start()
    try:
        for k in range(60):
            doubled, total = f(jax.numpy.full(shape, k, np.float32))
            gc.collect(0)
            assert np.asarray(doubled).min() == np.asarray(doubled).max() == 2 * k
            assert np.asarray(total).min() == np.asarray(total).max() == 64 * k
    finally:
        stop.set()
        thread.join()


def test_a_foreign_result_owns_its_memory_and_inputs_are_let_go() -> None:
    jax = pytest.importorskip("jax")
    f = fuse(lambda x: x + 1)
    x = jax.numpy.ones((32, 1024), np.float32)
    result = f(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    for _ in range(20):
        f(jax.numpy.zeros((32, 1024), np.float32))
    assert np.asarray(result).min() == np.asarray(result).max() == 2


# -- arrays out -------------------------------------------------------------------------------------------------------

RESULTS: dict[str, Any] = {
    "sum": lambda x: x + 1, "view": lambda x: x.T, "slice": lambda x: x[1:], "copy": lambda x: x * 1,
    "reduction": lambda x: x.sum(), "rows": lambda x: x.sum(1), "product": lambda x: x @ x.T,
    "scan": lambda x: np.cumsum(x, 1), "sorted": lambda x: np.sort(x, 0), "places": lambda x: np.argsort(x, 1),
    "join": lambda x: np.concatenate([x, x]), "bools": lambda x: x > 3,
    "widened": lambda x: np.broadcast_to(x[0], (7, 6)),
    "named twice": lambda x: x.reshape(-1), "whole": lambda x: x[:],
}  # fmt: skip


OF_NUMPY = {"sorted", "places"}
"""Results that NumPy computes, in memory that it allocates."""


@pytest.mark.parametrize("columns", [6, 33])
def test_results_are_fresh_contiguous_and_aligned(columns: int) -> None:
    x = np.arange(4.0 * columns).reshape(4, columns)[:, :6]
    results = fuse(lambda x: [make(x) for make in RESULTS.values()])(x)
    for name, result, make in zip(RESULTS, results, RESULTS.values(), strict=True):
        assert type(result) is np.ndarray
        assert name in OF_NUMPY or result.ctypes.data % 64 == 0, name
        assert result.flags.c_contiguous, name
        assert result.flags.writeable, name
        np.testing.assert_array_equal(result, make(x), err_msg=name)
    for k, one in enumerate(results):
        assert not any(np.shares_memory(one, other) for other in [x, *results[:k]])


def test_a_result_stays_when_the_function_is_called_again() -> None:
    f = fuse(lambda x: x + 1)
    first = f(A)
    f(A * 5)
    np.testing.assert_array_equal(first, A + 1)


def test_a_full_reduction_is_an_array_without_axes() -> None:
    result = fuse(lambda x: x.sum())(A)
    assert type(result) is np.ndarray
    assert (result.shape, result.dtype, result[()]) == ((), np.float32, A.sum())


def test_an_argument_that_is_returned_is_the_same_object() -> None:
    tree = {"a": A, "b": (A.T, 3)}
    result = fuse(lambda tree: {**tree, "c": tree["a"] + 1})(tree)
    assert result["a"] is A
    assert result["b"][0] is tree["b"][0]
    assert result["b"][1] == 3


def test_a_leaf_that_is_no_array_comes_back_as_it_is() -> None:
    marker = object()
    result = fuse(lambda x: (x + 1, "text", None, marker, 2.5, x.dtype))(A)
    assert result[1:] == ("text", None, marker, 2.5, np.dtype("f4"))


def test_no_array_at_all_gives_numpy_arrays() -> None:
    result = fuse(lambda n: tracefuse.xp.arange(n) * 2)(5)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, np.arange(5) * 2)
