"""Small products of matrices in tiles on a GPU: edges, layouts, types, and what one kernel computes as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from segments.lazy_dataclasses import replace
from tests.ways import backend_of
from tracefuse import ShapeDtype, fuse, grad, options
from tracefuse.compiler.executable import Executable
from tracefuse.dtypes import bfloat16, float16, float32
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.schedule.gpu import gpu_matrix_product, gpu_packed_product, gpu_tall_product, gpu_templates
from tracefuse.schedule.gpu.gpu_product import NARROW, WIDE
from tracefuse.schedule.gpu.gpu_product_tiles import ROWS

TOLERANCES = {np.float64: 1e-14, np.float32: 1e-6, np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3}


def matrices(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    random = np.random.default_rng(sum(map(sum, shapes)))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def executable(function: Callable[..., Any], arrays: list[Any]) -> Executable:
    """The function for a GPU whose kernels the interpreter runs."""
    return Executable(segment_fusion(fuse(function).definition(*arrays).fusion), backend_of("interpreter-cuda"))


def check(
    function: Callable[..., Any], *arrays: Any, tolerance: float = 1e-6, template: str = "product"
) -> None:  # fmt: skip
    """Compares the results of one kernel with NumPy in float64."""
    own = executable(function, [*arrays])
    plan = own.plan_for([*arrays])[0]
    assert [segment.template for segment in plan.segments] == [template]
    expected = function(*(a.astype(np.float64) for a in arrays))
    for result, wanted in zip(own([*arrays]), expected if isinstance(expected, tuple) else (expected,), strict=True):
        error = np.abs(result.astype(np.float64) - wanted).max()
        assert result.shape == wanted.shape
        assert error <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tiles_and_terms_that_the_sizes_do_not_fill(dtype: Any) -> None:
    for rows, terms, columns in ((ROWS + 1, 17, NARROW.columns + 33), (17, NARROW.terms + 44, 37), (19, 9, 40)):
        check(lambda a, b: a @ b, *matrices((rows, terms), (terms, columns), dtype=dtype), tolerance=TOLERANCES[dtype])


def test_wide_tiles_of_results_that_have_many() -> None:
    check(lambda a, b: a @ b, *matrices((9, 60, WIDE.terms + 3), (9, WIDE.terms + 3, 2 * WIDE.columns - 1)))


def test_operands_are_read_through_movements_and_regrouped_axes() -> None:
    check(lambda a, b: a.T @ b[:, ::-1].T, *matrices((70, 19), (40, 70)))
    heads = lambda x, y: x.reshape(2, 30, 3, 16).swapaxes(1, 2) @ y.reshape(2, 30, 3, 16).transpose(0, 2, 3, 1)  # noqa: E731
    check(heads, *matrices((2, 30, 48), (2, 30, 48)))
    check(lambda x, w: x.transpose(0, 2, 1, 3).reshape(2, 20, 48) @ w, *matrices((2, 3, 20, 16), (48, 33)))
    check(lambda a, b: a @ b, *matrices((3, 1, 20, 30), (2, 30, 33)))


def test_terms_of_several_axes_are_one_sum() -> None:
    check(lambda x, g: np.tensordot(x, g, ((0, 1), (0, 1))), *matrices((3, 70, 40), (3, 70, 33)))


def test_elementwise_work_after_a_product_is_in_its_kernel() -> None:
    def layer(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        y = a @ b + bias
        return np.maximum(y, 0) + residual, np.tanh(y)

    check(layer, *matrices((2, 20, 30), (30, 40), (40,), (2, 20, 40)), tolerance=4e-6)


def test_a_transformer_layer_is_products_and_rows_alone_and_explains_itself() -> None:
    def layer(x: Any, wq: Any, wo: Any) -> Any:
        n, s, d = x.shape
        q, k, v = (x @ wq).reshape(n, s, 3, 4, d // 4).transpose(2, 0, 3, 1, 4)
        scores = q @ k.transpose(0, 1, 3, 2) * 0.25
        scores = scores - scores.mean(-1, keepdims=True)  # no softmax, which would be attention
        mixed = (scores / np.sqrt((scores * scores).mean(-1, keepdims=True) + 1)) @ v
        return x + mixed.transpose(0, 2, 1, 3).reshape(n, s, d) @ wo

    arguments = [ShapeDtype(shape, np.float32) for shape in ((4, 64, 64), (64, 192), (64, 64))]
    with options(target="cuda"):
        explanation = fuse(layer).explain(*arguments)
    assert explanation.templates == ("product", "product", "row", "product", "product")
    assert "product" in repr(explanation)


def test_large_products_and_those_of_few_terms_are_no_tiles() -> None:
    for rows, terms, columns in ((1024, 512, 512), (512, 1024, 64), (64, 6, 64), (4, 64, 64)):
        arguments = [ShapeDtype(shape, np.float32) for shape in ((rows, terms), (terms, columns))]
        with options(target="cuda"):
            assert "product" not in fuse(lambda a, b: a @ b).explain(*arguments).templates


def test_a_gradient_of_a_weight_sums_over_all_rows_of_a_stack_in_one_product() -> None:
    def loss(w: Any, x: Any) -> Any:
        return ((x @ w) ** 2).sum()

    x, w = matrices((3, 20, 30), (30, 40))
    gradient = fuse(grad(loss))
    np.testing.assert_allclose(gradient(w, x), np.einsum("bsk,bsn->kn", x, 2 * (x @ w)), rtol=1e-4, atol=1e-4)
    assert gradient.explain(w, x).templates.count("product") == 2
    assert "row" not in gradient.explain(w, x).templates


def test_kernels_compile() -> None:
    kernels = []
    for dtype in TOLERANCES:
        for shapes in (((40, 70), (70, 50)), ((640, 300), (300, 96))):
            plan = executable(lambda a, b: np.maximum(a @ b, 0), matrices(*shapes, dtype=dtype)).plan_for(
                matrices(*shapes, dtype=dtype)
            )[0]
            kernels += [f.kernel for s in plan.segments for f in s.functions if hasattr(f, "kernel")]
    assert all(compile_many(kernels, architecture="sm_80"))


@pytest.fixture
def small_ones_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of few multiplications take the templates of large ones."""
    bounds = replace(gpu_templates.TILED_PRODUCTS, most=dict.fromkeys((float32, float16, bfloat16), 1), narrow_rows=1)
    monkeypatch.setattr(gpu_templates, "TILED_PRODUCTS", bounds)
    for module in (gpu_tall_product, gpu_matrix_product):
        monkeypatch.setattr(module, "MOST_SMALL", 1)


