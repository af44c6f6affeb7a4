"""Loops whose steps ask about values, with `if`, `while`, `break` and `continue`: recorded once, as NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.loops.asking_loops import copies
from tests.random_programs.random_loops import random_loops
from tests.session.samples import times
from tracefuse import fuse, options
from tracefuse.frontend.fuse import FusedFunction


def is_recorded(function: Any, *arguments: Any) -> bool:
    """Whether a call runs a recorded loop, and asks at most once, whether a variable is a number after it."""
    text = str(function.definition(*arguments))
    return "range_loop" in text and text.count("bool() of") <= 1


def check(function: Callable[..., Any], *arguments: Any, target: str = "reference") -> Any:
    """Compares a call with NumPy, with what it does to its arguments; returns the fused function."""
    ours, theirs = copies(arguments), copies(arguments)
    fused = fuse(function, target=target)
    assert is_recorded(fuse(function), *arguments)
    result, expected = fused(*ours), function(*theirs)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    if expected is None:
        assert result is None
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-9)
    assert fused.cache_info().traces == 1
    return fused


# -- branches ---------------------------------------------------------------------------------------------------------


def signs(x: Any) -> Any:
    total = 0.0
    for i in range(x.shape[0]):
        if x[i] > 3:
            total += x[i]
        elif x[i] < 1:
            x[i] = total
        else:
            x[i] = -x[i]
    return total


def counters(x: Any) -> None:
    for i in range(x.shape[0]):
        if i == 0:
            x[i] = 1
        elif i % 2 == 0 and x[i] > 3:
            continue
        else:
            x[i] += x[i - 1]
        if not 2 < x[i] <= 4 or i + 1 == x.shape[0]:
            x[0] += 1


def until_large(x: Any) -> Any:
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]
        if x[i] > 40:
            break
    return i


def doubled(value: Any) -> Any:
    if value > 2:
        return value * 2
    return value + 1


def by_a_function(x: Any) -> None:
    for i in range(x.shape[0]):
        x[i] = doubled(x[i])
        x[i] = x[i] if x[i] < 8 else 8.0


def position_of_largest(x: Any) -> Any:
    best, where = x[0], 0
    for i in range(1, x.shape[0]):
        if x[i] > best:
            best, where = x[i], i
    return best, where


def bits(x: Any) -> Any:
    register = 0xFFFF
    for i in range(x.shape[0]):
        value = x[i]
        for _ in range(8):
            if (register & 1) ^ (value & 1):
                register = (register >> 1) ^ 0x8408
            else:
                register = register >> 1
            value = value >> 1
    return register


def until_steady(x: Any) -> Any:
    for i in range(60):  # noqa: B007
        following = x * 0.5 + 1
        if np.abs(following - x).max() < 1e-6:
            break
        x = following
    return x.sum() + i


def largest_so_far(x: Any) -> Any:
    largest = -np.inf
    for i, value in enumerate(x):
        largest = max(largest, value)
        x[i] = min(largest, 3.0) + sum(x[k] for k in range(2))
    return largest


def recurrence_with_a_beginning(x: Any) -> None:
    for n in range(x.shape[0]):
        total = x[n]
        if n >= 1:
            total = total + x[n - 1] * 0.5
        if n >= 2:
            total = total - x[n - 2] * 0.25
        x[n] = total


def ranges_that_values_bound(x: Any) -> Any:
    total = 0
    for i in range(x.shape[0]):
        for k in range(x[i], x[i] + 2):
            total += x[k] * k
        for j in range(x[i]):
            x[j] = (x[j] + i) % 5
    return total


def ranges_downwards_from_values(x: Any) -> Any:
    best = np.zeros(12, dtype=int)
    for i in range(x.shape[0]):
        for j in range(11, x[i] - 1, -1):
            best[j] = max(best[j], best[j - x[i]] + i)
        for j in range(x[i] * 2, -1, -3):
            best[j] += x[j]
    return best


def neighbours_of_few(x: Any) -> Any:
    total, reached = 0.0, 0
    for i in range(2 * x.shape[0]):
        if i >= 3 and x[i] > 5:
            break
        if x[i] == 3:
            x[i] = x[i + 25] + total
            total = total + x[i]
        reached = reached + 1
    return total, reached


def filled_queue(x: Any) -> Any:
    queue = np.zeros(x.shape[0], dtype=int)
    head, tail = 0, 1
    while head < tail:
        place = queue[head]
        head += 1
        for i in range(x.shape[0]):
            if x[i] >= 0 and x[place] <= x[i]:
                x[i] = -1 - x[i]
                queue[tail - 1] = i
                tail += 1
        tail = min(tail, x.shape[0])
        if head > 20:
            break
    return queue.sum(), head, tail


ARRAY = np.arange(30.0) % 7
PROGRAMS: dict[Callable[..., Any], tuple[Any, ...]] = {
    signs: (ARRAY,), counters: (ARRAY,), until_large: (ARRAY,), by_a_function: (ARRAY,), position_of_largest: (ARRAY,),
    bits: (np.arange(20),), until_steady: (ARRAY,), largest_so_far: (ARRAY,),
    recurrence_with_a_beginning: (ARRAY,), ranges_that_values_bound: (np.arange(30) % 5,),
    ranges_downwards_from_values: (np.arange(30) % 5,),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_loop_is_recorded_with_its_branches(program: Any, target: str) -> None:
    check(program, *PROGRAMS[program], target=target)


@pytest.mark.parametrize("program", [neighbours_of_few, filled_queue], ids=lambda program: program.__name__)
def test_an_index_may_be_outside_in_iterations_that_no_call_reaches(program: Any) -> None:
    fused, ours, theirs = fuse(program, target="reference"), ARRAY.copy(), ARRAY.copy()
    assert fused(ours) == program(theirs)
    assert np.array_equal(ours, theirs)
    assert fused.cache_info().traces == 1


def test_another_outcome_or_length_needs_no_new_trace() -> None:
    fused = fuse(signs)
    for x in (ARRAY, 6 - ARRAY, np.arange(50.0)):
        ours, theirs = x.copy(), x.copy()
        assert fused(ours) == signs(theirs)
        assert np.array_equal(ours, theirs)
    assert fused.cache_info().traces == 1


def test_debug_logs_what_runs_the_steps_of_a_loop_and_its_code(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="tracefuse"), options(debug=3):
        fuse(signs)(ARRAY.copy())
    texts = [record.getMessage() for record in caplog.records]
    assert any("range_loop" in text and "one compiled function runs its steps" in text for text in texts)
    assert any(text.startswith("driver range_loop(") for text in texts)


def sum_of_positive(x: Any, initial: Any) -> Any:
    total, last, product, half, turned = initial, initial, initial, initial, initial
    for i, value in enumerate(x):
        total = total + 1
        if value > 11:
            half = float(value) / 2
        if value > 9:
            turned = turned * turned + complex(i, 1) if abs(turned) < 9 else turned
        if value > 0:
            total = total + value
            last = max(value, last)
        product = product * 0.5 if value > 8 else product * value if value > 3 else product
    return total, last, product, half, turned


@pytest.mark.parametrize("initial", [0, 0.5], ids=repr)
def test_a_number_of_python_that_no_branch_replaces_stays_one(initial: Any) -> None:
    fused = fuse(sum_of_positive, target="reference")
    for x in (-ARRAY, ARRAY, ARRAY + 6):
        for result, expected in zip(fused(x, initial), sum_of_positive(x, initial), strict=True):
            assert result == expected
            assert isinstance(expected, np.generic) or type(result) is type(expected)
            assert np.asarray(result).dtype == np.asarray(expected).dtype


# -- loops that are not recorded --------------------------------------------------------------------------------------


def one_branch_binds(x: Any) -> Any:
    for i in range(20):
        if x[i] > 17:
            last = i
    return last


def appends_in_a_branch(x: Any) -> Any:
    found = []
    for i in range(20):
        if x[i] > 17:
            found.append(i)
    return found


def returns_in_a_branch(x: Any) -> Any:
    for i in range(20):
        if x[i] > 3:
            return i
    return -1


def raises_in_a_branch(x: Any) -> Any:
    for i in range(20):
        if x[i] > 30:
            raise ValueError("too large")
        x[i] += 1
    return x[0]


@pytest.mark.parametrize(
    "program", [one_branch_binds, appends_in_a_branch, returns_in_a_branch, raises_in_a_branch],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_what_one_recording_does_not_express_has_the_values_of_python(program: Any) -> None:
    ours, theirs = np.arange(20.0), np.arange(20.0)
    assert fuse(program, target="reference")(ours) == program(theirs)
    assert np.array_equal(ours, theirs)


def questions_in_a_computed_range(x: Any) -> Any:
    first = 0
    for _ in range(2):
        for _ in range(int(x[1] + 1)):
            first = [i for i, value in enumerate(x) if value >= x.max() - 1][0]  # noqa: RUF015
    return first


def test_a_loop_of_computed_length_that_asks_for_elements_is_unrolled_with_the_loops_around() -> None:
    fused = fuse(questions_in_a_computed_range, target="reference")
    for x in (np.arange(4.0), -np.arange(4.0)):
        assert fused(x) == questions_in_a_computed_range(x)


def differences(flags: Any, steps: int) -> Any:
    for i in range(steps):
        if flags.sum() > 3:
            flags[i] = flags[i] - flags[i]
        flags[i] = True
    return flags


def test_a_branch_that_raises_is_recorded_as_one_that_no_call_takes() -> None:
    fused = fuse(differences, target="reference")
    for size in (20, 24):
        flags = np.arange(size) < 3
        assert np.array_equal(fused(flags.copy(), 3), differences(flags.copy(), 3))
    assert fused.cache_info().traces == 1
    assert "range_loop" in str(fuse(differences).definition(flags, 3))
    with pytest.raises(TypeError, match="subtract"):
        fused(flags, 20)


def test_a_function_without_known_source_asks_in_each_step() -> None:
    scope: dict[str, Any] = {}
    exec("def run(x):\n for i in range(18):\n  if x[i] > 3: x[i] = 0\n return x", scope)
    x = np.arange(18.0)
    assert np.array_equal(fuse(scope["run"], target="reference")(x.copy()), scope["run"](x.copy()))


# -- random loops -----------------------------------------------------------------------------------------------------


@settings(max_examples=times(4), deadline=None)
@given(st.integers(0, 2**31))
def test_random_loops_with_branches_give_what_numpy_gives(seed: int) -> None:
    function, text = random_loops(seed, branches=True)
    ours, theirs = (np.random.default_rng(seed).integers(-4, 5, (18, 18)) for _ in range(2))
    with np.errstate(all="ignore"):
        try:
            expected = function(theirs, 3)
        except (IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                fuse(function, target="reference")(ours, 3)
            return
        result = fuse(function, target="reference")(ours, 3)
    assert np.array_equal(ours, theirs), text
    for one, other in zip(result, expected, strict=True):
        assert np.array_equal(one, other), text


def sum_that_may_stay_as_it_was(x: Any) -> Any:
    total, some = 0.0, []
    for i in range(x.size):
        if x[i] > 1000:
            total = total * 0.5 + x[i]
        if x[i] > 2:
            some.append(x[i])
    return total, some


def test_a_condition_that_fails_inside_of_a_trace_is_asked_for_by_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, trace = list[bool](), FusedFunction._trace

    def watched(self: Any, call: Any, *details: Any) -> Any:
        asks.append(call.asks_conditions)
        return trace(self, call, *details)

    monkeypatch.setattr(FusedFunction, "_trace", watched)
    fused = fuse(sum_that_may_stay_as_it_was)
    for x in (np.arange(40.0), np.arange(40.0), np.arange(50.0)):
        assert fused(x) == sum_that_may_stay_as_it_was(x)
    assert asks == [False, True]
