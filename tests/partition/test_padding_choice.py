"""Tests that products of halves with unaligned rows are padded for the library, with the values of the product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tests.ways import backend_of
from tracefuse import config
from tracefuse.compiler.executable import Executable
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracing import trace
from tracefuse.ir.extents import evaluate
from tracefuse.ir.library_kinds import Library
from tracefuse.partition.padding_choice import padded_products
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.padded_products import Padding, PaddingBounds
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.passes.small_products import operand_orders
from tracefuse.runtime.argument_leaves import classify

BOUNDS = PaddingBounds(multiple=8, least=4, work=64)
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda a, b: a @ b,
    "product with work around it": lambda a, b: np.maximum((a * 2) @ b + 1, 0),
    "second operand transposed": lambda a, b: a @ np.swapaxes(np.swapaxes(b, -1, -2).copy(), -1, -2),
    "product by einsum": lambda a, b: np.einsum("...ij,...jk->...ik", a, b),
}


def executable_of(function: Callable[..., Any], *arguments: Any) -> tuple[Executable, list[Any]]:
    """The executable of a function as a GPU runs it, in the interpreter, with small bounds; and its arguments."""
    leaves = [classify(argument, f"argument {k}") for k, argument in enumerate(arguments)]
    traced = trace(function, leaves, lambda given: (tuple(given), {}), CallRoots(None, arguments))
    fusion = run_passes(FUSION_PASSES, traced.fusion, config.resolve())
    target = backend_of("interpreter-cuda")
    small = replace(target.templates, padding=BOUNDS, small_products=None)
    return Executable(segment_fusion(fusion), replace(target, templates=small)), [arguments[k] for k in traced.sources]


def halves(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float16)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(stack=st.sampled_from([(), (3,)]), rows=st.integers(2, 20), terms=st.integers(2, 20), columns=st.integers(2, 20))
@settings(max_examples=times(5))
def test_padded_products_have_the_values_of_the_product(
    name: str, stack: tuple[int, ...], rows: int, terms: int, columns: int
) -> None:
    a, b = halves(*stack, rows, terms), halves(*stack, terms, columns, seed=1)
    executable, given_arrays = executable_of(FUNCTIONS[name], a, b)
    (result,) = executable(given_arrays)
    np.testing.assert_array_equal(result, FUNCTIONS[name](a, b))


@given(rows=st.integers(2, 20), terms=st.integers(2, 20), columns=st.integers(2, 20))
@settings(max_examples=times(12))
def test_exactly_unaligned_products_above_the_bounds_are_padded(rows: int, terms: int, columns: int) -> None:
    executable, given_arrays = executable_of(lambda a, b: a @ b, halves(rows, terms), halves(terms, columns))
    executable(given_arrays)
    plan, sizes = executable.plan_for(given_arrays)
    fusion = plan.segmentation.fusion
    node = next(node for node in fusion.nodes if isinstance(node.op, Library))
    chosen, guards = padded_products(executable.segmentation.original, sizes, BOUNDS)
    large = rows * terms * columns >= BOUNDS.work and rows >= BOUNDS.least
    padding = Padding(8, terms % 8 != 0, columns % 8 != 0)
    gains = large and (padding.columns or padding.terms) and (columns >= BOUNDS.least or not padding.terms)
    assert list(chosen.values()) == ([padding] if gains else [])
    assert all(guard.holds(sizes) for guard in guards)
    (left, order), (right, other) = operand_orders(fusion, node)
    extents = [fusion.shape_of(left)[order[-1]], fusion.shape_of(right)[other[-2]], fusion.shape_of(right)[other[-1]]]
    unaligned = [evaluate(extent, sizes) % 8 != 0 for extent in extents]
    assert unaligned == ([False] * 3 if gains else [terms % 8 != 0] * 2 + [columns % 8 != 0])


def test_products_of_other_types_are_not_padded() -> None:
    for dtype in (np.float32, np.float64, np.int32):
        a, b = np.ones((9, 9), dtype), np.ones((9, 9), dtype)
        executable, given_arrays = executable_of(lambda a, b: a @ b, a, b)
        _, sizes = executable.plan_for(given_arrays)
        assert not padded_products(executable.segmentation.original, sizes, BOUNDS)[0]
