"""Sums of few terms on a GPU, and small matrix products, which become such sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import case, numbers
from tests.session.samples import times
from tests.ways import backend_of
from tracefuse import config, rules
from tracefuse.compiler.executable import Executable
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracing import trace
from tracefuse.ir.reference import extent_values
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.partition.segments_for_sizes import SizedChoices, for_sizes
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.argument_leaves import classify
from tracefuse.schedule.gpu.gpu_templates import SMALL_PRODUCTS, gpu_templates


def distances(x: Any, y: Any) -> Any:
    difference = x[:, None, :] - y[None, :, :]
    return np.sqrt((difference * difference).sum(axis=-1))


def products(a: Any, b: Any) -> Any:
    return (a[:, :, :, None] * b[:, None, :, :]).sum(2)


def forces(p: Any, m: Any) -> Any:
    difference = p[None] - p[:, None]
    squares = (difference * difference).sum(axis=-1) + 0.01
    return (difference * (m / squares)[..., None]).sum(axis=1)


SMALL = gpu_templates("sm_90", 2)
"""A GPU that few threads fill."""

FEW: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "distances of many points": (distances, (numbers(150, 3), numbers(400, 3, seed=1)), "few terms"),
    "distances in as many dimensions as fit": (distances, (numbers(150, 16), numbers(101, 16, seed=1)), "few terms"),
    "distances of few points": (distances, (numbers(20, 3), numbers(36, 3, seed=1)), "column"),
    "distances in one more dimension": (distances, (numbers(20, 17), numbers(41, 17, seed=1)), "row"),
    "matrices": (products, (numbers(800, 5, 3), numbers(800, 3, 5, seed=1)), "few terms"),
    "matrices that are read wide": (products, (numbers(90, 8, 8), numbers(90, 8, 8, seed=1)), "column"),
    "rows by one matrix": (lambda a, b: (a[:, :, None] * b).sum(1), (numbers(900, 3), numbers(3, 3)), "column"),
    "few matrices": (products, (numbers(20, 5, 7), numbers(20, 7, 5, seed=1)), "column"),
    "few rows that one thread loads at once": (lambda x: x.sum(0), (numbers(7, 5000),), "column"),
}  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_sums_of_few_terms_give_the_reference_and_compile(name: str) -> None:
    function, arguments, template = FEW[name]
    lowered = case(function, *arguments, target=SMALL).check()
    assert lowered.lowered.template == template
    assert all(compile_many(lowered.kernels, architecture="sm_90"))


def test_what_all_rows_of_a_thread_read_is_loaded_before_them() -> None:
    function, arguments, _ = FEW["distances of many points"]
    (kernel,) = case(function, *arguments, target=SMALL).kernels
    rows = next(s for s in kernel.body if isinstance(s, ir.For) and s.kind == "serial")
    assert "T1" not in repr(rows)
    assert "T0" in repr(rows)


@settings(max_examples=times(15))
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 33), st.booleans())
def test_pairs_of_any_number(first: int, second: int, terms: int, is_double: bool) -> None:
    dtype = np.float64 if is_double else np.float32
    case(distances, numbers(first, terms, dtype=dtype), numbers(second, terms, dtype=dtype, seed=1)).check()


# ---------------------------------------------------------------------------------------------------------------------
# products


SHAPES = [
    ((7, 3), (3,)), ((3,), (3, 5)), ((3,), (3,)), ((5, 7, 3), (3, 4)), ((5, 7, 3), (5, 3, 4)), ((5, 7, 3), (1, 3, 4)),
    ((3,), (6, 3, 4)), ((6, 2, 3), (3,)), ((2, 1, 3, 4), (5, 4, 3)), ((4, 3, 0), (4, 0, 2)), ((4, 1, 1), (4, 1, 1)),
    ((5, 7, 17), (5, 17, 4)), ((9, 9), (9, 3)),
]  # fmt: skip
DTYPES = (np.float32, np.float16, np.int8, np.int32, np.float64, np.complex64, np.bool_)


def fused_on_a_gpu(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """The result of a function as the interpreter computes what a GPU runs, and the kinds of its segments."""
    leaves = [classify(argument, f"argument {k}") for k, argument in enumerate(arguments)]
    traced = trace(function, leaves, lambda given: (tuple(given), {}), CallRoots(None, arguments))
    fusion = run_passes(FUSION_PASSES, traced.fusion, config.resolve())
    executable = Executable(segment_fusion(fusion), backend_of("interpreter-cuda"))
    given = [arguments[k] for k in traced.sources]
    (result,) = executable(given)
    _, sizes = executable.plan_for(given)
    split, _ = for_sizes(executable.segmentation, sizes, choices=SizedChoices(sums=SMALL_PRODUCTS))
    return result, [part.template for part in split.segments]


def is_small(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> bool:
    if dtype is np.bool_:
        return False
    terms, columns = a[-1], b[-1] if len(b) > 1 else 1
    if len(b) < 3:
        return max(terms, columns) <= SMALL_PRODUCTS.alone
    return terms <= SMALL_PRODUCTS.terms and columns <= SMALL_PRODUCTS.columns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_small_products_are_sums_with_the_value_and_the_type_of_the_product(shapes: Any, dtype: Any) -> None:
    a, b = ((numbers(*shape, seed=k) * 3).astype(dtype) for k, shape in enumerate(shapes))
    result, kinds = fused_on_a_gpu(lambda a, b: a @ b, a, b)
    expected = a @ b
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    tolerance = 4e-3 if dtype is np.float16 else 1e-5
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=10 * tolerance)
    assert ("library" in kinds) != is_small(*shapes, dtype)


def test_small_products_of_zeros_have_the_sign_of_the_product() -> None:
    a, b = -np.zeros((5, 1), np.float32), np.array([[1, -1, 2]], np.float32)
    result, kinds = fused_on_a_gpu(lambda a, b: a @ b, a, b)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(a @ b))
    assert "library" not in kinds


@pytest.mark.parametrize("text", ["nij,njk->nik", "nij,nkj->nik", "nij,njk->nki", "ni,nij->nj"])
def test_small_products_of_permuted_operands_join_the_work_around_them(text: str) -> None:
    left, right = text.split("->")[0].split(",")
    a, b = numbers(*(4 for _ in left)), numbers(*(4 for _ in right), seed=1)
    result, kinds = fused_on_a_gpu(lambda a, b: np.einsum(text, a * 2, b) + 1, a, b)
    np.testing.assert_allclose(result, np.einsum(text, a * 2, b) + 1, rtol=1e-5, atol=1e-5)
    assert kinds == ["reduction"]


def test_guards_keep_the_plan_of_small_products_from_large_ones() -> None:
    for shapes in (((5, 4, 3), (5, 3, 4)), ((5, 4, 30), (5, 30, 4)), ((2, 70, 3), (2, 3, 4))):
        a, b = (numbers(*shape) for shape in shapes)
        result, _ = fused_on_a_gpu(lambda a, b: a @ b, a, b)
        np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-5)


def test_no_terms_are_stored_where_a_predicate_forbids_merges() -> None:
    a, b = numbers(5, 4, 3), numbers(5, 3, 4)
    leaves = [classify(argument, "x") for argument in (a, b)]
    traced = trace(lambda a, b: a @ b, leaves, lambda given: (tuple(given), {}), CallRoots(None, (a, b)))
    apart = segment_fusion(traced.fusion, merge=rules.one_op_a_segment)
    split, guards = for_sizes(apart, extent_values(traced.fusion, [a, b]), choices=SizedChoices(sums=SMALL_PRODUCTS))
    assert [part.template for part in split.segments] == ["library"]
    assert not guards
