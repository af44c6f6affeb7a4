"""Small programs over types, layouts and kinds of scalars: values, types, updated arguments and errors are NumPy's."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.compared_calls import OPTIONS, outcome, why_different
from tests.frontend.numpy_functions import numpy_samples
from tests.programs.comparison import difference
from tests.random_programs.program_placeholders import DTYPES
from tests.random_programs.program_statements import BINARY, NAN_REDUCTIONS, REDUCTIONS, UNARY
from tests.random_programs.random_programs import laid_out
from tests.session.samples import in_suite, times
from tracefuse import fuse
from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.values.traced import Traced

LAYOUTS = ("C", "F", "strided", "reversed", "transposed", "offset")


def copied(value: Any) -> Any:
    """A copy of an array with its layout."""
    if not isinstance(value, np.ndarray):
        return value
    return value.copy(order="K")


def values_of(dtype: str, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    return (np.arange(count) % 5 + np.arange(count) % 3).astype(dtype).reshape(shape)


# -- types ------------------------------------------------------------------------------------------------------------


def into(name: str) -> Callable[..., Any]:
    def call(x: Any, out: Any) -> Any:
        getattr(np, name)(x, out=out)
        return out * 1

    return call


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "mean", "cumsum", "cumprod", "argmax"])
def test_reductions_into_arrays_of_every_type_compute_in_numpys_type(name: str) -> None:
    kinds = ("bool", "int8", "uint16", "int64", "float16", "float64", "complex64")
    shape = (4,) if name.startswith("cum") else ()
    for one, other in itertools.product(kinds, kinds):
        make = lambda a=one, b=other: (values_of(a, (4,)), np.zeros(shape, b))  # noqa: E731
        why = why_different(into(name), make)
        assert why is None, (one, other, why)


NUMBERS = (True, 2, -1, 300, 2.5, 2j, np.int64(3), np.float64(2.5), np.int64(-1), np.complex64(1j))


@pytest.mark.parametrize("casting", ["same_kind", "unsafe", "safe"])
@pytest.mark.parametrize("is_argument", [True, False])
def test_copyto_casts_as_numpy(casting: Any, is_argument: bool) -> None:
    for dtype, number in itertools.product(("bool", "int8", "uint8", "float16", "complex64"), NUMBERS):
        if dtype == "uint8" and number == -1 and not isinstance(number, int) and casting == "unsafe":
            continue  # undefined in NumPy
        if is_argument:
            why = why_different(
                lambda x, v: (np.copyto(x, v, casting=casting), x * 1)[1],
                lambda d=dtype, n=number: (values_of(d, (3,)), n),
            )
        else:
            call = lambda x, n=number: (np.copyto(x, n, casting=casting, where=x == x), x * 1)[1]  # noqa: E731
            why = why_different(call, lambda d=dtype: (values_of(d, (3,)),))
        assert why is None, (dtype, number, why)


@pytest.mark.parametrize("low", [None, 0, 0.5, np.float32(1.5), np.int64(1), np.float16(1)])
@pytest.mark.parametrize("high", [None, 3, 2.5, np.float32(1.5), np.int64(2)])
def test_clip_promotes_both_bounds_at_once(low: Any, high: Any) -> None:
    for dtype in DTYPES:
        why = why_different(lambda x: np.clip(x, low, high), lambda d=dtype: (values_of(d, (5,)),))
        if dtype.startswith("complex") and why is not None and "does not take complex" in why:
            continue
        assert why is None, (dtype, why)


@pytest.mark.parametrize("value", [2j, 2.5, float("nan"), 300, -1, True, 1 + 0j])
@pytest.mark.parametrize("key", [..., 0, [0, 1]])
def test_numbers_are_assigned_as_numpy_does(value: Any, key: Any) -> None:
    def assign(x: Any, value: Any) -> Any:
        x[key] = value
        return x + 0

    for dtype in ("bool", "int8", "int64", "float16", "float64", "complex64"):
        if value != value and dtype.startswith("int") and key != 0:
            continue  # undefined in NumPy
        for make in (lambda d=dtype: (values_of(d, (3,)), value),):
            why = why_different(assign, make)
            assert why is None, (dtype, why)


# -- memory -----------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Any], Any]] = {
    "ravel": lambda x: x.ravel(),
    "np.ravel": lambda x: np.ravel(x),
    "ravel in Fortran order": lambda x: x.ravel("F"),
    "reshape": lambda x: x.reshape(-1),
    "reshape of the transposed": lambda x: x.T.reshape(-1),
    "ravel of a slice": lambda x: x[..., 1:].ravel(),
    "ravel of a sum": lambda x: (x + 1).ravel(),
}


@pytest.mark.parametrize("view", WRITES.values(), ids=WRITES.keys())
def test_writes_to_flattened_arrays_reach_what_numpy_lets_them_reach(view: Callable[[Any], Any]) -> None:
    def write(x: Any) -> Any:
        y = x * 2
        for one in (x, y):
            flat = view(one)
            flat[:1] += 1
        return x + 0, y

    for layout, shape in itertools.product(LAYOUTS, ((6,), (2, 3), (1, 4), (3, 1, 2))):
        why = why_different(write, lambda s=shape, k=layout: (laid_out(values_of("float32", s), k),))
        assert why is None, (layout, shape, why)


MADE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b, "product with a row": lambda a, b: a * b[:1], "root": lambda a, b: np.sqrt(abs(a)),
    "sum along an axis": lambda a, b: (a + b).sum(1), "with kept axes": lambda a, b: a.sum(0, keepdims=True),
    "concatenation": lambda a, b: np.concatenate([a, b], 1), "running sum": lambda a, b: np.cumsum(a, 0),
    "sorted": lambda a, b: np.sort(b, 0), "rolled": lambda a, b: np.roll(a, 1, 0), "mean": lambda a, b: a.mean(-1),
    "zeros": lambda a, b: np.zeros_like(a), "choice": lambda a, b: np.where(a > 0, a, b),
    "cast": lambda a, b: a.astype(np.float32), "difference": lambda a, b: np.diff(a, axis=0),
    "chain": lambda a, b: (a + 1).transpose(1, 0, 2) * b.transpose(1, 0, 2) + a[:, :, ::-1].transpose(1, 0, 2),
}  # fmt: skip


@st.composite
def any_layout(draw: Any) -> Any:
    """An array of three axes in any order, of which one may run backwards or repeat."""
    order = draw(st.permutations(range(3)))
    array = np.arange(24.0).reshape([(3, 4, 2)[k] for k in order]).transpose(np.argsort(order))
    if draw(st.booleans()):
        array = np.flip(array, draw(st.integers(0, 2)))
    return np.broadcast_to(array[:1], array.shape) if draw(st.integers(0, 4)) == 0 else array


@settings(max_examples=times(30), deadline=None)
@given(st.sampled_from(sorted(MADE)), any_layout(), any_layout())
def test_new_arrays_have_numpys_strides(name: str, one: Any, other: Any) -> None:
    strides = lambda a, b: MADE[name](a, b).strides  # noqa: E731
    assert tuple(fuse(strides, **OPTIONS)(one, other)) == strides(one, other)


SCALAR_PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a view of a scalar": lambda x: (u := x.sum() * 2, v := u[...], v.__iadd__(7), u + 0, v)[3:],
    "a new axis": lambda x: (u := x.sum(), v := u[None], v.__setitem__(0, 7), u + 0, v)[3:],
    "an assignment to a scalar": lambda x: operator.setitem(x.sum(), ..., 3),
    "an assignment to an element": lambda x: operator.setitem(x.ravel()[0], ..., 3),
    "a reshaped scalar": lambda x: (u := x.max(), v := u.reshape(1), v.fill(9), u + 0, v)[3:],
    "a squeezed array": lambda x: (u := np.squeeze(x), v := np.reshape(u, -1), v.fill(9), x + 0, u + 0)[3:],
    "a full slice of itself": lambda x: (x.__setitem__(..., x), x + 1)[1],
    "an array like a scalar": lambda x: (u := np.full_like(x.sum(), 3), v := u, np.add(u, 1, out=u), v)[3],
}


@pytest.mark.parametrize("program", SCALAR_PROGRAMS.values(), ids=SCALAR_PROGRAMS.keys())
def test_scalars_share_no_memory(program: Callable[[Any], Any]) -> None:
    for array in (np.array([1.5]), np.array(2.5), np.array([[3]], np.uint8), np.array([1j], np.complex64)):
        why = why_different(program, lambda a=array: (a.copy(),))
        assert why is None, (array, why)


def calls_without_axes() -> list[tuple[str, tuple[Any, ...]]]:
    """Calls of functions by text, with their arrays, of which many return scalars or arrays without axes."""
    operands = (np.array(1.5), np.array(3), np.array(True), np.float64(1.5), np.array(1 + 2j))
    vector = np.array([1.5, 2, -1])
    pairs = [(x, y) for y in (np.array(2), np.float64(2)) for x in operands]
    return [
        *((f"np.{name}(a)", (x,)) for name in UNARY for x in operands),
        *((f"np.{name}(a)", (x,)) for name in (*REDUCTIONS, *NAN_REDUCTIONS) for x in (*operands[:2], vector)),
        *((f"np.{name}(a, b)", (x, y)) for name in BINARY for x, y in in_suite(pairs[::2], pairs)),
        *((text, (x,)) for text in TEXTS for x in operands),
    ]


TEXTS = (
    "a.copy()", "a.astype(int)", "a.T", "a.squeeze()", "a.reshape(())", "a.clip(0, 1)", "a.round()", "a[()]", "a[...]",
    "-a", "a + 1", "np.where(a > 0, a, 1)", "np.select([a > 0], [a], 0)", "np.broadcast_to(a, ())", "np.array(a)",
    "np.full_like(a, 2)", "np.clip(a, 0, 1)", "np.dot(a, a)", "np.tensordot(a, a, 0)", "np.take(a.reshape(1), 0)",
    "np.nan_to_num(a)", "np.piecewise(a, [a > 0], [1, 2])", "np.isin(a, [1, 2])", "np.linalg.norm(a)", "np.flip(a)",
    "np.add.outer(a, a)", "np.array([a, a])[0]", "np.broadcast_arrays(a, a)[0]", "np.percentile(a, 30)",
)  # fmt: skip


def kinds_of(results: Any) -> list[str | None]:
    """ "array" or "scalar" for results without axes, in and outside of a trace."""
    kinds: list[str | None] = []
    for one in results if isinstance(results, list | tuple) else [results]:
        if issubclass(type(one), Traced):
            kinds.append(None if one.extents else "scalar" if one.is_immutable else "array")
        else:
            kinds.append(None if np.ndim(one) else "array" if isinstance(one, np.ndarray) else "scalar")
    return kinds


def test_results_without_axes_are_arrays_or_scalars_as_numpys() -> None:
    samples = [
        (text, tuple(numpy_samples.NAMES[name] for name in numpy_samples.used(text)), numpy_samples.used(text))
        for texts in numpy_samples.SAMPLES.values() for text in texts
    ]  # fmt: skip
    compared = 0
    of_two = [(*call, "ab"[: len(call[1])]) for call in calls_without_axes()]
    for text, arguments, names in [*in_suite(samples[::3], samples), *in_suite(of_two[::2], of_two)]:
        function = eval(f"lambda {', '.join(names)}: {text}", {"np": np, **numpy_samples.NAMES})
        expected, error = outcome(function, tuple(copied(one) for one in arguments))
        if error is not None or text in KINDS_THAT_DIFFER:
            continue
        found: list[str | None] = []

        def traced(*arguments: Any, call: Any = function, found: Any = found) -> Any:
            result = call(*arguments)
            found[:] = kinds_of(result)
            return result

        _, error = outcome(fuse(traced, **OPTIONS), arguments)
        if error is None:
            compared += 1
            assert found == kinds_of(expected), (text, arguments)
        else:
            assert isinstance(error, TracefuseError), (text, error)
    assert compared > 500


KINDS_THAT_DIFFER = ("np.einsum('->', a)", 'np.quantile(W, 0.3, weights=W * W, method="inverted_cdf")')

# -- sizes and constants ----------------------------------------------------------------------------------------------

UPDATES: dict[str, Callable[[Any], Any]] = {
    "a stencil": lambda a: operator.setitem(a, slice(1, -1), a[1:-1] + a[2:] - a[:-2]),
    "a shift": lambda a: operator.setitem(a, slice(1, None), a[1:] * 2 + a[:-1]),
    "a strided sum": lambda a: operator.setitem(a, slice(2, None), a[2:] + a[:-2]),
}


@settings(max_examples=times(12), deadline=None)
@given(st.sampled_from(sorted(UPDATES)), st.lists(st.integers(2, 9), min_size=2, max_size=4))
def test_slice_updates_follow_any_order_of_sizes(name: str, sizes: list[int]) -> None:
    fused = fuse(UPDATES[name])
    for size in sizes:
        mine, right = np.arange(size) ** 2, np.arange(size) ** 2
        fused(mine)
        UPDATES[name](right)
        np.testing.assert_array_equal(mine, right)


def test_lengths_that_are_equal_for_no_size_share_no_kernel() -> None:
    def function(x: Any) -> Any:
        wide = np.append(np.pad(x, 1), np.pad(x, 1))
        ordered = wide[np.argsort(wide, kind="stable")]
        return np.int8(1) + x, np.max(wide), np.stack([ordered, ordered], axis=-1)

    x = np.array([False, True, True])
    assert difference(fuse(function)(x), function(x), "result") is None


def test_arrays_of_numpy_that_the_function_writes_are_read_as_they_were() -> None:
    def function(x: Any) -> Any:
        table = np.ravel_multi_index(([0, 1], [1, 0]), (2, 3))
        first = x * table
        table *= 2
        second = x * table
        table[:] = 0
        return first, second

    x = np.array([1.5, 2.5])
    fused = fuse(function, **OPTIONS)
    for _ in range(2):
        assert difference(fused(x), function(x), "result") is None


ITERATIONS: dict[str, Callable[[Any], Any]] = {
    "nditer": lambda x: [element * 2 for element in np.nditer(x)],
    "ndenumerate": lambda x: [(place, element + 1) for place, element in np.ndenumerate(x)],
    "everything under True": lambda x: (operator.setitem(x, True, 7), x[True], x + 0)[1:],
    "nothing under False": lambda x: (operator.setitem(x, False, 7), x[False], x + 0)[1:],
}


@pytest.mark.parametrize("program", ITERATIONS.values(), ids=ITERATIONS.keys())
def test_elements_are_visited_and_written_as_by_numpy(program: Callable[[Any], Any]) -> None:
    for layout, shape in itertools.product(LAYOUTS, ((3,), (2, 3))):
        why = why_different(program, lambda s=shape, k=layout: (laid_out(values_of("int16", s), k),))
        assert why is None, (layout, shape, why)


def test_an_error_that_the_function_catches_leaves_nothing_behind() -> None:
    def function(x: Any) -> Any:
        try:
            return np.concatenate([x * 2, x[None]])
        except ValueError:
            return x + 1

    assert fuse(function)(np.ones(3)).tolist() == [2.0, 2.0, 2.0]


OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "fewer axes": lambda x: (t := x.sum(0) * 1, np.maximum(t, 0, out=x), x + 0)[2],
    "one element": lambda x: (t := x[:1] * 1, np.add(t, 1, out=x), x + 0)[2],
    "a scalar": lambda x: (np.multiply(x.sum(), 2, out=x), x + 0)[1],
    "too many axes": lambda x: np.add(x[None], 1, out=x),
    "products of two lengths": lambda x: np.vdot(x, x[:1]),
}


@pytest.mark.parametrize("program", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_results_are_broadcast_to_the_array_that_takes_them(program: Callable[[Any], Any]) -> None:
    for shape in ((3,), (2, 3), (1, 1), (1,)):
        why = why_different(program, lambda s=shape: (values_of("float32", s),))
        assert why is None, (shape, why)


TABLE = np.array([True, False, True])


def test_updates_of_what_depends_on_state_alone_are_never_lost() -> None:
    def function(x: Any) -> Any:
        t = TABLE >= 0
        np.add.at(t, [0, 0, -1], -1)
        return x, t

    for result, expected in zip(fuse(function, **OPTIONS)(np.ones(3)), function(np.ones(3)), strict=True):
        np.testing.assert_array_equal(result, expected)


# -- shapes without elements, and errors ------------------------------------------------------------------------------

EMPTY = (
    "np.linalg.norm(x, ord=np.inf, axis=0)", "np.linalg.norm(x, ord=np.inf)", "np.linalg.norm(x, ord=-np.inf, axis=0)",
    "np.nanpercentile(x, 50)", "np.nanmedian(x)", "np.percentile(x, 50)", "np.quantile(x, 0.5, axis=0)", "np.median(x)",
    "np.take(x, [0, -1], axis=0)", "np.take(x, [0], axis=-1)", "x[[0, 1]]", "np.average(x)", "np.average(x, axis=0)",
    "np.cov(x)", "np.diag(x, 3)", "np.diag(x, -3)", "x.max()",
    "np.tile(x, -1)", "np.take_along_axis(x, np.zeros((2, 2), int), 0)", "np.min(x, where=x == 1, initial=2j)",
    "np.average(x, weights=[1, 2, 3])", "np.pad(x, 1, mode='edge')", "np.pad(x, (0, 1), mode='mean')",
)  # fmt: skip


@pytest.mark.parametrize("text", EMPTY)
def test_arrays_without_elements_give_numpys_results_or_errors(text: str) -> None:
    function = eval(f"lambda x: {text}", {"np": np})
    for dtype, shape in itertools.product(("bool", "int8", "float32", "complex64"), ((0, 3), (3, 0), (0, 0), (2, 1))):
        why = why_different(function, lambda s=shape, d=dtype: (np.ones(s, d),))
        if why is not None and "complex" in dtype and ("unordered" in why or "does not take complex" in why):
            continue
        assert why is None, (dtype, shape, why)


PADDED = (
    "np.pad(x, 1, mode='linear_ramp')", "np.pad(x, (2, 1), mode='linear_ramp', end_values=(3, -1))",
    "np.pad(x, 2, mode='mean')", "np.pad(x, (1, 2), mode='median')", "np.pad(x, 1, mode='maximum', stat_length=1)",
    "np.pad(x, (0, 3), mode='minimum', stat_length=2)", "np.pad(x, 1, mode='mean', stat_length=9)",
    "np.pad(x, 1, mode='reflect', reflect_type='odd')", "np.pad(x, 2, mode='symmetric', reflect_type='odd')",
    "np.pad(x, 1, constant_values=x.max())", "np.pad(x, 1, constant_values=(0, 2.5))", "np.pad(x, 1, mode='nonsense')",
    "np.pad(x, 1, mode='edge', constant_values=1)", "np.pad(x, -1)", "np.pad(x, 1, constant_values=2j)",
)  # fmt: skip


@pytest.mark.parametrize("text", PADDED)
def test_pads_in_every_mode_and_type(text: str) -> None:
    function = eval(f"lambda x: {text}", {"np": np})
    for dtype, shape in itertools.product(("int8", "int64", "float16", "float64", "complex64"), ((4,), (3, 4))):
        why = why_different(function, lambda s=shape, d=dtype: (values_of(d, s),))
        if why is not None and "complex" in dtype and "does not take complex" in why:
            continue
        assert why is None, (dtype, shape, why)
