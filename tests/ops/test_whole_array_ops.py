"""Every library op on whole arrays, for each kind of dtype, against the function that it calls.

`CALLS` has a call for each op; a test says which one lacks it. What NumPy refuses must be refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import FusionDefinition, TracefuseError, fuse, options, scan
from tracefuse.dtypes import DType, bool_, complex64, float16, float32, float64, int16
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY

DTYPES = (bool_, int16, float16, float32, complex64)

OF_JAX = ("host_primitive", "jax_primitive")
"""Ops that functions of jax.numpy record, which tests of those compare."""

OPS = [op.name for op in REGISTRY.values() if isinstance(op, WholeArrayOp) and not op.effect and op.name not in OF_JAX]

CALLS = dict(
    line.split(": ", 1)
    for line in """
fft: np.fft.fft(V)
ifft: np.fft.ifft(V)
rfft: np.fft.rfft(V)
irfft: np.fft.irfft(V)
hfft: np.fft.hfft(V)
ihfft: np.fft.ihfft(V)
fft2: np.fft.fft2(M)
fftn: np.fft.fftn(M)
ifft2: np.fft.ifft2(M)
ifftn: np.fft.ifftn(M)
rfft2: np.fft.rfft2(M)
rfftn: np.fft.rfftn(M)
irfft2: np.fft.irfft2(M)
irfftn: np.fft.irfftn(M)
inv: np.linalg.inv(M)
det: np.linalg.det(M)
slogdet: np.linalg.slogdet(M)
eigh: np.linalg.eigh(M)
eigvalsh: np.linalg.eigvalsh(M)
svdvals: np.linalg.svdvals(M)
pinv: np.linalg.pinv(M)
cond: np.linalg.cond(M)
eig: np.linalg.eig(M + 0j)
eigvals: np.linalg.eigvals(M + 0j)
cholesky: np.linalg.cholesky(M)
solve: np.linalg.solve(M, R)
qr: np.linalg.qr(R)
svd: np.linalg.svd(R, full_matrices=False)
matrix_rank: np.linalg.matrix_rank(R)
tensorinv: np.linalg.tensorinv(M.reshape(2, 2, 2, 2))
lstsq: np.linalg.lstsq(R, V[:4])
tensorsolve: np.linalg.tensorsolve(M.reshape(2, 2, 4), M[:2, :2])
polyfit: np.polyfit(V, W, 2)
norm_of_singular_values: np.linalg.norm(R, 2)
partition: np.partition(V, 3)
argpartition: np.argpartition(V, (1, 3))
lexsort: np.lexsort((V, W))
searchsorted: np.searchsorted(np.sort(V), W, 'right')
digitize: np.digitize(V, np.sort(W))
isin: np.isin(V, W)
interp: np.interp(V, np.sort(W), V, left=0.5)
bincount: np.bincount(I > 1, V, 9)
histogram: np.histogram(V, 3)
histogram_bin_edges: np.histogram_bin_edges(V, 4)
histogram2d: np.histogram2d(V, W, 3)
histogramdd: np.histogramdd(R, 2)
median: np.median(M, 1)
nanmedian: np.nanmedian(M)
quantile: np.quantile(M, 0.3, axis=0)
percentile: np.percentile(V, [20, 55])
nanquantile: np.nanquantile(V, 0.4)
nanpercentile: np.nanpercentile(M, 35, axis=1, keepdims=True)
convolve: np.convolve(V, W)
correlate: np.correlate(V, W, 'same')
i0: np.i0(V)
special_function: special.gammainc(V, 2.0)
scipy_fft_fft: fft.fft(V)
scipy_fft_ifft: fft.ifft(V)
scipy_fft_rfft: fft.rfft(V)
scipy_fft_irfft: fft.irfft(V)
scipy_fft_hfft: fft.hfft(V)
scipy_fft_ihfft: fft.ihfft(V)
scipy_fft_dct: fft.dct(V)
scipy_fft_idct: fft.idct(V)
scipy_fft_dst: fft.dst(V)
scipy_fft_idst: fft.idst(V)
scipy_fft_fft2: fft.fft2(M)
scipy_fft_ifft2: fft.ifft2(M)
scipy_fft_rfft2: fft.rfft2(M)
scipy_fft_irfft2: fft.irfft2(M)
scipy_fft_fftn: fft.fftn(M)
scipy_fft_ifftn: fft.ifftn(M)
scipy_fft_rfftn: fft.rfftn(M)
scipy_fft_irfftn: fft.irfftn(M)
scipy_fft_dctn: fft.dctn(M, axes=(1,))
scipy_fft_idctn: fft.idctn(M, axes=(1,))
scipy_fft_dstn: fft.dstn(M, axes=(1,))
scipy_fft_idstn: fft.idstn(M, axes=(1,))
scipy_linalg_inv: linalg.inv(M)
scipy_linalg_det: linalg.det(M)
scipy_linalg_cholesky: linalg.cholesky(M)
scipy_linalg_lu_factor: linalg.lu_factor(M)
scipy_linalg_lu: linalg.lu(M)
scipy_linalg_expm: linalg.expm(M)
scipy_linalg_svd: linalg.svd(M)
scipy_linalg_svdvals: linalg.svdvals(M)
scipy_linalg_eigh: linalg.eigh(M)
scipy_linalg_eigvalsh: linalg.eigvalsh(M)
scipy_linalg_pinv: linalg.pinv(M)
scipy_linalg_cho_factor: linalg.cho_factor(M)[0]
scipy_linalg_cho_solve: linalg.cho_solve((M, True), R)
scipy_linalg_lu_solve: linalg.lu_solve((M, np.arange(4)), R)
scipy_linalg_qr: linalg.qr(R, pivoting=True)
scipy_linalg_solve: linalg.solve(M, R)
scipy_linalg_solve_triangular: linalg.solve_triangular(M, R)
scipy_linalg_solve_banded: linalg.solve_banded((0, 0), V[None, :4] + 9, R)
scipy_linalg_solveh_banded: linalg.solveh_banded(V[None, :4] + 9, R)
scipy_linalg_toeplitz: linalg.toeplitz(V)
scipy_signal_convolve: signal.convolve(V, W[:3], 'valid')
scipy_signal_correlate: signal.correlate(V, W[:3], 'valid')
scipy_signal_fftconvolve: signal.fftconvolve(V, W[:3], 'valid')
scipy_signal_oaconvolve: signal.oaconvolve(V, W[:3], 'valid')
scipy_signal_convolve2d: signal.convolve2d(M, M[:2])
scipy_signal_correlate2d: signal.correlate2d(M, M[:2])
scipy_signal_medfilt: signal.medfilt(V, 3)
scipy_signal_resample: signal.resample(V, 3)
scipy_signal_lfilter: signal.lfilter([1.0, 0.5], [1.0, 0.25], V)
scipy_signal_detrend: signal.detrend(V)
scipy_signal_filtfilt: signal.filtfilt([1.0, 0.5], [1.0], V, padlen=2)
scipy_signal_hilbert: signal.hilbert(V)
scipy_signal_sosfilt: signal.sosfilt([[1.0, 0.5, 0.25, 1.0, 0.5, 0.125]], V)
scipy_signal_sosfiltfilt: signal.sosfiltfilt([[1.0, 0.5, 0.25, 1.0, 0.5, 0.125]], V, padlen=2)
scipy_signal_savgol_filter: signal.savgol_filter(V, 5, 2)
scipy_ndimage_gaussian_filter: ndimage.gaussian_filter(M, 1.5)
scipy_ndimage_gaussian_filter1d: ndimage.gaussian_filter1d(M, 1.5)
scipy_ndimage_gaussian_laplace: ndimage.gaussian_laplace(M, 1.5)
scipy_ndimage_gaussian_gradient_magnitude: ndimage.gaussian_gradient_magnitude(M, 1.5)
scipy_ndimage_shift: ndimage.shift(M, 1.5)
scipy_ndimage_uniform_filter: ndimage.uniform_filter(M, 3)
scipy_ndimage_uniform_filter1d: ndimage.uniform_filter1d(M, 3)
scipy_ndimage_maximum_filter1d: ndimage.maximum_filter1d(M, 3)
scipy_ndimage_minimum_filter1d: ndimage.minimum_filter1d(M, 3)
scipy_ndimage_median_filter: ndimage.median_filter(M, 3)
scipy_ndimage_maximum_filter: ndimage.maximum_filter(M, 3)
scipy_ndimage_minimum_filter: ndimage.minimum_filter(M, 3)
scipy_ndimage_grey_erosion: ndimage.grey_erosion(M, 3)
scipy_ndimage_grey_dilation: ndimage.grey_dilation(M, 3)
scipy_ndimage_grey_opening: ndimage.grey_opening(M, 3)
scipy_ndimage_grey_closing: ndimage.grey_closing(M, 3)
scipy_ndimage_sobel: ndimage.sobel(M)
scipy_ndimage_prewitt: ndimage.prewitt(M)
scipy_ndimage_laplace: ndimage.laplace(M)
scipy_ndimage_binary_erosion: ndimage.binary_erosion(M)
scipy_ndimage_binary_dilation: ndimage.binary_dilation(M)
scipy_ndimage_binary_opening: ndimage.binary_opening(M)
scipy_ndimage_binary_closing: ndimage.binary_closing(M)
scipy_ndimage_label: ndimage.label(M)
scipy_ndimage_distance_transform_edt: ndimage.distance_transform_edt(M)
scipy_ndimage_convolve: ndimage.convolve(M, M[:3, :3])
scipy_ndimage_correlate: ndimage.correlate(M, M[:3, :3])
scipy_ndimage_convolve1d: ndimage.convolve1d(M, W[:3])
scipy_ndimage_correlate1d: ndimage.correlate1d(M, W[:3])
scipy_ndimage_rotate: ndimage.rotate(M, 30.0, reshape=False)
scipy_ndimage_rank_filter: ndimage.rank_filter(M, 1, 2)
scipy_ndimage_percentile_filter: ndimage.percentile_filter(M, 40, 2)
sampled_call: signal.periodogram(V, 2.0)
scipy_ndimage_map_coordinates: ndimage.map_coordinates(M, R.T[:2], order=1)
""".strip().splitlines()
)
"""A call of each op. M: a positive definite matrix, R: one with four rows and three columns, V, W: vectors of eight
elements. I: positions."""


def operands(dtype: DType) -> dict[str, Any]:
    random = np.random.default_rng(0)
    base = random.integers(-3, 4, (4, 4)) / 4
    values = {
        "M": base @ base.T + 4 * np.eye(4), "R": random.integers(-8, 9, (4, 3)) / 2.0,
        "V": np.array([0.5, 3, 1, 2.5, 7, 4, 2, 6]), "W": np.array([1.5, 0, 4, 2, 3.5, 1, 6, 2.25]),
    }  # fmt: skip
    arrays = {name: value.astype(dtype.numpy) for name, value in values.items()}
    return {**arrays, "I": np.array([0, 3, 3, 1, 8, 2, 2, 0])}


def modules(expression: str) -> dict[str, Any]:
    """NumPy, and the module of SciPy that an expression names."""
    used = [name for name in ("fft", "linalg", "signal", "ndimage", "special") if expression.startswith(f"{name}.")]
    return {"np": np, **{name: pytest.importorskip(f"scipy.{name}") for name in used}}


def named(expression: str) -> list[str]:
    return [name for name in "MRVWI" if re.search(rf"(?<![\w.]){name}(?!\w)", expression)]


def flat(result: Any) -> list[Any]:
    return [one for part in result for one in flat(part)] if isinstance(result, (tuple, list)) else [result]


def assert_as(actual: Any, expected: Any) -> None:
    for own, wanted in zip(flat(actual), flat(expected), strict=True):
        own, wanted = np.asarray(own), np.asarray(wanted)
        assert (own.dtype, own.shape) == (wanted.dtype, wanted.shape)
        unit = 1e-3 if wanted.dtype == np.float16 else 1e-5 if wanted.dtype.char in "fF" else 1e-11
        np.testing.assert_allclose(own, wanted, rtol=unit, atol=unit)


def test_every_op_has_a_call() -> None:
    assert set(CALLS) == set(OPS)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Calling .* with arguments of dtype:DeprecationWarning")
def test_values_and_types_are_those_of_the_function_for_each_dtype(name: str) -> None:
    expression = CALLS[name]
    function = eval(f"lambda {', '.join(named(expression))}: {expression}", modules(expression))
    fused = fuse(function, target="reference")
    for dtype in DTYPES:
        arrays = [operands(dtype)[one] for one in named(expression)]
        try:
            expected = function(*arrays)
        except (TypeError, ValueError, NotImplementedError, RuntimeError, np.linalg.LinAlgError):
            with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError, np.linalg.LinAlgError)):
                fused(*arrays)
            continue
        assert_as(fused(*arrays), expected)


@pytest.mark.parametrize("name", [name for name in OPS if name != "sampled_call"])  # a call between two stages
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_definition_prints_as_the_call_that_records_it(name: str) -> None:
    expression = CALLS[name]
    function = eval(f"lambda {', '.join(named(expression))}: {expression}", modules(expression))
    arrays = [operands(float64)[one] for one in named(expression)]
    definition = fuse(function, target="reference").definition(*arrays)
    names: dict[str, Any] = {}
    exec(f"from tracefuse import *\n{definition!r}", names)
    with FusionDefinition() as again:
        names[next(n for n in names if n.startswith("nvfuser_fusion"))](again)
    assert name in [node.op.name for node in again.fusion.nodes]
    assert str(again).partition("\n")[2] == str(definition).partition("\n")[2]


# ---------------------------------------------------------------------------------------------------------------------
# as segments


def between(x: Any, y: Any) -> Any:
    spectrum = np.fft.rfft(x * 2 + 1)
    values, vectors = np.linalg.eigh(y @ y.T)
    return abs(spectrum).sum() + np.searchsorted(np.sort(x), x) * values[0], vectors + 1


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda a: a, "reversed": lambda a: a[..., ::-1], "strided": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "transposed": lambda a: a.T.copy().T, "broadcast": lambda a: np.broadcast_to(a[..., :1], a.shape),
}  # fmt: skip


def test_kernels_stand_before_and_after_library_segments_for_every_layout_and_size() -> None:
    fused = fuse(between)
    random = np.random.default_rng(1)
    for size in (9, 12):
        for layout in LAYOUTS.values():
            x, y = layout(random.random(size)), layout(random.random((3, size)))
            got, wanted = fused(x, y), between(x, y)
            np.testing.assert_allclose(got[0], wanted[0], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(abs(got[1] - 1), abs(wanted[1] - 1), rtol=1e-6, atol=1e-6)
    assert fused.cache_info().traces == 1


def test_arrays_without_elements_are_as_numpys() -> None:
    x, m = np.zeros(0), np.zeros((0, 3, 3))

    def shorter(x: Any, m: Any) -> Any:
        return (
            np.searchsorted(x, x), np.isin(x, x), np.linalg.inv(m), np.linalg.det(m), np.fft.fft(m, 3),
            np.histogram(x, 3, (0, 1)), np.partition(m, 0, axis=1),
        )  # fmt: skip

    assert_as(fuse(shorter)(x, m), shorter(x, m))


# ---------------------------------------------------------------------------------------------------------------------
# errors


def test_a_singular_matrix_raises_numpys_error_with_the_line_and_writes_nothing() -> None:
    @fuse
    def invert(x: Any, y: Any) -> Any:
        y += 1
        return np.linalg.inv(x)

    y = np.zeros(3)
    invert(np.eye(2), y)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix") as caught:
        invert(np.zeros((2, 2)), y)
    (note,) = [n for n in caught.value.__notes__ if "inv" in n]
    assert re.fullmatch(r"in inv \(test_whole_array_ops.py:\d+\)", note)
    np.testing.assert_array_equal(y, np.ones(3))


def test_negative_elements_have_no_count() -> None:
    fused = fuse(lambda x: np.bincount(x, minlength=4), target="cpu")
    assert_as(fused(np.array([3, 0])), np.array([1, 0, 0, 1]))
    with pytest.raises(ValueError, match="no negative elements"):
        fused(np.array([3, -1]))


def test_elements_beyond_minlength_lengthen_the_counts() -> None:
    def counts(x: Any, weights: Any) -> Any:
        return np.bincount(x, minlength=4) * 2, np.bincount(x, weights, 4)

    fused = fuse(counts)
    for x, dtype in (([0, 1, 2], int), ([3, 3], np.uint8), ([0, 7, 1], int), ([9], np.uint64), ([], int)):
        operands = np.array(x, dtype), np.arange(len(x)) * 0.5
        for found, wanted in zip(fused(*operands), counts(*operands), strict=True):
            assert_as(found, wanted)


def test_quantiles_of_nan_have_the_type_of_others() -> None:
    fused = fuse(lambda x: np.quantile(x, np.float64(0.5), method="averaged_inverted_cdf"))
    for x in (np.ones(3, np.float16), np.full(3, np.nan, np.float16)):
        np.testing.assert_array_equal(fused(x), np.float64(x[0]), strict=True)


@pytest.mark.parametrize(
    ("function", "array", "message"),
    [
        (lambda x: np.linalg.solve(x, x[0, :2]), np.eye(3), r"solve: 3 \(x, .*\) equations and 2 .* right sides"),
        (lambda x: np.linalg.inv(x), np.ones((2, 3)), r"inv: 2 \(x, .*\) rows and 3 columns"),
        (lambda x: np.linalg.inv(x), np.eye(2, dtype=np.float16), "array type float16 is unsupported in linalg"),
        *(
            (lambda x: scan(lambda c, _: (c, np.linalg.eig(c)[0]), x, length=2), np.eye(2), text)
            for text in ("the eigenvalues of a real matrix are real or complex",)
            if not np.iscomplexobj(np.linalg.eigvals(np.eye(2)))  # always, since NumPy 2.5
        ),
        (
            lambda x: scan(lambda c, _: (c + np.bincount(x, minlength=3), None), x[:3] * 0, length=2),
            np.arange(5),
            "bincount: element 4 has no place among minlength=3",
        ),
        (lambda x: np.linalg.norm(x, "nope"), np.eye(2), "Invalid norm order"),
        (lambda x: np.linalg.lstsq(x, x[:, 0])[1], np.ones((4, 2)), "the residuals of a matrix without full rank"),
        (lambda x: np.fft.fft(x, axis=3), np.ones(3), "axis 3 is out of range for 1 axes"),
    ],
)
def test_what_the_data_or_the_operands_do_not_allow_is_refused_with_the_line(
    function: Any, array: Any, message: str
) -> None:
    with pytest.raises(TracefuseError, match=message) as caught:
        fuse(function)(array)
    assert "test_whole_array_ops.py:" in str(caught.value)


def test_check_mode_compares_library_segments_and_takes_their_results_as_they_are() -> None:
    x, y = np.random.default_rng(2).random((2, 4, 4))

    def f(x: Any, y: Any) -> Any:
        return np.linalg.solve(x + 4 * np.eye(4), y) * 2, np.fft.fft(x).real + 1, np.partition(x, 1) - y

    with options(check=True):
        assert_as(fuse(f)(x, y), f(x, y))
