"""Tests @fuse: trace keys, pytrees, captures, scalars, static values, kinds of functions and of arrays."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracefuse
from tests.frontend.tracing.fuse_arguments import A, reference, traces
from tracefuse import fuse

# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_new_size_is_no_new_trace() -> None:
    f = reference(lambda x, y: (x + y).sum(0) / x.shape[0])
    for n in (2, 3, 70):
        x = np.arange(n * 4.0).reshape(n, 4)
        np.testing.assert_allclose(f(x, x), (x + x).sum(0) / n)
    assert f.cache_info() == (1, 1, 2)


def test_rank_type_and_extents_of_one_are_in_the_key() -> None:
    f = reference(lambda x, y: x + y)
    for x in (A, A[0], A.astype(np.float64), A[:1], A[:, :1]):
        np.testing.assert_array_equal(f(x, A), x + A)
    assert traces(f) == 5


def test_the_layout_is_not_in_the_key() -> None:
    f = reference(lambda x: x * 2)
    f(A)
    np.testing.assert_array_equal(f(A.T), A.T * 2)
    np.testing.assert_array_equal(f(np.broadcast_to(A[0], (3, 4))), A[:1].repeat(3, 0) * 2)
    assert traces(f) == 1


def test_a_guard_that_fails_makes_another_trace_and_both_stay() -> None:
    f = reference(lambda x: x[:3] * 1 if x.shape[0] > 3 else x * 2)
    for n in (5, 2, 6, 1, 3, 7):
        x = np.arange(float(n))
        np.testing.assert_array_equal(f(x), x[:3] if n > 3 else x * 2)
    # One each for n > 3, for n = 2 and 3, and for the extent 1, which is in the key.
    assert traces(f) == 3


def test_a_computed_extent_of_one_broadcasts_as_in_numpy() -> None:
    f = reference(lambda x, y: x[1:] + y)
    y = np.arange(3.0)
    for n in (4, 2, 4):
        x = np.arange(float(n))
        np.testing.assert_array_equal(f(x, y), x[1:] + y)
    with pytest.raises(tracefuse.ShapeError, match=r"add: extents differ on axis 0: 4 .* and 3"):
        f(np.arange(5.0), y)


def test_range_over_an_extent_guards_its_value() -> None:
    @reference
    def f(x: Any) -> Any:
        total = x[0]
        for k in range(1, x.shape[0]):
            total = total + x[k]
        return total

    for n in (2, 3, 2):
        np.testing.assert_array_equal(f(A[:n].copy()), A[:n].sum(0))
    assert traces(f) == 2


# -- scalars ----------------------------------------------------------------------------------------------------------


def test_scalars_are_arguments_of_the_trace() -> None:
    f = reference(lambda x, rate, n: x * rate + n)
    for rate, n in ((0.5, 1), (0.25, 7)):
        result = f(A, rate, n)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, A * rate + n)
    assert traces(f) == 1


def test_a_scalar_whose_outcome_is_asked_for_guards_the_outcome_only() -> None:
    f = reference(lambda x, rate: x * rate if rate > 1 else -x)
    for rate in (2.0, 3.0, 0.5, 0.25, 4.0):
        np.testing.assert_array_equal(f(A, rate), A * rate if rate > 1 else -A)
    assert traces(f) == 2


def test_a_scalar_whose_value_is_asked_for_guards_the_value() -> None:
    f = reference(lambda x, axis, n: x.sum(axis) * n)
    for axis, n in ((0, 1), (0, 2), (1, 2), (0, 3)):
        np.testing.assert_array_equal(f(A, axis, n), A.sum(axis) * n)
    assert traces(f) == 2


def test_numpy_scalars_and_0d_arrays_are_strong_scalars() -> None:
    f = reference(lambda x, s: x * s)
    assert f(A, np.float64(2)).dtype == np.float64
    assert f(A, np.array(3.0)).dtype == np.float64
    # An in-place operation would change the array, which a number is not.
    assert traces(f) == 2
    assert f(A, 2.0).dtype == np.float32


def test_results_that_are_no_arrays_come_back_as_they_are() -> None:
    marker = object()

    @reference
    def f(x: Any, n: int, rate: float) -> Any:
        return {"n": n, "size": x.shape[0] * 2, "rate": rate * 2, "text": "t", "none": None, "marker": marker, "x": x}

    for rows in (2, 3):
        result = f(A[:rows], 5, 0.5)
        expected = {"n": 5, "size": 2 * rows, "rate": 1.0, "text": "t", "none": None, "marker": marker}
        assert {k: v for k, v in result.items() if k != "x"} == expected
        assert type(result["size"]) is int
    assert traces(f) == 1


def test_an_argument_returned_untouched_is_the_same_object_and_other_results_share_no_memory() -> None:
    f = reference(lambda x: (x, x.T, x.reshape(4, 3), x[:], x * 1))
    same, *others = f(A)
    assert same is A
    for k, array in enumerate(others):
        assert not any(np.shares_memory(array, other) for other in [A, *others[:k]])


# -- static values ----------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    double = 2
    triple = 3


def test_strings_enums_slices_types_and_functions_are_static() -> None:
    def f(x: Any, *, kind: Any) -> Any:
        if isinstance(kind, str):
            return getattr(np, kind)(x)
        if isinstance(kind, slice):
            return x[kind] * 1
        if isinstance(kind, Mode):
            return x * kind.value
        return x.astype(kind) if isinstance(kind, (type, np.dtype)) else kind(x)

    fused = reference(f)
    for kind in ("exp", "sqrt", slice(0, 2), Mode.double, Mode.triple, np.int32, np.dtype(np.int8), np.tanh, "exp"):
        np.testing.assert_array_equal(fused(A, kind=kind), f(A, kind=kind))
    assert traces(fused) == 8


def test_static_arguments_are_named_or_numbered() -> None:
    def f(x: Any, n: int, options: Any) -> Any:
        return x * len(range(n)) + len(options)

    for fused in (reference(f, static_argnums=(1, 2)), reference(f, static_argnames=("n", "options"))):
        np.testing.assert_array_equal(fused(A, 2, frozenset("ab")), A * 2 + 2)
        np.testing.assert_array_equal(fused(A, n=3, options=frozenset()), A * 3)
        with pytest.raises(tracefuse.TraceError) as error:
            fused(A, 2, [1])
        assert str(error.value).startswith("static argument 2 is a list, which is neither an array nor hashable")


def test_an_object_that_is_not_static_by_itself_is_named() -> None:
    with pytest.raises(tracefuse.TraceError) as error:
        fuse(lambda x, thing: x)(A, {"k": object()})
    assert str(error.value) == (
        "thing['k'] is a object, which is not an array, a number or a static value "
        f"(test_fuse.py:{sys._getframe().f_lineno - 3})\n"
        "  hint: name it in static_argnames, or register its class with register_pytree_node"
    )


# -- pytrees ----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    activation: str = "tanh"


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


tracefuse.register_pytree_node(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


def test_arguments_and_results_are_trees() -> None:
    @reference
    def f(layer: Layer, points: list[Point], *, extra: dict[str, Any], box: Box) -> Any:
        h = getattr(np, layer.activation)(points[0].x @ layer.weight + layer.bias)
        return Layer(h, extra["e"] + 1), Point(h, (points[0].y,)), Box(box.content * 2)

    w, b = np.ones((4, 2), np.float32), np.zeros(2, np.float32)
    layer, point, box = f(Layer(w, b), [Point(A, 1)], extra={"e": b}, box=Box(b))
    expected = np.tanh(A @ w + b)
    assert isinstance(layer, Layer)
    assert isinstance(point, Point)
    assert isinstance(box, Box)
    np.testing.assert_allclose(layer.weight, expected, rtol=1e-6)
    assert (layer.activation, point.y) == ("tanh", (1,))
    assert traces(f) == 1
    f(Layer(w, b, "exp"), [Point(A, 1)], extra={"e": b}, box=Box(b))
    assert traces(f) == 2


def test_messages_spell_the_path_of_an_argument() -> None:
    @fuse(target="reference")
    def f(params: Any, batch: Any) -> Any:
        return params["w"] + batch[0].x

    with pytest.raises(tracefuse.ShapeError, match=r"3 \(params\['w'\], test_fuse.py:\d+\) and 4 \(batch\[0\].x"):
        f({"w": np.ones(3)}, [Point(np.ones(4), 1)])


def test_ordered_mappings_keep_their_kind() -> None:
    result = reference(lambda d: collections.OrderedDict((k, v * 2) for k, v in d.items()))({"b": A, "a": A})
    assert list(result) == ["b", "a"]
