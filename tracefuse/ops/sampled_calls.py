"""Functions of NumPy and SciPy without a shape rule: a call on sample arrays shows the types and shapes of the results.

They compute types and shapes from the types and shapes of their operands alone, so the sample's are those of the call.
The trace that calls the sample fixes the extents of the operands. Results are the leaves of what the function returns.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops.families import register

_DISTRIBUTION_NAMES = """
bernoulli beta betabinom binom cauchy chi2 expon exponnorm f gamma genextreme genpareto geom gumbel_l gumbel_r
halfnorm hypergeom invgamma invgauss laplace levy logistic loggamma lognorm lomax nbinom norm pareto poisson
powerlaw randint rayleigh skellam t triang truncnorm uniform vonmises wald weibull_max weibull_min
"""

_BY_MODULE = {
    "numpy": "histogram2d histogramdd poly polyfit",
    "scipy.fft": "fht ifht",
    "scipy.integrate": "cumulative_simpson cumulative_trapezoid romb simpson trapezoid",
    "scipy.linalg": """
        block_diag circulant companion coshm cosm dft eigvals eigvals_banded eigvalsh_tridiagonal expm_cond
        fiedler hankel helmert hessenberg khatri_rao ldl lstsq matmul_toeplitz matrix_balance
        orthogonal_procrustes polar rq schur sinhm sinm solve_circulant solve_continuous_are
        solve_continuous_lyapunov solve_discrete_are solve_discrete_lyapunov solve_sylvester solve_toeplitz
        subspace_angles tanhm tanm
    """,
    "scipy.ndimage": """
        affine_transform binary_fill_holes binary_hit_or_miss binary_propagation black_tophat center_of_mass
        distance_transform_bf distance_transform_cdt fourier_ellipsoid fourier_gaussian fourier_shift fourier_uniform
        histogram maximum maximum_position mean median minimum minimum_position morphological_gradient
        morphological_laplace spline_filter spline_filter1d standard_deviation sum sum_labels variance white_tophat
        watershed_ift zoom
    """,
    "scipy.signal": """
        chirp coherence csd cspline1d cspline1d_eval czt decimate deconvolve freqz gausspulse hilbert2 istft lfilter_zi
        lombscargle medfilt2d minimum_phase order_filter periodogram qspline1d resample_poly sawtooth sepfir2d sosfreqz
        sosfilt_zi spectrogram square stft sweep_poly symiirorder1 upfirdn vectorstrength welch wiener zoom_fft
    """,
    "scipy.spatial.distance": """
        braycurtis canberra cdist chebyshev cityblock correlation cosine euclidean hamming mahalanobis minkowski pdist
        sqeuclidean squareform
    """,
    "scipy.special": """
        comb digamma diric factorial factorial2 multigammaln perm polygamma spherical_in spherical_jn spherical_kn
        spherical_yn zeta
    """,
    "scipy.stats": """
        boxcox_llf circmean circstd circvar differential_entropy entropy gmean gstd gzscore hmean iqr kstat kstatvar
        kurtosis moment pmean rankdata sem skew trim_mean variation zmap zscore tiecorrect
    """,
    **{
        f"scipy.stats.{name}": "cdf isf logcdf logpdf logpmf logsf pdf pmf ppf sf"
        for name in _DISTRIBUTION_NAMES.split()
    },
    **{
        f"numpy.polynomial.{module}": f"""
            {prefix}val {prefix}val2d {prefix}val3d {prefix}grid2d {prefix}vander {prefix}vander2d {prefix}fit
            {prefix}der {prefix}int {prefix}fromroots
        """
        for module, prefix in (
            ("polynomial", "poly"), ("chebyshev", "cheb"), ("legendre", "leg"), ("hermite", "herm"),
            ("hermite_e", "herme"), ("laguerre", "lag"),
        )
    },
}  # fmt: skip
SAMPLED_PATHS = tuple(f"{module}.{name}" for module, names in _BY_MODULE.items() for name in names.split())
"""The functions, by the path at which a program imports them."""


DISTRIBUTIONS = tuple(module for module in _BY_MODULE if module.startswith("scipy.stats."))
"""The objects of scipy.stats whose methods are among the functions."""


@functools.wraps(np.polyfit)
def polyfit(x: Any, y: Any, deg: Any, rcond: Any = None, full: Any = False, w: Any = None, cov: Any = False) -> Any:
    """np.polyfit; CuPy's multiplies an array `y` by the weights in place, so it gets a copy."""
    own = y.copy() if w is not None and hasattr(y, "shape") else y
    return np.polyfit(x, own, deg, rcond=rcond, full=full, w=w, cov=cov)


_INSTEAD = {"numpy.polyfit": polyfit}
"""What is called for functions of which CuPy's changes its arguments, by their paths."""


def sampled_function(path: str) -> Callable[..., Any]:
    """Returns the function at a path of SAMPLED_PATHS, or one for it that leaves its arguments; imports its module."""
    if path in _INSTEAD:
        return _INSTEAD[path]
    owner, _, name = path.rpartition(".")
    module, _, distribution = owner.rpartition(".") if owner in DISTRIBUTIONS else (owner, "", "")
    loaded = importlib.import_module(module)
    function: Callable[..., Any] = getattr(getattr(loaded, distribution) if distribution else loaded, name)
    return function


def filled(argument: Any, arrays: Sequence[Any]) -> Any:
    """Returns an argument with arrays in the places of operands.

    argument: ("operand", position), ("value", value) or ("list", arguments).
    """
    kind, content = argument
    if kind == "list":
        return [filled(entry, arrays) for entry in content]
    return arrays[content] if kind == "operand" else content


def _call(
    *arrays: Any, path: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...], **results: Any
) -> tuple[Any, ...]:
    result = sampled_function(path)(
        *(filled(argument, arrays) for argument in arguments),
        **{name: filled(value, arrays) for name, value in keywords},
    )
    return tuple(map(np.asarray, pytrees.flatten(result)[0]))


def sample_of(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Returns ascending elements from 1 to 2, integers from 1 to 3; square matrices are positive definite."""
    size = int(np.prod(shape))
    array: Any = np.reshape(
        1 + np.arange(size) / max(size, 1) if dtype.kind in "fc" else np.arange(size) % 3 + 1, shape
    )
    if len(shape) > 1 and shape[-1] == shape[-2]:
        array = array + np.swapaxes(array, -1, -2) + np.eye(shape[-1]) * 4 * shape[-1]
    return array.astype(dtype)


def sampled_result(path: str, arguments: Sequence[Any], keywords: Mapping[str, Any], samples: Sequence[Any]) -> Any:
    """Returns what the function returns for sample arrays in the places of operands. Raises what it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return sampled_function(path)(
            *(filled(argument, samples) for argument in arguments),
            **{k: filled(v, samples) for k, v in keywords.items()},
        )


sampled_call = register(
    WholeArrayOp(
        name="sampled_call", doc="A function of NumPy or SciPy on whole arrays, by its `path`.", numpy=_call,
        arity=None, shape=lambda shapes, given, require: given["shapes"], dtypes=lambda types, given: given["results"],
        sizes_from_data="other data give a result of another shape",
        attributes=(("path", ""), ("arguments", ()), ("keywords", ()), ("shapes", ()), ("results", ())),
    )
)  # fmt: skip
