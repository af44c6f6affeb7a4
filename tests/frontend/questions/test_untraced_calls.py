"""Calls with more answers than are kept run the function itself, once a warning has told so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.frontend.calls import untraced_calls

held = SimpleNamespace(total=0)


def halved(x: Any, tol: float) -> Any:
    steps = 0
    while x.max() > tol:
        x = x * 0.5
        steps += 1
    return x, steps


def counted(x: Any) -> Any:
    return [x * k for k, _ in enumerate([None] * int(x.sum()))]


def bits(x: Any) -> Any:
    total = 0
    for k in range(8):
        if x[k] > 0:
            total += 2**k
    held.total = total
    return x.reshape(2, 4), x


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each call that ran the function itself."""
    calls: list[None] = []
    run = untraced_calls.run_function

    def counting(*arguments: Any) -> Any:
        calls.append(None)
        return run(*arguments)

    monkeypatch.setattr(untraced_calls, "run_function", counting)
    return calls


def test_a_line_that_asks_more_than_64_times_runs_the_function(runs: list[None]) -> None:
    fused, x = fuse(halved, loops="unroll"), np.full(3, 2.0)
    for _ in range(2):
        assert fused(x, 0.25)[1] == 3
    with pytest.warns(UserWarning, match=r"more than 64 times in one call.*while_loop.*test_untraced_calls.py:\d+"):
        result, steps = fused(x, 1e-25)
    assert (steps, result.max()) == (85, 2.0**-84)
    traces = fused.cache_info().traces
    runs.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fused(x, 0.25)[1] == 3
        assert not runs
        assert fused(x, 1e-25)[1] == 85
        assert fused(x, 1e-22)[1] > 64
    assert len(runs) == 2
    assert fused.cache_info().traces == traces


def staircase(x: Any, steps: int) -> Any:
    """Asks about another number of elements in each of its unrolled steps."""
    level = 0
    for k in range(steps):
        if x[: k + 2].sum() > k:
            x = x * (1 + k)
            level += k
    return x, level


def segment_sums(x: Any, steps: int) -> Any:
    """Asks for the size of a slice in each of its unrolled steps."""
    starts = np.cumsum(x[:steps].astype(int))
    return np.stack([x[starts[k] : starts[k] + k].sum() for k in range(steps)]), 0


@pytest.mark.parametrize(("function", "others"), [(staircase, 16), (segment_sums, 6)])
@pytest.mark.parametrize(("columns", "is_left"), [(24, True), (24_000, False)])
def test_many_questions_between_little_work_run_the_function(
    runs: list[None], function: Callable[..., Any], others: int, columns: int, is_left: bool
) -> None:
    fused, x = fuse(function, loops="unroll"), np.full(columns, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [fused(x, 20) for _ in range(2)]
    messages = [str(warning.message) for warning in caught]
    assert [len(runs), len(messages)] == ([2, 1] if is_left else [0, 0])
    assert all(f"asked again after {others} other computations" in message for message in messages)
    for result, level in results:
        np.testing.assert_allclose(result, function(x, 20)[0])
        assert level == function(x, 20)[1]


def test_a_fifth_number_runs_the_function_and_the_first_four_stay_compiled(runs: list[None]) -> None:
    fused = fuse(counted)
    for count in range(2, 6):
        assert len(fused(np.ones(count))) == count
    with pytest.warns(UserWarning, match="more than 4 values"):
        fused(np.ones(6))
    runs.clear()
    for count in (2, 3, 4, 5, 9):
        assert len(fused(np.ones(count))) == count
    assert len(runs) == 1


def test_answers_that_do_not_repeat_close_the_tree_after_ten_traces(runs: list[None]) -> None:
    fused = fuse(bits)
    random = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(14):
            x = random.normal(size=8)
            table, same = fused(x)
            assert held.total == sum(2**k for k in range(8) if x[k] > 0)
            assert same is x
            assert not np.shares_memory(table, x)
            np.testing.assert_array_equal(table, x.reshape(2, 4))
    (message,) = (str(one.message) for one in seen)
    assert "10 combinations of answers" in message
    assert len(runs) == 4
    assert fused.cache_info().traces == 10


def test_an_exception_of_the_function_passes_through_once(runs: list[None]) -> None:
    def until(x: Any) -> Any:
        while x.sum() > -20:
            x = x - 0.0625
        raise KeyError("nothing left")

    fused = fuse(until, loops="unroll")
    with pytest.warns(UserWarning, match="more than 64"), pytest.raises(KeyError, match="nothing left"):
        fused(np.zeros(2))
    for count in (2, 3):
        with pytest.raises(KeyError, match="nothing left"):
            fused(np.zeros(2))
        assert len(runs) == count


def test_output_buffers_and_the_reference_target_never_run_the_function(runs: list[None]) -> None:
    fused, out = fuse(halved, loops="unroll"), (np.empty(2), None)
    with pytest.warns(UserWarning, match="more than 64 times"):
        result, steps = fused(np.full(2, 2.0), 1e-20, out=out)
    assert result is out[0]
    assert steps > 64
    options: Any = SimpleNamespace(target="reference", check=False, graph=False)
    call: Any = SimpleNamespace(kind="numpy", device=None)
    assert not untraced_calls.may_run_function(call, options)


@pytest.mark.filterwarnings("ignore:bool:UserWarning")
def test_a_closed_tree_that_served_few_calls_builds_no_more_plans(runs: list[None]) -> None:
    fused, rows = fuse(bits), [np.array([float(n >> k & 1) for k in range(8)]) for n in range(24)]
    for row in rows:
        np.testing.assert_array_equal(fused(row)[0], row.reshape(2, 4))
    before = fused.cache_info()
    assert before.hits < before.traces < len(rows) == before.traces + len(runs)
    for total, row in enumerate(rows[:4]):
        fused(np.repeat(row, 2)[::2])  # a layout that needs plans of its own
        assert held.total == total
    assert fused.cache_info().compiles == before.compiles
    assert len(runs) == len(rows) - before.traces + 4


def test_a_function_that_keeps_running_itself_is_searched_for_a_trace_now_and_then() -> None:
    searches = []

    class Table:
        def __init__(self) -> None:
            self.entries: dict[int, float] = {}

        def add(self, key: int, value: float) -> float:
            self.entries[key] = self.entries.get(key, 0.0) + value
            return sum(self.entries.values())

    fused, table, plain = fuse(Table.add), Table(), Table()
    find = fused._call_in_full  # type: ignore[attr-defined]

    def search(*arguments: Any) -> Any:
        searches.append(arguments)
        return find(*arguments)

    fused._call_in_full = search  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for key in range(400):
            assert fused(table, key, 0.5) == plain.add(key, 0.5)
    assert table.entries == plain.entries
    assert 24 <= len(searches) < 60
