"""Products of two matrices by cuBLAS, for every type and way to lie in memory, on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import FusionDefinition, fuse
from tracefuse.dtypes import int32
from tracefuse.runtime.devices import cublas, cuda_arrays

cupy = (
    pytest.importorskip("cupy", reason="no GPU: CuPy cannot be imported") if cuda_arrays.unavailable() is None else None
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cupy is None, reason=f"no GPU: {cuda_arrays.unavailable()}")]

UNITS = {np.float64: 2.0**-52, np.float32: 2.0**-23, np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: cupy.ascontiguousarray(x.T).T,
    "rows apart": lambda x: cupy.concatenate([x, x], 1)[:, : x.shape[1]],
    "columns apart": lambda x: cupy.repeat(x, 2, 1)[:, ::2],
    "broadcast": lambda x: cupy.broadcast_to(x[:1], x.shape),
    "backwards": lambda x: x[::-1],
}


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_products_of_matrices_in_every_layout(left: str, right: str, dtype: Any) -> None:
    random = np.random.default_rng(0)

    def both(a: Any, b: Any, c: Any) -> Any:
        return a @ b, np.matmul(a, c.T)

    for m, k, n in ((5, 7, 3), (1, 4, 1), (33, 1, 2), (0, 3, 2), (3, 0, 2)):
        a, b, c = (cupy.asarray(random.normal(size=s).astype(dtype)) for s in ((m, k), (k, n), (n, k)))
        a, b, c = LAYOUTS[left](a), LAYOUTS[right](b), LAYOUTS[right](c)
        wide = [x.get().astype(np.float64) for x in (a, b, c)]
        bound = 4 * (k + 1) * UNITS[dtype]
        for own, x, y in zip(fuse(both)(a, b, c), (wide[0], wide[0]), (wide[1], wide[2].T), strict=True):
            assert own.flags.c_contiguous
            assert own.dtype == np.dtype(dtype)
            error = np.abs(own.get().astype(np.float64) - x @ y)
            assert np.all(error <= bound * (np.abs(x) @ np.abs(y)) + 1e-30)


def test_linear_is_a_product_with_the_transposed_weight() -> None:
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([-1, -1], True) for _ in range(2))
        fd.add_output(fd.ops.linear(x, w))
    random = np.random.default_rng(1)
    a, b = (random.normal(size=s).astype(np.float32) for s in ((6, 8), (5, 8)))
    np.testing.assert_allclose(fd.execute([cupy.asarray(a), cupy.asarray(b)])[0].get(), a @ b.T, rtol=1e-5)


def test_products_run_on_the_current_stream() -> None:
    product = fuse(lambda a, b: (a @ b) + 1)
    a = cupy.full((700, 700), 0.5, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = a
        for _ in range(20):
            x = product(x, a) * (1 / 350)
        found = x.get()
    x = a.get().astype(np.float64)
    for _ in range(20):
        x = (x @ a.get() + 1) / 350
    np.testing.assert_allclose(found, x, rtol=1e-4)


def test_types_that_cublas_lacks_go_through_cupy() -> None:
    assert not cublas.supports(int32)
    a = cupy.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(fuse(lambda a: a @ a.T)(a).get(), a.get() @ a.get().T)


@pytest.mark.parametrize("dtype", UNITS, ids=lambda d: np.dtype(d).name)
def test_products_of_stacks_with_broadcast_and_permuted_batches(dtype: Any) -> None:
    random = np.random.default_rng(2)
    shapes = [
        ((6, 5, 7), (6, 7, 3)), ((2, 3, 5, 7), (7, 3)), ((5, 7), (4, 7, 3)), ((2, 1, 5, 7), (1, 3, 7, 3)),
        ((1, 5, 7), (1, 7, 3)), ((0, 5, 7), (0, 7, 3)), ((3, 5, 0), (3, 0, 2)), ((70, 1, 2, 2), (1, 3, 2, 2)),
    ]  # fmt: skip
    for first, second in shapes:
        a, b = (cupy.asarray(random.normal(size=s).astype(dtype)) for s in (first, second))
        wide = [x.get().astype(np.float64) for x in (a, b)]
        bound = 4 * (first[-1] + 1) * UNITS[dtype] * (np.abs(wide[0]) @ np.abs(wide[1])) + 1e-30
        last = cupy.ascontiguousarray(b.swapaxes(-1, -2))
        outer = cupy.ascontiguousarray(cupy.moveaxis(a, 0, -1))
        products = fuse(lambda a, b, last, outer: (a @ b, a @ last.swapaxes(-1, -2), np.moveaxis(outer, -1, 0) @ b))
        for result in products(a, b, last, outer):
            assert result.flags.c_contiguous
            assert result.dtype == np.dtype(dtype)
            assert result.shape == (wide[0] @ wide[1]).shape
            assert np.all(np.abs(result.get().astype(np.float64) - wide[0] @ wide[1]) <= bound)


@pytest.mark.parametrize(
    ("terms", "columns", "dtype", "template"),
    [
        (17, 70, np.float32, "tall product"),
        (64, 23, np.float32, "tall product"),
        (128, 34, np.float16, "streamed product"),
        (67, 64, np.float16, "packed product"),
        (72, 63, np.float16, "matrix product"),
    ],
)
def test_products_of_many_rows_and_the_work_after_them(terms: int, columns: int, dtype: Any, template: str) -> None:
    random = np.random.default_rng(3)
    shapes = ((3, 15_001, terms), (3, terms, columns), (columns,))
    a, b, c = (cupy.asarray(random.normal(size=s).astype(dtype)) for s in shapes)
    fused = fuse(lambda a, b, c: np.maximum(a @ b + c, 0) * 2)
    assert fused.explain(a, b, c).templates == (template,)
    wide = [x.get().astype(np.float64) for x in (a, b, c)]
    expected = np.maximum(wide[0] @ wide[1] + wide[2], 0) * 2
    bound = 8 * (terms + 2) * UNITS[dtype] * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2]))
    assert np.all(np.abs(fused(a, b, c).get().astype(np.float64) - expected) <= bound)
