"""Functions of scipy.fft, scipy.linalg, scipy.signal and scipy.ndimage on whole arrays, and scipy.special's ufuncs.

SciPy, or CuPy's cupyx.scipy for CuPy arrays, is imported when one of them runs. Result types are those of a call on
small arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import bool_, float64, int32, int64
from tracefuse.errors import ScalarError, ShapeError
from tracefuse.ir.axes import broadcast_shapes, normalize_axis
from tracefuse.ir.derivatives import Tangent
from tracefuse.ir.extents import Expression, maximum, minimum
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import ResultTypes, WholeArrayOp
from tracefuse.ops import filter_equivalents, fourier, linear_algebra, special_partials
from tracefuse.ops.families import REGISTRY, register
from tracefuse.ops.result_types import first, fixed, of_sample
from tracefuse.ops.scipy_equivalents import DERIVATIVES

Attributed: TypeAlias = tuple[tuple[str, Any], ...]

ResultShapes: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], tuple[Shape, ...]]


def function_at(path: str, array: Any) -> Any:
    """Returns a function of SciPy by its path, or CuPy's function for a CuPy array."""
    module, _, name = path.rpartition(".")
    root = "scipy" if isinstance(array, (np.ndarray, np.generic, int, float, complex)) else "cupyx.scipy"
    return getattr(importlib.import_module(f"{root}.{module}"), name)


def _define(
    path: str, parameters: str, shape: ResultShapes, dtypes: ResultTypes | Sequence[Any], doc: str, attributes: Attributed = (),
    *, call: Callable[..., Any] | None = None, optional: bool = False,
) -> None:  # fmt: skip
    """Defines the op of a function. dtypes: the rule, or sample arrays for a call that shows the types."""

    def numpy(*arrays: Any, **keywords: Any) -> Any:
        function = function_at(path, arrays[0])
        keywords = {name: value for name, value in keywords.items() if value is not None or name not in _RECENT}
        return function(*arrays, **keywords) if call is None else call(function, *arrays, **keywords)

    def sample(types: Sequence[Any], sampled: Attributes) -> Any:
        assert not callable(dtypes)
        usual = dict(attributes)  # in place of symbolic sizes
        keywords = {
            name: usual[name] if isinstance(value, Expression) else value
            for name, value in sampled.items()
            if name in _SAMPLED
        }
        return numpy(*(np.asarray(a).astype(t) for a, t in zip(dtypes, types, strict=False)), **keywords)

    register(
        WholeArrayOp(
            name=f"scipy_{path.replace('.', '_')}", doc=doc, numpy=numpy, parameters=tuple(parameters.split()),
            arity=None if optional else len(parameters.split()), optional=optional, shape=shape,
            dtypes=dtypes if callable(dtypes) else of_sample(sample), attributes=tuple(attributes),
            derivative=DERIVATIVES.get(path) or filter_equivalents.DERIVATIVES.get(path),
        )
    )  # fmt: skip


_SAMPLED = frozenset(("compute_uv", "eigvals_only", "pivoting", "permute_l", "num", "window_length", "polyorder", "padlen"))  # fmt: skip
"""Attributes that decide types, or that have no default."""


_RECENT = frozenset(("axes", "radius", "orthogonalize", "assume_a"))
"""Parameters that older releases lack; they are passed only if they are not None."""


