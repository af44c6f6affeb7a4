"""A finished trace frees its traced values without a garbage collection, which takes time in proportion to the heap."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options
from tracefuse.frontend.tracer.state import leaked_values


def written_view(x: Any) -> Any:
    y = x.reshape(-1)
    y[1:] += 1
    return x.ravel()[::2], y


def asked(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: np.tanh(x) * 2 + x.sum(axis=0),
    lambda x: x.ravel(),
    lambda x: x.reshape(-1)[::2].reshape(2, -1),
    lambda x: x.T.reshape(-1) + x.T.ravel(),
    lambda x: np.where(x > 0, x, 0).std(axis=1, keepdims=True),
    lambda x: np.linalg.inv(x @ x.T + np.eye(4)),
    lambda x: np.concatenate([x, x[::-1]], axis=1),
    lambda x: np.einsum("ij,kj->ik", x, x),
    lambda x: x[x > 0].sum(),
    lambda x: np.diagonal(x @ x.T),
    lambda x: np.unique(x),
    lambda x: np.sort(x, axis=None)[:3],
    lambda x: float(x.sum()) + 1,
    written_view,
    asked,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_trace_collects_no_garbage(
    function: Callable[[Any], Any], order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a reference cycle keeps a traced value alive")

    monkeypatch.setattr(leaked_values.gc, "collect", refuse)
    x = np.asarray(np.random.default_rng(0).normal(size=(4, 6)), order=order)
    with options(target="reference"):
        result = fuse(function)(x.copy(order="K"))
    expected = function(x.copy(order="K"))
    results, others = (r if isinstance(r, tuple) else (r,) for r in (result, expected))
    for one, other in zip(results, others, strict=True):
        np.testing.assert_allclose(one, other)


class Node:
    """A tree whose nodes refer to each other."""

    def __init__(self, value: Any, parent: Node | None = None) -> None:
        self.value, self.parent = value, parent
        self.children: list[Node] = []


def list_in_itself(x: Any, allocate: Any) -> Any:
    held: list[Any] = [x * 2]
    held.append(held)
    allocate()
    return held[0] + 1


def function_in_its_cell(x: Any, allocate: Any) -> Any:
    def power(count: int) -> Any:
        return x if count == 1 else power(count - 1) * x

    allocate()
    return power(3)


def parents_and_children(x: Any, allocate: Any) -> Any:
    root = Node(x)
    root.children += [Node(x * 2, root), Node(x + 1, root)]
    allocate()
    return root.children[0].parent.value + root.children[1].value  # type: ignore[union-attr]


def exception_with_its_frame(x: Any, allocate: Any) -> Any:
    try:
        raise ValueError(x * 2)
    except ValueError as error:
        kept = error
    allocate()
    return kept.args[0]


@pytest.mark.parametrize(
    "function", [list_in_itself, function_in_its_cell, parents_and_children, exception_with_its_frame]
)
@pytest.mark.parametrize("count", [0, 20000])
def test_cycles_of_the_user_are_collected_among_the_objects_of_the_trace(
    function: Callable[[Any, Any], Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations: list[int] = []
    collect = gc.collect

    def collects(generation: int = 2) -> int:
        generations.append(generation)
        return collect(generation)

    def allocate() -> None:
        assert len([[] for _ in range(count)]) == count  # the collector runs meanwhile

    before = gc.get_threshold()
    monkeypatch.setattr(leaked_values.gc, "collect", collects)
    x = np.linspace(1, 2, 3)
    fused = fuse(lambda x: function(x, allocate), target="reference")
    np.testing.assert_allclose(fused(x), function(x, allocate))
    assert set(generations) <= {1}  # none where the collector ran by itself between the cycle's end and the check
    assert gc.get_threshold() == before


def test_thresholds_of_the_collector_are_restored_after_traces_in_traces_that_raise() -> None:
    def inner(x: Any) -> Any:
        raise ValueError("wrong")

    def outer(x: Any) -> Any:
        gc.set_threshold(500, gc.get_threshold()[1], 11)
        fuse(inner)(x)

    before = gc.get_threshold()
    try:
        with pytest.raises(ValueError, match="wrong"):
            fuse(outer)(np.ones(3))
        assert gc.get_threshold() == (500, before[1], 11)
    finally:
        gc.set_threshold(*before)


def test_a_trace_waits_for_the_collection_of_another_thread() -> None:
    """Meanwhile `gc.collect` does nothing: values in cycles looked as if they were kept."""
    collects, is_traced = threading.Event(), threading.Event()

    def pause(phase: str, _: Any) -> None:
        if phase == "start" and threading.current_thread() is other:
            collects.set()
            is_traced.wait(0.05)

    def in_a_cycle(x: Any) -> Any:
        values = [x + 1]
        values.append(values)
        return values[0] * 2

    other = threading.Thread(target=gc.collect)
    gc.callbacks.append(pause)
    try:
        other.start()
        assert collects.wait(10)
        np.testing.assert_array_equal(fuse(in_a_cycle)(np.ones(3)), np.full(3, 4.0))
    finally:
        gc.callbacks.remove(pause)
        is_traced.set()
        other.join()
