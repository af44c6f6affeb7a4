"""Sparse matrices of SciPy that the program made: operators, methods and solvers compute as without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fuse

sparse = pytest.importorskip("scipy.sparse")
solvers = pytest.importorskip("scipy.sparse.linalg")
SIZE = 6
SECOND = sparse.diags([2.0, -1.0, -1.0], [0, 1, -1], shape=(SIZE, SIZE), format="csr")
ARRAY = sparse.csc_array(SECOND)

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "products": lambda x: (SECOND @ x + x, x @ SECOND, SECOND.dot(x), SECOND.T @ x, (ARRAY * 2) @ x, -ARRAY @ x),
    "parts": lambda x: (SECOND.diagonal() * x, SECOND.data * 2, SECOND[0].toarray() @ x, SECOND.shape[0] * x),
    "solvers": lambda x: (solvers.spsolve(ARRAY, x) + 1, solvers.cg(SECOND, x, rtol=1e-12)[0]),
    "matrices of the function": lambda x: ((sparse.identity(SIZE) + SECOND) @ x, sparse.vstack([SECOND, SECOND]) @ x),
    "computed entries": lambda x: solvers.spsolve((SECOND + sparse.diags([x], [0])).tocsc(), x),
    "questions": lambda x: x * (sparse.issparse(SECOND) + isinstance(SECOND, sparse.csr_matrix) + SECOND.nnz),
}


def _parts(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_captured_sparse_matrix_computes_as_without_a_trace(name: str) -> None:
    function = PROGRAMS[name]
    fused = fuse(function, target="reference")
    for seed in (0, 1):
        x = np.random.default_rng(seed).random(SIZE)
        for result, expected in zip(_parts(fused(x)), _parts(function(x)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9)
    assert fused.cache_info().traces == 1


def test_other_entries_and_another_matrix_are_read_at_the_next_call() -> None:
    class System:
        matrix = SECOND.copy()

        def step(self, x: Any) -> Any:
            return self.matrix @ x

    system, x = System(), np.ones(SIZE)
    fused = fuse(system.step, target="reference")
    for change in (lambda: None, lambda: system.matrix.data.__imul__(3), lambda: setattr(system, "matrix", ARRAY)):
        change()
        np.testing.assert_allclose(fused(x), system.matrix @ x)
    assert fuse(lambda x: SECOND, target="reference")(x) is SECOND
    assert type(fuse(lambda x: SECOND.T, target="reference")(x)) is type(SECOND.T)


@pytest.mark.parametrize("change", [lambda: SECOND.setdiag(1.0), lambda: SECOND.__setitem__((0, 0), 1.0)])
def test_changes_of_a_captured_sparse_matrix_are_refused(change: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"changes a csr_matrix.*\(test_sparse_matrices.py:\d+\)\n  hint: "):
        fuse(lambda x: (change(), x), target="reference")(np.ones(2))
    assert SECOND[0, 0] == 2.0
