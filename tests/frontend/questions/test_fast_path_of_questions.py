"""Calls of functions that ask questions and read or change state: along known answers they run generated code alone."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.errors import DeviceError, InternalError
from tracefuse.frontend.calls.question_tree import QuestionTree

scale = np.arange(1.0, 5.0)
steps = 0


class Filter:
    """An object whose method asks about its state and its argument, and changes both."""

    def __init__(self) -> None:
        self.mean, self.count, self.history = np.zeros(4), 0, {"last": 0.0}

    def feed(self, x: Any) -> Any:
        self.count += 1
        error = x - self.mean
        if (error * error).sum() > 4.0:
            self.mean = x.copy()
            self.history["last"] = float(x.max())
            return None
        self.mean += 0.5 * error
        x *= 2.0
        return self.mean, x, self.count


class FusedFilter(Filter):
    feed = fuse(Filter.feed)


def of_globals(x: Any) -> Any:
    global steps
    steps += 1
    if (x * scale).sum() > 10.0:
        return {"scaled": x * scale, "steps": steps}
    return {"same": x, "steps": steps}


def of_kinds_of_results(x: Any, flag: bool = True) -> Any:
    if x.max() > 3.0:
        return [x, x[1:], np.float64(2.0)], SimpleNamespace(flag=flag)
    return x + 1, len(x)


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, with their types."""
    if isinstance(one, SimpleNamespace):
        one, other = vars(one), vars(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.allclose(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each call that generated code did not serve."""
    calls: list[None] = []
    follow = QuestionTree.follow

    def counted(self: QuestionTree, call: Any) -> Any:
        calls.append(None)
        return follow(self, call)

    monkeypatch.setattr(QuestionTree, "follow", counted)
    return calls


def test_a_method_that_asks_about_its_state_runs_generated_code(follows: list[None]) -> None:
    plain, fused = Filter(), FusedFilter()
    random = np.random.default_rng(0)
    for number in range(24):
        if number == 12:
            follows.clear()
        x = random.normal(size=4) * (3.0 if number % 3 == 0 else 0.1)
        mine, theirs = x.copy(), x.copy()
        assert same(fused.feed(mine), plain.feed(theirs))
        assert same(vars(fused), vars(plain))
        np.testing.assert_allclose(mine, theirs)
    assert not follows


def test_arrays_of_globals_are_read_at_each_call(follows: list[None]) -> None:
    global scale, steps
    fused = fuse(of_globals)
    for number in range(20):
        if number == 10:
            follows.clear()
        if number % 4 == 3:
            scale = scale * 1.5 if scale[0] < 3 else scale / 4
        before, x = steps, np.full(4, 0.4 + 0.3 * (number % 3))
        result = fused(x)
        taken, steps = steps, before
        assert same(result, of_globals(x))
        assert taken == steps
        assert result.get("same", x) is x
    assert not follows
    scale, steps = np.arange(1.0, 5.0), 0


def test_state_of_another_type_or_rank_is_declined_by_the_generated_code() -> None:
    def function(x: Any) -> Any:
        if x.sum() > 0:
            return x + held.w
        return held.w * 2

    held = SimpleNamespace(w=np.ones(3))
    fused = fuse(function)
    for w in (np.ones(3), np.full(3, 2.0), np.ones(3, np.float32), np.ones((2, 3)), np.ones(1), np.ones(3), 4.0, 5):
        held.w = w
        for x in (np.ones(3), -np.ones(3)) * 3:
            assert same(fused(x), function(x)), w


def test_results_of_every_kind_are_those_of_the_function(follows: list[None]) -> None:
    fused = fuse(of_kinds_of_results)
    for number in range(8):
        if number == 4:
            follows.clear()
        x = np.arange(5.0) - number % 2
        result = fused(x)
        assert same(result, of_kinds_of_results(x))
        assert result[0][0] is x if number % 2 == 0 else True
    assert not follows


def test_an_updated_argument_that_overlaps_another_takes_the_longer_path() -> None:
    def function(x: Any, y: Any) -> Any:
        if y.sum() > 0:
            x += y
        return x.sum()

    fused = fuse(function)
    memory = np.arange(12.0)
    for _ in range(3):
        x, y = np.ones(4), np.ones(4)
        assert fused(x, y) == 8.0
    for x, y in ((memory[:4], memory[4:8]), (memory[::3], memory[1::3]), (memory[3::-1], memory[8:])):
        mine, theirs = copy.deepcopy(x), copy.deepcopy(x)
        function(theirs, y)
        fused(x, y)
        np.testing.assert_array_equal(x, theirs)
        assert not (x == mine).all()
    with pytest.raises(ValueError, match="read-only"):
        fused(np.broadcast_to(np.ones(1), (4,)), np.ones(4))
    expected = memory.copy()
    function(expected[:4], expected[2:6])
    with pytest.warns(UserWarning, match="x is changed in place and y lies in the same memory"):
        fused(memory[:4], memory[2:6])
    np.testing.assert_array_equal(memory, expected)


class Arms:
    """An object that asks about arrays that it changes, in place and by rebinding."""

    def __init__(self, count: int) -> None:
        self.counts, self.values, self.log = np.zeros(count, int), np.zeros(count), np.zeros(3)

    def pull(self, rewards: Any) -> Any:
        if (self.counts == 0).any():
            arm = int(np.argmin(self.counts))
        else:
            arm = int(np.argmax(self.values))
        self.counts[arm] += 1
        self.values[arm] += (rewards[arm] - self.values[arm]) / self.counts[arm]
        if self.log[0] > 2:
            self.log = np.zeros(3)
        self.log = self.log + rewards[:3]
        return arm


class FusedArms(Arms):
    pull = fuse(Arms.pull)


def test_arrays_that_are_asked_about_and_changed_need_a_trace_for_each_answer_alone(follows: list[None]) -> None:
    plain, fused = Arms(4), FusedArms(4)
    random = np.random.default_rng(1)
    for number in range(40):
        if number == 20:
            follows.clear()
            traces = FusedArms.pull.cache_info().traces
        rewards = random.random(4) + 0.5
        if number == 30:
            plain.counts[:], fused.counts[:] = 0, 0
        assert same(fused.pull(rewards), plain.pull(rewards))
        assert same(vars(fused), vars(plain))
    assert FusedArms.pull.cache_info().traces == traces <= 8
    assert not follows


def test_elements_that_the_trace_needs_stay_constants_that_each_call_compares() -> None:
    table = np.array([2, 1, 0])

    def function(x: Any) -> Any:
        shape = tuple(table.tolist())
        table[2] += 1
        return x.sum() + np.zeros(shape).size

    fused = fuse(function)
    for _ in range(3):
        before = table.copy()
        result, after = float(fused(np.ones(3))), table.copy()
        table[:] = before
        assert result == float(function(np.ones(3)))
        np.testing.assert_array_equal(after, table)


def inverse_of_sum(x: Any) -> Any:
    return x * (1 / float(x.sum()))


def inverse_above(x: Any) -> Any:
    inverse = 1 / float(x.sum())
    return x * inverse if x[0] > 0 else x - inverse


class FailingPlans:
    """Makes the plans that exist so far raise an error, once it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.caches: list[PlanCache[Any]] = []
        self.failing: list[PlanCache[Any]] = []
        self.error = Exception()
        create, attempt = PlanCache.__init__, PlanCache.attempt

        def creates(cache: PlanCache[Any], device: Any) -> None:
            create(cache, device)
            self.caches.append(cache)

        def attempts(cache: PlanCache[Any], arguments: Any) -> Any:
            if cache in self.failing:
                raise self.error
            return attempt(cache, arguments)

        monkeypatch.setattr(PlanCache, "__init__", creates)
        monkeypatch.setattr(PlanCache, "attempt", attempts)

    def fail(self, error: Exception) -> None:
        self.error, self.failing = error, list(self.caches)
        for cache in self.caches:
            cache.first = lambda arguments: None


@pytest.mark.parametrize("function", [inverse_of_sum, inverse_above])
def test_only_errors_that_numbers_may_cause_run_a_call_again(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, x = FailingPlans(monkeypatch), np.arange(1.0, 4)
    fused = fuse(function)
    for _ in range(3):
        np.testing.assert_allclose(fused(x), function(x))
    traces = fused.cache_info().traces
    for error in (InternalError("broken"), DeviceError("lost"), KeyError("k"), TypeError("t"), MemoryError()):
        plans.fail(error)
        with pytest.raises(type(error)) as caught:
            fused(x)
        assert caught.value is error
        assert fused.cache_info().traces == traces
    for error in (np.linalg.LinAlgError(), RuntimeWarning()):
        fused.cache_clear()
        fused(x)
        traces = fused.cache_info().traces
        plans.fail(error)
        np.testing.assert_allclose(fused(x), function(x))
        assert fused.cache_info().traces > traces, "the numbers are asked for"
