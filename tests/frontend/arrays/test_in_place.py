"""Tests in-place changes of arguments: they equal NumPy's, or raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.arrays.written_vectors import CAPTURED, leaves
from tracefuse import fuse
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError


def vector(start: float = 0.0) -> Any:
    return np.arange(start, start + 5.0)


def adds(x: Any, y: Any) -> None:
    x += y


def out_parameters(x: Any, y: Any) -> None:
    np.add(x, y, out=x)
    np.multiply(x, 2, out=(x,))
    np.clip(x, 1, 9, out=x)


def several_times(x: Any, y: Any) -> Any:
    x += 1
    before = x * 1
    x *= y
    x -= before
    return before


def returns_it(x: Any, y: Any) -> Any:
    x += y
    return x, x * 2, y


def changes_both(x: Any, y: Any) -> Any:
    x += y
    y *= x
    return x - y


def reads_later(x: Any, y: Any) -> Any:
    first = x + y
    x += 1
    return first, x + y, first - x


def other_names(x: Any, y: Any) -> Any:
    z = x
    z += y
    x, y = y, z
    y -= 3
    return x + y


def reductions(x: Any, y: Any) -> None:
    y -= x.sum()
    x -= y.max()
    x /= np.abs(y).sum()


def at_other_coordinates(x: Any, y: Any) -> None:
    x += x[::-1]
    x += np.roll(x, 1)


def views_that_are_gone(x: Any, y: Any) -> Any:
    total = x[1:].sum() + x.reshape(-1)[0]
    x += total
    return x[1:] + 1


FUNCTIONS = [
    adds, out_parameters, several_times, returns_it, changes_both, reads_later, other_names, reductions,
    at_other_coordinates, views_that_are_gone,
]  # fmt: skip


@pytest.mark.parametrize("same", [False, True], ids=["two", "one"])
@pytest.mark.parametrize("options", [{}, {"target": "reference"}, {"dynamic": False}], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_callers_arrays_are_what_numpy_leaves(function: Any, options: Any, same: bool) -> None:
    fused = fuse(function, **options)
    for start in (1.0, 4.0):
        x, y = vector(start), vector(2.0)
        own, other = x.copy(), y.copy()
        expected = function(own, own if same else other)
        result = fused(x, x if same else y)
        np.testing.assert_allclose(x, own, rtol=1e-14)
        np.testing.assert_allclose(y, other if not same else vector(2.0), rtol=1e-14)
        for made, wanted in zip(leaves(result), leaves(expected), strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-14)
            assert (made is x) == (wanted is own)
    assert fused.cache_info().traces <= 2


def test_one_array_under_two_names_and_two_arrays_are_two_traces() -> None:
    fused = fuse(changes_both)
    x = vector()
    for _ in range(2):
        fused(x, x)
        fused(vector(), vector())
    assert fused.cache_info().traces == 2


def test_views_of_one_memory_are_one_array() -> None:
    memory, own = np.arange(10.0), np.arange(10.0)
    fuse(changes_both)(memory[::2], memory[::2])
    changes_both(own[::2], own[::2])
    np.testing.assert_array_equal(memory, own)


def test_interleaved_slices_are_apart() -> None:
    memory, own = np.arange(10.0), np.arange(10.0)
    fuse(changes_both)(memory[::2], memory[1::2])
    changes_both(own[::2], own[1::2])
    np.testing.assert_array_equal(memory, own)


OVERLAPPING: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "shifted": lambda memory: (memory[:5], memory[1:]),
    "reversed": lambda memory: (memory, memory[::-1]),
    "transposed": lambda memory: (memory.reshape(2, 3)[:, :2], memory.reshape(2, 3)[:, :2].T),
}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_call_whose_arguments_share_some_bytes_runs_the_function_itself(name: str, asks: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        if asks and y.sum() < 0:
            return y
        x += y
        x += y
        return x, y * 1

    fused, memory, right = fuse(function), np.arange(6.0), np.arange(6.0)
    for _ in range(2):
        expected = function(*OVERLAPPING[name](right))
        with pytest.warns(UserWarning, match=r"x is changed in place and y lies in the same memory: .* y.copy\(\)"):
            results = fused(*OVERLAPPING[name](memory))
        np.testing.assert_array_equal(memory, right)
        for mine, one in zip(results, expected, strict=True):
            np.testing.assert_array_equal(mine, one)


def test_arguments_that_share_some_bytes_are_refused_where_the_function_cannot_run() -> None:
    memory = np.arange(6.0)
    for call in (fuse(adds, target="reference"), fuse(adds).explain):
        with pytest.raises(UnsupportedError, match=r"y lies in the same memory \(.*\)\n.*y.copy\(\)"):
            call(memory[:5], memory[1:])
    np.testing.assert_array_equal(memory, np.arange(6.0))


def test_a_captured_array_that_is_the_changed_argument_sees_the_change() -> None:
    def function(x: Any) -> Any:
        x += 1
        return x * CAPTURED

    fused, before = fuse(function), CAPTURED.copy()
    np.testing.assert_array_equal(fused(vector()), vector(1) * CAPTURED)
    with pytest.warns(UserWarning, match="x is changed in place and CAPTURED lies in the same memory"):
        result = fused(CAPTURED)
    np.testing.assert_array_equal(result, (before + 1) ** 2)
    CAPTURED[...] = before


@dataclass
class State:
    weights: Any
    steps: list[Any]


def test_leaves_of_trees_are_updated() -> None:
    @fuse
    def update(state: State, gradients: dict[str, Any]) -> State:
        state.weights -= gradients["w"] * 0.5
        for step in state.steps:
            step += 1
        return state

    state = State(vector(), [vector(1), vector(2)])
    weights = state.weights
    result = update(state, {"w": vector(2)})
    assert result.weights is weights
    np.testing.assert_array_equal(weights, vector() - vector(2) * 0.5)
    np.testing.assert_array_equal(state.steps[1], vector(3))


def test_strided_arguments_are_updated_where_they_lie() -> None:
    memory, own = np.arange(24.0).reshape(4, 6), np.arange(24.0).reshape(4, 6)
    fuse(adds)(memory[::-1, ::2].T, memory[:, 1::2].T)
    adds(own[::-1, ::2].T, own[:, 1::2].T)
    np.testing.assert_array_equal(memory, own)


def test_results_are_cast_into_the_argument_as_in_numpy() -> None:
    x = np.arange(5, dtype=np.float32)
    fuse(adds)(x, vector())
    np.testing.assert_array_equal(x, 2 * np.arange(5, dtype=np.float32))
    assert x.dtype == np.float32


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (np.arange(5), vector(), DtypeError, "gives float64, which does not go into int64"),
        (np.ones((1, 5)), np.ones((3, 5)), ShapeError, "changes axis 0 from 1 to 3"),
        (np.ones(5), np.ones((3, 5)), ShapeError, "on 1 axes gives 2"),
        (np.broadcast_to(1.0, (5,)), vector(), UnsupportedError, "x, which is updated in place, is read-only"),
        (np.array(3), 1.5, DtypeError, "gives float64, which does not go into int64"),
    ],
    ids=["dtype", "extent", "rank", "read-only", "0-d"],
)
def test_arguments_that_cannot_take_the_change_are_refused(x: Any, y: Any, error: Any, message: str) -> None:
    before = x.copy()
    with pytest.raises(error, match=message):
        fuse(adds)(x, y)
    np.testing.assert_array_equal(x, before)


def test_a_numpy_scalar_is_rebound() -> None:
    def function(x: Any, y: Any) -> Any:
        x += y
        return x * np.ones(2)

    np.testing.assert_array_equal(fuse(function)(np.float64(2), np.float64(3)), [5, 5])


def test_inside_another_function_the_change_is_that_of_the_outer_one() -> None:
    inner = fuse(adds)

    @fuse
    def outer(x: Any, y: Any) -> Any:
        inner(x, y)
        return x * y

    x = vector()
    np.testing.assert_array_equal(outer(x, vector(1)), (vector() + vector(1)) * vector(1))
    np.testing.assert_array_equal(x, vector() + vector(1))


def test_methods_change_their_arguments() -> None:
    class Optimizer:
        rate = 0.5

        @fuse
        def step(self, weights: Any, gradients: Any) -> None:
            weights -= self.rate * gradients

    weights = vector()
    Optimizer().step(weights, vector(2))
    np.testing.assert_array_equal(weights, vector() - 0.5 * vector(2))


def test_a_jax_array_is_refused() -> None:
    jax = pytest.importorskip("jax")
    for frontend, function in (("numpy", adds), ("auto", first_set)):
        with pytest.raises(UnsupportedError, match="in-place change of an argument: JAX arrays are immutable"):
            fuse(function, frontend=frontend)(jax.numpy.ones(3), 1.0)


def first_set(x: Any, value: Any) -> None:
    x[0] = value


def test_the_kernel_writes_the_argument_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    empty: Callable[..., Any] = tracefuse.runtime.devices.cpu_memory.empty
    fused = fuse(adds)
    fused(vector(), vector())
    monkeypatch.setattr(
        tracefuse.runtime.devices.cpu_memory, "empty", lambda *given: made.append(given) or empty(*given)
    )
    fused(vector(), vector())
    assert not made


def test_a_kernel_that_changes_several_arguments_writes_each_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(weights: Any, momentum: Any, square: Any, gradient: Any) -> None:
        momentum *= 0.9
        momentum += gradient
        square += gradient * gradient
        weights -= momentum / np.sqrt(square + 1)

    made: list[Any] = []
    empty: Callable[..., Any] = tracefuse.runtime.devices.cpu_memory.empty
    monkeypatch.setattr(
        tracefuse.runtime.devices.cpu_memory, "empty", lambda *given: made.append(given) or empty(*given)
    )
    given, own = ([vector(k) for k in range(4)] for _ in "12")
    fuse(step)(*given)
    step(*own)
    for array, expected in zip(given, own, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-15)
    assert not made


def test_usual_arguments_are_changed_without_a_look_at_all_of_memory() -> None:
    fused = fuse(adds)
    x, y = vector(), vector(1)
    fused(x, y)
    executable = next(iter(fused._cache._entries.values()))[0].executable
    assert executable.plans.attempt((x, y)) == []
    np.testing.assert_array_equal(x, vector() + 2 * vector(1))
    frozen = vector()
    frozen.setflags(write=False)
    memory = np.arange(9.0)
    for other in ((x, x), (memory[:5], memory[4:]), (memory[4:], memory[4:]), (frozen, y), (x[::-1], y), ("x", None)):
        assert executable.plans.attempt(other) is None
    np.testing.assert_array_equal(memory, np.arange(9.0))
    before = x.copy()
    fused(x[::-1], y)
    np.testing.assert_array_equal(x, before + y[::-1])
    fused(x, y)
    assert fused.cache_info() == (1, 2, 2)
