"""Tests that the fast path gives the results of a full call, and that calls it does not fit run in full."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse, options, register_pytree_node
from tracefuse.errors import DtypeError, FusionError, ShapeError, TraceError, UnsupportedError
from tracefuse.frontend.calls.call import Signature
from tracefuse.frontend.fuse import FusedFunction

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = X[::-1].copy() - 5


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    scale: float = 2.0


class Pair(NamedTuple):
    """Its elements are not what its indices give."""

    first: Any
    second: Any

    def __getitem__(self, index: Any) -> Any:
        return Pair(self.first[index], self.second[index])


class Box:
    """A node that only optree can flatten."""

    def __init__(self, content: Any) -> None:
        self.content = content


register_pytree_node(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


@contextmanager
def only_fast_paths() -> Iterator[None]:
    """Fails if a call leaves the fast path."""

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a call was flattened in full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signature, "flatten_call", refuse)
        yield


def equal(one: Any, two: Any) -> None:
    """Trees of one structure with equal leaves."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            equal(one[key], two[key])
    elif dataclasses.is_dataclass(one):
        equal(vars(one), vars(two))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(tuple.__iter__(one) if isinstance(one, tuple) else one, two, strict=True):
            equal(a, b)
    else:
        np.testing.assert_array_equal(one, two)


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


# ---------------------------------------------------------------------------------------------------------------------
# memory for results


def test_output_buffers_and_donated_arguments_take_the_fast_path() -> None:
    fused = fuse(lambda t: {"s": t[0] + t[1], "d": (t[0] - t[1], 3)})
    out = {"s": np.empty_like(X), "d": (np.empty((3, 8), np.float32)[:, ::2], None)}
    fused((X, Y), out=out)
    with only_fast_paths():
        result = fused((Y, X), out=out)
        assert result["s"] is out["s"]
        assert result["d"][0] is out["d"][0]
        equal(result["d"], (Y - X, 3))
        result = fused.into(out, (X, Y))
        equal(result, {"s": X + Y, "d": (X - Y, 3)})
    step = fuse(lambda state, x: {"w": state["w"] - x, "b": state["b"] + x}, donate_argnums=0)
    state = step({"w": X.copy(), "b": Y.copy()}, X)
    with only_fast_paths():
        for _ in range(3):
            before = state
            state = step(before, X)
            assert all(any(np.shares_memory(state[a], before[b]) for b in before) for a in state)
    np.testing.assert_array_equal(state["w"], X - 4 * X)
    with pytest.raises(FusionError, match=r"state\['b'\] was donated; its buffer now holds a result"):
        step(before, X)


def test_a_buffer_that_lies_otherwise_is_noticed() -> None:
    fused = fuse(lambda x: x + x[::-1])
    memory = np.zeros((5, 8), np.float32)

    def filled() -> Any:
        memory[1:4, 2:6] = X
        return memory[1:4, 2:6]

    buffers: list[Any] = [
        np.empty((3, 4), np.float32), memory[2:5, 2:6], memory[1:4, 2:6], memory[1:4, 1:5], memory[:3, 4:],
        np.empty((3, 8), np.float32)[:, ::2], np.empty((4, 3), np.float32).T, np.empty((3, 4), np.float32)[::-1],
        memory[3:0:-1, 2:6], np.ndarray((3, 4), np.float32, np.empty(60, np.uint8), 1),
    ]  # fmt: skip
    for _ in range(3):
        for buffer in buffers:
            assert fused(filled(), out=buffer) is buffer
            np.testing.assert_array_equal(buffer, X + X[::-1])
    with only_fast_paths():
        for buffer in buffers:
            fused(filled(), out=buffer)
            np.testing.assert_array_equal(buffer, X + X[::-1])


def frozen() -> Any:
    array = np.empty((3, 4), np.float32)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty((4, 3), np.float32), ShapeError, r"out of output 0 has shape \(4, 3\), the result has \(3, 4\)"),
        (np.empty(12, np.float32), ShapeError, r"out of output 0 has shape \(12,\)"),
        (np.empty((3, 4)), DtypeError, "out of output 0 is float64, the result is float32"),
        (frozen(), UnsupportedError, "out of output 0 is read-only"),
        (np.broadcast_to(np.float32(0), (3, 4)), UnsupportedError, "read-only"),
        (np.lib.stride_tricks.as_strided(X.copy(), (3, 4), (0, 4)), UnsupportedError, "on axis 0 share one address"),
        (3.0, DtypeError, "out of output 0 is a float, not an array"),
        ([np.empty((3, 4), np.float32)], TraceError, "give a pytree with the structure of the result"),
    ],
    ids=["shape", "rank", "dtype", "read-only", "broadcast", "stride 0", "number", "tree"],
)
def test_buffers_that_do_not_fit_are_refused_after_fast_calls_too(out: Any, error: Any, message: str) -> None:
    fused = fuse(lambda x, y: x * y)
    for buffer in (np.empty((3, 4), np.float32), np.empty((3, 8), np.float32)[:, ::2]):
        fused(X, Y, out=buffer)
        with only_fast_paths():
            fused(X, Y, out=buffer)
        with pytest.raises(error, match=message):
            fused(X, Y, out=out)