@pytest.mark.usefixtures("small_ones_are_large")
def test_narrow_products_of_halves_in_unaligned_rows_are_kernels() -> None:
    arrays = matrices((2, 120, 17), (2, 17, 17), (17,), dtype=ml_dtypes.bfloat16)
    check(lambda a, b, c: np.maximum(a @ b + c, 0), *arrays, tolerance=8e-3, template="matrix product")


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dtype", "turns"),
    [
        (140, 17, 17, ml_dtypes.bfloat16, 1),
        (301, 103, 47, np.float16, 8),
        (517, 66, 9, np.float16, 8),
        (129, 251, 63, np.float16, 2),
    ],
)
def test_rows_of_halves_that_begin_anywhere_are_copied_as_they_follow_each_other(
    rows: int, terms: int, columns: int, dtype: Any, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_packed_product, "TURNS", turns)
    monkeypatch.setattr(gpu_packed_product, "TILES_OF_MULTIPROCESSOR", 0)
    arrays = matrices((2, rows, terms), (2, terms, columns), (columns,), dtype=dtype)
    check(lambda a, b, c: np.maximum(a @ b + c, 0), *arrays, tolerance=TOLERANCES[dtype], template="packed product")


@pytest.mark.usefixtures("small_ones_are_large")
def test_rows_with_gaps_are_not_packed() -> None:
    a, b = matrices((140, 41), (33, 17), dtype=np.float16)
    check(lambda a, b: a[:, 5:38] @ b, a, b, tolerance=1e-3, template="matrix product")
    check(lambda a, b: a.reshape(-1)[: 130 * 33].reshape(130, 33) @ b, a, b, tolerance=1e-3, template="matrix product")


