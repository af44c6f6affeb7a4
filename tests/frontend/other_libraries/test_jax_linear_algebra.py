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
    positive = a @ a.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=kind)
    check(lambda a, p: (linalg.lu(a), jnp.linalg.cholesky(p), jnp.linalg.slogdet(a)), a, positive)


def test_singular_and_indefinite_matrices_give_what_lapack_gives() -> None:
    singular = [np.triu(numbers((size, size), "float32")) for size in (3, MOST_ROWS + 1)]
    for a in singular:
        a[0, 0] = 0
    equal_pivots = np.float32([[1, 2], [-1, 3]])  # the first of them is taken
    check(lambda *several: list(map(linalg.lu, several)), *singular, equal_pivots)
    check(lambda *several: list(map(jnp.linalg.cholesky, several)), *(-a @ a.T for a in singular))


def test_stacks_of_matrices_that_libraries_factor() -> None:
    """Vectors have the signs of JAX's; matrices that are not finite have NaN."""
    a = numbers((12, 5, 5), "float32")
    symmetric = a + a.swapaxes(-1, -2)
    symmetric[1, 0, 0] = np.nan

    def factors(a: Any, s: Any) -> Any:
        return (
            jnp.linalg.eigh(s),
            jnp.linalg.svd(a[..., :3]),
            jnp.linalg.qr(a[..., :3]),
            jnp.linalg.eig(a),
            jnp.linalg.eigvals(s) * 0,
        )

    check(factors, a, symmetric)


def test_libraries_factor_in_programs_of_jax() -> None:
    def loss(a: Any) -> Any:
        gram = a @ a.T + jnp.eye(5)
        return jnp.linalg.eigvalsh(gram)[0] + jnp.linalg.solve(gram, a).sum() + jnp.linalg.cholesky(gram).sum()

    a = jnp.asarray(numbers((5, 5), "float32"))
    fused = jax.jit(jax.value_and_grad(tf.fuse(loss)))
    for one, two in zip(fused(a), jax.jit(jax.value_and_grad(loss))(a), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


def solutions(a: Any, b: Any, from_left: bool, given: list[dict[str, bool]]) -> list[Any]:
    return [linalg.triangular_solve(a, b, left_side=from_left, **parameters) for parameters in given]


@pytest.mark.parametrize("from_left", [False, True])
def test_triangular_equations_have_the_solutions_of_blas(from_left: bool) -> None:
    for size, count in ((3, 4), (MOST_ROWS + 1, 1)):
        a, b = numbers((size, size), "complex64") + 3 * np.eye(size, dtype="complex64"), numbers((size, 2), "complex64")
        given = [
            {"lower": lower, "transpose_a": turned, "conjugate_a": turned, "unit_diagonal": lower is turned}
            for lower, turned in list(itertools.product((False, True), repeat=2))[:count]
        ]
        check(functools.partial(solutions, from_left=from_left, given=given), a, b if from_left else b.T)


def test_solutions_have_the_gradients_of_jax() -> None:
    a, b = numbers((3, 3), "float32"), numbers((3, 2), "float32")
    check(jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2), (0, 1)), a, b)
    check(jax.vmap(jax.grad(lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(2)).sum())), numbers((4, 2, 2), "float32"))
