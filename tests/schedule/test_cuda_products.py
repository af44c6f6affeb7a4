"""Products of halves with what follows from them, as one kernel of a GPU: values, races, what stays a library call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.attention_lowering import Program, fusion_of
from tests.schedule.cuda_lowering import H200, Case
from tracefuse.ir.reference import extent_values
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.partition.segmentation import for_sizes, segment_fusion
from tracefuse.schedule.choose import choose
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes


def rectified(a: Any, b: Any, bias: Any) -> Any:
    y = a @ b + bias
    return y * (y > 0)


def with_residual(a: Any, b: Any, residual: Any) -> Any:
    return np.tanh((a @ b).astype(np.float32)) + residual


def with_transposed_weight(a: Any, b: Any, bias: Any) -> Any:
    return (a @ b.swapaxes(-1, -2)) * 0.5 + bias


def program(function: Callable[..., Any], *arrays: Any, aligned: bool = True) -> Program:
    fusion = fusion_of(function, *arrays)
    starts = frozenset(fusion.tensor_inputs) if aligned else frozenset[int]()
    segmentation, _ = for_sizes(
        segment_fusion(fusion), extent_values(fusion, arrays), sums=H200.small_products, padding=H200.padding,
        fused_products=H200.fused_products, aligned=starts,
    )  # fmt: skip
    return Program(fusion, arrays, segmentation)


def lowered(split: Program, aligned: bool = True) -> Case:
    """The segment of a program that has one, lowered."""
    (part,) = split.segmentation.segments
    sizes = extent_values(split.fusion, split.arguments)
    given = dict(zip(split.fusion.inputs, split.arguments, strict=True))
    arrays = [sizes[n] if n < 0 else given[n] for n in part.segment.original_inputs]
    fusion = part.fusion
    strides = {n: contiguous_strides(fusion.shape_of(n)) for n in fusion.tensor_inputs}
    starts = frozenset(fusion.tensor_inputs) if aligned else frozenset[int]()
    values = dict(extent_values(fusion, arrays))
    choice = choose(fusion, part.rule, strides, Sizes(values, {}), H200, name="k", aligned=starts)
    assert choice.template.name == "product"
    return Case(fusion, tuple(arrays), choice.lower(), values, {})


def halves(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("stack", "rows", "terms", "columns", "aligned"),
    [((2,), 70, 37, 65, True), ((), 64, 16, 64, True), ((2, 3), 33, 48, 24, True), ((), 40, 32, 72, False)],
)  # fmt: skip
def test_a_product_and_what_follows_from_it_are_one_kernel(
    stack: tuple[int, ...], rows: int, terms: int, columns: int, aligned: bool
) -> None:
    arrays = halves(*stack, rows, terms), halves(*stack, terms, columns, seed=1), halves(columns, seed=2)
    case = lowered(program(rectified, *arrays, aligned=aligned), aligned)
    (result,) = case.run()
    reference = rectified(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(result, reference, atol=2e-2, rtol=2e-3)
    assert case.guards_hold()
    assert len(compile_many(case.kernels, architecture="sm_90")) == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_operands_may_be_transposed_or_shared_by_a_stack_and_results_wider(dtype: Any) -> None:
    a, b = halves(2, 34, 20, dtype=dtype), halves(18, 20, seed=1, dtype=dtype)
    (result,) = lowered(program(with_transposed_weight, a, b, halves(18, seed=2, dtype=dtype))).run()
    wide = with_transposed_weight(a.astype(float), b.astype(float), halves(18, seed=2, dtype=dtype).astype(float))
    np.testing.assert_allclose(result.astype(float), wide, atol=5e-2, rtol=2e-2)
    residual = halves(2, 34, 18, seed=3).astype(np.float32)
    (result,) = lowered(program(with_residual, a, b.T.copy(), residual)).run()
    assert result.dtype == np.float32
    expected = np.tanh(a.astype(float) @ b.T.astype(float)) + residual
    np.testing.assert_allclose(result, expected, atol=1e-2 if dtype is np.float16 else 5e-2)


def test_few_tiles_of_rows_are_split_by_columns_and_many_are_not() -> None:
    few = lowered(program(rectified, halves(64, 16), halves(16, 200, seed=1), halves(200, seed=2)))
    many = lowered(program(rectified, *(np.empty(s, np.float16) for s in ((70_000, 16), (16, 200), (200,)))))
    counts = [
        case.integer(next(count for s, count in case.lowered.derived.items() if s.name == "blocks"))
        for case in (few, many)
    ]
    assert counts == [4, -(-70_000 // 64)]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: a @ b, ((64, 32), (32, 64))),
        (lambda a, b: np.exp(a @ b), ((64, 200), (200, 64))),
        (lambda a, b: np.exp(a @ b), ((8, 100), (100, 64))),
        (lambda a, b: ((a @ b), np.exp(a @ b)), ((64, 100), (100, 64))),
        (lambda a, b: (a @ b) / (a @ b).sum(-1, keepdims=True), ((64, 100), (100, 64))),
    ],
    ids=["nothing follows", "many terms", "few rows", "the product is read elsewhere", "its sums are read"],
)
def test_other_products_stay_library_calls(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [halves(*shape, seed=k) for k, shape in enumerate(shapes)]
    assert "library" in {part.template for part in program(function, *arrays).segmentation.segments}


def test_layers_with_residuals_are_one_kernel_each() -> None:
    def layers(x: Any, w: Any) -> Any:
        for _ in range(5):
            x = x + np.tanh(x @ w)
        return x

    split = program(layers, halves(64, 48), halves(48, 48, seed=1))
    assert [part.template for part in split.segmentation.segments] == ["product"] * 5
