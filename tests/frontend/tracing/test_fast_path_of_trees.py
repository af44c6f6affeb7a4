"""Tests that arguments of every form take the fast path, and give what a full call gives."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.tracing.fast_calls import (
    Layer,
    Pair,
    X,
    Y,
    equal,
    equal_values,
    only_fast_paths,
)
from tests.session.samples import times
from tracefuse import fuse, register_pytree_node
from tracefuse.frontend.fuse import FusedFunction


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
