"""Calls with rare parameters, operands and types: values, types and errors are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontend.compared_calls import why_different
from tracefuse import fuse

ARRAYS: dict[str, Callable[[], Any]] = {
    "X": lambda: np.arange(6.0).reshape(2, 3),
    "Q": lambda: np.ones((2, 2, 2)),
    "I": lambda: np.array([0, 1, 0]),
    "H": lambda: np.arange(3).astype(np.float16),
    "U": lambda: np.array([0, -128, 3, 127], np.int8),
    "E": lambda: np.zeros((2, 0), np.uint8),
}

CALLS = {
    "transforms without axes": (
        "np.fft.fftn(I.sum())", "np.fft.fftn(X, s=())", "np.fft.ifftn(X, axes=())", "np.fft.rfftn(X.sum())",
        "np.fft.rfft((X * 1j).sum())", "np.fft.fft2(X.sum())", "np.fft.fft2(X.sum(), axes=None)",
    ),
    "output buffers that NumPy ignores": (
        "np.fft.ifft2(X, out=np.zeros((2, 3), np.int8))", "np.fft.hfft(X, out=np.zeros((2, 4), np.float16))",
        "np.fft.fft(X, out=np.zeros((2, 3), np.int8))",
    ),
    "chains of products": (
        "np.linalg.multi_dot([X.sum(), X.sum()])", "np.linalg.multi_dot([Q, Q])", "np.linalg.multi_dot([Q, Q, Q])",
        "np.linalg.multi_dot([X[0], X.T, X[:, 0]])", "np.linalg.multi_dot([X, X.T, X])",
    ),
    "results that are arrays": ("isinstance(np.tensordot(X, X), np.ndarray)", "np.add(1, 2, out=np.tensordot(X, X))"),
    "norms": (
        "np.linalg.matrix_norm(X, ord=None)", "np.linalg.matrix_norm(X.sum())", "np.linalg.vector_norm(X, ord=None)",
    ),
    "outputs of other types": (
        "np.dot(I, 2, out=np.zeros(3, complex))", "np.dot(X, 2, out=np.zeros((2, 3), complex))",
        "np.cumulative_prod(X * 1j, axis=0, out=np.zeros((2, 3)))",
    ),
    "axes": (
        "np.size(X, (-1, 0))", "np.size(X, 5)", "np.size(X, [0])", "np.cumulative_sum(X, axis=(0,))",
        "np.add.accumulate(X, axis=(0,))", "np.add.accumulate(X, axis=(0, 1))", "np.cross(X, X, axis=(-1, 0))",
        "np.linalg.vecdot(X, X, axis=(0,))", "X.sum(keepdims=np.True_)", "np.nanmean(X, keepdims=None)",
        "np.argmax(X, keepdims=np.True_)", "np.nanargmin(H, keepdims=np.True_)",
        "np.linalg.vector_norm(X, keepdims=1.0)",
    ),
    "freedom of a variance": ("np.var(X, ddof=0.5, correction=0.5)", "np.std(X, ddof=0, correction=0.5)"),
    "operands without entries": ("np.vdot(E, [])", "np.vdot([], E)", "np.inner([[]], E)", "np.dot(E, [])"),
    "polynomials": (
        "np.polyadd(np.ones((3, 3)), X[0])", "np.polysub([1], X)", "np.polyadd(X, 3)",
        "np.polydiv(X[0] + 1, X[0, 1:])", "np.polydiv(X, X[0])", "np.polyder(X.sum())",
        "np.polyint(X.sum())", "np.linalg.matrix_power(X.sum(), 2)",
    ),
    "roundings into an output": (
        "np.round(U, -1, out=np.zeros(4))", "np.round(I > 0, 1, out=np.zeros(3))", "np.round(I, -1, out=I * 0)",
        "np.round(X, 1, out=np.zeros((2, 3), complex))", "np.round(H, 1, out=np.zeros(3, np.float32))",
    ),
    "moments into an output": (
        "np.nanmean(H, out=np.zeros((), complex))", "np.var(X * 200, out=np.zeros((), np.float16))",
        "np.nanvar(H / 3, out=np.zeros((), np.float32))", "np.std(H / 3, out=np.zeros((), np.float32))",
        "np.median(H, out=np.zeros((), int))", "np.median(H / 0 * 0, axis=0, out=np.zeros((), int))",
    ),
    "numbers of Python that are arrays for a function": (
        "np.multiply.outer(float(X.sum()), H)", "np.kron(int(I.sum()), U[0])", "np.dot(float(X.sum()), H)",
        "np.inner(H, X.sum().item())", "np.clip(float(X.max()), H, None)", "np.union1d(H, float(X.max()))",
        "np.concatenate([H, float(X.max())], axis=None)",
    ),
    "weights of observations": (
        "np.cov(X, fweights=X[0] + 1)", "np.cov(X, fweights=X[0] + 0.5)", "np.cov(X, aweights=X)",
        "np.cov(X, fweights=2)", "np.cov(X, aweights=X[0, :2])", "np.cov(X, fweights=-X[0])",
    ),
    "geometric spirals": (
        "np.geomspace(-1, X + 1, 4, dtype=complex)", "np.geomspace(1j, X + 1, 3)",
        "np.geomspace(H + 1, 2, 3, dtype='f4')",
    ),
    "masks that do not fit": (
        "np.max(E, axis=1, initial=0, where=np.ones((0, 2), bool))", "np.max(E, initial=1, where=X[0] > 0)",
    ),
    "scalars that take a product": ("isinstance(np.dot(I[0], 2, out=np.zeros((), int)), np.ndarray)",),
    "types before extents": (
        "X.astype(bool).__iadd__(X[:, :2])", "I.__itruediv__(np.ones(2))", "np.percentile(I[0] > 0, 5, axis=0)",
    ),
    "insertions": (
        "np.insert(X, [0], np.arange(9))", "np.insert(X, [1], [[5], [6]], axis=1)", "np.insert(I, slice(0, 1), [7, 8])",
        "np.insert(I, np.array([True, False, False]), [7, 8])", "np.insert(I, [-1], [7, 8])",
    ),
    "choices": (
        "np.choose(I, [1, I], out=np.zeros(3))", "np.choose(I, [1.0, 2.0], out=np.zeros(3, int))",
        "np.choose(I, [1.0, 2.0], mode='clip', out=np.zeros(3, complex))",
    ),
    "positions along axes": (
        "np.take_along_axis(X[::2], np.zeros((3, 2), int), -1)", "np.take_along_axis(X, np.zeros((3, 2), int), -1)",
    ),
    "updates at positions": (
        "(np.greater.at(I, ([1, -2, 2, 1],), I[[0, 0, 1, 2]]), I)[1]", "(np.add.at(I, [0, 0, 1], I), I)[1]",
        "(np.ldexp.at(X, [0, 0], [[1], [2]]), X)[1]", "(np.ldexp.at(H, 1, 3), H)[1]",
        "(np.float_power.at(X, [0, 0], np.complex64(1 - 2j)), X)[1]",
    ),
    "Python numbers among arrays": (
        "np.union1d(H, 3)", "np.concatenate((H, 3), axis=None)", "np.append(H, 3)", "np.union1d(H, [3])",
    ),
    "output buffers of more axes": (
        "np.isposinf(X.sum(), out=np.zeros(1, bool))", "np.fix(X, out=np.zeros((2, 2, 3)))",
        "np.outer(X[0], X[0], out=np.zeros((2, 3, 3)))", "np.clip(X, 1, 2, out=np.zeros((2, 2, 3)))",
        "np.percentile(X, 30, axis=0, out=np.zeros((2, 3)))", "np.sum(X, axis=0, out=np.zeros((1, 3)))",
    ),
    "extents that are 1 once sizes are known": (
        "np.add(I, np.packbits(I > 0), out=np.zeros(np.broadcast_shapes(I.shape, I.shape)))",
    ),
    "differences that wrap": ("np.unwrap(U)",),
    "windows without elements": (
        "np.lib.stride_tricks.sliding_window_view(X, 0, axis=1)",
        "np.lib.stride_tricks.sliding_window_view(X, (0, 2)).sum(-1)",
    ),
    "None as an element": (
        "X.put([0], None)", "np.put(X, [0, 1], None)", "np.place(X, X > 0, None)", "np.fill_diagonal(X, None)",
        "X.fill(None)", "X.__setitem__(0, None)", "X.flat.__setitem__(slice(2), None)", "np.putmask(X, X > 0, None)",
        "X.astype(int).put([0], None)", "X.astype(int).flat.__setitem__(0, None)", "(X > 0).fill(None)",
    ),
    "positions of arrays without elements": (
        "np.take(E.T, [-7], axis=1)", "np.take_along_axis(E, np.array([[5]]), axis=0)", "np.choose(I + 2, [E.T, E.T])",
        "E.T[:, I + 2]", "E[I + 2]", "np.take(E, I + 2, axis=0)", "E.T.__setitem__((slice(None), I + 2), 1)",
        "E.__setitem__(np.triu_indices(2), 1)", "E[:, :, None].T.__setitem__(np.diag_indices(2), 1)",
        "np.put_along_axis(Q, I[None], 1, axis=0)", "(np.negative.at(X, (([0, 1], [0, 1]),)), X)[1]",
    ),
    "the first error of an update": (
        "X[np.diag_indices(3)].__iadd__(np.ones(2))", "X.__setitem__(np.diag_indices(3), np.ones(2))",
        "X[[0, 2], np.array([0])].__iadd__(1j)", "X[:, :1].T[np.array([[0], [1]])].__imul__(np.ones(4))",
    ),
    "subscripts": (
        "np.einsum('i...->i', X)", "np.einsum('i...->i', X, optimize=True)", "np.einsum('ij,ij->iz', X, X)",
        "np.einsum('ij,ij->z', X, X, optimize=True)",
        "isinstance(np.einsum('i,i,i', I, I, I, optimize=True), np.ndarray)",
        "isinstance(np.einsum('i,j,k->', I, I, I, optimize=True), np.ndarray)",
    ),
    "initial values": (
        "np.sum(X * -0.0, initial=-0.0)", "np.max(E * 1j, axis=1, initial=1 - 0j)", "np.prod(X * 1j, initial=np.inf)",
        "np.max((X > 9) * 0.0, initial=-0.0)", "np.prod(X + 1j, where=X > 2)", "np.multiply.accumulate(I, axis=None)",
    ),
    "ends of complex values": (
        "np.interp(X, X[0], X[0] * 1j, left=np.complex128(2j))", "np.interp(X, X[0] + 1, X[0], left=np.array(1j))",
        "np.interp(X, X[0] + 1, X[0] * 1j, left=np.complex64(2j))",
    ),
    "ufuncs of selected elements into themselves": (
        "(u := U[U > 0], np.arctan2(u, u, u, casting='unsafe'))", "(x := X[X > 2], np.add(x, 1, x, where=x > 4))[0]",
        "(x := X[X > 2], np.divmod(x, 2, out=(x, x * 2)))",
    ),
    "reductions in the order of the axis": (
        "np.arctan2.reduce(np.broadcast_to(X[0], (3, 3)))", "np.power.reduce(np.broadcast_to(X[1], (3, 3)), axis=1)",
    ),
    "repetitions of a computed length": ("np.resize(np.polyint(X[0]), (2, 3))", "np.resize(np.append(X[0], 1), 9)"),
    "triangles in the order of a stack": ("np.linalg.qr(Q.T + np.eye(2), mode='complete')[1].strides",),
    "sizes that a stage knows to be 1": (
        "(np.logical_or.at(I, [0, -1], 2j), np.fmod.at(u := np.packbits(I > 0), [-1, -1], np.packbits(I > 0)), u)",
    ),
    "characters of types": ("np.mintypecode([X, 'f'])", "np.mintypecode((X > 0, X * 1j))"),
    "results that are cast by any rule": (
        "np.concatenate([X[0], [1j] * 3], casting='unsafe', out=np.zeros(6, np.float32))",
        "np.stack([X[0], [1j] * 3], casting='unsafe', out=np.zeros((2, 3), np.float32))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("group", CALLS)
def test_calls_with_rare_parameters_do_what_numpy_does(group: str) -> None:
    for text in CALLS[group]:
        names = [name for name in ARRAYS if name in text.replace("_E", "")]
        function = eval(f"lambda {', '.join(names)}: {text}", {"np": np})
        why = why_different(function, lambda names=names: tuple(ARRAYS[name]() for name in names))
        assert why is None, (text, why)


def test_lists_that_contain_themselves_raise_as_in_numpy() -> None:
    def nested(x: Any, depth: int) -> Any:
        rows: Any = [x, 3]
        for _ in range(depth):
            rows = [rows]
        if not depth:
            rows.append(rows)
        return rows

    programs = (
        lambda x, depth: x + nested(x, depth), lambda x, depth: np.add(nested(x, depth), 1),
        lambda x, depth: np.array(nested(x, depth)), lambda x, depth: np.concatenate(nested(x, depth)),
        lambda x, depth: x[nested(x, depth)],
    )  # fmt: skip
    for program in programs:
        for depth in (0, 70):
            with pytest.raises(ValueError, match=r"a list contains itself|exceed the maximum number of dimension"):
                fuse(program, target="reference", static_argnums=1)(np.ones(3), depth)
    result = fuse(lambda x: nested(x, 0), target="reference")(np.ones(3))
    assert result[2] is result
    assert len(result) == 3


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: np.fft.rfftn(x, (2, 0), (-1, -1)), np.ones(3, np.complex64)),
        (lambda x: np.fft.rfftn(x, None, (1.0,)), np.zeros(0)),
        (lambda x: np.fft.irfftn(x, 0, (0,)), np.float64(1.0)),
        (lambda x: np.fft.rfftn(x, None, "a"), np.zeros(0)),
        (lambda x: np.right_shift(0, x, 0, casting="unsafe"), np.ones(2, int)),
        *((lambda x, out=out: x.sum(out=out), np.ones(2)) for out in (1.5, [0], np.float64(3), ())),
        *((lambda x, f=f: f(x, out=3), np.ones(2)) for f in (np.sqrt, np.var, np.cumsum, np.argmax, np.median)),
        (lambda x: np.concatenate([x, x], out="a"), np.ones(2)),
        (lambda x: np.stack([x, x], out=(np.zeros(2),)), np.ones(2)),
    ],
)
def test_the_first_of_several_errors_of_a_call_is_of_numpys_class(function: Any, x: Any) -> None:
    with pytest.raises(Exception) as expected:
        function(x)
    with pytest.raises(expected.type):
        fuse(function, target="reference")(x)


def test_an_array_without_elements_is_reshaped_without_a_copy_in_every_layout() -> None:
    reshaped = fuse(target="reference")(lambda x: np.reshape(x + 1, (5, 0), copy=False))
    for order in "CF":
        assert reshaped(np.zeros((0, 3), order=order)).shape == (5, 0)


@pytest.mark.parametrize("bins", [(4, 6), [3, np.int8(5)], np.array([2, 4]), ([0, 0.5, 1], 3)])
def test_numbers_of_bins_for_each_coordinate_may_be_arguments(bins: Any) -> None:
    points = np.random.default_rng(0).random((2, 30))
    for program in (
        lambda x, bins: np.histogram2d(x[0], x[1], bins=bins),
        lambda x, bins: np.histogramdd(x.T, bins=bins),
        lambda x, bins: np.histogram2d(x[0], x[1], bins=(len(bins), np.max(bins[1]))),
    ):
        assert why_different(program, lambda: (points, bins)) is None


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_reduction_of_repeated_rows_into_an_array_takes_every_row(target: str) -> None:
    def function(x: Any, out: Any) -> Any:
        return np.ldexp.reduce(np.broadcast_to(x, (2, *x.shape)), initial=-1.5, out=out)

    exponents = np.arange(6, dtype=np.uint16).reshape(2, 3)
    expected = function(exponents, np.zeros((2, 3)))
    np.testing.assert_array_equal(fuse(function, target=target)(exponents, np.zeros((2, 3))), expected)
