"""Complex numbers on a GPU: functions at special values, every template, complex scalars, arrays of other kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.test_complex import GRID, LIKE_NUMPY, PROMOTED, parts
from tests.ways import why_not
from tracefuse import fuse
from tracefuse.dtypes import COMPLEXES, DType
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.ops import REGISTRY

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402


def assert_close(own: Any, wanted: Any, scale: float, what: str) -> None:
    own, wanted = own.get(), np.asarray(wanted)
    assert own.dtype == wanted.dtype, what
    unit = np.finfo(wanted.dtype).eps * scale if wanted.dtype.kind in "fc" else 0
    np.testing.assert_allclose(own, wanted, unit, unit, err_msg=what)


OPEN_SIGNS = ("acos", "asin", "asinh", "exp", "sin", "sinh", "sqrt")
"""Functions of which C99, annex G, leaves open which infinity stands beside a NaN; NumPy's differ between machines."""


@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_functions_have_numpys_special_values(dtype: DType) -> None:
    z = GRID.astype(dtype.numpy)
    own = fuse(lambda x: [traced_ops.apply(name, x) for name in LIKE_NUMPY])(cupy.asarray(z))
    for name, result in zip(LIKE_NUMPY, own, strict=True):
        with np.errstate(all="ignore"):
            wanted = np.asarray(REGISTRY[name].numpy(z))  # type: ignore[attr-defined]
            finite = np.isfinite(z) & np.isfinite(wanted) & (np.abs(wanted) < np.finfo(dtype.numpy).max / 8)
            close = np.abs(result.get() - wanted) <= 16 * np.finfo(dtype.numpy).eps * np.abs(wanted)
        assert close[finite].all(), (name, z[finite & ~close], result.get()[finite & ~close])
        for left, right in zip(parts(result.get()), parts(wanted), strict=True):
            loose = (name in OPEN_SIGNS) & np.isnan(wanted) & np.isinf(left) & np.isinf(right)
            same = loose | (left == right) | np.isnan(left) & np.isnan(right) | np.isclose(left, right, 1e-5)
            wrong = ~finite & ~np.isfinite(right) & ~same
            assert not wrong.any(), (name, z[wrong], result.get()[wrong], wanted[wrong])
            zeros = finite & (left == 0) & (right == 0)
            assert (np.signbit(left) == np.signbit(right))[zeros].all(), name


@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
@pytest.mark.parametrize("name", PROMOTED)
def test_results_are_numpys(name: str, dtype: DType) -> None:
    random = np.random.default_rng(0)
    z = (random.normal(size=(33, 20)) + 1j * random.normal(size=(33, 20))).astype(dtype.numpy)
    r = random.uniform(1, 3, (33, 20)).astype(dtype.real.numpy)
    with np.errstate(all="ignore"):
        wanted = PROMOTED[name](r, z)
    own = fuse(PROMOTED[name])(cupy.asarray(r), cupy.asarray(z))
    for left, right in zip(*(v if isinstance(v, tuple) else (v,) for v in (own, wanted)), strict=True):
        assert_close(left, right, 500, name)


@pytest.mark.parametrize("shape", [(3, 5000), (3, 100000), (70000, 3), (64, 64), (1 << 22,)], ids=str)
@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_sums_and_products_of_every_template(dtype: DType, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    z = np.exp(2j * np.pi * random.random(shape)).astype(dtype.numpy)
    own = fuse(lambda x: (x.sum(0), x.sum(-1), x.prod(0), x.prod(-1), x.mean()))(cupy.asarray(z))
    wide = z.astype(np.complex128)
    for left, right in zip(own, (wide.sum(0), wide.sum(-1), wide.prod(0), wide.prod(-1), wide.mean()), strict=True):
        assert left.dtype == dtype.numpy
        size = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(left.get(), right, 0, 20 * np.finfo(dtype.numpy).eps * np.sqrt(z.size) * size)


def test_views_scalars_and_misaligned_starts() -> None:
    x = cupy.asarray(np.arange(1, 3001).reshape(30, 100) * (1 - 2j), dtype=np.complex64)
    f = fuse(lambda v, s: np.conj(v) * s + 1)
    for view in (x, x.T, x[::2, 1::3], x[::-1, ::-1], x.ravel()[1:2001], cupy.broadcast_to(x[:1], (30, 100))):
        for s in (2 + 1j, -1j):
            np.testing.assert_allclose(f(view, s).get(), np.conj(view.get()) * np.complex64(s) + 1, rtol=1e-6)