@pytest.mark.usefixtures("small_ones_are_large")
def test_narrow_products_read_operands_through_movements_and_many_terms_in_parts() -> None:
    a, b = matrices((70, 2, 3, 43), (10, 70), dtype=np.float16)
    check(lambda a, b: a.transpose(1, 2, 3, 0) @ b.T, a, b, tolerance=1e-3, template="matrix product")


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize(("terms", "columns"), [(17, 33), (33, 48), (50, 70), (16, 9)])
def test_tall_products_and_the_work_after_them_are_one_kernel(terms: int, columns: int) -> None:
    arrays = matrices((2, 131, terms), (2, terms, columns), (columns,))
    check(lambda a, b, c: (a @ b + c) * (a @ b + c > 0), *arrays, template="tall product")


def rectified(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(a @ b + c, 0)


def test_work_that_a_library_computes_in_its_call_makes_no_tall_product() -> None:
    for terms, scale, templates in ((64, 1, ("library",)), (64, 2, ("tall product",)), (32, 1, ("tall product",))):
        shapes = ((40_000, terms), (terms, 128), (128,))
        with options(target="cuda"):
            fused = fuse(rectified if scale == 1 else lambda a, b, c: 2 * rectified(a, b, c))
            assert fused.explain(*(ShapeDtype(shape, np.float32) for shape in shapes)).templates == templates


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize(("terms", "columns"), [(24, 34), (33, 40), (72, 17), (64, 63)])
def test_rows_of_halves_that_are_aligned_are_loaded_in_wide_accesses(terms: int, columns: int) -> None:
    a, b = matrices((125, terms), (terms, columns), dtype=np.float16)
    check(lambda a, b: np.maximum(a @ b, 0), a, b, tolerance=1e-3, template="matrix product")
    check(lambda a, b: np.maximum(a[:, ::-1] @ b, 0), a, b, tolerance=1e-3, template="matrix product")


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dtype"),
    [
        (300, 128, 17, np.float16),
        (270, 200, 23, ml_dtypes.bfloat16),
        (256, 32, 9, np.float16),
        (257, 192, 37, np.float16),
    ],
)
def test_many_rows_of_whole_accesses_go_to_tensor_cores_from_memory(
    rows: int, terms: int, columns: int, dtype: Any
) -> None:
    arrays = matrices((2, rows, terms), (2, terms, columns), (columns,), dtype=dtype)
    check(lambda a, b, c: np.maximum(a @ b + c, 0), *arrays, tolerance=TOLERANCES[dtype], template="streamed product")


@pytest.mark.usefixtures("small_ones_are_large")
@pytest.mark.parametrize(("terms", "template"), [(104, "streamed product"), (101, "packed product")])
def test_terms_beyond_the_end_do_not_reach_sums(terms: int, template: str) -> None:
    a, b = matrices((256, terms), (terms, 10), dtype=np.float16)
    a[3, -1] = b[-1, 4] = np.inf
    own = executable(lambda a, b: a @ b, [a, b])
    assert own.plan_for([a, b])[0].segments[0].template == template
    (result,) = own([a, b])
    finite = np.ones((256, 10), bool)
    finite[3], finite[:, 4] = False, False
    np.testing.assert_array_equal(np.isfinite(result), finite)


def test_aligned_or_wide_products_of_halves_are_calls_of_a_library() -> None:
    for terms, columns in ((64, 32), (33, 65)):
        a, b = matrices((3, 11000, terms), (3, terms, columns), dtype=np.float16)
        plan = executable(lambda a, b: a @ b, [a, b]).plan_for([a, b])[0]
        assert [segment.template for segment in plan.segments] == ["library"]
