"""The calls of cuBLASLt for products with epilogues, by a stand-in of the library that computes what they describe."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse.dtypes import DType, float16, float32
from tracefuse.errors import DeviceError
from tracefuse.passes.product_epilogues import GELU, RELU, Epilogue
from tracefuse.runtime.devices import cublas_lt
from tracefuse.runtime.devices.cublas_lt import EpilogueProduct
from tracefuse.runtime.devices.gemm_calls import matmul_form

TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
TYPE, ROWS, COLUMNS, LENGTH, COUNT, DISTANCE = "type", "rows", "columns", "length", 5, 6


class Functions:
    """The functions of the library that products call, over column-major matrices in host memory."""

    def __init__(self) -> None:
        self.objects: dict[int, dict[Any, int]] = {}
        self.destroyed: set[int] = set()
        self.alignments: list[set[int]] = []
        self.workspaces: list[int] = []
        self.algorithms, self.refused = 1, set[int]()
        self.tried: list[int] = []
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Destroy"):
            return lambda handle: self.destroyed.add(handle.value)
        if name.endswith("SetAttribute"):
            return self._set
        raise AttributeError(name)

    def _make(self, handle: Any, entries: dict[Any, int]) -> int:
        self.count += 1
        handle._obj.value = self.count
        self.objects[self.count] = entries
        return 0

    def cublasLtMatmulDescCreate(self, handle: Any, compute: Any, scale: Any) -> int:
        assert (compute.value, scale.value) == (68, 0)  # CUBLAS_COMPUTE_32F, CUDA_R_32F
        return self._make(handle, {})

    def cublasLtMatmulPreferenceCreate(self, handle: Any) -> int:
        return self._make(handle, {})

    def cublasLtMatrixLayoutCreate(self, handle: Any, kind: Any, rows: Any, columns: Any, length: Any) -> int:
        sizes = zip((TYPE, ROWS, COLUMNS, LENGTH), (kind, rows, columns, length), strict=True)
        return self._make(handle, {COUNT: 1, DISTANCE: 0, **{name: size.value for name, size in sizes}})

    def _set(self, handle: Any, attribute: Any, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.objects[handle.value][attribute.value] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        *_, preference, asked, result, found = arguments
        assert asked.value == cublas_lt.MOST_ALGORITHMS
        assert len(result) == 96 * asked.value
        for number in range(self.algorithms):
            result[96 * number] = bytes([number])
        self.workspaces.append(self.objects[preference.value][1])
        self.alignments.append({self.objects[preference.value][k] for k in (5, 6, 7, 8)})
        found._obj.value = self.algorithms
        return 0

    def cublasLtMatmul(self, *arguments: Any) -> int:
        _, described, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, *_ = arguments
        self.tried.append((ctypes.c_char * 1).from_address(algorithm.value).raw[0])
        if self.tried[-1] in self.refused:
            return 15  # CUBLAS_STATUS_NOT_SUPPORTED
        own = self.objects[described.value]
        layouts = [self.objects[layout.value] for layout in (a_layout, b_layout, c_layout, d_layout)]
        scale, share = (np.frombuffer((ctypes.c_char * 4).from_address(x.value), np.float32)[0] for x in (alpha, beta))
        for k in range(layouts[3][COUNT]):
            left, right, added, out = (
                self._matrix(address.value, layout, k)
                for address, layout in zip((a, b, c, d), layouts, strict=True)
            )  # fmt: skip
            left = left.T if own[TRANSPOSE_A] else left
            right = right.T if own[TRANSPOSE_B] else right
            result = scale * (left.astype(np.float32) @ right.astype(np.float32))
            result = result + share * added.astype(np.float32) if share else result
            if own[EPILOGUE] & 4:
                result = result + self._array(own[BIAS_POINTER], (out.shape[0],), out.dtype).astype(np.float32)[:, None]
            if own[EPILOGUE] & 2:
                result = np.maximum(result, 0)
            if own[EPILOGUE] & 32:
                result = result * (0.5 + 0.5 * np.tanh(0.7978845608 * (result + 0.044715 * result**3)))
            out[...] = result
        return 0

    def _matrix(self, address: int, layout: dict[Any, int], k: int) -> Any:
        dtype = {0: np.dtype(np.float32), 2: np.dtype(np.float16)}[layout[TYPE]]
        length, columns = layout[LENGTH], layout[COLUMNS]
        size = length * (columns - 1) + layout[ROWS]
        flat = self._array(address + k * layout[DISTANCE] * dtype.itemsize, (size,), dtype)
        strides = (dtype.itemsize, length * dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (layout[ROWS], columns), strides)

    def _array(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def stand_in() -> tuple[Any, Functions]:
    """The library with the functions above."""
    functions = Functions()
    library: Any = object.__new__(cublas_lt._LtLibrary)
    library.functions, library.device, library.handle = functions, 0, ctypes.c_void_p(1)
    library.cublas = SimpleNamespace(lock=threading.RLock(), workspace_bytes=1 << 20)
    for name in ("left", "right", "residual", "out", "bias", "workspace", "stream"):
        setattr(library, name, ctypes.c_void_p())
    return library, functions


def run(
    product: EpilogueProduct, library: Any, arrays: list[Any], sizes: tuple[int, ...], workspace: int = 5
) -> None:  # fmt: skip
    addresses = tuple(int(array.ctypes.data) for array in arrays)
    product._run(library, 0, 7, SimpleNamespace(ptr=workspace), (*addresses, *sizes))


SHAPES = [
    ((6, 5), (5, 4), False), ((6, 5), (4, 5), True), ((3, 6, 5), (3, 5, 4), False), ((3, 6, 5), (5, 4), False),
    ((3, 6, 5), (3, 4, 5), True), ((1, 5), (5, 4), False), ((6, 1), (1, 4), False), ((6, 5), (5, 1), False),
    ((2, 3, 6, 5), (2, 1, 5, 4), False), ((0, 5), (5, 4), False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
@pytest.mark.parametrize("epilogue", [
    Epilogue(), Epilogue(0.5), Epilogue(bias=True), Epilogue(residual=True), Epilogue(2.0, True, True),
    Epilogue(bias=True, activation=RELU), Epilogue(activation=RELU),
    Epilogue(bias=True, residual=True, activation=GELU),
], ids=str)  # fmt: skip
def test_a_call_describes_the_product_and_its_epilogue(epilogue: Epilogue, dtype: DType) -> None:
    random, kind = np.random.default_rng(0), dtype.numpy
    for left, right, transposed in SHAPES:
        library, _ = stand_in()
        form = matmul_form(len(left), len(right), transposed)
        a, b = (random.normal(size=shape).astype(kind) for shape in (left, right))
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        wanted = epilogue.scale * (wide_a @ (np.swapaxes(wide_b, -1, -2) if transposed else wide_b))
        bias, residual = (random.normal(size=shape).astype(kind) for shape in (wanted.shape[-1:], wanted.shape))
        wanted = wanted + bias * epilogue.bias + residual * epilogue.residual
        wanted = np.maximum(wanted, 0) if epilogue.activation == RELU else wanted
        if epilogue.activation == GELU:
            wanted = wanted * (0.5 + 0.5 * np.tanh(0.7978845608 * (wanted + 0.044715 * wanted**3)))
        out = np.full(wanted.shape, np.nan, kind)
        added = [x for x, has in ((bias, epilogue.bias), (residual, epilogue.residual)) if has]
        run(EpilogueProduct(dtype, form, epilogue), library, [a, b, *added, out], (*left, *right))
        np.testing.assert_allclose(out, wanted, rtol=4e-3 if dtype is float16 else 1e-5, atol=4e-3)


def test_calls_are_prepared_once_for_sizes_and_an_alignment() -> None:
    library, functions = stand_in()
    product = EpilogueProduct(float32, matmul_form(2, 2, False), Epilogue(bias=True))
    memory = np.zeros(4096, np.float32)
    start = -(memory.ctypes.data // 4) % 64
    places = [memory[start + k * 64 :][:16].reshape(4, 4) for k in range(4)]
    for _ in range(3):
        run(product, library, [places[0], places[1], places[2][0], places[3]], (4, 4, 4, 4))
    assert functions.alignments == [{256}]
    run(product, library, [memory[start + 1 :][:16], places[1], places[2][0], places[3]], (4, 4, 4, 4))
    assert functions.alignments == [{256}, {4}]
    assert len(functions.objects) == 2 * 5  # a description, three layouts and a preference for each


def test_a_bias_at_an_odd_address_is_read_from_the_end_of_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cublas_lt.cuda_arrays, "copier",
        lambda size: lambda stream: lambda source, target: ctypes.memmove(target, source, size),
    )  # fmt: skip
    library, functions = stand_in()
    product = EpilogueProduct(float16, matmul_form(2, 2, False), Epilogue(bias=True))
    left, right, out = np.eye(3, dtype=np.float16), np.ones((3, 3), np.float16), np.zeros((3, 3), np.float16)
    workspace, memory = np.zeros(1 << 20, np.uint8), np.arange(20, dtype=np.float16)
    start = 1 + -memory.ctypes.data % 16 // 2
    for bias in (memory[start:][:3], memory[start + 8 :][:3], memory[start + 7 :][:3]):
        run(product, library, [left, right, bias, out], (3, 3, 3, 3), int(workspace.ctypes.data))
        np.testing.assert_array_equal(out, 1 + np.broadcast_to(bias, (3, 3)))
    assert functions.workspaces == [(1 << 20) - 256, 1 << 20]
    np.testing.assert_array_equal(workspace[-256:].view(np.float16)[:3], memory[start + 8 :][:3])


def test_an_algorithm_that_does_not_take_the_addresses_is_passed_over_once() -> None:
    library, functions = stand_in()
    functions.algorithms, functions.refused = 3, {0, 1}
    product = EpilogueProduct(float32, matmul_form(2, 2, False), Epilogue(residual=True))
    left, right, residual = (np.full((2, 2), value, np.float32) for value in (1, 2, 3))
    out = np.zeros((2, 2), np.float32)
    for _ in range(2):
        run(product, library, [left, right, residual, out], (2, 2, 2, 2))
    np.testing.assert_array_equal(out, 7)
    assert functions.tried == [0, 1, 2, 2]
    functions.refused = {2}
    with pytest.raises(DeviceError, match="status 15"):
        run(product, library, [left, right, residual, out], (2, 2, 2, 2))


def test_what_describes_a_call_is_destroyed_with_it() -> None:
    library, functions = stand_in()
    product = EpilogueProduct(float32, matmul_form(2, 2, False), Epilogue(residual=True))
    arrays = [np.zeros((2, 2), np.float32) for _ in range(4)]
    run(product, library, arrays, (2, 2, 2, 2))
    del product
    assert functions.destroyed == functions.objects.keys()


def test_a_product_without_an_algorithm_raises() -> None:
    library, functions = stand_in()
    functions.algorithms = 0
    product = EpilogueProduct(float32, matmul_form(2, 2, False), Epilogue(bias=True))
    arrays = [np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32), np.zeros(2, np.float32), np.zeros((2, 2))]
    with pytest.raises(DeviceError, match="no algorithm for cuBLASLt: bias of"):
        run(product, library, arrays, (2, 2, 2, 2))
