"""Factorizations and triangular solutions of functions of jax.numpy, of a few rows and of many, against jax.jit."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import tracefuse as tf
from tracefuse.frontend.jax_api.small_matrix_primitives import MOST_ROWS

jax = pytest.importorskip("jax")
jnp, linalg = jax.numpy, jax.lax.linalg

RANDOM = np.random.default_rng(0)
SHAPES = [(2, 2), (2, 3, 3), (MOST_ROWS, MOST_ROWS), (MOST_ROWS + 1, MOST_ROWS + 1)]


def numbers(shape: tuple[int, ...], kind: str) -> Any:
    x = RANDOM.normal(size=shape).astype(kind)
    return x + (1j * RANDOM.normal(size=shape)).astype(kind) if kind == "complex64" else x


def check(function: Any, *arguments: Any) -> None:
    arguments = tuple(map(jnp.asarray, arguments))
    with tf.options(target="reference"):
        found = jax.tree.leaves(tf.fuse(function, frontend="jax")(*arguments))
    for one, two in zip(found, jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["float32", "complex64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_factors_are_those_of_lapack(shape: tuple[int, ...], kind: str) -> None:
    a = numbers(shape, kind)
    check(linalg.lu, a)
    positive = a @ a.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=kind)
    check(jnp.linalg.cholesky, positive)
    check(jnp.linalg.slogdet, a)


def test_singular_and_indefinite_matrices_give_what_lapack_gives() -> None:
    for size in (3, MOST_ROWS + 1):
        a = np.triu(numbers((size, size), "float32"))
        a[0, 0] = 0
        check(linalg.lu, a)
        check(jnp.linalg.cholesky, -a @ a.T)
    check(linalg.lu, np.float32([[1, 2], [-1, 3]]))  # the first of equal pivots


@pytest.mark.parametrize("from_left", [False, True])
def test_triangular_equations_have_the_solutions_of_blas(from_left: bool) -> None:
    for size, count in ((3, 4), (MOST_ROWS + 1, 1)):
        a, b = numbers((size, size), "complex64") + 3 * np.eye(size, dtype="complex64"), numbers((size, 2), "complex64")
        for lower, turned in list(itertools.product((False, True), repeat=2))[:count]:
            given = {"lower": lower, "transpose_a": turned, "conjugate_a": turned, "unit_diagonal": lower is turned}
            solve = functools.partial(linalg.triangular_solve, left_side=from_left, **given)
            check(solve, a, b if from_left else b.T)


def test_solutions_have_the_gradients_of_jax() -> None:
    a, b = numbers((3, 3), "float32"), numbers((3, 2), "float32")
    check(jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2), (0, 1)), a, b)
    check(jax.vmap(jax.grad(lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(2)).sum())), numbers((4, 2, 2), "float32"))
