"""Tests the functions of NumPy and SciPy that a call on sample arrays describes."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

from tracefuse import UnsupportedError, fori_loop, fuse
from tracefuse.ops.sampled_calls import DISTRIBUTIONS, SAMPLED_PATHS, sampled_function

CALLS = {
    "numpy": """
        histogram2d(V, W, [np.linspace(0, 9, 4), 5])
        histogramdd(R, bins=(2, [0, 1, 5.0], 3))[0]
        poly(V[:4])
        polyfit(V, W, 2, cov=True)
        polyfit(V, W, 1, full=True)
    """,
    "integrate": """
        trapezoid(V, W, axis=0)
        cumulative_trapezoid(V, dx=0.5, initial=0)
        simpson(V)
    """,
    "linalg": """
        block_diag(M, V, R)
        circulant(V)
        companion(V + 1)
        cosm(M)
        eigvals(M)
        hankel(V, W)
        hessenberg(M, calc_q=True)
        ldl(M)
        lstsq(M, V[:4])
        matmul_toeplitz(V, W)
        polar(M)
        rq(M)
        schur(M)
        solve_sylvester(M, M, M)
        solve_continuous_lyapunov(M, M)
        solve_discrete_are(M, M, M, M)
        solve_toeplitz(V + np.eye(8)[0] * 40, W)
        subspace_angles(R, R + 1)
    """,
    "ndimage": """
        affine_transform(M, [0.5, 0.75], 0.25)
        binary_fill_holes(M > 1)
        center_of_mass(M)
        distance_transform_cdt(M > 1)
        fourier_gaussian(np.fft.fft2(M), 1.5)
        maximum_position(M)
        morphological_gradient(M, size=3)
        spline_filter(M, output=np.float64)
        standard_deviation(M)
        sum_labels(M, np.array([0, 1, 1, 2]), index=[1, 2])
        white_tophat(M, 3)
        zoom(M, (2, 1.5), order=1)
        rotate(M, 30.0)
    """,
    "signal": """
        coherence(V, W, nperseg=4)
        csd(V, W, nperseg=4)
        czt(V, 5)
        deconvolve(V, [1, 0.5])
        istft(np.fft.rfft(R.T), nperseg=4)
        lfilter([1, 0.5], [1, -0.25], V, zi=W[:1])
        lombscargle(V, W, np.array([0.5, 1.0]))
        medfilt2d(M)
        order_filter(V, np.ones(3), 1)
        periodogram(V, 2.0)
        resample_poly(V, 2, 3)
        sawtooth(V)
        sosfilt(np.array([[1, 0.5, 0, 1, -0.25, 0]]), V, zi=np.ones((1, 2)))
        spectrogram(V, nperseg=4, window="hamming")
        stft(V, nperseg=4)
        upfirdn([1, 2, 1.0], V, 2)
        welch(V, nperseg=4)
        wiener(V, 3)
    """,
    "spatial.distance": """
        cdist(R, R[::-1], "cityblock")
        pdist(R)
        squareform(pdist(R))
        cosine(V, W)
    """,
    "special": """
        comb(V, 2)
        factorial(I)
        multigammaln(V + 3, 2)
        polygamma(1, V)
        spherical_jn(1, V)
    """,
    "stats": """
        norm.cdf(V, W, 2)
        norm.ppf(V / 9)
        t.pdf(V, df=3)
        poisson.pmf(I, 2.5)
        gmean(V)
        iqr(V)
        rankdata(V)
        skew(R)
        zscore(R, axis=None)
    """,
    "polynomial": """
        chebyshev.chebval(V, W)
        hermite_e.hermefit(V, W, 2)
        legendre.legvander(V, 2)
        polynomial.polyval2d(V, W, M)
        polynomial.polyder(V)
    """,
}
EXPRESSIONS = [(module, line.strip()) for module, text in CALLS.items() for line in text.strip().splitlines()]

BASE = np.arange(16).reshape(4, 4) % 5 / 4
OPERANDS = {
    "M": BASE @ BASE.T + 4 * np.eye(4), "R": np.arange(12.0).reshape(4, 3) % 5 + 0.5,
    "V": np.array([0.5, 3, 1, 2.5, 7, 4, 2, 6]), "W": np.array([1.5, 0.25, 4, 2, 3.5, 1, 6, 2.25]),
    "I": np.array([0, 3, 3, 1, 8, 2, 2, 0]),
}  # fmt: skip


def names_of(module: str) -> dict[str, Any]:
    root = "numpy" if module in ("numpy", "polynomial") else "scipy"
    pytest.importorskip(root)
    imported = importlib.import_module(module if module == "numpy" else f"{root}.{module}")
    return {**{name: value for name, value in vars(imported).items() if not name.startswith("__")}, "np": np}


def function_of(module: str, expression: str) -> tuple[Any, list[str]]:
    given = [name for name in OPERANDS if re.search(rf"\b{name}\b", expression)]
    return eval(f"lambda {', '.join(given)}: {expression}", names_of(module)), given


def leaves(result: Any) -> list[Any]:
    return [one for part in result for one in leaves(part)] if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize(("module", "expression"), EXPRESSIONS)
@pytest.mark.filterwarnings("ignore")
def test_results_are_those_of_the_function_for_each_size(module: str, expression: str) -> None:
    function, given = function_of(module, expression)
    fused = fuse(lambda *arrays: function(*(array * 1 for array in arrays)), target="reference")
    arrays = [OPERANDS[name] for name in given]
    for _ in range(2):
        found, wanted = fused(*arrays), function(*arrays)
        for one, other in zip(leaves(found), leaves(wanted), strict=True):
            assert (np.asarray(one).dtype, np.shape(one)) == (np.asarray(other).dtype, np.shape(other))
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        arrays = [array[..., ::-1].copy() if array.ndim == 1 else array * 1.5 for array in arrays]
    assert fused.cache_info().traces == 1


def test_sizes_of_a_call_stay_symbolic() -> None:
    signal = pytest.importorskip("scipy.signal")
    fused = fuse(lambda x: signal.periodogram(x + 1)[1].sum())
    for size in (8, 12, 8):
        x = np.random.default_rng(size).random(size)
        np.testing.assert_allclose(fused(x), signal.periodogram(x + 1)[1].sum())
    assert fused.cache_info().traces == 1


def test_in_the_body_of_a_loop_a_call_with_other_sizes_is_traced_again() -> None:
    signal = pytest.importorskip("scipy.signal")
    fused = fuse(lambda x: fori_loop(0, 3, lambda k, c: c + signal.periodogram(c)[1].sum(), x))
    for size in (8, 12, 8):
        x = expected = np.random.default_rng(size).random(size)
        for _ in range(3):
            expected = expected + signal.periodogram(expected)[1].sum()
        np.testing.assert_allclose(fused(x), expected)
    assert fused.cache_info().traces == 2


def test_a_number_argument_needs_no_new_trace() -> None:
    stats = pytest.importorskip("scipy.stats")
    fused = fuse(lambda x, mean: stats.norm.pdf(x, mean, 2))
    x = np.linspace(-1, 1, 5)
    for mean in (0.0, 0.5, 1.5):
        np.testing.assert_allclose(fused(x, mean), stats.norm.pdf(x, mean, 2))
    assert fused.cache_info().traces == 1


def test_an_array_to_write_is_refused_with_the_line() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    with pytest.raises(UnsupportedError, match="it writes into output") as caught:
        fuse(lambda x: ndimage.zoom(x, 2, output=x), target="reference")(np.ones(8))
    assert caught.value.where is not None
    assert caught.value.hint == "call it outside the fused function and pass its result in"


def test_a_function_that_writes_into_an_array_by_a_library_runs_itself() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    x, y = np.arange(8.0), np.arange(8.0)
    with pytest.warns(UserWarning, match="output.*: from there on, calls run the function itself"):
        fuse(lambda x: ndimage.uniform_filter(x, 3, output=x))(x)
    ndimage.uniform_filter(y, 3, output=y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("expression", ["signal.upfirdn([1.0], x, 0)", "signal.stft(x, window=['hann', x])"])
def test_a_call_that_the_function_refuses_raises_its_error_with_the_line(expression: str) -> None:
    function = eval(f"lambda x: {expression}", {"signal": pytest.importorskip("scipy.signal")})
    with pytest.raises(ValueError) as expected:
        function(np.ones(8))
    with pytest.raises(ValueError, match=re.escape(str(expected.value))) as caught:
        fuse(function)(np.ones(8))
    assert any("in scipy.signal." in note for note in caught.value.__notes__)


def test_operands_are_not_overwritten() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    x = OPERANDS["M"].copy()
    fuse(lambda x: linalg.schur(x, overwrite_a=True))(x)
    np.testing.assert_array_equal(x, OPERANDS["M"])


def test_every_path_is_of_an_own_function() -> None:
    assert len(set(SAMPLED_PATHS)) == len(SAMPLED_PATHS)
    stats = pytest.importorskip("scipy.stats")
    assert all(hasattr(stats, path.rpartition(".")[2]) for path in DISTRIBUTIONS)
    for path in SAMPLED_PATHS:
        module, _, name = path.rpartition(".")
        if module not in DISTRIBUTIONS:
            assert callable(getattr(importlib.import_module(module), name, None)), path


@pytest.mark.parametrize("keywords", [{"full": True}, {"cov": True}])
def test_a_library_that_multiplies_y_by_the_weights_in_place_gets_a_copy(
    keywords: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    original = np.polyfit

    def polyfit_in_place(x: Any, y: Any, *arguments: Any, w: Any, **more: Any) -> Any:
        result = original(x, y, *arguments, w=w, **more)
        y *= w
        return result

    monkeypatch.setattr(np, "polyfit", polyfit_in_place)
    x, y, w = np.arange(8.0), np.arange(8.0) ** 2, np.linspace(1, 2, 8)
    before = y.copy()
    expected = original(x, y, 1, w=w, **keywords)
    result = sampled_function("numpy.polyfit")(x, y, 1, w=w, **keywords)
    assert np.array_equal(y, before)
    assert np.allclose(result[0], expected[0])
