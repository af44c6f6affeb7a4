"""Calls of NumPy's functions that random programs found: values, views, read-only arrays and errors are NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.programs.comparison import difference
from tracefuse import fuse
from tracefuse.errors import TracefuseError

OPTIONS: dict[str, Any] = {"target": "reference", "contract": False, "exact_half": True}


def outcome(function: Callable[[Any], Any], x: Any) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(x), None
        except Exception as error:
            return None, error


def check(text: str, arrays: list[Any]) -> None:
    """Calls one fused function with each array, twice: results, written arguments and errors are those of NumPy."""
    function = eval(f"lambda x: {text}", {"np": np})
    fused = fuse(function, **OPTIONS)
    for array in [*arrays, *arrays]:
        right, mine = ((one.copy() if one.base is None else one) for one in (array, array))
        if not array.flags.writeable:
            right.flags.writeable = mine.flags.writeable = False
        (expected, expected_error), (result, error) = outcome(function, right), outcome(fused, mine)
        if expected_error is not None:
            kind = next(one for one in type(expected_error).__mro__ if one.__module__ == "builtins")
            assert isinstance(error, kind), (text, array, error or result, expected_error)
            assert isinstance(error, TracefuseError), (text, error)
            continue
        assert error is None, (text, array, error)
        why = difference(result, expected, "result") or difference(mine, right, "argument")
        assert why is None, (text, array, why)
        if isinstance(expected, np.ndarray | np.generic) and np.asarray(expected).dtype.kind in "fc":
            parts = [np.signbit(np.asarray(one).real) | np.isnan(one) for one in (result, expected)]
            assert np.array_equal(*parts), (text, array, result, expected)


INTEGERS = [np.array([-6, 4, 0], "int8"), np.array([2, 5, 3], "int8")]
COMPLEX = [np.array([1 + 2j, 3 + 1e-17j, 2]), np.array([1 + 0j, 3 + 1e-17j, 2]), np.array([1 - 1j], "complex64")]
NOT_FINITE = [
    np.array([np.nan, 1, np.inf, -0.0]), np.array([np.nan]), np.array([-0.0, 2], "float16"),
    np.ones((2, 1, 2)) * np.inf,
    np.array([[complex(np.inf, np.nan), 1]]), np.array([1e200 + 1e200j, 0]), np.array([3, 4], "int8"), np.zeros(0),
]  # fmt: skip
LAYOUTS = [
    np.broadcast_to(np.arange(3.0), (2, 3)), np.broadcast_to(np.arange(2.0)[:, None], (2, 3)),
    np.broadcast_to(np.arange(4.0).reshape(2, 1, 2).transpose(2, 1, 0), (2, 3, 2)), np.arange(6.0).reshape(2, 3)[::-1],
    np.arange(6.0).reshape(3, 2).T[::-1], np.arange(4.0).reshape(1, 4)[:, ::2],
]  # fmt: skip
READ_ONLY = [np.arange(4.0), np.broadcast_to(np.arange(1.0), (4,)), np.arange(4)]
READ_ONLY[0].flags.writeable = False

CALLS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "exponents under a mask": (INTEGERS, (
        "np.power(x, x, where=x > 2, out=np.zeros((2, 3)))", "np.power(x, -1, where=x > 9, out=np.zeros(3))",
        "np.power(x, -1, where=x > 3, out=np.zeros(3))", "np.power(2, x, where=x >= 0, out=np.zeros(3, int))",
        "np.power(x, [2, -1, 3], where=[True, False, True], out=np.zeros(3, int))",
        "np.power(x, 0.5, where=x > 3, out=np.zeros(3))", "np.power(x, 2, where=x > 3, dtype=int, out=np.ones(3, int))",
    )),
    "real_if_close": (COMPLEX, (
        "np.real_if_close(x, tol=1000)", "np.real_if_close(x, 0.5)", "np.real_if_close(x * 2) + 1",
        "(lambda y: (x.fill(7), y)[1])(np.real_if_close(x))", "np.isfinite(np.real_if_close(abs(x).sum()))",
    )),
    "products with numbers": (NOT_FINITE, tuple(
        text.format(s) for s in ("0", "-0.0", "2", "-1j", "np.float16(0)", "np.array(-1)")
        for text in ("np.dot(x, {0})", "np.inner({0}, x)", "x[..., ::2].dot({0})")
    )),
    "norms": (NOT_FINITE[3:7], (
        "np.linalg.norm(x)", "np.linalg.norm(x, axis=0)", "np.linalg.norm(x, 2, axis=-1, keepdims=True)",
        "np.linalg.vector_norm(x)", "np.linalg.norm(np.atleast_2d(x)[0, None], 'fro')",
    )),
    "extents beside -1": ([np.zeros((3, 0)), np.ones((3, 2)), np.ones((0, 2))], (
        "x.reshape(-1, x.shape[1])", "np.reshape(x, (-1, x.shape[1]), order='F')", "x.reshape(x.shape[0], -1)",
        "x.reshape(-1)", "x.reshape(x.shape[0] * 3, -1)", "x.T.reshape(-1, x.shape[0])",
    )),
    "complex extremes under a mask": ([np.array([[2 + 1j, -2 - 1j], [1 + 1j, -1 + 0.5j]]), -np.ones((2, 2)) * 1j], (
        "np.min(x[x > 0], axis=0)", "x[x.real > -9].max()", "np.ptp(x[x.real > -9])",
    )),
    "attributes of elements under a mask": ([np.array([0, 1.0, 2, 3]), np.array([0, 1, 2, 3j])], (
        "(lambda y: (y.__setattr__('real', [-1.5, 0.5, 0.5]), y)[1])(x[x != 1] * 2)",
        "(lambda y: (y.__setattr__('imag', 5), y)[1])(x[x != 1] * 2j)",
        "(lambda y: (y.__setattr__('shape', (3, 1)), y)[1])(x[x != 1] * 2)",
        "(lambda y: (y.__setattr__('flat', [9, 8]), y)[1])(x[x != 1] * 2)",
    )),
    "signs of rounded parts": ([np.array([0j, -0.0 - 0j, complex(1.5, -0.0), -10 - 0j, 1.5 - 2.5j, -4 - 4j])], (
        "x.round(-1)", "np.round(x - 0.5, 1)", "np.round(x)", "np.imag(np.round(x.astype('c8'), -1))",
        "np.log2(np.round(x, -1)).imag",
    )),
    "order of memory": (LAYOUTS, (
        "np.ravel(x, order='K')", "x.T.ravel('K')", "x.flatten('K')", "x[..., ::-1].ravel('K')", "(x.T + 1).ravel('K')",
    )),
    "updates through reshaped results": (LAYOUTS[3:], tuple(
        f"(lambda y: (y.reshape(-1).__setitem__(0, 9), y)[1])({text})"
        for text in ("np.select([x > 0.5], [x])", "np.choose(x > 1, [x, 0])", "np.dot(x, 2)", "np.where(x > 1, x, 0)")
    )),
    "arrays of scalars": ([np.arange(3.0), np.ones((2, 1))], tuple(
        f"(lambda s: (lambda y: (np.degrees(y, out=y), s, y))({text}))(np.sin(x.sum()))"
        for text in ("np.asarray(s)", "np.asanyarray(s)", "np.array(s, copy=None)", "np.asarray(s, dtype=float)")
    )),
    "output arrays with more axes": ([np.arange(6.0).reshape(2, 3)], tuple(
        f"(lambda y: ({text}, y))(np.zeros((2, 2, 3)))"
        for text in ("np.clip(x, 1, 2, out=y)", "np.fix(x, y)", "np.isposinf(x, out=y)", "np.nanmedian(x, out=y)",
                     "np.quantile(x, [0.5], axis=0, out=y)", "np.nanpercentile(x, 50, axis=1, out=y[..., 1:])",
                     "np.outer(x[0, :2], x[1], out=y)", "np.round(x, 1, out=y[:1])", "np.round(x, 1, out=y)",
                     "np.modf(x, out=(y, None))", "np.linalg.multi_dot([x, x.T, x[:, 0]], out=y[0, :, 0])")
    )),
    "copies of read-only views": ([np.arange(4.0).reshape(2, 2), np.arange(8.0).reshape(2, 2, 2)[::-1]], (
        "(lambda y: (y.fill(7), y))(np.broadcast_to(x, (2, *x.shape)).reshape(-1, order='F'))",
        "(lambda y: (np.add(y, 1, out=y[None]), y))(np.diagonal(x).reshape((-1,)))",
        "np.diagonal(x)[None].fill(1)", "(np.negative(np.split(x, 2)[1], out=x), x)",
    )),
    "roots by numbers of NumPy": ([np.array([-np.inf, -0.0, 2], t) for t in ("f2", "f4", "f8")], (
        "x ** np.float64(0.5)", "np.power(x, np.float64(0.5))", "np.power(x, np.float32(0.5))",
    )),
    "output arrays that are read-only": ([np.arange(1.0)], tuple(
        f"(lambda y: {text})(np.broadcast_to(x, 4))"
        for text in ("np.round(y, 0, y)", "np.nan_to_num(y, copy=False)", "np.put(y, [], 1)", "np.putmask(y, [0], [])")
    )),
    "flags and types that are set": ([np.arange(4.0)], tuple(
        f"(lambda y: ({text}))(x + 1)"
        for text in ("y.setflags(write=False), y.fill(1)", "y[1:], y.setflags(write=False), y[1:].sort()",
                     "y.setflags(write=False), y.copy().fill(1), y.setflags(write=True), y.fill(1), y",
                     "y.flags.__setitem__('W', False), y.flags['WRITEABLE'], y * 2",
                     "y.__setattr__('dtype', np.int32), y.__setitem__(0, 7), y", "y.__setattr__('imag', 1)",
                     "y.__delitem__(0)", "np.sum(y).setflags(write=False)", "y.setflags(align=True)")
    )),
    "bits of halves": ([np.array([-0.0, 1.5, 6e-8, np.inf, np.nan, 65504], "float16")], (
        "x.view(np.uint16)", "x.view('u1')", "x.view(np.int64 if x.size % 4 == 0 else np.int32)", "x.byteswap()",
        "(x * 1).view(np.uint16).view(np.float16)", "x.byteswap(inplace=True)",
    )),
    "medians into outputs": ([np.array([[1.65, 4.05, 0.1], [-2.2, 8.35, 3]], t) for t in ("f2", "f4", "c8")], (
        "np.median(x, axis=0, out=np.zeros(3, 'f2'))", "np.median(x, axis=0, out=np.zeros(3))",
        "np.median(x, out=np.zeros((), 'c16'))", "np.nanmedian(x, axis=0, out=np.zeros(3))",
        "np.nanmedian(x[:0], out=np.zeros(2))", "np.nanmedian(x[:0], axis=0, out=np.zeros(3))",
    )),
    "arrays without elements": ([np.zeros((0, 1, 1)), np.zeros((2, 0, 2))], (
        "x.compress([True, False, True], -2)", "x.compress([False, True], 0)",
        "np.nanmax(x.astype('c8'), axis=1, initial=np.nan)", "np.nanmin(x * 1j, initial=complex(1, np.nan))",
    )),
    "updates at one truth value": ([np.arange(3.0), np.array(2.0)], tuple(
        f"(np.{call}, x)" for call in ("add.at(x, True, 1)", "negative.at(x, np.array(False))",
                                       "maximum.at(x, x.any(), 1)", "divide.at(x, np.array(True), [2.0])")
    )),
    "initial values in outputs": ([np.array([[1.75, 3.5], [-2.25, 0.25]])], tuple(
        f"np.{call}, axis=0, initial=-1.5, out=np.zeros(2, {kind}))"
        for kind in ("int", "bool", "'f2'", "'f4'")
        for call in ("add.reduce(x", "prod(x", "max(x", "min(x", "sum(x[:0]", "multiply.reduce(x, where=x > 0")
    )),
    "transforms into outputs": ([np.arange(5.0).astype(t) for t in ("f2", "f4", "c8")], (
        "np.fft.fft(x, out=np.zeros(5, complex)) - np.fft.fft(x.astype(complex))",
        "np.fft.irfft(x, norm='ortho', out=np.zeros(8)) * 1e12 % 1e4",
    )),
    "the order of a reduction": ([np.array([[2, 9, 0], [-9, 0, -4], [8, 0, -9]], order="F")], (
        "np.arctan2.reduce(np.maximum.accumulate(x, axis=-1, out=np.zeros(x.shape, int)))", "np.arctan2.reduce(x)",
    )),
    "updates without elements": (READ_ONLY, (
        "x.__setattr__('flat', [])", "np.put(x, [], 1)", "x.flat.__setitem__([], [])", "np.putmask(x, x > 1, [])",
        "x.flat.__setitem__(x > 1, [])", "np.place(x, x > 9, [])", "np.place(x, x > 1, [])", "x.__setitem__([], 1)",
    )),
}  # fmt: skip


OF_NUMBERS = (
    "np.result_type(s)", "np.result_type(s, x)", "np.result_type('f4', s)", "np.result_type(x.shape[0])",
    "np.can_cast(s, 'f4')", "np.real(s)", "np.imag(s)", "np.round(s)", "np.real(x.sum() > 1)",
    "np.interp(s, [0, 1], [1, 2])", "np.interp(x[:1].sum() + 9, [0, 1], [1, 2], right=s)",
    "np.interp([9], [0, 1], [1, 2], right=np.complex128(0.5j))",
    "x.__setitem__((slice(0, 2), [7]), s)", "np.add.outer(x, x)[np.array([[0]]), [0, -1]]", "x[[0, -1], [0, 0]]",
)  # fmt: skip


@pytest.mark.parametrize("s", [True, 3, -2, 2.5, 1j, np.float32(0.5), np.int8(3)], ids=repr)
def test_numbers_and_empty_axes_are_taken_as_by_numpy(s: Any) -> None:
    for text in OF_NUMBERS:
        function = eval(f"lambda x, s: {text}", {"np": np})
        fused = fuse(function, **OPTIONS)
        for x in (np.zeros((2, 3), "int8"), np.zeros((0, 3)), np.zeros((3, 0))):
            (expected, expected_error), (result, error) = (
                outcome(lambda y, f=f: f(y, s), x) for f in (function, fused)
            )
            if expected_error is not None:
                kind = next(one for one in type(expected_error).__mro__ if one.__module__ == "builtins")
                assert isinstance(error, kind), (text, x.shape, error or result, expected_error)
                continue
            assert error is None, (text, x.shape, error)
            is_number = isinstance(expected, int | float | complex) and isinstance(result, np.ndarray)
            mine = result.item() if is_number and not isinstance(expected, np.generic) else result
            assert difference(mine, expected, "result") is None, (text, x.shape, mine, expected)


@pytest.mark.parametrize("s", [np.int16(3), np.array(3, np.int16), 3, np.float32(0.5), np.array(True)], ids=repr)
def test_numbers_of_a_call_keep_their_types_beside_captured_arrays(s: Any) -> None:
    captured, mask = np.array([1, 6, 7], np.int8), np.array(True)
    for function in (lambda s: np.fmin(captured, s, where=mask), lambda s: np.append(np.unique(captured), s)):
        (expected, _), (result, error) = outcome(function, s), outcome(fuse(function, **OPTIONS), s)
        assert error is None
        assert difference(result, expected, "result") is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_exponent_of_a_call_that_is_one_half_takes_the_root(dtype: Any) -> None:
    x = np.array([-np.inf, -0.0, 4.0, np.nan], dtype)
    fused = fuse(lambda x, s: (x**s, np.power(x, s)))
    with np.errstate(invalid="ignore"):
        for s in (0.5, 0.25, np.float32(0.5)):
            for result in fused(x, s):
                np.testing.assert_allclose(result, x**s, rtol=1e-6)
                assert np.signbit(result[1]) == np.signbit((x**s)[1])


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (1, 1, 3, 3), (2, 3, 3)])
def test_a_vector_takes_its_product_with_a_stack_of_one_matrix(shape: tuple[int, ...]) -> None:
    def multiplied(x: Any) -> Any:
        x @= np.ones(shape)
        return x

    (expected, wanted), (result, error) = outcome(multiplied, np.arange(3.0)), outcome(fuse(multiplied), np.arange(3.0))
    assert (error is None) == (wanted is None)
    assert isinstance(error, type(wanted))
    assert wanted is not None or difference(result, expected, "result") is None


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_quantiles_of_nan_have_one_type(target: str) -> None:
    x = np.array([[np.nan, 1], [np.nan, 2]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # All-NaN slice encountered
        result = fuse(lambda x: np.nanpercentile(x, np.array([10.0, 20.0]), axis=0), target=target)(x)
        np.testing.assert_allclose(result, np.nanpercentile(x, np.array([10.0, 20.0]), axis=0))
    assert result.dtype == np.float64


def test_integers_that_update_positions_are_of_64_bits_as_in_numpy() -> None:
    def updated(x: Any) -> Any:
        y = x * 2
        np.logaddexp2.at(y, [0, -1], -1)
        return y

    x = np.array([1, -7], np.int8)
    assert updated(x).tolist() == fuse(updated)(x).tolist() == [2, 0]


def test_a_number_has_no_shape_to_split_and_no_length() -> None:
    for split in (np.split, np.array_split):
        for number in (1, [1]):
            _, wanted = outcome(lambda x: split(x.tolist(), number), np.array(1j))  # noqa: B023
            _, error = outcome(fuse(lambda x: split(x.tolist(), number), **OPTIONS), np.array(1j))  # noqa: B023
            assert isinstance(error, type(wanted)), (split, number, error)
    for join in (np.concatenate, np.stack):
        with pytest.raises(TypeError, match="not both"):
            fuse(lambda x: join([x, x], dtype=float, out=np.zeros(4)))(np.ones(2))  # noqa: B023
    for function in (np.diag_indices_from, np.unstack, lambda y: np.fill_diagonal(y, 1)):
        with pytest.raises(AttributeError):
            fuse(lambda x: function(x.tolist()), **OPTIONS)(np.ones((2, 2)))  # noqa: B023


def test_results_without_elements_are_read_at_no_coordinate_of_a_kernel() -> None:
    def reduced(x: Any, _: Any) -> Any:
        largest = np.maximum.reduce(x, initial=-0.0)
        return largest, largest.ravel(), np.fmax.reduce(largest.flatten()[::2], initial=-1.5)

    def scanned(x: Any, _: Any) -> Any:
        both = np.logical_and.accumulate(x[:0, 0, :])
        return both, np.outer(both, [False, True])

    def taken(_: Any, x: Any) -> Any:
        none = x[[]]
        return np.interp(none.repeat(2).sum(-1), [0, 1], [1, 2]), none[::2]

    arguments = np.zeros((4, 4, 0)), np.ones((1, 1))
    for function in (reduced, scanned, taken):
        result = fuse(function, target="cpu")(*arguments)
        assert difference(result, function(*arguments), "result") is None


def test_one_truth_value_is_that_of_an_assigned_list() -> None:
    for key, value in (((0, 1), [-1, 0]), ((0, 0), []), (-1, [[0]])):
        right, mine = np.zeros((2, 2), bool), np.zeros((2, 2), bool)

        def write(x: Any, key: Any = key, value: Any = value) -> None:
            if isinstance(key, tuple):
                x[key] = value
            else:
                x.flat[key] = value

        write(right)
        fuse(write, **OPTIONS)(mine)
        assert np.array_equal(mine, right)


@pytest.mark.parametrize("name", CALLS)
def test_calls_have_numpys_values_views_and_errors(name: str) -> None:
    arrays, texts = CALLS[name]
    for text in texts:
        check(text, arrays)


def test_arrays_that_the_trace_makes_are_new_in_every_call() -> None:
    def function(x: Any) -> Any:
        union, distinct, known = np.union1d(np.array(7), [1, 2]), np.unique(np.array([3.0, 1.0])), [np.hanning(3)]
        np.add.at(union, [0, 0, -1], 2)
        distinct += x
        distinct[0] = x[1]
        return union, distinct, known

    fused = fuse(function, **OPTIONS)
    for k in range(3):
        x = np.array([1.0, 2.0]) * k
        result = fused(x)
        assert difference(result, function(x), "result") is None
        result[2][0][...] = 9


def test_arrays_made_of_constants_take_traced_values() -> None:
    def function(x: Any) -> Any:
        window, roots, last = np.hanning(3), np.sqrt([1, 2, 3]), np.union1d([1.0, 2.0], [3.0])
        np.add(x, 1, out=window)
        roots *= x
        last[::-1][0] = x[1]
        return window, roots, last, [float(entry) for entry in np.hanning(3)]

    fused = fuse(function, **OPTIONS)
    for x in (np.arange(3.0), np.ones(3)):
        assert difference(fused(x), function(x), "result") is None


def test_a_mask_without_elements_selects_nothing_after_a_trace_of_another() -> None:
    def function(x: Any, mask: Any) -> Any:
        selected = x[mask]
        x[mask] += 1
        return selected

    fused = fuse(function, **OPTIONS)
    for shape in ((2, 3), (0, 3), (2, 0), (2, 3), (2,), (0,)):
        given, right = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3)
        mask = np.ones(shape, bool)
        assert difference(fused(given, mask), function(right, mask), "result") is None
        np.testing.assert_array_equal(given, right)


def test_results_in_one_memory_are_refused_and_a_returned_one_is_used() -> None:
    with pytest.raises(TracefuseError, match=r"np\.divmod with two arrays of out= in the same memory"):
        fuse(lambda x: np.divmod(x, 2, out=(x, x[::-1])), **OPTIONS)(np.arange(4.0))
    check("np.divmod(x, 2, out=(x, None))", [np.arange(4.0)])


def test_none_is_no_operand_and_is_nan_as_an_assigned_element() -> None:
    with pytest.raises(TracefuseError, match=r"NoneType is no operand .*\n  hint: write np\.nan"):
        fuse(lambda x: np.where(x > 0, x, None), **OPTIONS)(np.zeros(3))
    check("x.__setitem__(0, None)", [np.zeros(3)])
    check("x.__setitem__(0, np.nan)", [np.zeros(3)])


def test_strides_that_no_element_depends_on_are_refused() -> None:
    for shape in ((0, 3), (1, 3)):
        with pytest.raises(TracefuseError, match="no element depends on them"):
            fuse(lambda x: x.strides, **OPTIONS)(np.zeros(shape))
    assert fuse(lambda x: np.squeeze(x).strides, **OPTIONS)(np.zeros((1, 3))) == (8,)


def test_an_array_in_the_memory_of_another_object_is_refused_and_a_copy_of_it_is_changed() -> None:
    def function(x: Any, copies: bool) -> Any:
        array = np.frombuffer(bytearray(24))
        return np.dot(np.eye(3), x, out=np.array(array, dtype=np.float64) if copies else array)

    with pytest.raises(TracefuseError, match="lies in the memory of another object"):
        fuse(function, **OPTIONS)(np.arange(3.0), False)
    assert difference(fuse(function, **OPTIONS)(np.arange(3.0), True), np.arange(3.0), "result") is None


def test_an_out_array_of_a_call_that_is_not_recorded_is_refused() -> None:
    for text in ("np.clip(x, 1.5, 2, out=(np.ones(3, complex),))", "np.quantile(x, 0.5, out=np.ones(()))"):
        function = eval(f"lambda x: {text}", {"np": np})
        result, error = outcome(fuse(function, **OPTIONS), np.arange(3.0))
        assert error is None or isinstance(error, TracefuseError), (text, error)
        assert error is not None or difference(result, function(np.arange(3.0)), "result") is None
