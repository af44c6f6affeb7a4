"""Tests NumPy's functions, operators and methods on traced arrays, through the evaluated fusion."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracefuse
from tests.session.samples import times
from tracefuse import fuse

X = np.linspace(-2, 3, 12).reshape(3, 4).astype(np.float32)
Y = np.array([0.5, -1.0, 2.0, 3.0], np.float32)
I = np.arange(-6, 6).reshape(3, 4)
B = I % 2 == 0
H = X.astype(np.float16)

FUNCTIONS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("arithmetic", lambda x, y: (x + y, x - y, x * y, x / y, x // y, x % y, -x, +x, abs(x)), (X, Y)),
    ("reflected", lambda x: (1 + x, 1 - x, 2 * x, 1 / (x + 5), 3 // (x + 5), 2 ** (x * 1)), (X,)),
    ("integers", lambda i: (i + 1, i * i, i / 2, i // 3, i % 3, i**3, i**0, -i, abs(i), ~i, i & 3, i | 8, i ^ 5), (I,)),
    ("bools", lambda b: (b + b, b * b, ~b, b & b, b | True, b ^ b, b + 1, b * 2.5, b.sum(), b / 2), (B,)),
    ("powers", lambda x: (x**2, x**1, (x + 5) ** 0.5, (x + 5) ** -1, (x + 5) ** 2.5, np.power(x, 2)), (X,)),
    ("comparisons", lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y, x > 1), (X, Y)),
    ("promotion", lambda x, i: (x + i, x + 1.5, i + 1.5, x * np.float64(2), i + np.int8(1), x + True), (X, I)),
    ("halves", lambda h: (h + 1, h * 2.0, np.exp(h), h.sum(0), h.mean(-1)), (H,)),
    ("exponentials", lambda x: (np.exp(x), np.log(x + 5), np.sqrt(x + 5), np.tanh(x), np.sin(x), np.cos(x)), (X,)),
    ("composed", lambda x: (np.square(x), np.reciprocal(x + 5), np.sign(x), np.fabs(x), np.isinf(x)), (X,)),
    ("extrema", lambda x, y: (np.maximum(x, y), np.minimum(x, y), np.fmax(x, y), np.fmin(x, 0)), (X, Y)),
    (
        "logic",
        lambda b, i: (np.logical_and(b, i), np.logical_or(b, i), np.logical_not(i), np.logical_xor(b, i)),
        (B, I),
    ),
    ("float tests", lambda x: (np.isnan(x), np.isfinite(x), np.isclose(x, x + 1e-9), np.nan_to_num(x)), (X,)),
    ("selection", lambda x, y: (np.where(x > 0, x, y), np.clip(x, -1, 1), np.clip(x, None, y), x.clip(0)), (X, Y)),
    (
        "sums",
        lambda x: (x.sum(), x.sum(0), x.sum(-1, keepdims=True), np.sum(x, axis=(0, 1)), x.sum(0, np.float64)),
        (X,),
    ),
    ("sums of integers", lambda i: (i.sum(), i.astype(np.int8).sum(0), i.astype(np.uint8).sum(), i.mean()), (I,)),
    ("reductions", lambda x: (x.max(), x.min(1), x.prod(0), np.amax(x, 0), np.ptp(x, 1), (x > 0).any(0)), (X,)),
    ("all and count", lambda x: (np.all(x > -5), np.any(x > 9), np.count_nonzero(x > 0, axis=0)), (X,)),
    ("moments", lambda x: (x.mean(), x.mean(1), x.var(0), x.std(1, ddof=1), np.var(x), np.average(x, 0)), (X,)),
    ("reduction parameters", lambda x: (np.sum(x, 0, initial=2.0), np.max(x, where=x < 1, initial=-9)), (X,)),
    ("shapes", lambda x: (x.reshape(4, 3), x.reshape(-1), x.reshape((2, -1)), x.ravel(), x.flatten(), x.T, x.mT), (X,)),
    ("axes", lambda x: (np.transpose(x, (1, 0)), np.swapaxes(x, 0, 1), np.moveaxis(x[None], 0, -1)), (X,)),
    ("order F", lambda x: np.reshape(x, (2, 6), order="F"), (X,)),
    (
        "new axes",
        lambda x: (x[None], x[:, None], np.expand_dims(x, (0, 2)), np.squeeze(x[None]), x[None].squeeze(0)),
        (X,),
    ),
    ("broadcasts", lambda x, y: (np.broadcast_to(y, (3, 4)), *np.broadcast_arrays(x, y), np.atleast_2d(y)), (X, Y)),
    (
        "joins",
        lambda x, y: (np.concatenate([x, x * 2]), np.stack([x, x], 1), np.vstack([x, y]), np.hstack([x, x])),
        (X, Y),
    ),
    (
        "joins of types",
        lambda x, i: (np.concatenate([x, i]), np.concatenate([x, x], axis=None), np.append(x, i)),
        (X, I),
    ),
    ("columns", lambda y: (np.column_stack([y, y]), np.outer(y, y), np.multiply.outer(y, y)), (Y,)),
    ("splits", lambda x: (np.split(x, 2, 1), np.array_split(x, 3, 1), np.hsplit(x, [1, 3]), np.vsplit(x, 3)), (X,)),
    (
        "moves",
        lambda x: (
            np.flip(x),
            np.flip(x, 0),
            np.fliplr(x),
            np.roll(x, 1),
            np.roll(x, -2, 1),
            np.roll(x, (1, 2), (0, 1)),
        ),
        (X,),
    ),
    ("pads", lambda x: (np.pad(x, 1), np.pad(x, ((0, 1), (2, 0)), constant_values=7), np.pad(x, (1, 2))), (X,)),
    ("takes", lambda x, i: (np.take_along_axis(x, i % 3, 0), np.take(x, [2, 0], 1), x[[1, 2]], x[:, [0, -1]]), (X, I)),
    ("takes by matrix", lambda x: (x[np.array([[0, 1], [2, 2]])], x.take([5, 1]), x[1][np.array([2, 0])]), (X,)),
    ("repeats", lambda x, y: (np.repeat(x, 2, 0), np.repeat(x, 3), np.tile(y, 2), np.tile(x, (2, 1))), (X, Y)),
    ("triangles", lambda x: (np.tril(x), np.triu(x, 1), np.diff(x), np.diff(x, axis=0)), (X,)),
    (
        "like",
        lambda x: (np.zeros_like(x), np.ones_like(x, dtype=int), np.full_like(x, 2.5), np.zeros_like(x, shape=(2,))),
        (X,),
    ),
    ("casts", lambda x, i: (x.astype(np.int32), i.astype(float), np.astype(i, np.float32), x.astype(bool)), (X, I)),
    ("products", lambda x, y: (x @ y, x @ x.T, np.matmul(x, y), np.dot(x, y), x.dot(y), np.inner(x, y), y @ y), (X, Y)),
    ("norms", lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1, keepdims=True)), (X,)),
    ("sizes", lambda x: (x / x.shape[0], x * x.size, x.sum(-1) / x.shape[-1], np.full_like(x, x.ndim)), (X,)),
    ("einsum-free attention", lambda x: np.exp(x @ x.T - np.max(x @ x.T, -1, keepdims=True)), (X,)),
]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
        return
    expected = np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    rounding = 1e-2 if expected.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("function", "arguments"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_a_traced_function_gives_what_numpy_gives(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    fused = fuse(target="reference")(function)
    with np.errstate(all="ignore"):
        expected = function(*arguments)
    assert_same(fused(*arguments), expected)


INDICES = st.one_of(
    st.integers(-3, 2),
    st.slices(3),
    st.builds(
        slice, st.none() | st.integers(-6, 6), st.none() | st.integers(-6, 6), st.sampled_from([None, 1, 2, -1, -2, -3])
    ),
    st.none(),
    st.just(Ellipsis),
)


@settings(max_examples=times(75), deadline=None)
@given(st.lists(INDICES, min_size=1, max_size=4))
def test_a_key_selects_what_numpy_selects_also_in_an_array_of_another_size(parts: list[Any]) -> None:
    key = tuple(parts)
    fused = fuse(target="reference")(lambda x: x[key] * 1)
    for shape in ((3, 5, 3), (4, 3, 7), (3, 3, 3)):
        x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        try:
            expected = x[key] * 1
        except IndexError:
            with pytest.raises(IndexError):
                fused(x)
            return
        np.testing.assert_array_equal(fused(x), expected)


def test_a_new_op_that_is_a_ufunc_needs_no_entry() -> None:
    from tracefuse.frontend.numpy_api.protocols import ufuncs
    from tracefuse.ops import REGISTRY, Pointwise

    for op in REGISTRY.values():
        if isinstance(op, Pointwise) and isinstance(op.numpy, np.ufunc):
            assert ufuncs.UFUNC_OPS[op.numpy] is op


class FakeCupyUfunc:
    """Calls the hook as cupy.ufunc.__call__ does: the first argument that has it gets everything as it was given."""

    __module__ = "numpy"  # a trace sees it as it is

    def __init__(self, name: str, nin: int, types: tuple[str, ...] = ()) -> None:
        self.name, self.nin, self.types = name, nin, types

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        for argument in arguments:
            if hasattr(argument, "__cupy_override_elementwise_kernel__"):
                return argument.__cupy_override_elementwise_kernel__(self, *arguments, **keywords)
        return getattr(np, self.name.removeprefix("cupy_"))(*arguments, **keywords)


@pytest.mark.parametrize(
    ("name", "operands", "numpy"),
    [
        ("cupy_exp", 1, np.exp),
        ("cupy_add", 2, np.add),
        ("cupy_true_divide", 2, np.divide),
        ("cupy_copy", 1, np.copy),
        ("cupy_maximum", 2, np.maximum),
        ("cupy_power", 2, lambda x, y: x**y),
        ("cupy_square", 1, np.square),
        ("cupy_less", 2, np.less),
        ("cupy_absolute", 1, np.abs),
    ],
)
def test_cupys_ufuncs_record_through_their_hook(name: str, operands: int, numpy: Callable[..., Any]) -> None:
    kernel = FakeCupyUfunc(name, operands)
    arguments = [abs(X) + 1, Y][:operands]
    assert_same(fuse(target="reference")(lambda *a: kernel(*a))(*arguments), numpy(*arguments))


def test_cupys_ufuncs_take_sizes_and_numbers_of_a_call() -> None:
    root, cosine, power, maximum = (
        FakeCupyUfunc(f"cupy_{name}", count) for name, count in (("sqrt", 1), ("cos", 1), ("power", 2), ("maximum", 2))
    )

    def turned(x: Any, angle: Any, n: Any) -> Any:
        mean = float(x.mean())
        return x / root(x.shape[-1]), cosine(angle) * x, power(2, n) * x, maximum(x, n), root(mean), maximum(len(x), n)

    fused = fuse(turned, target="reference")
    for angle, n in ((0.5, 3), (0.25, 4)):
        for result, expected in zip(fused(abs(X), angle, n), turned(abs(X), angle, n), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-15)


def test_cupys_ufuncs_take_the_keywords_of_numpys() -> None:
    add = FakeCupyUfunc("cupy_add", 2)

    def function(x: Any, y: Any) -> Any:
        z, u = x * 2, x * 1
        results = add(x, y, out=z, where=x > 0), add(x, y, dtype=np.int32, casting="unsafe"), add(x, y, u)
        return *results, add(x, y, out=None)

    made = fuse(target="reference")(function)(X, Y)
    z = X * 2
    np.add(X, Y, out=z, where=X > 0)
    for mine, right in zip(made, (z, np.add(X, Y, dtype=np.int32, casting="unsafe"), X + Y, X + Y), strict=True):
        assert_same(mine, right)
    for call in (lambda x: add(x, x, out=object()), lambda x: add(x, x, object())):
        with pytest.raises(TypeError, match="add: an output is of type object"):
            fuse(call)(X)
    with pytest.raises(TypeError, match="Cannot cast"):
        fuse(lambda x, z: add(x, x, out=z))(X, X.astype(np.int8))


@pytest.mark.parametrize("name", ["gammaln", "digamma"])
@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float32])
def test_ufuncs_of_cupyx_record_under_the_name_that_its_module_gives_them(name: str, dtype: Any) -> None:
    special = pytest.importorskip("scipy.special")
    module, kernel = ModuleType("cupyx.scipy.special"), FakeCupyUfunc("cupyx_of_another_name", 1, ("f->f", "d->d"))
    setattr(module, name, kernel)
    x = (np.abs(X) + 1).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupyx.scipy.special", module)
        made = fuse(lambda x: kernel(x), target="reference")(x)
        with pytest.raises(tracefuse.DtypeError, match=f"scipy.special.{name} of complex64"):
            fuse(lambda x: kernel(x))(X * 1j)
    loop = np.float32 if dtype in (np.int16, np.float32) else np.float64
    assert made.dtype == loop
    np.testing.assert_allclose(made, getattr(special, name)(x.astype(loop)), rtol=1e-5)


def test_an_unknown_cupy_kernel_is_named() -> None:
    kernel = FakeCupyUfunc("my_kernel", 1)
    with pytest.raises(tracefuse.UnsupportedError, match="the CuPy kernel my_kernel cannot be fused yet"):
        fuse(lambda x: kernel(x), target="reference")(X)


def test_xp_computes_on_arrays_and_records_on_tracers() -> None:
    from tracefuse import xp

    assert_same(xp.sum(X, axis=0), X.sum(0))
    assert_same(xp.concat([X, X], axis=1), np.concatenate([X, X], 1))

    @fuse(target="reference")
    def f(x: Any) -> Any:
        n = x.shape[0]
        return (
            xp.zeros((n, 2)),
            xp.arange(n),
            xp.arange(1, n, 2),
            xp.eye(n),
            xp.full(2, 7, dtype=xp.int8),
            xp.linspace(0, 1, 5),
        )

    for n in (3, 6):
        expected = (
            np.zeros((n, 2)),
            np.arange(n),
            np.arange(1, n, 2),
            np.eye(n),
            np.full(2, 7, np.int8),
            np.linspace(0, 1, 5),
        )
        assert_same(f(np.ones((n, 2))), expected)
    assert f.cache_info().traces == 1


@pytest.mark.parametrize("exponent", [3, 4, 3.0, -0.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_powers_of_floats_are_as_accurate_as_pow(exponent: float, dtype: type) -> None:
    random = np.random.default_rng(5)
    edges = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny]
    x = np.concatenate((random.standard_normal(2000) * 10.0 ** random.integers(-8, 8, 2000), edges)).astype(dtype)
    fused = fuse(lambda x: x**exponent)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.longdouble) ** np.longdouble(exponent)).astype(dtype)
        found = fused(x)
        finite = np.isfinite(expected)
        assert (np.abs(found - expected)[finite] <= 2 * np.spacing(np.abs(expected[finite]))).all()
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    if exponent:
        assert {node.op.name for node in fused.definition(x).fusion.nodes} == {"mul"}
