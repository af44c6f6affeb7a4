"""Short programs from tables: numbers of Python as arguments, keywords, lists and masks mean what NumPy means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.compared_calls import OPTIONS, check
from tracefuse import fuse

# -- numbers of Python that a call passes -----------------------------------------------------------------------------

NUMBERS = (2.5, 0.0, -0.75, 1e300, float("inf"), float("nan"), 3, 0, -2, True, False, 1.5 - 2j, 0j)

OF_NUMBERS = (
    "np.searchsorted(x, s)",
    *(f"s {operator} {other}" for operator in ("+", "-", "*", "/", "//", "%", "**") for other in (2, 0, -0.5, True)),
    *(f"{other} {operator} s" for operator in ("/", "//", "%", "**", "-") for other in (1, 2.5, True)),
    "s / s", "s ** 400", "divmod(s, 2)", "divmod(2.5, s)", "round(s, 1)", "round(s)", "abs(s)", "-s", "+s", "s.real",
    "s.imag", "s.conjugate()", "x * (1 / s)", "x * (s - 1) ** 2", "math.sqrt(s)", "math.exp(s) * x", "math.floor(s)",
    "s.is_integer()", "hash(s) % 7", "{s: 1}[s]", "f'{s}'", "str(s) + repr(s)", "s == 2", "s != 0", "x if s else -x",
    "type(s) is float", "type(s) is int", "type(s)(2)", "[isinstance(s, t) for t in (bool, int, float, complex)]",
    "isinstance(s * 2, float)", "isinstance(s, (int, float))", "isinstance(s, np.generic)", "np.isscalar(s)",
    "np.abs(s)", "np.isnan(s)", "np.sqrt(s)", "np.multiply(s, s)", "x + np.abs(s)", "x ** s", "[1, 2] * s",
    "x.astype(np.float32) * s", "x.astype(np.float32) * np.add(s, s)", "max(s, 1)", "sum([s, 1, s])", "s.bit_length()",
)  # fmt: skip


@pytest.mark.parametrize("text", OF_NUMBERS)
def test_numbers_that_a_call_passes_compute_as_in_python(text: str) -> None:
    for kind in (bool, int, float, complex):
        check(text, np.arange(3.0), *(one for one in NUMBERS if type(one) is kind))


def test_a_division_by_a_size_of_zero_raises_as_in_python() -> None:
    mean = fuse(lambda x: x.sum() * (1 / x.shape[0]), **OPTIONS)
    assert mean(np.arange(4.0)) == 1.5
    with pytest.raises(ZeroDivisionError):
        mean(np.zeros(0))


SCALARS = (np.float64(2.5), np.float32(-1), np.int16(3), np.bool_(True), np.complex64(1 - 2j))

OF_SCALARS = (
    "isinstance(s, np.generic)", "isinstance(s, float)", "isinstance(s, np.floating)", "isinstance(s, np.ndarray)",
    "type(s) is np.float64", "type(x[0]) is np.float64", "isinstance(x.sum(), np.floating)", "type(x) is np.ndarray",
    "isinstance(x.sum(), float)", "isinstance(x, np.ndarray)", "hash(s) % 7", "{s: 1}[s]", "float(s)", "int(s)",
    "np.isscalar(x.sum())", "s.is_integer()", "type(x[0] * 2)(3) + x",
)  # fmt: skip


@pytest.mark.parametrize("text", OF_SCALARS)
def test_scalars_of_numpy_have_its_types_and_methods(text: str) -> None:
    for scalar in SCALARS:
        check(text, np.arange(3.0), scalar)


# -- values that are assigned -----------------------------------------------------------------------------------------

PROGRAMS = (
    "y = np.maximum(x, 0, order='F'); y.ravel()[:1] = 7; y + 0", "y = x.copy('F'); y.ravel()[:1] = 7; y + 0",
    "y = np.zeros((3, 3), order='F'); y.T.ravel()[:2] = 7; y + x",
    "y = x.astype(float, order='F'); y.T.ravel()[1] = 7; y",
    "y = np.array(x, order='F'); y.ravel()[:1] = 7; y + 0", "y = np.zeros_like(x, order='F'); y.ravel()[:1] = 7; y + x",
    "y = x[:, [0, 2]]; y.ravel()[:] = 7; y + 0", "y = x[[0, 2]]; y.ravel()[:2] = 7; y + 0",
    "y = x.T[[0, 2]]; y.T.ravel()[:2] = 7; y + 0", "y = x[None][:, [0, 1], [1, 2]]; y.T.ravel()[:1] = 7; y + 0",
    "y = x[:, [[0, 1], [2, 2]]]; y.ravel()[:2] = 7; y.reshape(-1)[:3] += 1; y + 0", "x[:, [0, 2]].strides",
    "x.T[:, [0, 2]].strides",
    "t = np.real_if_close((x * 1j).sum()); t += 1; t",
    "y = x * 1; k = int(x[0, 1]); v = y[k]; v[:2] = 7; y + 0", "y = x * 1; v = y[int(x[0, 1])]; y += 10; v * 1",
    "y = x * 1; v = y[:, x[0, 2]]; v[:2] = 7; y + v", "y = x * 1; v = y[np.argmax(x[:, 0])]; y[...] = 3; v + 0",
    "y = x * 1; v = y[int(x[0, 1])][::-1]; v[0] = 50; y.ravel()", "np.trapezoid(x > 2, x[0] > 1)",
    "np.resize(x, -1)", "np.median(x, axis=0, out=np.zeros(3, int))",
    "np.conjugate(x, out=x); np.trim_zeros(x.ravel())", "np.insert(x, [0, 1], [[True]])", "np.round(2.5, 1) + x",
    "np.putmask(x, x > 2, [[10, 20], [30, 40]]); x * 1", "np.putmask(x, (x > 2).ravel(), 5); x * 1",
    "np.putmask(x, [True], [1]); x * 1", "np.full_like(x[0, 0], [2.0])", "np.full((), [2.0]) + x",
    "np.full_like(x, [[2, 3, 4]])", "np.full_like(x[0, 0], [2.0, 3])", "x[[]]", "x[:, []]", "np.take(x, [])",
    "np.select([x > 1], [[1, 2, 3]])", "np.select([x > 1], [[1, 2, 3]], [4.5, 1, 1])",
    "np.choose(x % 2, [[1, 2, 3], [4.0, 5, 6]])", "x.any(axis=0, dtype=bool)", "x.any(axis=0, dtype=int)",
    "np.lcm(x, -0.25, dtype=np.int64, casting='unsafe')", "np.polyder(x[0, :0])",
    "x.var(axis=0, out=np.zeros(3, bool))", "x.std(axis=0, out=np.zeros(3, int))",
    "x.std(axis=0, out=np.zeros(3, np.float32))", "np.nanvar(x, axis=0, out=np.zeros(3, int))",
    "np.ptp(x > 2, axis=0, out=np.zeros(3))", "np.tensordot(x, x[:, :2], axes=([1], [1]))",
    "np.tensordot(x, x[:1], axes=([0], [0]))", "np.dot(x, x * 0.5, out=np.zeros((3, 3), int))",
    "np.dot(x, x, out=np.zeros((3, 3), int).T)", "np.arange(5, dtype=bool)", "np.arange(2, dtype=bool)",
    "t = np.meshgrid(x[0], [1, 2])[0]; u = t.reshape(3, 2); u[0, 0] = 9; t * 1", "np.packbits(x[0, 0] > 1, axis=-1)",
    "np.unpackbits(x[0, 0].astype(np.uint8), axis=-1)", "np.average(x > 2, weights=x.astype(np.float16))",
    "np.nan_to_num(x / 0.0, nan=np.float64(2), posinf=3)", "np.nan_to_num(np.float32([1, np.nan]), nan=2j)",
    "np.nan_to_num((x / 0.0).astype(np.complex64), nan=np.int64(2))", "float((x * 1j).sum())", "int((x * 1j)[0, 0])",
    "np.nanmax(x * 1.0, initial=0.5, where=x > 9)", "np.nanmax(x[0, 0] * 1.0, initial=0.5, where=x[0, 0] > 9)",
    "np.split(x.tolist(), [1], axis=1), np.array_split([x[0], x[1]], 2, -1)",
    "f'{x.shape[0]} {x.ndim}'", "x == {}, x != float, object() == x, {1, 2} != x, x == slice(2), x == math",
    "np.dtype(int) == x, x != np.dtype(int), np.dtype(int) == x.sum(), x.dtype in (np.dtype(int), None)",
    "np.dtype(int) in [x]", "np.logical_and(x, 10**30)", "np.logical_or(2**63, x > 1)", "np.interp(x[0], None, x[0])",
    "np.logical_and(x, -(2**63)), np.logical_or(x > 1, 300)", "np.concatenate([x, None])", "np.stack([x, {}])",
    "it = x.flat; a = next(it), next(it), it.index, it.coords; a, [v * 2 for v in it]",
    "next(x.flat), next(x[:0].flat)",
    "x == [].append, x != 'a'.upper, x == math.sin, x == x.sum", "np.cross(x, None)",
    "np.matmul(x, None)", "np.einsum('ij,j', x, None)", "np.linalg.solve(x * 1.0, None)",
    "(x != ...) & (x > 1), len in x, None in x, x.sum() == 'a', x.sum() != {}, x[:0] == iter([1])",
)  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_calls_mean_what_numpy_means(text: str) -> None:
    check(text, np.arange(9).reshape(3, 3))


# -- rare parameters and operands -------------------------------------------------------------------------------------

RARE = (
    ("r = x.copy(); np.put_along_axis(r, np.array([[1], [2], [1]]), np.array([[9.0], [7.0], [5.0]]), 1)", "row"),
    ("r = x.T.copy(); np.put_along_axis(r, np.array([[1, 2, 1]]), np.array([[9.0, 7.0, 5.0]]), 0)", "row"),
    ("r = x[None].copy(); np.put_along_axis(r, np.array([[[1]], [[2]]]) * np.ones((1, 2, 1), int), 7.0, 2)", "row"),
    ("np.polyder(x)", "matrix"), ("np.polyder(x, 2)", "matrix"), ("np.polyder(x[:2])", "matrix"),
    ("np.setxor1d(x, -1, True)", "bytes"), ("np.setxor1d(x, -1)", "bytes"), ("np.union1d(x, 1)", "bytes"),
    ("np.concatenate((x, -1), axis=None)", "bytes"), ("np.nanmax(x, 0, out=np.zeros(3, np.uint64))", "large"),
    ("np.min(x, 0, out=np.zeros(3, np.uint64))", "large"), ("np.nanmin(x, out=np.zeros((), np.int8))", "matrix"),
    ("np.cov(x, ddof=np.float32(1))", "matrix"), ("np.cov(x, ddof=np.float64(2), dtype=np.float32)", "matrix"),
    ("np.cov(x, ddof=0.5)", "matrix"), ("np.histogram_bin_edges(x, np.array([1.0, 2.0]), weights=x > 1)", "matrix"),
    ("np.linalg.matrix_power(x, 3)", "infinite"), ("np.linalg.matrix_power(x, 6)", "infinite"),
    ("np.unstack(x, axis=(0,))" if hasattr(np, "unstack") else "x", "matrix"),
    ("np.unstack(x, axis=(0, 1))" if hasattr(np, "unstack") else "x", "matrix"),
    ("np.fft.irfftn(x, axes=(0,))", "halves"), ("np.fft.irfftn(x[0])", "halves"), ("np.fft.irfft2(x)", "halves"),
    ("np.fft.fftshift(x.sum())", "matrix"), ("np.roll(x[0, 0], 1, ())", "matrix"), ("np.roll(x, (), ())", "matrix"),
    ("np.delete(x, x.sum() > 1)", "matrix"), ("np.delete(x, np.array(True))", "matrix"),
    ("np.delete(x, x[0] > 1, 0)", "row"), ("np.delete(x, x[0] > 1, 1)", "matrix"),
    ("np.matmul(x[:1], x[:, :1], out=np.zeros(1))", "matrix"), ("np.vecdot(x[:1], x[0], out=np.zeros(()))", "matrix"),
    ("np.matmul(x, x, out=np.zeros(3))", "matrix"), ("np.gradient(x[0], np.float64(2))", "halves"),
    ("np.gradient(x[0], 1j, edge_order=2)", "matrix"), ("np.gradient(x, 1j, edge_order=2)", "matrix"),
    ("np.select([x > 1], [len(x)], x)", "bytes"), ("np.select([x > 1], [x], len(x))", "bytes"),
    ("np.cumulative_sum(x[:, 0] * np.float32(1.1), out=np.zeros(3))", "halves"),
    ("np.cumulative_sum(x, out=np.zeros(3, complex))", "bytes"), ("np.cumulative_prod(x[0], out=np.zeros(3))", "large"),
    ("np.cumulative_sum(x, axis=1, include_initial=True, out=np.zeros((3, 4), np.float32))", "matrix"),
    ("x[None].dot(2j, out=np.zeros((1, 3, 3), complex).T)", "matrix"), ("np.cov(x, dtype=int)", "matrix"),
    ("np.clip(x, 1, 5, out=np.zeros((3, 3), int), casting='unsafe')", "matrix"),
    ("np.clip(x, 1, None, where=x > 2, out=np.ones((3, 3)))", "matrix"), ("x.clip(0, 1, casting='no')", "matrix"),
    ("np.einsum('ij->ji', x, dtype=np.float32)", "matrix"), ("np.einsum('ij->i', x, dtype=np.float32)", "matrix"),
    ("isinstance(np.einsum('i,i->', x[0], x[1], optimize=True), np.ndarray)", "matrix"),
    ("isinstance(np.einsum('i,j->', x[0], x[1], optimize=True), np.ndarray)", "matrix"),
    ("np.lib.stride_tricks.as_strided(x, (3, 1, 3)) * 1", "matrix"), ("x.reshape(-2)", "matrix"),
    ("np.nanmax(x, 0, where=x > 3, initial=np.nan)", "matrix"), ("np.fft.fftshift(x, (0, -2, 1))", "matrix"),
    ("y = np.roll(x, (), ()); y += 1; r = x + y", "matrix"),
    ("isinstance(np.expand_dims(x[0, 0], ()), np.ndarray)", "matrix"),
    ("np.logical_not(x, dtype=bool)", "matrix"),
    *((f"np.argsort((x % 3).ravel(), kind={kind!r})", "matrix") for kind in ("Stable", "m", "st", "foo", 3, b"s")),
    *((f"{call}, kind={kind!r})", "matrix") for call in ("np.partition(x, 1", "x.argpartition(1", "np.sort(x, 0")
      for kind in (None, "introselect", "x", "q")),
    *((f"np.{name}({given}, mean=np.mean(x * (1 + 2j), keepdims=True)[0])", "matrix") for name in ("var", "std")
      for given in ("[1, 2]", "[True, False]", "[1.5, 2]")),
    ("np.vander(x[0] * np.complex64(complex(np.inf)), 3)", "matrix"), ("np.add(x, x, where=np._NoValue)", "matrix"),
    *((f"np.{name}(x, 0, where={where})", "matrix") for name in ("mean", "var", "std", "sum", "nanmean")
      for where in ("[[1], [0], [2]]", "1", "x.astype(int)")),
    *((f"math.trunc(x.astype(np.{kind}).sum()) + x", "matrix") for kind in ("float32", "float64", "int32")),
    ("math.trunc(float(x.sum())) + x", "matrix"),
)  # fmt: skip
"""Expressions of x, and the operand."""


def operand_of(name: str) -> Any:
    numbers = np.arange(9.0).reshape(3, 3) ** 2
    return {
        "matrix": numbers, "row": numbers[:1], "bytes": np.arange(1, 4, dtype=np.uint8),
        "large": (numbers + 1).astype(np.int64) * (2**53 + 1), "halves": np.ones((3, 3), np.float16),
        "infinite": np.array([[np.inf, 1.0], [1.0, 0.0]]),
    }[name]  # fmt: skip


@pytest.mark.parametrize(("text", "operand"), RARE)
def test_rare_parameters_and_operands_give_the_values_types_and_errors_of_numpy(text: str, operand: str) -> None:
    check(text, operand_of(operand))


KINDS = (
    "np.dot(x, x, out=np.zeros(()))", "np.matmul(x, x, out=np.zeros(()))", "np.trace(x[None], out=np.zeros(()))",
    "np.any(np.int8(3), out=x[1:].reshape(())[...] > 3)", "np.max(x[0], out=np.zeros(()))",
    "np.max(x, out=np.zeros(()))", "x[0].sum(out=np.zeros(()))",
    "np.nansum(x[0], out=np.zeros(()))", "x[0].argmax(out=np.zeros((), int))", "np.round(x[0], 1, np.zeros(()))",
    "np.clip(x[0], 0, 1, np.zeros(()))", "np.choose(np.int64(x.shape[0]) % 2, [x[0], 2], np.zeros(()))",
    "np.quantile(x[0], 0.5, keepdims=True)", "np.median(x[0], keepdims=True)", "np.mean(x[0], keepdims=True)",
    "np.nanmedian(x[0])", "np.linalg.tensordot(x, x, axes=1)", "np.tensordot(x, x, 1)", "np.inner(x, x)",
    "np.fft.fftn(x[0])", "np.fft.fftn(x[0].item())", "np.fft.fft2(x[0], axes=())", "np.block(x[0])",
    "np.tile(x[0], ())", "np.apply_along_axis(np.sum, 0, x)", "np.polyval(x[:0], 2.0)", "np.polyval(x, 2.0)",
    "np.reshape(s, ())",
    "np.squeeze(s)", "np.squeeze(x[0])", "np.transpose(x[0].item())", "np.reshape(x[0].item(), ())", "np.array(s)",
    *(("np.astype(x[0], int)", "np.astype(np.asarray(x[0]), int)") if hasattr(np, "astype") else ()),
)  # fmt: skip


def test_results_without_axes_are_arrays_or_scalars_as_in_numpy() -> None:
    check(f"[(isinstance(t, np.ndarray), t) for t in ({', '.join(KINDS)})]", np.array([1.5, 2.5]), 3.5)


TOGETHER: dict[str, tuple[str, ...]] = {
    "np.array([[0, 0, 0], [0, 4, 0], [0, 1, 0]])": (
        "(lambda y: (np.trim_zeros(y), y))(x)", "(lambda y: (y.fill(7), x * 1))(np.trim_zeros(x, 'b'))",
        "(lambda y: (np.add.at(y, [0, 0], 5), x * 1))(np.trim_zeros(x, axis=0))", "np.trim_zeros(x * 0)",
        "np.insert(x[:0], [], x[:, :0])", "np.insert(x, [], x[:0], axis=0)", "np.piecewise(x, [x[0] < 1], [1, 3])",
        "np.piecewise(x, np.array([[True, False, True], [False, True, False]]), [5, 7])", "x == None", "x[0] != 'a'",
        "np.zeros(3, like=x)", "np.rollaxis(x[None] + [[0], [1], [2]], 1, -1)",
        "np.rollaxis(x[None], 0, -1)", "np.rollaxis(x[None], 0, 3)", "np.transpose(x[0], axes=0)",
        "np.sum(x, where=None)", "x.max(where=None, initial=3)",
        "np.sum(x, where=[x[0, 0] > 0, True, False])", "np.nansum(x, where=None)", "x.any(where=None)",
        "np.nanmax(x / 2, where=True)", "np.add(x, x, where=np.True_)", "np.std(x, ddof=0.0, correction=1)",
        "np.cov(x[:0], x)", "np.corrcoef(x[:0], y=np.int64(2))",
    ),
    "np.array([2**64 - 1, 3, 5], np.uint64)": (
        "np.array(x.tolist())", "np.array(x[:1].tolist())", "np.array(x[1:].tolist())", "np.max(x.tolist())",
        "np.remainder.accumulate(x.tolist())", "np.array([x.tolist()[0], -1])", "np.ldexp.reduce(x[1:], dtype='f4')",
        "x.repeat(np.int8(3))", "np.repeat(np.ones(50), np.int8(3)).sum() + x", "np.percentile(x, 30, method='lower')",
    ),
    "np.array([3.0, -0.75, np.nan, 7e4])": (
        "np.geomspace(x[0], x[1], 4)", "np.geomspace(x[1], 3, 4)", "np.geomspace(x[2], 3, 3)",
        "np.geomspace(3, x[2], 3)", "np.sum(x[:2] * 60000, dtype=np.float16)", "np.mean(x[3:], dtype=np.float16)",
        "np.cumsum(x[::3], dtype=np.float16)", "x[:2].astype(np.int8).var(mean=0)", "x.var(mean=2, dtype='f4')",
        "(x[:2] * 7).astype(np.int8).std(dtype='f4', mean=np.int8(3))",
        "(x[:2] * 40).astype(np.int8).std(dtype=complex, mean=np.int8(3))",
        "np.quantile(x[:2], 0.5, method='lower', "
        "out=np.zeros((), np.int32))",
    ),
}  # fmt: skip
"""Expressions of x by the operand: one function computes all of them."""


@pytest.mark.parametrize("operand", TOGETHER)
def test_several_calls_of_one_operand_give_the_values_and_types_of_numpy(operand: str) -> None:
    check(f"[{', '.join(TOGETHER[operand])}]", eval(operand))


ERRORS = (
    "np.choose(x, [1, 2], mode='full')", "np.linalg.vecdot(x[0, 0], 3, axis=None)", "np.vsplit(x[0], 1)",
    "np.hsplit(x[0, 0], 1)", "np.array_split(x[0, 0].item(), 2)", "np.polyval(x[0, 0], x)",
    "np.common_type(x[0, 0].item())", "np.nextafter.reduce(x[0], (0, 1), keepdims=np.True_)", "x.sum(axis=True)",
    "x.sum(axis=[0])", "np.putmask(x[0, 0], x > 1, x)", "np.tensordot(x[0], x)", "np.tensordot(x, x, ([0, 0], [0, 1]))",
    "np.concatenate((x[0, 0], x), axis=())", "np.piecewise(x, x > 1, [1, 2])", "np.trim_zeros(x, 'x')",
    "x.var(correction=1)", "np.insert(x[0], [], [1, 2])", "np.nan_to_num(x[0, 0], copy=False)",
    "np.sum(x[:0], initial=None)", "np.mean(x, where=None)", "x.max(where=None)", "np.add.reduce(x[:0], initial=None)",
    "np.nanstd(x, ddof=1, correction=2)", "x[[0, 1], [0, 1, 1]]", "np.put_along_axis(x, np.zeros((1, 2), int), 5, 0)",
    "np.take_along_axis(x, [[0]], 0)", "np.rollaxis([x, x], 1)", "np.split([x, x], 2)", "np.common_type([x[0, 0]])",
    "np.pad(x, (1, 2, 3))", "np.pad(x, ())", "np.cross(-1, x, axisa=None)",
    "np.quantile(x, 1, out=np.zeros((), np.complex64))",
    "np.median(np.broadcast_to(x, (2, 2, 3)), axis=0, overwrite_input=True)",
    "np.take_along_axis(x, [0], (0, 1))", "np.tril_indices_from(x.tolist())", "np.diag_indices_from([[1, 2], [3, 4]])",
    "np.linalg.cross(x[0], x[0, 0])", "np.linalg.cross(x[0, 0], x[0])", "np.linalg.cross(x[0, :2], x[0])",
    "x.imag[...] *= 2; r = x", "x.astype(int).imag[...] *= 0.5; r = x", "np.triu_indices_from(x[0])",
    "np.corrcoef(x, dtype=int)",
    "np.quantile(x, 0.5, method='lower', out=np.zeros((), np.complex64))", "-s * x.astype(np.uint8)",
    "np.matmul(x[:1], x[:1].T.copy(), out=x[:1])", "np.matmul(x[:, :1], x[0, :1], out=np.zeros((5, 4)))",
    "np.diff(x, append=None)", "np.diff(x, prepend=None)",
)  # fmt: skip


@pytest.mark.parametrize("text", ERRORS)
def test_calls_raise_the_types_of_errors_of_numpy(text: str) -> None:
    check(text, np.arange(6.0).reshape(2, 3), True)


def test_vectors_broadcast_to_out_along_the_axes_of_stacks_alone() -> None:
    check("np.matmul(x[0], np.ones((1, 3, 2)), out=np.zeros((4, 2)))", np.arange(6.0).reshape(2, 3))
    check("np.vecdot(x, x, out=np.zeros((5, 2)))", np.arange(6.0).reshape(2, 3))


def test_steps_of_halves_at_positions_are_those_of_halves() -> None:
    x = np.array([0.291, 2, -1], np.float16)
    check("(np.nextafter.at(x, [0, 0, 2], np.uint8(1)), x)[1]", x)


def test_a_number_of_the_call_that_the_type_does_not_hold_raises_and_compares_as_in_numpy() -> None:
    for text in ("int(s) + x", "x < int(s)", "int(s) == x", "np.maximum(x, int(s) * 2)"):
        check(text, np.arange(3, dtype=np.uint8), 2.0, -1.0, 300.0, 5.0)


@pytest.mark.parametrize("dtype", ["int64", "float64", "float16", "complex64"])
def test_kernels_compute_truth_values_of_any_operands_if_the_call_names_bool(dtype: str) -> None:
    def truths(x: Any) -> Any:
        both = np.logical_and.outer([2, -1, 0], x, dtype=bool)
        return both, np.logical_not(x, dtype=bool), np.logical_or(x, 4, dtype=bool), np.logical_xor(x, 8, dtype=bool)

    x = np.array([-2, 8, 1, 0, 256]).astype(dtype)
    for result, expected in zip(fuse(truths)(x), truths(x), strict=True):
        assert np.array_equal(result, expected)
    # As a Python integer, a whole exponent of NumPy gives products.
    z = np.array([-0.25j, 2 - 2j, -1.5j, 0.5])
    assert np.array_equal(fuse(lambda z: z ** np.uint32(5))(z), z ** np.uint32(5))


VIEWS_OF_LISTS = (
    "w = np.flipud([0, 1]); w.ravel()[...] = 3; r = w",
    "w = np.transpose([[1, 2], [3, 4]]); w.ravel()[0] = 9; r = w",
    "w = np.transpose([[1, 2], [3, 4]]); w[0][...] = 9; r = w",
    "np.diagonal([[1, 2], [3, 4]])[0] = 1; r = 0",
    "w = np.swapaxes([[1, 2], [3, 4]], 0, 1); r = (w.strides, w.flags.owndata, (w + x[0, 0]).ravel('K'))",
    "w = np.diagonal([[1, 2], [3, 4]]); v = w.ravel(); v[0] = 7; r = (w, v)",
)


@pytest.mark.parametrize("text", VIEWS_OF_LISTS)
def test_views_that_numpy_makes_of_lists_share_memory_as_their_strides_say(text: str) -> None:
    check(text, np.arange(6.0).reshape(2, 3))


OUTPUTS = (
    "np.take(x, [0, 2], out=np.zeros(2, complex))",
    "np.compress([True, False], x, 0, np.zeros((1, 3), complex))",
    "x.mean(axis=0, dtype=bool, out=np.zeros(3, complex))",
    "x.mean(axis=0, dtype=np.int8, out=np.zeros(3))",
    "x.astype(np.float32).mean(axis=0, out=np.zeros(3))",
    "x.astype(np.float16).mean(axis=0, out=np.zeros(3))",
    "(x / 3).std(dtype=np.float32, out=np.zeros(()))",
    "(x / 3).astype(np.float32).var(axis=0, out=np.zeros(3))",
)


@pytest.mark.parametrize("text", OUTPUTS)
def test_results_go_into_outputs_of_other_types_as_in_numpy(text: str) -> None:
    check(text, np.arange(1, 7.0).reshape(2, 3), True)


HALVES = np.array([-0.0, 0.0, 1.5], np.float16)


def test_bounds_of_clip_beyond_the_type_bound_nothing_also_with_keywords() -> None:
    check("np.clip(x, -1, 2, casting='unsafe', out=np.zeros(4, np.uint8))", np.arange(4, dtype=np.uint32))
    check("np.clip(x, 1, 300, dtype=float)", np.arange(4, dtype=np.uint8))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_of_zeros_of_both_signs_an_extreme_of_halves_is_the_first(name: str) -> None:
    check(f"np.signbit((np.{name}(x, False), np.{name}(x, -x), np.{name}(-x, x)))", HALVES)


def test_an_optimized_einsum_of_two_types_sums_an_axis_of_one_array_in_its_type() -> None:
    check("np.einsum('ij,kj->kj', x > 2, x, optimize=True)", np.arange(6).reshape(2, 3))
    check("np.einsum('ij,kl->il', x.astype(np.int8) * 60, x, optimize=True)", np.arange(6).reshape(2, 3))


def test_keys_of_lexsort_keep_their_types() -> None:
    large = np.array([2**53 + 1, 2**53, 5])
    for keys in ("(x, x * 0.0)", "[x, x * 0.0]", "([x[0], x[1], x[2]], x * 0.0)", "(x, [1.0, 1.0, 0.0])", "[x]"):
        check(f"np.lexsort({keys})", large)
        check(f"np.lexsort(keys={keys})", large)


ORDERED_ERRORS = (
    "np.linalg.inv(x.astype(np.float16))",
    "np.linalg.solve(x.astype(np.float16), x.astype(np.float16))",
    "np.fft.rfftn(x[0, 0] * 1j)",
    "np.fft.rfft2(x[0] * 1j)",
    "np.fft.irfft2(x, s=())",
    "np.lexsort(())",
    "np.percentile(x, 30, weights=[[1.0]], method='inverted_cdf')",
    "np.cov(x, aweights=[0, 0, 0])",
    "np.cov(x, fweights=[0, 0, 0])",
)


@pytest.mark.parametrize("text", ORDERED_ERRORS)
def test_shapes_are_checked_before_types_where_numpy_does(text: str) -> None:
    check(text, np.arange(6.0).reshape(2, 3), True)


def test_ends_of_interp_that_numpy_does_not_read_have_any_type() -> None:
    check("np.interp(x, [1.0, 2.0], [3.0, 4.0], right=2j, period=3)", np.arange(3.0))
    check("np.interp(x, [1.0, 2.0], [3.0, 4.0], left=2j)", np.arange(0.0))


def test_batches_of_products_broadcast_where_an_extent_is_one_by_what_is_known() -> None:
    def function(a: Any) -> Any:
        u = np.linalg.qr(np.bitwise_or.outer(a.tolist(), a), mode="r")
        return u.T @ u

    a = np.array([[True, False, True]])
    np.testing.assert_allclose(fuse(function)(a), function(a))


def test_nan_as_the_first_value_stays_in_an_extreme_of_a_scalar() -> None:
    check("np.nanmin(x[0], initial=np.float32('nan')), np.nanmin(x, initial=np.float32('nan'))", np.arange(3.0))
    check("isinstance(np.reshape(x, (), copy=True), np.ndarray)", np.array(2.0))
    check("np.cov(x, aweights=[1, np.nan, 2])", np.arange(3.0))
