"""Tests products of vectors and matrices against NumPy, with integers, so that every order of summation is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tracefuse import ShapeDtype, fuse
from tracefuse.errors import DtypeError, ShapeError


def whole(*shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


EINSUMS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 3), (3, 4))), ("ij,jk", ((2, 3), (3, 4))), ("ij,kj->ik", ((2, 3), (4, 3))),
    ("ij,ij->", ((2, 3), (2, 3))), ("ij,ij->i", ((2, 3), (2, 3))), ("ij,j->i", ((2, 3), (3,))),
    ("i,j->ij", ((2,), (3,))),
    ("i,i", ((3,), (3,))), ("ij->ji", ((2, 3),)), ("ij->", ((2, 3),)), ("ij->j", ((2, 3),)), ("ij", ((2, 3),)),
    ("ji", ((2, 3),)), ("ii->i", ((3, 3),)), ("ii", ((3, 3),)), ("iij->ij", ((3, 3, 2),)), ("iji->j", ((3, 2, 3),)),
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("bqhd,bkhd->bhqk", ((2, 4, 3, 5), (2, 6, 3, 5))), ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
    ("i...,i...->...", ((3, 2, 4), (3, 2, 4))), ("...,...", ((2, 3), (3,))), ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ("ij,jk,ki->", ((2, 3), (3, 4), (4, 2))), ("abc,bd,ce->ade", ((2, 3, 4), (3, 5), (4, 6))),
    ("ijk,jil->kl", ((2, 3, 4), (3, 2, 5))), ("i,->i", ((3,), ())), ("ij,ik->ijk", ((2, 3), (2, 4))),
    ("bi,bj->ij", ((5, 2), (5, 3))), ("ij,ij->ij", ((1, 3), (2, 3))), ("ij,jk->ik", ((2, 1), (3, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS)
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_einsum(subscripts: str, shapes: tuple[tuple[int, ...], ...], dtype: Any) -> None:
    arrays = [whole(*shape, dtype=dtype) for shape in shapes]
    expected = np.einsum(subscripts, *arrays)
    result = fuse(lambda *a: np.einsum(subscripts, *a))(*arrays)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)


def test_einsum_of_truth_values_is_logic() -> None:
    a, b = (np.array([[True, False, True], [False, False, False]]) for _ in range(2))
    np.testing.assert_array_equal(fuse(lambda a, b: np.einsum("ij,kj->ik", a, b))(a, b), np.einsum("ij,kj->ik", a, b))


def test_einsum_takes_lists_of_axes_and_a_type() -> None:
    a, b = whole(2, 3, dtype=np.float32), whole(3, 4, dtype=np.float32)
    result = fuse(lambda a, b: np.einsum(a, [0, 1], b, [1, 2], [2, 0], dtype=np.float64))(a, b)
    assert result.dtype == np.float64
    with pytest.raises(DtypeError, match="does not go into float16 according to the rule 'safe'"):
        fuse(lambda a, b: np.einsum(a, [0, 1], b, [1, 2], [2, 0], dtype=np.float16))(a, b)
    np.testing.assert_array_equal(result, np.einsum(a, [0, 1], b, [1, 2], [2, 0]))


def test_einsum_is_one_trace_for_all_sizes() -> None:
    f = fuse(lambda a, b: np.einsum("bqhd,bkhd->bhqk", a, b))
    for q, k in ((4, 6), (5, 3)):
        a, b = whole(2, q, 3, 5), whole(2, k, 3, 5)
        np.testing.assert_array_equal(f(a, b), np.einsum("bqhd,bkhd->bhqk", a, b))
    assert f.cache_info().traces == 1


def test_products_that_are_no_matrix_products_fuse_with_what_is_around_them() -> None:
    f = fuse(lambda x, w: np.tanh(np.einsum("ij,j->i", x * 2, w) + 1))
    assert len(f.segments(ShapeDtype((8, 4), "float32"), ShapeDtype((4,), "float32"))) == 1


CALLS: list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    (np.dot, ((2, 3), (3, 4))), (np.dot, ((3,), (3,))), (np.dot, ((2, 3), (3,))), (np.dot, ((3,), (2, 3, 4))),
    (np.dot, ((5, 3), (2, 3, 4))), (np.dot, ((2, 5, 3), (2, 3, 4))), (np.dot, ((), (2, 3))),
    (np.inner, ((2, 3), (4, 3))), (np.inner, ((3,), (3,))), (np.inner, ((2, 3), (4, 5, 3))), (np.inner, ((2, 3), ())),
    (np.outer, ((2, 3), (4,))), (np.vdot, ((2, 3), (2, 3))), (np.tensordot, ((2, 3, 4), (3, 4, 5))),
    (lambda a, b: np.tensordot(a, b, axes=1), ((2, 3), (3, 4))),
    (lambda a, b: np.tensordot(a, b, axes=0), ((2,), (3,))),
    (lambda a, b: np.tensordot(a, b, axes=([0, 1], [1, 0])), ((2, 3, 4), (3, 2))),
    (lambda a, b: np.tensordot(a, b, axes=(-1, 0)), ((2, 3), (3, 4))),
    (np.vecdot, ((2, 3), (2, 3))), (np.vecdot, ((2, 3), (3,))),
    (lambda a, b: np.vecdot(a, b, axis=0), ((3, 2), (3, 2))),
    (lambda a, b: np.vecdot(a, b, axes=[0, 1], keepdims=True), ((3, 2), (2, 3))),
    (lambda a, b: np.matmul(a, b, axes=[(1, 0), (0, 1), (1, 0)]), ((3, 2), (3, 4))),
    (lambda a, b: np.matmul(a, b, axes=[(0, 1), (0,), (0,)]), ((2, 3, 4), (3,))),
    (lambda a, b: np.matvec(a, b, axes=[(1, 0), 0, 0]), ((3, 4), (3,))),
    (np.linalg.vecdot, ((2, 3), (2, 3))), (np.linalg.matmul, ((2, 3), (3, 4))), (np.linalg.outer, ((2,), (3,))),
    (np.linalg.tensordot, ((2, 3, 4), (3, 4, 5))),
    (np.trace, ((3, 4),)), (lambda a: a.trace(offset=1), ((4, 3),)), (lambda a: np.trace(a, -1, 1, 2), ((2, 3, 3),)),
    (np.diagonal, ((3, 4),)), (lambda a: a.diagonal(1, 2, 0), ((3, 2, 4),)), (np.linalg.diagonal, ((2, 3, 4),)),
    (np.linalg.trace, ((2, 3, 3),)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "shapes"), CALLS)
def test_products(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [whole(*shape) for shape in shapes]
    expected = np.asarray(function(*arrays))
    result = np.asarray(fuse(lambda *a: function(*a))(*arrays))
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["matvec", "vecmat"])
def test_matrices_with_vectors(name: str) -> None:
    function = getattr(np, name, None)
    if function is None:
        pytest.skip("NumPy has it since 2.2")
    a, b = (whole(2, 4, 3), whole(2, 3)) if name == "matvec" else (whole(2, 4), whole(2, 4, 3))
    np.testing.assert_array_equal(fuse(lambda a, b: function(a, b))(a, b), function(a, b))


@pytest.mark.parametrize(
    ("subscripts", "message"),
    [
        ("ij,jk->iz", "the result has 'z', which is in no operand"),
        ("ijk,jk", "'ijk' does not name the 2 axes of an operand"),
        ("ij->i", r"'ij->i' is for 1 operands, got 2"),
        ("ij,jk->ii", "the result 'ii' repeats a letter"),
        ("ij,ik->jk", "the extents of 'i' differ: 2 and 3"),
    ],
)
def test_what_einsum_refuses(subscripts: str, message: str) -> None:
    with pytest.raises(ShapeError, match=rf"einsum: {message}.*\(test_numpy_products.py:\d+\)"):
        fuse(lambda a, b: np.einsum(subscripts, a, b))(whole(2, 3), whole(3, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.complex64, ml_dtypes.bfloat16])
def test_a_product_with_the_transpose_of_a_matrix_copies_nothing(dtype: Any) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-2, 3, (5, 4)).astype(dtype)
    fused, both = fuse(lambda x, w: x @ w.T), fuse(lambda x, w: (x @ w.T, w.T * w.T))
    for shape in ((4,), (6, 4), (2, 3, 4), (9, 4)):
        x = random.integers(-2, 3, shape).astype(dtype)
        for layout in (weight, weight.T.copy().T, np.repeat(weight, 2, 0)[::2]):
            result = fused(x, layout)
            assert result.dtype == dtype
            assert np.array_equal(result, x @ weight.T)
            first, second = both(x, layout)
            assert np.array_equal(first, x @ weight.T)
            assert np.array_equal(second, weight.T * weight.T)
        (segment,) = fused.segments(x, weight)
        called = [node.op.name for node in segment.definition.fusion.nodes if node.op.kind == "library"]
        assert called == ([] if len(shape) == 1 else ["linear"])  # the product with a vector is a sum in a kernel
    assert fused.cache_info().traces == 3


def test_vectors_of_other_lengths_have_no_product() -> None:
    for shapes in (((1, 2), (1, 1)), ((3, 1), (3, 4))):
        with pytest.raises(ShapeError, match=r"vecdot: \d elements along the axis and \d"):
            fuse(np.vecdot, target="reference")(*(np.ones(shape) for shape in shapes))


@pytest.mark.parametrize(
    "shapes", [((1, 4), (1, 4)), ((4,), (1, 4)), ((1, 4), (4, 1)), ((2, 4), (4, 3)), ((1, 1), (1, 1))]
)
def test_matmul_into_an_array_without_axes_multiplies_vectors(shapes: tuple[tuple[int, ...], ...]) -> None:
    """NumPy leaves out the axes for which out= has no place, so that the last axis of each operand is summed over."""
    a, b = (whole(*shape) for shape in shapes)

    def product(a: Any, b: Any) -> Any:
        return np.matmul(a, b, out=np.zeros(()))

    try:
        expected = product(a, b)
    except ValueError:
        with pytest.raises(ValueError, match="matmul"):
            fuse(product)(a, b)
        return
    np.testing.assert_array_equal(fuse(product)(a, b), expected)


def test_transforms_of_several_axes_of_a_number_raise_as_numpys() -> None:
    for name in ("irfft2", "fft2", "rfftn", "ifftn"):
        for axes in (1, (0, 1), (-1,)):
            transform = getattr(np.fft, name)
            with pytest.raises(IndexError, match="non-empty take"):
                transform(np.float64(2.0), axes=axes)
            with pytest.raises(IndexError, match="non-empty take"):
                fuse(lambda x: transform(x.sum(), axes=axes))(np.ones(3))  # noqa: B023


MIXED = ((np.uint8, np.uint8, np.float64), (np.int8, np.uint8, np.int64), (np.float32, np.int64, np.float32))
THREE = (("ij,jk,k->i", ((5, 4), (4, 6), (6,))), ("ij,j,k->ik", ((3, 4), (4,), (2,))), ("i,i,i", ((7,), (7,), (7,))))


@pytest.mark.parametrize("optimize", [True, False, "optimal", ["einsum_path", (1, 2), (0, 1)]])
@pytest.mark.parametrize("kinds", MIXED)
def test_einsum_of_several_types_contracts_each_pair_in_its_own_type(optimize: Any, kinds: tuple[Any, ...]) -> None:
    """Sums of small integers wrap where NumPy contracts two arrays of them before the third."""
    for text, shapes in THREE:
        arrays = [np.abs(whole(*shape) * 9).astype(kind) for shape, kind in zip(shapes, kinds, strict=True)]
        expected = np.einsum(text, *arrays, optimize=optimize)
        result = fuse(lambda *a: np.einsum(text, *a, optimize=optimize))(*arrays)  # noqa: B023
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(result, expected)