def _like_first(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (shapes[0],)


def _like_last(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (shapes[-1],)


# ---------------------------------------------------------------------------------------------------------------------
# scipy.fft

_ONE_AXIS: Attributed = (("n", None), ("axis", -1), ("norm", None))
_VECTOR, _SQUARE = np.arange(1, 9), np.eye(2) * 2

for _name, _default, _length in (
    ("fft", fourier.same_length, fourier.same_length), ("ifft", fourier.same_length, fourier.same_length),
    ("rfft", fourier.same_length, fourier.half_length), ("irfft", fourier.double_length, fourier.same_length),
    ("hfft", fourier.double_length, fourier.same_length), ("ihfft", fourier.same_length, fourier.half_length),
):  # fmt: skip
    _define(f"fft.{_name}", "x", fourier.along_axis(_default, _length), [_VECTOR], "A Fourier transform along `axis`.", _ONE_AXIS)  # fmt: skip
for _name, _default, _length in (
    ("fftn", fourier.same_length, fourier.same_length), ("ifftn", fourier.same_length, fourier.same_length),
    ("rfftn", fourier.same_length, fourier.half_length), ("irfftn", fourier.double_length, fourier.same_length),
):  # fmt: skip
    for _axes, _as in ((None, _name), ((-2, -1), f"{_name[:-1]}2")):
        _define(
            f"fft.{_as}", "x", fourier.along_axes(_default, _length), [np.ones((4, 4))],
            "A Fourier transform along `axes`.", (("s", None), ("axes", _axes), ("norm", None)),
        )  # fmt: skip
for _name in ("dct", "idct", "dst", "idst"):
    _define(
        f"fft.{_name}", "x", fourier.along_axis(fourier.same_length, fourier.same_length), [_VECTOR],
        "A cosine or sine transform along `axis`.", (("type", 2), *_ONE_AXIS, ("orthogonalize", None)),
    )  # fmt: skip
    _define(
        f"fft.{_name}n", "x", fourier.along_axes(fourier.same_length, fourier.same_length), [np.ones((4, 4))],
        "A cosine or sine transform along `axes`.",
        (("type", 2), ("s", None), ("axes", None), ("norm", None), ("orthogonalize", None)),
    )  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# scipy.linalg


def _matrix_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    linear_algebra.matrix(shapes[0])
    return (shapes[0],)


def _factor_and_pivots(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = linear_algebra.matrix(shapes[0])
    return shapes[0], (*stack, minimum(rows, columns))


def _lu_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = linear_algebra.matrix(shapes[0])
    least = minimum(rows, columns)
    factors = ((*stack, rows, least), (*stack, least, columns))
    return factors if attributes["permute_l"] else ((*stack, rows, rows), *factors)


def _solved(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return linear_algebra.solve_shape((shapes[0], shapes[-1]), attributes, require)


def _qr_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = linear_algebra.matrix(shapes[0])
    least, mode = minimum(rows, columns), attributes["mode"]
    if mode not in ("full", "r", "economic"):
        raise ScalarError(f"scipy.linalg.qr: mode {mode!r}", hint="use 'full', 'r' or 'economic'")
    inner = least if mode == "economic" else rows
    results = [(*stack, inner, columns)] if mode == "r" else [(*stack, rows, inner), (*stack, inner, columns)]
    return (*results, *([(*stack, columns)] if attributes["pivoting"] else []))


def _qr_sample(types: Sequence[Any], attributes: Attributes) -> Any:
    return function_at("linalg.qr", _SQUARE)(_SQUARE.astype(types[0]), **dict(attributes))


def _eigh_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    results = linear_algebra.values_and_vectors(shapes, attributes, require)
    return results[:1] if attributes["eigvals_only"] else results


def _toeplitz_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    if any(len(shape) != 1 for shape in shapes):
        raise ShapeError("scipy.linalg.toeplitz: vectors", hint="reshape them with x.ravel()")
    return ((shapes[0][0], shapes[-1][0]),)


_OF_SQUARE, _PAIR = [_SQUARE], [_SQUARE, np.ones(2)]
_define("linalg.solve", "a b", _solved, _PAIR, "The solutions of linear equations.", (("lower", False), ("assume_a", None), ("transposed", False)))  # fmt: skip
_define("linalg.inv", "a", linear_algebra.same_square, _OF_SQUARE, "The inverse.")
_define("linalg.det", "a", linear_algebra.stack_shape, _OF_SQUARE, "The determinant.")
_define("linalg.cholesky", "a", linear_algebra.same_square, _OF_SQUARE, "The triangular factor.", (("lower", False),))
_define("linalg.cho_factor", "a", linear_algebra.same_square, _OF_SQUARE, "The triangular factor for `cho_solve`.", (("lower", False),), call=lambda f, a, lower=False: f(a, lower)[0])  # fmt: skip
_define("linalg.cho_solve", "c b", _solved, _PAIR, "The solutions by a factor of `cho_factor`.", (("lower", False),), call=lambda f, c, b, lower=False: f((c, lower), b))  # fmt: skip
_define("linalg.lu_factor", "a", _factor_and_pivots, _OF_SQUARE, "The triangular factors in one matrix, and pivots.")
_define("linalg.lu_solve", "lu piv b", _solved, [_SQUARE, [0, 1], np.ones(2)], "The solutions by the factors of `lu_factor`.", (("trans", 0),), call=lambda f, lu, piv, b, trans=0: f((lu, piv), b, trans))  # fmt: skip
_define("linalg.lu", "a", _lu_shape, _OF_SQUARE, "The permutation and the triangular factors.", (("permute_l", False),))
_define("linalg.solve_triangular", "a b", _solved, _PAIR, "The solutions of triangular equations.", (("trans", 0), ("lower", False), ("unit_diagonal", False)))  # fmt: skip
_define("linalg.expm", "A", linear_algebra.same_square, _OF_SQUARE, "The exponential of a matrix.")
_define("linalg.svd", "a", linear_algebra.svd_shape, _OF_SQUARE, "The singular value decomposition.", (("full_matrices", True), ("compute_uv", True), ("lapack_driver", "gesdd")))  # fmt: skip
_define("linalg.svdvals", "a", linear_algebra.singular_values_shape, _OF_SQUARE, "The singular values.")
_define("linalg.eigh", "a", _eigh_shape, _OF_SQUARE, "Eigenvalues and eigenvectors of Hermitian matrices.", (("lower", True), ("eigvals_only", False)))  # fmt: skip
_define("linalg.eigvalsh", "a", linear_algebra.eigenvalues_shape, _OF_SQUARE, "Eigenvalues of Hermitian matrices.", (("lower", True),))  # fmt: skip
_define("linalg.qr", "a", _qr_shape, of_sample(_qr_sample), "The orthogonal and the triangular factor.", (("mode", "full"), ("pivoting", False)))  # fmt: skip
_define("linalg.pinv", "a", linear_algebra.pinv_shape, _OF_SQUARE, "The pseudo-inverse.", (("atol", None), ("rtol", None)))  # fmt: skip
_define("linalg.solve_banded", "ab b", _like_last, [np.ones((1, 2)), np.ones(2)], "The solutions of banded equations.", (("l_and_u", (0, 0)),), call=lambda f, ab, b, l_and_u=(0, 0): f(l_and_u, ab, b))  # fmt: skip
_define("linalg.solveh_banded", "ab b", _like_last, [np.ones((1, 2)), np.ones(2)], "The solutions of Hermitian banded equations.", (("lower", False),))  # fmt: skip
_define("linalg.toeplitz", "c r", _toeplitz_shape, [np.ones(2), np.ones(2)], "The matrix with constant diagonals.", optional=True, call=lambda f, c, r=None: f(c, r))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# scipy.signal


def _convolved_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    left, right = shapes
    if len(left) != len(right):
        raise ShapeError("in1 and in2 should have the same dimensionality", hint="reshape one of them")
    mode = attributes["mode"]
    if mode == "same":
        return (left,)
    if mode == "full":
        return (tuple(a + b - 1 for a, b in zip(left, right, strict=True)),)
    if mode != "valid":
        raise ScalarError(f"mode {mode!r}", hint="use 'full', 'same' or 'valid'")
    return (tuple(maximum(a, b) - minimum(a, b) + 1 for a, b in zip(left, right, strict=True)),)


def _resized(name: str) -> ResultShapes:
    """The shape of the first operand with the extent that the attribute `name` gives along `axis`."""

    def shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        result = list(shapes[0])
        if attributes[name] is not None:
            result[normalize_axis(attributes["axis"], len(result))] = attributes[name]
        return (tuple(result),)

    return shape


_TWO = [np.ones(4), np.ones(3)]
_BY: Attributed = (("mode", "full"), ("method", "auto"))
for _name, _signal_attributes in (
    ("convolve", _BY), ("correlate", _BY), ("fftconvolve", (("mode", "full"),)), ("oaconvolve", (("mode", "full"),)),
):  # fmt: skip
    _define(f"signal.{_name}", "in1 in2", _convolved_shape, _TWO, "A convolution or a correlation.", _signal_attributes)
for _name in ("convolve2d", "correlate2d"):
    _define(
        f"signal.{_name}", "in1 in2", _convolved_shape, [np.ones((3, 3))] * 2, "A convolution of matrices.",
        (("mode", "full"), ("boundary", "fill"), ("fillvalue", 0)),
    )  # fmt: skip
_FILTER = [np.ones(2), np.ones(2), np.arange(1, 30)]
_define("signal.lfilter", "b a x", _like_last, _FILTER, "A linear filter along `axis`.", (("axis", -1),))
_define("signal.filtfilt", "b a x", _like_last, _FILTER, "A linear filter forwards and backwards.", (("axis", -1), ("padtype", "odd"), ("padlen", None), ("method", "pad"), ("irlen", None)))  # fmt: skip
_SECTIONS = [np.array([[1, 1, 1, 1, 1, 1]]), np.arange(1, 30)]
_define("signal.sosfilt", "sos x", _like_last, _SECTIONS, "A filter in sections along `axis`.", (("axis", -1),))
_define("signal.sosfiltfilt", "sos x", _like_last, _SECTIONS, "A filter in sections, forwards and backwards.", (("axis", -1), ("padtype", "odd"), ("padlen", None)))  # fmt: skip
_define("signal.detrend", "data", _like_first, [_VECTOR], "The signal without its linear trend.", (("axis", -1), ("type", "linear"), ("bp", 0)))  # fmt: skip
_define("signal.savgol_filter", "x", _like_first, [np.arange(64)], "A filter by polynomials in windows.", (("window_length", 5), ("polyorder", 2), ("deriv", 0), ("delta", 1.0), ("axis", -1), ("mode", "interp"), ("cval", 0.0)))  # fmt: skip
_define("signal.medfilt", "volume", _like_first, [_VECTOR], "Medians of windows.", (("kernel_size", None),))
_define("signal.hilbert", "x", _resized("N"), [_VECTOR], "The analytic signal.", (("N", None), ("axis", -1)))
_define("signal.resample", "x", _resized("num"), [_VECTOR], "The signal with `num` samples, by Fourier transforms.", (("num", 8), ("axis", 0), ("window", None), ("domain", "time")))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# scipy.ndimage

_EDGE: Attributed = (("mode", "reflect"), ("cval", 0.0))
_WINDOW: Attributed = (("size", None), *_EDGE, ("origin", 0), ("axes", None))
_SPLINE: Attributed = (("order", 3), ("mode", "constant"), ("cval", 0.0), ("prefilter", True))
for _name, _parameters, _attributes, _doc in (
    ("gaussian_filter", "input", (("sigma", 1.0), ("order", 0), *_EDGE, ("truncate", 4.0), ("radius", None), ("axes", None)), "A Gaussian filter."),
    ("gaussian_filter1d", "input", (("sigma", 1.0), ("axis", -1), ("order", 0), *_EDGE, ("truncate", 4.0), ("radius", None)), "A Gaussian filter along `axis`."),
    ("uniform_filter", "input", (("size", 3), *_EDGE, ("origin", 0), ("axes", None)), "Means of windows."),
    ("uniform_filter1d", "input", (("size", 3), ("axis", -1), *_EDGE, ("origin", 0)), "Means of windows along `axis`."),
    ("maximum_filter1d", "input", (("size", 3), ("axis", -1), *_EDGE, ("origin", 0)), "Maxima along `axis`."),
    ("minimum_filter1d", "input", (("size", 3), ("axis", -1), *_EDGE, ("origin", 0)), "Minima along `axis`."),
    ("sobel", "input", (("axis", -1), *_EDGE), "A Sobel filter."),
    ("prewitt", "input", (("axis", -1), *_EDGE), "A Prewitt filter."),
    ("laplace", "input", (*_EDGE, ("axes", None)), "The Laplace operator."),
    ("gaussian_laplace", "input", (("sigma", 1.0), *_EDGE, ("axes", None)), "The Laplace operator of a Gaussian filter."),
    ("gaussian_gradient_magnitude", "input", (("sigma", 1.0), *_EDGE, ("axes", None)), "Gradients of a Gaussian filter."),
    ("convolve", "input weights", (*_EDGE, ("origin", 0), ("axes", None)), "A convolution."),
    ("correlate", "input weights", (*_EDGE, ("origin", 0), ("axes", None)), "A correlation."),
    ("convolve1d", "input weights", (("axis", -1), *_EDGE, ("origin", 0)), "A convolution along `axis`."),
    ("correlate1d", "input weights", (("axis", -1), *_EDGE, ("origin", 0)), "A correlation along `axis`."),
    ("shift", "input", (("shift", 0.0), *_SPLINE), "The array shifted, by splines."),
    ("rotate", "input", (("angle", 0.0), ("axes", (1, 0)), ("reshape", False), *_SPLINE), "The array rotated, by splines."),
):  # fmt: skip
    _define(f"ndimage.{_name}", _parameters, _like_first, first, _doc, _attributes)
for _name, _window_attributes, _doc in (
    ("median_filter", _WINDOW, "Medians of windows."), ("maximum_filter", _WINDOW, "Maxima of windows."),
    ("minimum_filter", _WINDOW, "Minima of windows."), ("rank_filter", (("rank", 0), *_WINDOW), "Elements of a rank."),
    ("percentile_filter", (("percentile", 50), *_WINDOW), "Percentiles of windows."),
    *((name, _WINDOW[:-1], "A grey-scale morphological filter.") for name in
      ("grey_erosion", "grey_dilation", "grey_opening", "grey_closing")),
):  # fmt: skip
    _define(f"ndimage.{_name}", "input footprint", _like_first, first, _doc, _window_attributes, optional=True)
for _name in ("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"):
    _more = (("border_value", 0), ("origin", 0)) if _name.endswith(("erosion", "dilation")) else (("origin", 0),)
    _define(
        f"ndimage.{_name}", "input structure", _like_first, fixed(bool_), "A binary morphological filter.",
        (("iterations", 1), *_more), optional=True,
    )  # fmt: skip


def _coordinates_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    require(shapes[1][0], "==", len(shapes[0]), "{left} coordinates for {right} axes", "give one for each axis")
    return (shapes[1][1:],)


_define("ndimage.map_coordinates", "input coordinates", _coordinates_shape, first, "Elements at coordinates, by splines.", _SPLINE)  # fmt: skip
_define("ndimage.distance_transform_edt", "input", _like_first, fixed(float64), "Distances to the nearest zero.", (("sampling", None),))  # fmt: skip
_define("ndimage.label", "input structure", lambda shapes, given, require: (shapes[0], ()), fixed(int32, int64), "Connected features, and their number.", optional=True)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# scipy.special


def _broadcast(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (broadcast_shapes(shapes, require),) * len(attributes["results"])


def _special(*arrays: Any, function: str, results: Any, numbers: tuple[Any, ...]) -> Any:
    """numbers: the Python numbers among the operands, None for an array."""
    places = iter(arrays)
    return function_at(f"special.{function}", arrays[0])(*(next(places) if v is None else v for v in numbers))


register(
    WholeArrayOp(
        name="i0", doc="The modified Bessel function of the first kind, of order 0.", numpy=np.i0, function=np.i0,
        parameters=("x",), shape=_like_first, raises=False,
        dtypes=of_sample(lambda types, given: np.i0(np.ones(1, types[0]))), derivative=Tangent(special_partials.of_bessel),
    )
)  # fmt: skip
register(
    WholeArrayOp(
        name="special_function", doc="A ufunc of scipy.special that no op definition computes.", numpy=_special,
        arity=None, shape=_broadcast, dtypes=lambda types, given: given["results"], raises=False,
        derivative=Tangent(special_partials.tangent), attributes=(("function", "gamma"), ("results", ()), ("numbers", ())),
    )
)  # fmt: skip

PATHS = tuple(".".join(name.split("_", 2)[1:]) for name in REGISTRY if name.startswith("scipy_"))
"""The functions of SciPy that have ops, without "scipy."."""


def op_of(path: str) -> WholeArrayOp:
    """Returns the op of a function of SciPy."""
    op = REGISTRY[f"scipy_{path.replace('.', '_')}"]
    assert isinstance(op, WholeArrayOp)
    return op
