"""Numbers and containers of the state that differ from call to call: results as in Python, few traces."""

from __future__ import annotations

import copy
import heapq
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.random_programs.random_keys import check_keys
from tracefuse import fuse

X = np.arange(3.0)


def check_calls(function: Callable[..., Any], state: Any, calls: list[tuple[Any, ...]], most_traces: int) -> None:
    """Compares results and state of `function(state, *arguments)` with Python's at every call."""
    expected_state = copy.deepcopy(state)
    fused = fuse(lambda *arguments: function(state, *arguments))
    for arguments in calls:
        expected = function(expected_state, *arguments)
        np.testing.assert_equal(fused(*arguments), expected)
        np.testing.assert_equal(state, expected_state)
    assert fused.cache_info().traces <= most_traces


def test_numbers_that_change_between_calls_become_inputs() -> None:
    config: dict[str, Any] = {"rate": 0.5, "power": 2, "offsets": [1.0, 2.0]}
    scaled = fuse(lambda x: (x * config["rate"] + config["offsets"][1], 1 if config["power"] > 2 else 0))
    for step in range(8):
        config["rate"], config["power"], config["offsets"][1] = 0.5 * step, step % 2, float(step)
        result, flag = scaled(X)
        np.testing.assert_array_equal(result, X * config["rate"] + config["offsets"][1])
        assert flag == 0
    config["power"] = 3
    assert scaled(X)[1] == 1
    assert scaled.cache_info().traces == 3


def test_numbers_that_change_are_inputs_of_functions_that_ask() -> None:
    threshold = 1.0
    clipped = fuse(lambda x: np.minimum(x, threshold) if x.sum() > threshold else x)
    for threshold in (1.0, 2.0, 0.5, 0.25, 1.5):
        np.testing.assert_array_equal(clipped(X), np.minimum(X, threshold))
    assert clipped.cache_info().traces == 2


def test_a_number_whose_value_is_needed_stays_a_constant_that_calls_compare() -> None:
    axis = 0
    summed = fuse(lambda x: x.sum(axis))
    for axis in (0, 1, 0):
        np.testing.assert_array_equal(summed(np.ones((2, 3))), np.ones((2, 3)).sum(axis))


def push(heap: list[Any], x: Any, time: float, number: int) -> Any:
    heapq.heappush(heap, (time, number))
    if len(heap) > 3:
        first, _ = heapq.heappop(heap)
        return x * first
    return x * heap[0][0] + heapq.nsmallest(1, heap)[0][1]


def test_heaps_of_the_state_are_read_after_they_are_changed() -> None:
    check_calls(push, [], [(X, float(k * 7 % 5), k) for k in range(8)], 8)


def note(log: list[Any], x: Any, count: int) -> Any:
    change = x.sum() - log[-1] if log else 0.0
    log.append(x.sum())
    return change, sum(log[-count:]), len(log)


@pytest.mark.parametrize("count", [1, 3])
def test_the_last_entries_of_a_growing_list_need_no_trace_for_each_length(count: int) -> None:
    check_calls(lambda log, x: note(log, x, count), [], [(X + k,) for k in range(12)], count + 2)


def remember(state: dict[Any, Any], x: Any, key: int) -> Any:
    if key not in state:
        state[key] = x * key
    return state[key] + len(state)


def count(state: Any, x: Any, row: int, column: int) -> Any:
    state[row, column] = state.get((row, column), 0) + 1
    return x / state[row, column]


def collect(state: Any, x: Any, key: int) -> Any:
    state.setdefault(key, []).append(x.sum())
    last = state.pop(key - 2, None)
    return x if last is None else x + last[0]


def mark(state: set[int], x: Any, key: int) -> Any:
    if key in state:
        state.discard(key)
        return x * 0
    state.add(key)
    return x * len(state)


def total(state: list[Any], x: Any, key: int) -> Any:
    state[key] += x.sum()
    return x * state[key] + state[0]


@pytest.mark.parametrize(
    ("function", "make", "keys", "most_traces"),
    [
        (remember, dict, [(k // 2,) for k in range(20)], 3),
        (remember, OrderedDict, [(k % 6,) for k in range(12)], 3),
        (count, Counter, [(k % 3, k % 4) for k in range(20)], 2),
        (count, lambda: defaultdict(int), [(k % 3, k % 2) for k in range(12)], 2),
        (collect, dict, [(k,) for k in range(12)], 3),
        (mark, set, [(k * k % 7,) for k in range(20)], 3),
        (total, lambda: [0.0] * 6, [(k % 5 + 1,) for k in range(12)], 2),
    ],
)
def test_entries_at_keys_that_a_call_passes_need_no_trace_for_each_key(
    function: Callable[..., Any], make: Callable[[], Any], keys: list[tuple[int, ...]], most_traces: int
) -> None:
    check_calls(function, make(), [(X + k, *key) for k, key in enumerate(keys)], most_traces)


@pytest.mark.parametrize("seed", range(16))
def test_containers_have_the_entries_of_python_under_computed_keys(seed: int) -> None:
    check_keys(seed, calls=8)


def test_reading_an_entry_of_a_defaultdict_in_a_later_call_makes_none() -> None:
    counts: defaultdict[str, float] = defaultdict(float, a=0.0)
    fused = fuse(lambda x: (x * 2, counts.pop("a", 7.0)))
    assert fused(X)[1] == 0.0
    assert fused(X)[1] == 7.0
    assert not counts


def test_new_keys_follow_the_order_in_which_the_function_stores_them() -> None:
    def store(state: dict[str, Any], x: Any) -> Any:
        state["a"], state["b"] = x.sum(), 1
        return x * 2

    state: dict[str, Any] = {"b": 1, "a": 2}
    fused = fuse(lambda x: store(state, x))
    fused(X)
    assert list(state.items()) == [("b", 1), ("a", 3.0)]
    state.clear()
    fused(X)
    assert list(state.items()) == [("a", 3.0), ("b", 1)]


def test_an_entry_that_is_removed_and_stored_again_leaves_other_entries_alone() -> None:
    def renew(state: dict[str, Any], x: Any) -> Any:
        state["a"] = state.pop("a") + 1
        return x * state["a"]

    state: dict[str, Any] = {"a": 1, "b": 2}
    fused = fuse(lambda x: renew(state, x))
    np.testing.assert_array_equal(fused(X), X * 2)
    del state["b"]
    state["c"] = 3
    np.testing.assert_array_equal(fused(X), X * 3)
    assert list(state.items()) == [("c", 3), ("a", 3)]
