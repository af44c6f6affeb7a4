"""Tests that the fast path gives the results of a full call, and that calls it does not fit run in full."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.frontend.tracing.fast_calls import Layer, Pair, X, Y, equal, equal_values, only_fast_paths
from tracefuse import fuse, options, register_pytree_node
from tracefuse.errors import ShapeError, TraceError


class Box:
    """A node that only optree can flatten."""

    def __init__(self, content: Any) -> None:
        self.content = content


register_pytree_node(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "positions": (lambda x, y: x + y, (X, Y), {}),
    "keywords": (lambda x, y: x - y, (X,), {"y": Y}),
    "keywords in another order": (lambda x, y: x - y, (), {"y": Y, "x": X}),
    "numbers": (lambda x, a, b: x * a + b, (X, 2, 0.5), {}),
    "NumPy scalars": (lambda x, a, b: x * a + b, (X, np.float32(2), np.int8(3)), {}),
    "array without axes": (lambda x, a: x * a, (X, np.array(2.0)), {}),
    "NumPy scalars in a dict": (
        lambda t: t["x"] * t["a"] + t["b"],
        ({"x": X, "a": np.float16(2), "b": np.array(3)},),
        {},
    ),
    "NumPy scalar that is asked for": (lambda x, s: x * s if s > 1 else x, (X, np.float64(2)), {}),
    "result: a NumPy scalar": (lambda x, s: (x + s, s), (X, np.float32(2)), {}),
    "number that is asked for": (lambda x, s: x * s if s > 1 else x, (X, 2.0), {}),
    "size that is asked for": (lambda x: x * 2 if x.shape[0] > 2 else x, (X,), {}),
    "dict": (lambda t: t["a"] + t["b"], ({"b": Y, "a": X},), {}),
    "dict of other keys": (lambda t: t[1] + t[(2, "b")], ({1: Y, (2, "b"): X},), {}),
    "list and tuple": (lambda t, u: t[0] + u[1][0], ([X, Y], (Y, (X,))), {}),
    "dataclass": (lambda layer, x: x * layer.weight * layer.scale + layer.bias, (Layer(X, Y), X), {}),
    "NamedTuple": (lambda pair: pair.first - pair.second, (Pair(X, Y),), {}),
    "static leaves": (lambda t: t["x"].sum(t["axis"]), ({"x": X, "axis": None, "name": "sum", "d": np.float32},), {}),
    "static argument": (lambda x, how: x + 1 if how == "plus" else x - 1, (X, "plus"), {}),
    "result: tuple": (lambda x, y: (x + y, x - y), (X, Y), {}),
    "result: dict": (lambda x, y: {"z": x + y, "a": [x - y, (x * y,)]}, (X, Y), {}),
    "result: dataclass": (lambda x, y: Layer(x + y, y - x, 3.0), (X, Y), {}),
    "result: NamedTuple": (lambda x, y: Pair(x + y, y - x), (X, Y), {}),
    "result: arguments and constants": (lambda x, y: (x, 3, "a", x + y, None), (X, Y), {}),
    "result: a size": (lambda x: (x + 1, x.shape[0]), (X,), {}),
    "result: a number": (lambda x, s: (x + s, s * 2), (X, 3), {}),
}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_the_second_call_with_a_signature_takes_the_fast_path(signature: str) -> None:
    function, args, kwargs = SIGNATURES[signature]
    fused = fuse(function)
    expected = function(*args, **kwargs)
    first = fused(*args, **kwargs)
    equal_values(first, expected)
    with only_fast_paths():
        second = fused(*args, **kwargs)
    equal(second, first)
    assert fused.cache_info() == (1, 1, 1)


def test_methods_and_captured_state_take_the_fast_path_and_are_read_again() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight, self.scales = X.copy(), [2.0, 3.0]

        @fuse
        def run(self, tree: Any, out: Any = None) -> Any:
            return {"r": tree[0] * self.weight * self.scales[0]}

    model = Model()
    model.run((X, Y))
    with only_fast_paths():
        equal(model.run((Y, X)), {"r": Y * X * 2})
        model.weight = Y
        equal(model.run((X, X)), {"r": X * Y * 2})
    model.scales[0] = 5.0
    equal(model.run((X, X)), {"r": X * Y * 5})
    assert Model.run.cache_info().traces == 2


def test_numbers_of_every_kind_have_their_traces_and_come_back_as_the_objects_that_they_are() -> None:
    fused = fuse(lambda x, s: (x * s, s))
    numbers = (2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.array(2.0), np.array(2), np.array([2.0]))
    for turn in range(3):
        for number in numbers:
            product, same = fused(X, number)
            assert same is number
            assert product.dtype == (X * number).dtype
            np.testing.assert_array_equal(product, X * number)
            if turn:
                with only_fast_paths():
                    equal(fused(X, number)[0], product)
    assert fused.cache_info().traces == len(numbers)
    alone = fuse(lambda x, s: x * s)  # the plans alone decide
    for number in (*numbers, *numbers, *numbers):
        assert alone(X, number).dtype == (X * number).dtype
    assert alone.cache_info().traces == len(numbers)


def test_calls_that_differ_are_flattened_in_full() -> None:
    def function(tree: Any, how: Any) -> Any:
        total = tree["a"] * (2 if how == "double" else 1)
        return total + tree["more"][0] if "more" in tree else total

    fused = fuse(function)
    calls: list[tuple[Any, Any]] = [
        ({"a": X}, "double"), ({"a": X}, "single"), ({"a": X.astype(np.float64)}, "double"), ({"a": X[0]}, "double"),
        ({"a": X[:1]}, "double"), ({"a": X, "more": [Y]}, "double"), ({"a": X, "more": (Y,)}, "double"),
        ({"a": X, "more": [Y, Y]}, "double"), ({"a": X, "more": [2.0]}, "double"), ({"a": X, "more": [2]}, "double"),
        ({"a": X, "more": [np.float32(2)]}, "double"), ({"a": X, "more": [np.array(2.0)]}, "double"),
        ({"a": X.T}, "double"), ({"a": X, "b": Y}, "double"), (OrderedDict(a=X), "double"), ({"a": 3.0}, "double"),
    ]  # fmt: skip
    for _ in range(3):
        for tree, how in calls:
            result, expected = fused(tree, how), function(tree, how)
            np.testing.assert_array_equal(result, expected)
            assert np.asarray(result).dtype == np.asarray(expected).dtype
    assert fused.cache_info().traces == len(calls) - 1  # a transposed array is another plan of one trace


def test_what_the_function_asks_of_numbers_is_asked_of_every_number() -> None:
    def function(x: Any, t: Any) -> Any:
        if 1 / t["s"] > 0:
            return x * 2 if t["s"] > x.shape[0] else x + t["s"]
        return x - 1

    fused = fuse(function)
    with np.errstate(all="ignore"):
        for _ in range(3):
            for s in (2.0, 2.5, 4.0, 3.0, -1.0, np.float64(0.0), np.float64(-0.0), np.inf, 5, 2, True):
                for x in (X, X[:2]):
                    np.testing.assert_array_equal(fused(x, {"s": s}), function(x, {"s": s}), str((s, x.shape)))
    shown = fuse(lambda x, t: x * t["s"] if t["s"] > 1 else x)
    for s in (0.0, -0.0, 2.0):
        shown(X, {"s": s})
    for wrong in ([2.0], "text"):
        with pytest.raises(TypeError, match="'>' not supported"):
            shown(X, {"s": wrong})
    with pytest.raises(TraceError):
        shown(X, {"s": Y})
    np.testing.assert_array_equal(shown(X, {"s": np.float32(3)}), X * 3)


def test_a_sign_of_zero_that_is_asked_for() -> None:
    fused = fuse(lambda x, s: x + 1 if np.signbit(s) else x - 1)
    for _ in range(3):
        for s in (0.0, -0.0, 0.0, -0.0):
            np.testing.assert_array_equal(fused(X, s), X + 1 if np.signbit(s) else X - 1)


def test_errors_are_those_of_a_call_that_is_flattened_in_full() -> None:
    fused = fuse(lambda t: t["a"] + t["b"])
    for _ in range(2):
        fused({"a": X, "b": Y})
        with pytest.raises(ShapeError, match=r"extents differ on axis 0: 3 \(t\['a'\], .*\) and 2 \(t\['b'\]"):
            fused({"a": X, "b": Y[:2]})
        with pytest.raises(KeyError):
            fused({"a": X, "c": Y})
        with pytest.raises(TraceError, match="is a object, which is not an array"):
            fused({"a": X, "b": object()})


def test_errors_show_the_frames_of_the_user_alone() -> None:
    fused, inside = fuse(lambda t: t["x"][t["i"]]), np.array([1])
    fused({"x": X, "i": inside})
    with only_fast_paths(), pytest.raises(IndexError, match="index 9 is out of bounds") as caught:
        fused({"x": X, "i": np.array([9])})
    assert {entry.path.name for entry in caught.traceback} == {"test_fast_path.py"}


def test_nodes_registered_with_optree_take_the_fast_path() -> None:
    fused = fuse(lambda box: Box(box.content * 2))
    fused(Box(X))
    with only_fast_paths():
        np.testing.assert_array_equal(fused(Box(X)).content, X * 2)
    assert fused.cache_info() == (1, 1, 1)


def test_options_in_force_and_traces_in_progress_are_looked_at() -> None:
    inner = fuse(lambda x, y: x + y)
    inner(X, Y)
    with options(eager=True):
        assert inner(3, 4) == 7
    outer = fuse(lambda x: inner(x, x) * 2)
    np.testing.assert_array_equal(outer(X), X * 4)
    memory = X.copy()
    donating = fuse(lambda x: x * 2, donate_argnums=0)
    kept = donating(X.copy())
    seen = fuse(lambda x: x + donating(memory))
    np.testing.assert_array_equal(seen(X), X * 3)
    np.testing.assert_array_equal(memory, X)
    np.testing.assert_array_equal(kept, X * 2)


def test_calls_in_blocks_of_options_take_the_fast_paths_of_these_options() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        @fuse
        def step(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    plain, counter = fuse(lambda x, y: x * y + y), Counter()
    for is_first in (True, False):
        for block in ({}, {"contract": False}, {"threads": 1}):
            with options(**block):
                for _ in range(3 if is_first else 0):
                    plain(X, Y)
                    counter.step(X)
                with only_fast_paths():
                    np.testing.assert_array_equal(plain(X, Y), X * Y + Y)
                    before = counter.count
                    np.testing.assert_array_equal(counter.step(X), X * (before + 1))
    with options(eager=True):
        assert plain(2, 3) == 9
    assert plain.cache_info().traces == 3


def test_cleared_functions_have_no_fast_paths() -> None:
    fused = fuse(lambda x: x + 1)
    fused(X), fused(X)
    fused.cache_clear()
    assert not fused._cache.fast_paths
    np.testing.assert_array_equal(fused(X), X + 1)


def foreign_arrays() -> list[tuple[str, Any]]:
    """A function that makes an array of each library that is installed, on the host."""
    found: list[tuple[str, Any]] = []
    if importlib.util.find_spec("jax") is not None:
        import jax.numpy

        found.append(("jax", jax.numpy.asarray))
    if importlib.util.find_spec("torch") is not None:
        import torch

        found.append(("torch", lambda values: torch.tensor(np.asarray(values))))
    return found


@pytest.mark.parametrize(("library", "make"), foreign_arrays(), ids=lambda one: one if isinstance(one, str) else "")
def test_arrays_of_other_libraries_take_the_fast_path(library: str, make: Any) -> None:
    def function(x: Any, pair: Any, rate: float) -> Any:
        return x * rate + pair[0], {"sum": pair[0].sum(0), "same": x}, float(x.sum())

    fused = fuse(function)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    fused(make(x), [make(x)], 2.0)
    with only_fast_paths():
        for scale in (1.0, 3.0):
            first, second = make(x * np.float32(scale)), make(x + 1)
            total, parts, number = fused(first, [second], scale)
            expected = function(x * np.float32(scale), [x + 1], scale)
            assert type(total) is type(first)
            assert parts["same"] is first
            np.testing.assert_allclose(np.asarray(total), expected[0], rtol=1e-6)
            np.testing.assert_allclose(np.asarray(parts["sum"]), expected[1]["sum"], rtol=1e-6)
            assert number == pytest.approx(expected[2])
    equal(np.asarray(fused(make(x), [make(x)], 1)[0]), x + x)
    for other in (x.astype(np.float16), x[:1], np.ones(3, np.float32)):  # another type, extent and rank
        result = fused(make(other), [make(other)], 2.0)[0]
        np.testing.assert_allclose(np.asarray(result), other * np.float32(3), rtol=1e-3)
