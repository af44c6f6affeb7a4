"""Tests of products as sums: the values of the library op, for every arrangement of axes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import FusionDefinition
from tracefuse.ir.reference import evaluate
from tracefuse.partition.product_choice import small_products
from tracefuse.passes.small_products import ProductBounds, with_sums


@st.composite
def contractions(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Attributes of contract_axes, and shapes of its operands."""
    groups = [draw(st.lists(st.integers(1, 3), max_size=2)) for _ in range(4)]
    stack, rows, summed, columns = groups
    summed = summed or [2]
    orders = [draw(st.permutations(range(len(stack) + len(summed) + len(free)))) for free in (rows, columns)]
    ordered = ((*stack, *rows, *summed), (*stack, *summed, *columns))
    shapes = [
        tuple(shape[order.index(k)] for k in range(len(order))) for order, shape in zip(orders, ordered, strict=True)
    ]
    attributes = {"a_dims": tuple(orders[0]), "b_dims": tuple(orders[1])}
    return attributes | {"stack_axes": len(stack), "summed_axes": len(summed)}, shapes[0], shapes[1]


@settings(max_examples=times(20), deadline=None)
@given(contractions())
def test_a_contraction_as_a_sum_has_the_values_of_the_library(case: Any) -> None:
    attributes, *shapes = case
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor(shape=[-1] * len(shape), dtype="float64") for shape in shapes)
        fd.add_output(fd.ops.contract_axes(a, b, **attributes))
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 5, shape).astype(np.float64) for shape in shapes]
    fusion = fd.fusion
    sizes = {key: arrays[fusion.inputs.index(value)].shape[axis] for key, value, axis in fusion.axis_ids()}
    work = math.prod(itertools.chain(*shapes))
    chosen, guards = small_products(fusion, sizes, ProductBounds(0, 0, 0, 0, work=work))
    assert chosen == set(fusion.outputs)
    assert all(guard.holds(sizes) for guard in guards)
    sums, _ = with_sums(fusion, chosen)
    assert not any(node.op is fusion.nodes[-1].op for node in sums.nodes)
    np.testing.assert_array_equal(evaluate(sums, arrays)[0], evaluate(fusion, arrays)[0])


def test_an_outer_product_is_no_library_call() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1], dtype="float64")
        y = fd.define_tensor(shape=[1, -1], dtype="float64")
        fd.add_output(fd.ops.matmul(x, y))
    assert small_products(fd.fusion, {}, ProductBounds(0, 0, 0, 0)) == (frozenset(fd.fusion.outputs), ())