def test_donated_memory_that_cannot_be_taken_is_told_of_at_every_call() -> None:
    fused = fuse(lambda x, y: x + y, donate_argnums=0)
    fused(X.copy(), Y), fused(X.copy(), Y)
    locked, wide = X.copy(), np.zeros((3, 8), np.float32)
    locked.setflags(write=False)
    for donated, reason in ((locked, "it is read-only"), (wide[:, ::2], "it is not contiguous"), (Y, "shares its")):
        for _ in range(2):
            before = donated.copy()
            with pytest.warns(UserWarning, match=f"donated buffers are not reused .*{reason}"):
                np.testing.assert_array_equal(fused(donated, Y), before + Y)
            np.testing.assert_array_equal(donated, before)
    with only_fast_paths():
        fused(X.copy(), Y)


# ---------------------------------------------------------------------------------------------------------------------
# random forms


def trees(leaves: Any) -> Any:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from(["a", "b", "c", 1, 2]), inner, max_size=3),
            st.builds(Layer, inner, inner), st.builds(lambda a, b: Pair(a, b), inner, inner),
        ),
        max_leaves=5,
    )  # fmt: skip


ARRAYS = st.sampled_from([X, Y, X.T, X[:1], X[0], Y.astype(np.float64), X[::2, ::2]])
LEAVES = st.one_of(ARRAYS, ARRAYS, st.sampled_from([None, "name", 2, 0.5, np.float32(3), np.array(4.0)]))


def changed(tree: Any) -> Any:
    """Another tree of the same structure, its arrays and numbers doubled."""
    if isinstance(tree, dict):
        return {key: changed(child) for key, child in tree.items()}
    if isinstance(tree, Layer):
        return Layer(changed(tree.weight), changed(tree.bias), changed(tree.scale))
    if isinstance(tree, Pair):
        return Pair(changed(tree.first), changed(tree.second))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(changed, tree))
    return tree if tree is None or isinstance(tree, str) else tree * 2


@settings(max_examples=times(30), deadline=None)
@given(st.lists(trees(LEAVES), min_size=1, max_size=3), st.integers(0, 7))
def test_random_trees_give_what_the_function_gives(drawn: list[Any], shuffled: int) -> None:
    fused = fuse(lambda *args: changed(args))
    calls = [drawn, drawn, drawn[::-1], changed(drawn), drawn[shuffled % len(drawn) :], drawn]
    for args in calls:
        expected = changed(tuple(args))
        equal_values(fused(*args), expected)


def equal_values(one: Any, two: Any) -> None:
    """As `equal`; a number that is computed comes as a number of Python or as an array without axes."""
    if isinstance(two, (dict, list, tuple, Layer)):
        assert type(one) is type(two)
        for a, b in zip(children(one), children(two), strict=True):
            equal_values(a, b)
    else:
        np.testing.assert_array_equal(one, two)


def children(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        assert all(isinstance(key, (str, int)) for key in tree)
        return [tree[key] for key in tree]
    if isinstance(tree, Layer):
        return [tree.weight, tree.bias, tree.scale]
    return list(tuple.__iter__(tree) if isinstance(tree, tuple) else tree)


def test_each_trace_of_a_signature_keeps_one_fast_path() -> None:
    fused: FusedFunction[Any, Any] = fuse(lambda x: x + 1)
    for array in (X, X.astype(np.float64), X.astype(np.int32), X.T, Y):
        fused(array), fused(array)
    assert [len(calls) for calls in fused._cache.fast_paths.values()] == [3]


def test_static_arguments_are_compared_by_the_fast_path() -> None:
    def function(x: Any, kind: str, *, power: Any) -> Any:
        return x * 2 if kind == "double" else x**power

    fused = fuse(function, static_argnums=1, static_argnames="power")
    for kind, power in (("double", 2), ("power", 2), ("power", 3)):
        fused(X, kind, power=power)
    with only_fast_paths():
        for kind, power, expected in (("power", 2, X**2), ("double", 2, X * 2), ("power", 3, X**3)):
            equal(fused(X, "".join([*kind]), power=power), expected)
    assert fused.cache_info().traces == 3
    equal(fused(X, "power", power=3.0), X**3.0)  # an equal number of another type
    assert fused.cache_info().traces == 4


class Labelled:
    """Two arrays with a label."""

    def __init__(self, first: Any, second: Any, label: str) -> None:
        self.first, self.second, self.label = first, second, label


register_pytree_node(Labelled, lambda p: ((p.first, p.second), p.label), lambda label, parts: Labelled(*parts, label))


def test_registered_nodes_take_the_fast_path_and_their_metadata_is_compared() -> None:
    fused = fuse(lambda p, q: (p.first + p.second * q[0], Labelled(p.first, p.second, p.label)))
    arguments = [(Labelled(X, Y + k, "left"), OrderedDict([(0, X)])) for k in range(3)]
    fused(*arguments[0])
    with only_fast_paths():
        for p, q in arguments:
            total, pair = fused(p, q)
            equal(total, p.first + p.second * q[0])
            assert (type(pair), pair.label) == (Labelled, "left")
    assert fused(Labelled(X, Y, "right"), arguments[0][1])[1].label == "right"
    assert fused.cache_info().traces == 2


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
