"""A function that asks about computed values goes on after the answer: values, traces, limits, errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import ShapeDtype, TracefuseError, fuse, options


def branches(x: Any) -> Any:
    y = x * 2
    z = np.tanh(y)
    if z.sum() > 0:
        return {"sum": y + z, "kind": "positive"}
    if (z < -0.5).any():
        return {"sum": y - z, "kind": "low"}
    return {"sum": z, "kind": "high"}


def converges(x: Any, tol: float) -> Any:
    steps, error = 0, 1.0
    while error > tol:
        new = 0.5 * (x + np.roll(x, 1))
        error = np.abs(new - x).max()
        x = new
        steps += 1
    return x, steps


def largest(x: Any, y: Any) -> Any:
    return max(x.sum(), y.sum(), 0.0) * 2 + min(x.min(), y.max())


def checked(x: Any) -> Any:
    if np.isnan(x).any():
        raise ValueError("x has NaN")
    return np.sqrt(x)


def scaled(x: Any) -> Any:
    count = int((x > 0).sum())
    for k, _ in enumerate([None] * count):
        x = x * count + k
    return x


def normalized(x: Any) -> Any:
    x -= x.mean()
    norm = np.sqrt((x * x).sum())
    if norm > 1:
        x /= norm
    return norm


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, tuple | list):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, np.ndarray | np.generic):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
        assert one.dtype == other.dtype
    else:
        assert one == other


def test_each_path_is_traced_once_and_serves_all_sizes() -> None:
    fused = fuse(branches)
    inputs = [sign * np.linspace(0.1, size, size) for size in (3, 5) for sign in (1, -1, -0.01)]
    for x in inputs:
        same(fused(x), branches(x))
    assert fused.cache_info().traces == 3
    for x in inputs:
        same(fused(x), branches(x))
    assert fused.cache_info().traces == 3


def test_a_loop_runs_until_it_converges() -> None:
    fused = fuse(converges)
    x = np.random.default_rng(1).normal(size=8)
    for tol in (2e-1, 5e-2, 1e-1):
        same(fused(x, tol), converges(x, tol))
    traces = fused.cache_info().traces
    same(fused(x, 5e-2), converges(x, 5e-2))
    assert fused.cache_info().traces == traces


def test_beyond_64_answers_of_a_line_the_values_are_right_and_a_warning_names_while_loop() -> None:
    fused = fuse(converges, target="reference", loops="unroll")
    x = np.random.default_rng(2).normal(size=6)
    with pytest.warns(UserWarning, match=r"more than 64 times in one call.*while_loop.*test_continuations.py:\d+"):
        result = fused(x, 1e-7)
    assert result[1] > 70
    same(result, converges(x, 1e-7))
    same(fused(x, 1e-7), result)  # warned once


def test_builtin_max_and_min() -> None:
    fused = fuse(largest)
    rng = np.random.default_rng(3)
    for _ in range(4):
        x, y = rng.normal(size=3), rng.normal(size=4)
        np.testing.assert_allclose(fused(x, y), largest(x, y))


def test_a_raise_after_a_question() -> None:
    fused = fuse(checked)
    same(fused(np.array([1.0, 4.0])), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="x has NaN"):
        fused(np.array([1.0, np.nan]))
    same(fused(np.array([9.0, 4.0])), np.array([3.0, 2.0]))


def test_numbers_are_value_guards_and_the_fifth_runs_without_the_tree() -> None:
    fused = fuse(scaled)
    for count in (1, 2, 3, 4, 2):
        x = np.array([1.0] * count + [-1.0] * (6 - count))
        same(fused(x), scaled(x))
    assert fused.cache_info().traces == 4
    x = np.array([1.0] * 5 + [-1.0])
    with pytest.warns(UserWarning, match=r"int\(\) of a computed value had more than 4 values"):
        result = fused(x)
    same(result, scaled(x))
    same(fused(x), result)
    with options(target="reference"):
        assert fuse(lambda x: [x.sum().item(), float(x[0]), complex(x[1])])(np.array([1.0, 2.0])) == [3.0, 1.0, 2 + 0j]


def test_updated_arguments_are_written_once_at_the_end() -> None:
    fused = fuse(normalized)
    for scale in (10.0, 0.01, 20.0):
        x = np.array([1.0, 2.0, 4.0]) * scale
        y = x.copy()
        same(fused(x), normalized(y))
        same(x, y)


def test_captured_state_is_read_at_every_call() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights, self.limit = np.arange(3.0), 2.0

        @fuse
        def apply(self, x: Any) -> Any:
            y = x * self.weights
            return y if y.sum() > self.limit else y + self.weights

    model, x = Model(), np.ones(3)
    for weights, limit in ((np.arange(3.0), 2.0), (np.ones(3), 2.0), (np.ones(3) * 0.1, 2.0), (np.ones(3), 5.0)):
        model.weights, model.limit = weights, limit
        y = x * weights
        same(model.apply(x), y if y.sum() > limit else y + weights)


def test_questions_about_sizes_and_values_mix() -> None:
    @fuse
    def mixed(x: Any, k: int) -> Any:
        if x.shape[0] > 4 and x.sum() > k:
            return x[:k] * x.shape[0]
        return x.sum() + k

    for size, k in ((3, 1), (6, 2), (6, 30), (7, 3), (7, 2)):
        x = np.arange(size) * 1.0
        same(np.asarray(mixed(x, k)), np.asarray(x[:k] * size if size > 4 and x.sum() > k else x.sum() + k))


def test_in_check_mode_and_with_views() -> None:
    def views(x: Any) -> Any:
        y = x.copy()
        top, rest = y[0], y[1:]
        rest += 1
        if rest.sum() > 3:
            y[0] = rest[0]
        rest *= 2
        return y, top, rest.sum()

    for x in (np.ones((3, 2)), -np.ones((3, 2))):
        with options(check=True):
            same(fuse(views)(x.copy()), views(x.copy()))


@settings(max_examples=times(15), deadline=None)
@given(
    plan=st.lists(st.tuples(st.sampled_from(["add", "mul", "sub"]), st.floats(-2, 2), st.booleans()), max_size=5),
    values=st.lists(st.floats(-3, 3), min_size=2, max_size=4),
)
def test_random_programs_of_questions(plan: Any, values: Any) -> None:
    def program(x: Any) -> Any:
        kept = x
        for name, limit, keeps in plan:
            y = {"add": kept + x, "mul": kept * 0.5, "sub": kept - x * x}[name]
            if y.mean() > limit:
                kept = y if keeps else kept + y
            elif keeps:
                x = x + 1
        return kept, x * 2

    fused = fuse(program, target="reference")
    for x in (np.array(values), -np.array(values), np.array([*values, 1.0])):
        same(fused(x), program(x))
        same(fused(x), program(x))


def asks_for_an_array(x: Any) -> Any:
    return x if x > 0 else -x


REFUSED = {
    asks_for_an_array: "bool() of a traced array, which depends on x",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused_says_so(function: Callable[..., Any]) -> None:
    with pytest.raises(TracefuseError) as caught:
        fuse(function)(np.ones(3))
    assert caught.value.message.startswith(REFUSED[function])
    assert "test_continuations.py" in (caught.value.where or "")


def test_explain_shows_the_tree() -> None:
    fused = fuse(branches)
    for x in (np.ones(3), -np.ones(3), -np.ones(3) * 0.01):
        fused(x)
    report = str(fused.explain(np.ones(3)))
    assert report.splitlines()[0].startswith("bool() of T")
    assert report.count("bool() of T") == 2
    assert report.count("result") == 3
    assert "test_continuations.py:" in report


def test_equal_stages_compile_once() -> None:
    fused = fuse(converges)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused(np.array([1.0, 3.0, 7.0, 3.0]), 1e-1)
    assert fused.cache_info().compiles <= 4


def steps_down(x: Any, y: Any) -> Any:
    if x.sum() > y.sum():
        x = x - y
    while np.abs(x).max() > 2:
        x = x / 2
    return x[x > 0], x


def test_repeated_calls_of_arrays_serve_other_types_layouts_sizes_and_outcomes() -> None:
    fused = fuse(steps_down)
    rng = np.random.default_rng(5)
    pairs = [(rng.normal(size=n) * s, rng.normal(size=n)) for n in (4, 7) for s in (1, 9, 40)]
    pairs += [(x.astype(np.float32), y) for x, y in pairs[:2]] + [(x[::2], y[::-2]) for x, y in pairs[:3]]
    pairs += [(x[:1], y) for x, y in pairs[:2]] + [(x, y[:1]) for x, y in pairs[:2]]
    for _ in range(3):
        for x, y in pairs:
            same(fused(x, y), steps_down(x, y))
    traces, hits = fused.cache_info().traces, fused.cache_info().hits
    for x, y in pairs:
        same(fused(x, y), steps_down(x, y))
    assert fused.cache_info().traces == traces
    assert fused.cache_info().hits == hits + len(pairs)
    with pytest.raises(TracefuseError, match="byte order"):
        fused(pairs[0][0].astype(">f8"), pairs[0][1])


def test_definitions_segments_and_programs_are_those_of_the_stages() -> None:
    fused = fuse(branches)
    for x in (np.ones(3), -np.ones(3)):
        fused(x)
    lines = str(fused.explain(np.ones(3))).splitlines()
    definitions, segments = fused.definition(np.ones(3)), fused.segments(np.ones(3))
    programs = fused.host_program(np.ones(3))
    assert len(str(segments)) < 10_000
    assert len(definitions) == len(segments) == len(programs) == len(lines)
    assert [line.strip() for line in lines] == [text[2:] for text in str(definitions).splitlines() if text[0] == "#"]
    assert all(one.kernel for stage in segments for one in stage)
    first = definitions[0].execute([np.ones(3)])
    np.testing.assert_allclose(first[1], np.full(3, 2.0))
    assert all("ALLOCATE" in str(program) for program in programs)


@pytest.mark.parametrize("method", ["definition", "segments", "host_program", "explain"])
def test_inspection_before_the_first_call_runs_on_its_arrays_and_writes_nothing(method: str) -> None:
    fused = fuse(normalized)
    x = np.array([10.0, 20.0, 40.0])
    shown = getattr(fused, method)(x)
    np.testing.assert_array_equal(x, [10.0, 20.0, 40.0])
    assert "test_continuations.py" in str(shown)
    traces = fused.cache_info().traces
    y = x.copy()
    same(fused(x), normalized(y))
    same(x, y)
    assert fused.cache_info().traces == traces == 1
    with pytest.raises(TracefuseError, match=r"a ShapeDtype has no elements.*continuations.py:\d+.*\n.*give arrays"):
        getattr(fuse(normalized), method)(ShapeDtype((3,), np.float64))


def test_other_inspections_of_a_function_that_asks_name_explain() -> None:
    for method in ("concretization", "indexing"):
        with pytest.raises(TracefuseError, match=r"asks about computed values.*\n.*explain"):
            getattr(fuse(branches), method)(np.ones(3))
