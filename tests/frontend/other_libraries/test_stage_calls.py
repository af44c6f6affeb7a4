"""Functions of NumPy and SciPy without a rule for their results run between two stages of a call, as in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.same_results import assert_same
from tracefuse import fuse, scan
from tracefuse.frontend.tracer.libraries.given_arguments import only_reads

scipy = pytest.importorskip("scipy")
for _module in (
    "cluster.hierarchy",
    "fft",
    "integrate",
    "interpolate",
    "ndimage",
    "optimize",
    "signal",
    "sparse.linalg",
    "spatial",
    "stats",
):
    pytest.importorskip(f"scipy.{_module}")
ndimage, optimize, signal, stats = scipy.ndimage, scipy.optimize, scipy.signal, scipy.stats

FACTOR = 2.0
SEEN: list[Any] = []


def line(t: Any, slope: float, start: float) -> Any:
    return slope * t + start * FACTOR


def distance(p: Any, t: Any, y: Any) -> Any:
    return line(t, *p) - y


def remembered(p: Any) -> Any:
    SEEN.append(p)
    return (p**2).sum()


PROGRAMS: dict[str, Callable[..., Any]] = {
    "peaks": lambda x, y: signal.find_peaks(x * 2, height=0.5),
    "elements at peaks": lambda x, y: x[signal.find_peaks(x)[0]] * 2,
    "prominences of peaks": lambda x, y: signal.peak_prominences(x, signal.find_peaks(x)[0])[0] + 1,
    "extrema": lambda x, y: signal.argrelextrema(x, np.greater)[0],
    "correlation with a significance": lambda x, y: stats.pearsonr(x, y).statistic * 2,
    "rank correlation": lambda x, y: stats.spearmanr(x, y).pvalue + 0,
    "a fit with attributes beside its fields": lambda x, y: stats.linregress(x, y).intercept_stderr * x,
    "a test of two samples": lambda x, y: stats.ttest_ind(x, y).pvalue + 0,
    "the most frequent element": lambda x, y: stats.mode(np.round(x * 4)).mode + 0,
    "a summary": lambda x, y: stats.describe(x).variance + 0,
    "elements within bounds": lambda x, y: stats.sigmaclip(x * 1).clipped,
    "an assignment": lambda x, y: optimize.linear_sum_assignment(np.outer(x, y))[1],
    "least squares without negative numbers": lambda x, y: optimize.nnls(np.outer(x, y)[:, :2] + 1, y)[0],
    "a spline and its value": lambda x, y: scipy.interpolate.splev(2.2, scipy.interpolate.splrep(np.arange(30.0), x)),
    "clusters": lambda x, y: scipy.cluster.hierarchy.linkage(np.stack([x, y], 1)),
    "two point sets": lambda x, y: scipy.spatial.procrustes(np.stack([x, y], 1), np.stack([y, x], 1))[2],
    "windows under a function of NumPy": lambda x, y: ndimage.generic_filter(x, np.mean, 3) + 1,
    "counts to the largest element": lambda x, y: np.bincount((x * 10).astype(int)) * 2,
    "sums by position": lambda x, y: np.bincount((x * 10).astype(int), weights=y),
    "bins by a rule": lambda x, y: np.histogram(x * 2, bins="auto"),
    "a computed number of bins": lambda x, y: np.histogram(x, bins=int(y.sum()) // 2)[0],
    "edges by a rule": lambda x, y: np.histogram_bin_edges(x, "fd"),
    "a fit of a function": lambda x, y: optimize.curve_fit(line, np.arange(30.0), x)[0] * 2,
    "least squares of a function": lambda x, y: optimize.least_squares(distance, np.ones(2), args=(x * 2, y)).x,
    "the minimum of a function over an array": lambda x, y: optimize.minimize(lambda p: ((p - x) ** 2).sum(), y).x + 1,
    "the root of a function with a variable": lambda x, y: x * optimize.brentq(lambda t: t**3 - y[0], 0, 2),
    "a root with a report": lambda x, y: optimize.root_scalar(lambda t: t**3 - y[0], bracket=(0, 2)).root * x,
    "an integral": lambda x, y: scipy.integrate.quad(lambda t: t * y[0], 0, x.max())[0],
    "a differential equation": lambda x, y: scipy.integrate.solve_ivp(lambda t, u: -u * y[0], (0, 1), x[:2]).y,
    "a function of the user of slices": lambda x, y: np.apply_along_axis(lambda v: v * v.sum(), 0, np.outer(x, y)),
    "a function of slices": lambda x, y: np.apply_along_axis(np.sort, 0, np.outer(x, y)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_gives_what_the_plain_program_does(name: str) -> None:
    function, rng = PROGRAMS[name], np.random.default_rng(0)
    fused = fuse(function, target="reference")
    for _ in range(3):
        x, y = rng.random((2, 30))
        assert_same(fused(x, y), function(x, y))
    assert fused.cache_info().traces <= 2  # messages of an optimizer differ


def test_other_sizes_and_types_of_results_compile_what_follows_once_each() -> None:
    def f(x: Any) -> Any:
        return np.bincount(x) * 2 + 1

    fused = fuse(f)
    for top in (5, 9, 0, 1, 7, 0, 3):
        x = np.minimum(np.arange(20), top)
        np.testing.assert_array_equal(fused(x), f(x))
    assert fused.cache_info().traces <= 2
    np.testing.assert_array_equal(fused(np.arange(0)), f(np.arange(0)))


def test_the_number_of_bins_is_an_argument_and_stays_symbolic() -> None:
    def f(x: Any, bins: int) -> Any:
        counts, edges = np.histogram(x, bins)
        return counts / 2, edges[:-1] + edges[1:]

    fused, x = fuse(f), np.random.default_rng(1).random(40)
    for bins in (3, 5, 17):
        assert_same(fused(x, bins), f(x, bins))
    assert fused.cache_info().traces == 1


def test_results_share_no_memory_with_operands() -> None:
    def f(x: Any) -> Any:
        trimmed = stats.trimboth(x, 0.0)
        trimmed += 1
        return trimmed

    x = np.arange(6.0)
    np.testing.assert_array_equal(fuse(f)(x), np.arange(6.0) + 1)
    np.testing.assert_array_equal(x, np.arange(6.0))


REFUSED = [
    (lambda x: optimize.minimize(remembered, x).x, "the function remembered, and it reads the global SEEN"),
    (lambda x: scipy.optimize.root_scalar(lambda t: t - x[1], bracket=iter([0, 9])), "an argument is a list_iterator"),
    (lambda x: np.apply_along_axis(lambda v: print(v), 0, x), "the function <lambda>, and it reads print"),
    (lambda x: scan(lambda c, _: (c, signal.find_peaks(c)[0]), x, length=2), "inside of a recorded loop or branch"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_cannot_run_between_stages_is_refused_with_the_line(function: Any, message: str) -> None:
    with pytest.raises(tracefuse.UnsupportedError, match=rf"{message} \(test_stage_calls.py:\d+\)\n  hint: "):
        fuse(function, target="reference")(np.arange(6.0))


def recorded_losses(x: Any) -> Any:
    losses: list[float] = []

    def loss(w: Any) -> Any:
        losses.append(float(((w - x) ** 2).sum()))
        return losses[-1]

    start = np.random.standard_normal(3)
    return optimize.minimize(loss, start).x, losses, np.random.random()


def test_a_call_that_cannot_run_between_stages_leaves_later_calls_to_the_function_after_one_warning() -> None:
    fused = fuse(recorded_losses)
    for seed in range(3):
        x = np.arange(3.0) + seed
        np.random.seed(seed)
        expected = recorded_losses(x)
        np.random.seed(seed)
        with nullcontext() if seed else pytest.warns(UserWarning, match=r"calls run the function itself.*\.py:\d+\)"):
            found = fused(x)
        assert_same(found, expected)
    assert fused.cache_info().traces == 0


def test_an_error_of_the_function_has_the_line_and_comes_before_any_write() -> None:
    def f(x: Any, y: Any) -> Any:
        y += 1
        return stats.pearsonr(x, x[:2])

    y = np.zeros(3)
    with pytest.raises(ValueError, match=r"broadcastable|length") as caught:
        fuse(f)(np.arange(4.0), y)
    assert any("in scipy.stats.pearsonr (test_stage_calls.py:" in note for note in caught.value.__notes__)
    assert not y.any()


_knots = np.linspace(0.0, 1.0, 12)
_points = np.random.default_rng(5).random((9, 2))
OBJECTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "a cubic spline": (scipy.interpolate.CubicSpline(_knots, _knots**2), lambda held, x: held(x) * 2),
    "the derivative of a spline": (scipy.interpolate.CubicSpline(_knots, _knots**3), lambda held, x: held(x, 1) + x),
    "a spline made of a spline": (scipy.interpolate.CubicSpline(_knots, _knots**2), lambda h, x: h.derivative()(x)),
    "coefficients of a spline": (scipy.interpolate.CubicSpline(_knots, _knots**2), lambda held, x: held.c[0][0] * x),
    "linear interpolation": (scipy.interpolate.interp1d(_knots, _knots**2), lambda held, x: held(x) + 1),
    "interpolation on a grid": (
        scipy.interpolate.RegularGridInterpolator((_knots,), _knots**2),
        lambda held, x: held(x).sum(),
    ),
    "a frozen distribution": (stats.norm(1.0, 2.0), lambda held, x: held.cdf(x * 2) + held.mean()),
    "a density estimate": (stats.gaussian_kde(_knots), lambda held, x: held(x) * 2),
    "a search tree": (scipy.spatial.cKDTree(_points), lambda held, x: held.query(np.stack([x, x], 1), k=1)[0] * 2),
    "the class of an object": (stats.gamma(2.0), lambda held, x: x * isinstance(held, type(stats.gamma(1.0)))),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_captured_object_of_scipy_computes_as_in_numpy(name: str) -> None:
    held, function = OBJECTS[name]
    fused = fuse(lambda x: function(held, x))
    for size in (5, 3, 5):
        x = np.linspace(0.1, 0.9, size)
        np.testing.assert_allclose(fused(x), function(held, x))


def test_another_object_in_its_place_and_a_changed_one_are_read_at_the_next_call() -> None:
    class Model:
        def __init__(self) -> None:
            self.curve = scipy.interpolate.CubicSpline(_knots, _knots**2)

        @fuse
        def value(self, x: Any) -> Any:
            return self.curve(x) * 2

    model, x = Model(), np.linspace(0.1, 0.9, 4)
    np.testing.assert_allclose(model.value(x), x**2 * 2)
    model.curve = scipy.interpolate.CubicSpline(_knots, _knots**3)
    np.testing.assert_allclose(model.value(x), x**3 * 2)
    model.curve.c *= 2.0
    np.testing.assert_allclose(model.value(x), x**3 * 4)
    assert type(fuse(lambda x: (x, model.curve))(x)[1]) is scipy.interpolate.CubicSpline


def regions(x: Any) -> Any:
    labels, count = ndimage.label(x > 0.5)
    return [(x[place].sum(), x[place].shape) for place in ndimage.find_objects(labels)], count


def implicit_step(x: Any) -> Any:
    n = len(x)
    matrix = scipy.sparse.diags([np.ones(n - 1), 4 * np.ones(n), np.ones(n - 1)], [-1, 0, 1], format="csc")
    solve = scipy.sparse.linalg.factorized(matrix)
    return scipy.sparse.linalg.splu(matrix).solve(x) + 2 * solve(x)


def padded_spectrum(x: Any) -> Any:
    length = scipy.fft.next_fast_len(x.shape[0] + 3)
    return np.fft.rfft(x, length).real.sum() * length


@pytest.mark.parametrize("function", [regions, implicit_step, padded_spectrum])
def test_slices_factorizations_and_cached_functions_are_those_of_scipy(function: Any) -> None:
    fused = fuse(function, target="reference")
    for seed, size in enumerate((4, 5, 4)):
        x = np.random.default_rng(seed).random((size, 5) if function is regions else size)
        assert_same(fused(x), function(x))
        assert padded_spectrum(np.ones(size)) != 0  # the cache of a library holds no values of a trace


@pytest.mark.parametrize("function", [np.bincount, np.interp, np.cumsum, np.unique])
def test_functions_of_numpy_that_write_nothing_get_arrays_as_they_are(function: Callable[..., Any]) -> None:
    assert only_reads(function, ())


@pytest.mark.parametrize("function", [np.put, np.copyto, np.median, line, signal.find_peaks])
def test_functions_that_may_write_get_read_only_arrays(function: Callable[..., Any]) -> None:
    assert not only_reads(function, ())
