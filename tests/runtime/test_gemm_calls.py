"""Calls of a BLAS library that compute products of arrays, simulated on flat memory."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from tracefuse.runtime.devices.gemm_calls import (
    ProductForm,
    contiguous_strides,
    gemm_calls,
    matmul_form,
)


def matrix(memory: Any, offset: int, length: int, transposed: bool, rows: int, columns: int) -> Any:
    """A column-major matrix of a library, as indices into memory."""
    steps = (length, 1) if transposed else (1, length)
    places = offset + steps[0] * np.arange(rows)[:, None] + steps[1] * np.arange(columns)[None, :]
    assert places.size == 0 or 0 <= places.min() <= places.max() < memory.size
    return places


def product(form: ProductForm, a: Any, b: Any) -> Any:
    """The product as a library computes it by the calls, None if they do not exist. The arrays begin at their base."""
    strides = [[stride // 8 for stride in x.strides] for x in (a, b)]
    calls = gemm_calls(form, a.shape, b.shape, *strides)
    if calls is None:
        return None
    left, right = ((x if x.base is None else x.base).reshape(-1) for x in (a, b))
    result = np.full(form.result_shape(a.shape, b.shape), np.nan)
    out = result.reshape(-1)
    for call in calls:
        (flip_left, left_length, left_step), (flip_right, right_length, right_step) = call.left, call.right
        assert left_length >= (call.m if flip_left else call.k)
        assert right_length >= (call.k if flip_right else call.n)
        assert call.row_length >= call.n
        for item in range(call.count):
            at_left, at_right, at = (o + item * s for o, s in zip(
                call.offsets, (left_step, right_step, call.distance), strict=True
            ))  # fmt: skip
            x = left[matrix(left, at_left, left_length, flip_left, call.k, call.m)]
            y = right[matrix(right, at_right, right_length, flip_right, call.n, call.k)]
            out[matrix(out, at, call.row_length, False, call.n, call.m)] = y @ x
    return result


def array(shape: list[int], order: tuple[int, ...], gap: bool) -> Any:
    """An array whose axes in `order` have this shape, perhaps with a gap after each row of its memory."""
    own = [0] * len(shape)
    for position, axis in enumerate(order):
        own[axis] = shape[position]
    wide = np.random.default_rng(len(shape)).normal(size=[*own[:-1], own[-1] * (1 + gap)] if own else [])
    return wide[..., : own[-1]] if own and gap else wide


def order_of(groups: list[int]) -> tuple[int, ...]:
    """Where in memory the axes of some groups are: groups stay together in most draws."""
    axes = [[*range(sum(groups[:k]), sum(groups[: k + 1]))] for k in range(len(groups))]
    if random.random() < 0.7:
        random.shuffle(axes)
    flat = [axis for group in axes for axis in group]
    if random.random() < 0.2:
        random.shuffle(flat)
    return tuple(flat.index(axis) for axis in range(len(flat)))


def test_calls_compute_products_of_permuted_stacks_of_any_form() -> None:
    random.seed(7)
    supported = 0
    for _ in range(500):
        stack, rows, terms, columns = (
            [random.randint(1, 4) for _ in range(random.randint(least, most))]
            for least, most in ((0, 3), (0, 2), (1, 2), (0, 2))
        )
        left_stack = [1 if random.random() < 0.2 else extent for extent in stack]
        right_stack = [1 if e == x and random.random() < 0.2 else e for e, x in zip(stack, left_stack, strict=True)]
        right_stack = right_stack[random.choice((0, 0, len(stack))) :]
        form = ProductForm(
            order_of([len(left_stack), len(rows), len(terms)]), order_of([len(right_stack), len(terms), len(columns)]),
            len(rows), len(terms), len(columns),
        )  # fmt: skip
        a = array([*left_stack, *rows, *terms], form.left_order, random.random() < 0.3)
        b = array([*right_stack, *terms, *columns], form.right_order, False)
        found = product(form, a, b)
        if found is None:
            continue
        supported += 1
        depth = len(terms)
        left = a.transpose(form.left_order).reshape([*left_stack, math.prod(rows), math.prod(terms)])
        right = b.transpose(form.right_order).reshape([*right_stack, math.prod(terms), math.prod(columns)])
        np.testing.assert_allclose(found, (left @ right).reshape(found.shape), atol=1e-12)
        assert found.ndim == max(len(left_stack), len(right_stack)) + a.ndim - len(left_stack) - depth + len(columns)
    assert supported > 250


@pytest.mark.parametrize(("left", "right"), [
    ((5, 4), (4, 7)), ((4,), (4, 7)), ((5, 4), (4,)), ((4,), (4,)), ((2, 3, 5, 4), (4, 7)), ((2, 3, 5, 4), (3, 4, 7)),
    ((5, 4), (6, 4, 7)), ((4,), (6, 4, 7)), ((2, 1, 5, 4), (1, 3, 4, 7)), ((6, 5, 4), (4,)), ((0, 5, 4), (4, 7)),
])  # fmt: skip
def test_the_form_of_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = (np.random.default_rng(1).normal(size=shape) for shape in (left, right))
    np.testing.assert_allclose(product(matmul_form(a.ndim, b.ndim, False), a, b), a @ b, atol=1e-12)
    if b.ndim > 1:
        turned = np.ascontiguousarray(b.swapaxes(-1, -2))
        np.testing.assert_allclose(product(matmul_form(a.ndim, b.ndim, True), a, turned), a @ b, atol=1e-12)


def test_many_heads_inside_of_rows_take_a_call_for_each_of_the_fewer() -> None:
    form = ProductForm((0, 2, 1, 3), (0, 2, 3, 1), 1, 1, 1)
    shapes = ((50, 9, 4, 8), (50, 7, 4, 8))
    calls = gemm_calls(form, *shapes, *map(contiguous_strides, shapes))
    assert calls is not None
    assert [call.count for call in calls] == [50] * 4
    assert len({call.offsets for call in calls}) == 4
