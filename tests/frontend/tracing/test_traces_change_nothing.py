"""A trace changes no object outside: errors, threads, inner functions and explanations leave the state as it was."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.frontend.tracing.cloned_functions import (
    ACTIVATION,
    Frozen,
    K,
    Parent,
    W,
    X,
    reference,
)
from tracefuse import fuse
from tracefuse.frontend.tracer.values.traced import Traced


def test_no_object_outside_sees_the_trace() -> None:
    seen: list[Any] = []
    inside, outside = threading.Event(), threading.Event()
    state = SimpleNamespace(w=np.ones(4), log=[], layer=ACTIVATION)

    def function(x: Any) -> Any:
        state.w = state.w + x
        state.log.append(x * K)
        state.fresh = x
        globals()["K"] = 3.0
        inside.set()
        assert outside.wait(10)
        return state.w * W

    def look() -> None:
        assert inside.wait(10)
        seen.extend([state.w, *state.log, state.layer.shift, W, *vars(state)])
        state.w += 1.0
        seen.append(W.flags.writeable)
        outside.set()

    thread = threading.Thread(target=look)
    thread.start()
    reference(function)(X)
    thread.join()
    assert not any(isinstance(value, Traced) for value in seen)
    assert "fresh" not in [one for one in seen if isinstance(one, str)]
    assert seen[-1] is True
    np.testing.assert_array_equal(state.w, 2 + X)


def test_two_threads_trace_functions_of_one_state() -> None:
    shared = SimpleNamespace(w=np.ones(4), table={"k": 2.0})
    results: dict[int, Any] = {}

    def run(n: int) -> None:
        fused = reference(lambda x: x * shared.w * shared.table["k"] * n + ACTIVATION(x))
        results[n] = [fused(X + k) for k in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        for k in range(5):
            np.testing.assert_allclose(results[n][k], (X + k) * 2.0 * n + ACTIVATION(X + k), rtol=1e-14)


def test_an_exception_leaves_the_state_as_it_was() -> None:
    state = SimpleNamespace(w=np.ones(4), n=0, log=[1], table={"a": 1})

    def function(x: Any, fails: bool) -> Any:
        state.w = state.w + x
        state.w += 1
        state.n += 1
        state.log.append(2)
        state.table["b"] = x
        if fails:
            raise KeyError("on purpose")
        return x

    before = copy.deepcopy(vars(state))
    fused = fuse(function, target="reference", static_argnames="fails")
    with pytest.raises(KeyError, match="on purpose"):
        fused(X, True)
    assert repr(vars(state)) == repr(before)
    fused(X, False)
    assert state.n == 1
    assert state.log == [1, 2]
    with pytest.raises(KeyError, match="on purpose"):
        fused(X, True)
    assert state.n == 1


def test_an_error_of_a_call_leaves_the_state_as_it_was() -> None:
    state = SimpleNamespace(n=0, last=np.zeros(2))

    @fuse
    def function(x: Any, k: Any) -> Any:
        state.n += 1
        state.last = x[k] * 2
        return state.last

    function(X, np.array([0, 1]))
    with pytest.raises(IndexError):
        function(X, np.array([0, 9]))
    assert state.n == 1
    np.testing.assert_array_equal(state.last, [0.0, 2.0])


def test_explaining_a_call_changes_no_state() -> None:
    state = SimpleNamespace(n=0)

    def function(x: Any) -> Any:
        state.n += 1
        return x * 2

    fused = fuse(function)
    fused.explain(X)
    assert state.n == 0
    fused(X)
    assert state.n == 1


def test_an_inner_fused_function_sees_the_overlays_of_the_outer_trace() -> None:
    state = SimpleNamespace(w=np.ones(4))

    class Inner:
        def __init__(self) -> None:
            self.calls = 0

        @fuse
        def step(self, x: Any) -> Any:
            self.calls += 1
            return state.w * x + np.zeros(4)

    inner = Inner()
    bound = inner.step

    def outer(x: Any) -> Any:
        state.w = x
        return inner.step(x) + bound(x)

    fused = reference(outer)
    for k in range(3):
        np.testing.assert_array_equal(fused(X + k), 2 * (X + k) ** 2)
        assert inner.calls == 2 * (k + 1)


def test_calls_with_one_container_passed_twice_run_the_function_if_it_changes_it() -> None:
    def function(a: dict[str, Any], b: dict[str, Any]) -> Any:
        a["w"] = a["w"] + X
        return b["w"] * 1

    fused, one, two = fuse(function), {"w": X}, {"w": X}
    np.testing.assert_array_equal(fused(one, two), X)
    with pytest.warns(UserWarning, match="a and b are one dict, which the function changes: .*pass a copy as b$"):
        np.testing.assert_array_equal(fused(one, one), X + X + X)
    np.testing.assert_array_equal(one["w"], X + X + X)


def test_containers_among_the_arguments_are_changed() -> None:
    def function(x: Any, p: dict[str, Any], parts: list[Any], parent: Parent) -> Any:
        for name in p:
            p[name] = p[name] - 0.5 * x
        p["n"] = len(parts)
        parts[0], parts[1] = parts[1], parts[0] * x
        parent.extra["n"] += 1
        parent.child = Frozen(parent.child.w + x, "new")
        return parent.child.scaled()

    def make() -> tuple[Any, ...]:
        return {"w": X + 1}, [X, X + 2], Parent(Frozen(X, "w"))

    fused, own, other = fuse(function), make(), make()
    for k in range(3):
        np.testing.assert_allclose(fused(X + k, *other), function(X + k, *own))
        assert repr(own) == repr(other)
        own[0].pop("n")
        other[0].pop("n")


def test_the_same_dict_as_argument_and_attribute_is_one_dict() -> None:
    class Model:
        def __init__(self) -> None:
            self.parameters = {"w": np.ones(4)}

        def step(self, x: Any, p: dict[str, Any]) -> Any:
            p["w"] = p["w"] + x
            return self.parameters["w"] * 1

    one, other = Model(), Model()
    fused = fuse(one.step)
    for k in range(2):
        np.testing.assert_array_equal(fused(X + k, one.parameters), other.step(X + k, other.parameters))
    np.testing.assert_array_equal(fused(X, {"w": X}), other.step(X, {"w": X}))
    np.testing.assert_array_equal(one.parameters["w"], other.parameters["w"])


def test_what_a_trace_creates_is_collected() -> None:
    gc.collect()
    before = [one for one in gc.get_objects() if isinstance(one, Traced)]
    module = types.ModuleType("short_lived")
    exec("import numpy as np\nw = np.ones(4)\nclass A:\n    b = w\ndef f(x):\n    return x * A().b\n", module.__dict__)
    sys.modules["short_lived"] = module
    try:
        fuse(module.f, target="reference")(X)
    finally:
        del sys.modules["short_lived"]
    gc.collect()
    assert len([one for one in gc.get_objects() if isinstance(one, Traced)]) == len(before)
    assert module.A.__subclasses__() == []


def test_sizes_as_keys_of_captured_dicts_are_their_values() -> None:
    sums: dict[Any, Any] = {}

    def add(x: Any) -> Any:
        if x.shape not in sums:
            sums[x.shape] = np.zeros(x.size)
        sums[x.shape] += x.ravel()
        return sums[x.shape] * len(x)

    fused = fuse(add, target="reference")
    for n in (3, 3, 4, 3, 4):
        fused(np.ones((n, 2)))
    assert {key: value.tolist() for key, value in sums.items()} == {(3, 2): [3.0] * 6, (4, 2): [2.0] * 8}
    assert all(type(extent) is int for key in sums for extent in key)
