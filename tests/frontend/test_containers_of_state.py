"""Numbers and containers of the state that differ from call to call: results as in Python, few traces."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
