"""Tests that explain names the static value or the captured array that made a new trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.state.state_layers import Layer, V
from tracefuse import fuse


def test_explain_says_which_static_value_or_capture_made_a_new_trace() -> None:
    layer, w, other, mode = Layer(V), np.ones(3), np.ones(3), "plain"
    act: Any = np.exp
    other = w

    @fuse
    def f(x: Any, kind: str) -> Any:
        y = layer(x) * w
        y = y + other
        return act(y) if mode == "plain" else y

    def failures(*arguments: Any) -> str:
        return f.explain(*arguments).guard_failures

    line = f._function.__code__.co_firstlineno
    at = "(test_reasons_of_new_traces.py:{})".format
    assert failures(V, "a") == ""
    layer.k = 2.0
    assert failures(V, "a").startswith("layer.k was 1.0, now 2.0 (state_layers.py:")
    other = V + 1
    assert failures(V, "a") == f"other and w were one array, now they are two {at(line + 2)}"
    mode = "other"
    assert failures(V, "a") == f"mode was 'plain', now 'other' {at(line + 4)}"
    w = np.ones((2, 3))
    assert failures(V, "a") == f"w was float64[-1], now float64[-1, -1] {at(line + 2)}"
    assert failures(V, "b") == "kind was 'a', now 'b'"
    assert failures(V.astype(np.float32), "b") == "x was float64[-1], now float32[-1]"
    text = str(f.explain(V.astype(np.float32), "b"))
    assert text.endswith("compiled again because:\n  x was float64[-1], now float32[-1]")


def test_the_nearest_trace_is_the_one_that_differs_least() -> None:
    first, second = "a", "a"
    f = fuse(lambda x: x * len(first) * len(second))
    f(V)
    first, second = "aa", "aa"
    assert " was 'a', now 'aa'" in f.explain(V).guard_failures.partition("; ")[0]
    assert f.explain(V).guard_failures.count("now") == 2
    first, second = "aaa", "a"
    assert f.explain(V).guard_failures.startswith("first was 'a', now 'aaa' (")
