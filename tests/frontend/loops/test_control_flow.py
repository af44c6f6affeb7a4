"""while_loop, fori_loop, scan and cond: values against jax.lax and plain Python, structure, types, errors, printing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracefuse
from tests.frontend.loops.control_flow_values import Counter, X
from tests.runtime.addressed_device import Addressed
from tests.session.samples import times
from tracefuse import FusionDefinition, ShapeDtype, fuse, options
from tracefuse.compiler.executable import Executable
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion

U = np.random.default_rng(0).normal(size=(9, 6))


def newton(lax: Any, a: Any) -> Any:
    return lax.while_loop(lambda x: abs(x * x - a) > 1e-3, lambda x: 0.5 * (x + a / x), 1.0)


def heat(lax: Any, u: Any) -> Any:
    def body(i: Any, u: Any) -> Any:
        inner = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u * 0.5 + (inner.sum() + i) * 0.01

    return lax.fori_loop(0, 20, body, u)


def filtered(lax: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        mean, count = carry
        mean = mean * 0.9 + x * 0.1
        return (mean, count + 1), {"mean": mean, "largest": mean.max()}

    return lax.scan(step, (xs[0] * 0, 0), xs, reverse=True)


def collatz(lax: Any, n: Any) -> Any:
    def body(state: Any) -> Any:
        n, steps = state
        return lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), steps + 1

    return lax.while_loop(lambda state: state[0] > 1, body, (n, 0))


def nested(lax: Any, x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: lax.fori_loop(0, 2, lambda j, z: z * 0.5 + i + j * x, y), x)


PROGRAMS: list[tuple[Callable[..., Any], Any]] = [
    (newton, np.float32(2)),
    (heat, U.astype(np.float32)),
    (filtered, U.astype(np.float32)),
    (collatz, np.array(27, np.int32)),
    (nested, X.astype(np.float32)),
]


@pytest.mark.parametrize(("program", "argument"), PROGRAMS, ids=[p.__name__ for p, _ in PROGRAMS])
def test_values_as_jax(program: Callable[..., Any], argument: Any) -> None:
    jax = pytest.importorskip("jax")
    expected = jax.tree.leaves(jax.jit(lambda x: program(jax.lax, x))(argument))
    fused = jax.tree.leaves(fuse(lambda x: program(tracefuse, x))(argument))
    plain = jax.tree.leaves(program(tracefuse, argument))
    for one, two, three in zip(expected, fused, plain, strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(three, one, rtol=2e-5, atol=1e-6)


def test_trip_counts_and_sizes_compile_once() -> None:
    @fuse
    def smoothed(x: Any, n: int) -> Any:
        return tracefuse.fori_loop(0, n, lambda i, y: (y + np.roll(y, 1)) / 2, x)

    for size, n in ((7, 3), (12, 0), (5, 11)):
        x = expected = np.arange(size) * 1.0
        for _ in range(n):
            expected = (expected + np.roll(expected, 1)) / 2
        np.testing.assert_allclose(smoothed(x, n), expected)
        assert np.array_equal(x, np.arange(size))
    assert smoothed.cache_info().traces == smoothed.cache_info().compiles == 1


def test_a_bound_may_be_an_array() -> None:
    @fuse
    def powers(x: Any, most: Any) -> Any:
        return tracefuse.fori_loop(0, most.max(), lambda i, y: y * x, np.ones_like(x))

    np.testing.assert_allclose(powers(X, np.array([1, 3])), X**3)


def test_a_body_writes_its_carried_arrays_and_reads_captured_ones() -> None:
    weights = np.arange(1.0, 8.0)

    def recurrence(x: Any) -> Any:
        weighted = x * weights

        def body(i: Any, y: Any) -> Any:
            y[i] = y[i - 1] * 0.5 + weighted[i]
            return y

        return tracefuse.fori_loop(1, x.shape[0], body, x)

    expected = X.copy()
    for i in range(1, 7):
        expected[i] = expected[i - 1] * 0.5 + X[i] * weights[i]
    before = X.copy()
    np.testing.assert_allclose(fuse(recurrence)(X), expected)
    np.testing.assert_allclose(recurrence(X), expected)
    assert np.array_equal(X, before)


def test_unchanged_values_are_no_copies_of_a_step() -> None:
    @fuse
    def applied(a: Any, x: Any) -> Any:
        return tracefuse.while_loop(lambda c: c[2] < 3, lambda c: (c[0], np.tanh(c[0] @ c[1]), c[2] + 1), (a, x, 0))

    a, x, count = applied(U[:6], U[0])
    expected = U[0]
    for _ in range(3):
        expected = np.tanh(U[:6] @ expected)
    np.testing.assert_allclose(x, expected)
    assert np.array_equal(a, U[:6])
    assert a is not U
    assert count == 3
    assert "carried=2" in repr(applied.definition(U[:6], U[0]))


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_any_length(length: int, reverse: bool) -> None:
    @fuse
    def sums(x: Any, n: int) -> Any:
        return tracefuse.scan(lambda c, row: (c + row.sum(), (c * row, None)), 0.0, x, length=n, reverse=reverse)

    xs = U[:length].T.copy().T  # slices with a stride
    total, (rows, nothing) = sums(xs, length)
    order = range(length)[::-1] if reverse else range(length)
    expected, carry = np.zeros((length, 6)), 0.0
    for k in order:
        expected[k] = carry * xs[k]
        carry += xs[k].sum()
    np.testing.assert_allclose(rows, expected)
    np.testing.assert_allclose(total, carry)
    assert nothing is None


@pytest.mark.parametrize("unroll", [1, 2, 5, True])
@pytest.mark.parametrize("bounds", [(0, 0), (0, 5), (2, 9), (3, 1)])
def test_a_step_of_several_iterations_gives_the_same(unroll: Any, bounds: tuple[int, int]) -> None:
    def run(x: Any, lower: Any, upper: Any, unroll: Any = unroll) -> Any:
        return tracefuse.fori_loop(lower, upper, lambda i, c: (c[0] * 0.5 + i, c[1] + 1), (x, 0), unroll=unroll)

    wanted = run(X, *bounds)
    given = fuse(lambda x: run(x, *bounds)), fuse(run)
    for found in (given[0](X), given[1](X, *bounds)):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-14)
        assert found[1] == wanted[1]


@pytest.mark.parametrize("unroll", [2, 3, 7, 20, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_of_several_slices_stacks_the_same(unroll: Any, reverse: bool) -> None:
    def run(xs: Any, unroll: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return carry * 0.5 + x["a"], {"before": carry, "nothing": None, "twice": x["b"] * 2}

        return tracefuse.scan(step, 0.25, {"a": xs, "b": xs[:, None]}, reverse=reverse, unroll=unroll)

    for size in (1, 3, 7):
        (found, rows), (wanted, expected) = fuse(run)(X[:size], unroll), run(X[:size], 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
        np.testing.assert_allclose(rows["before"], expected["before"], rtol=1e-14)
        np.testing.assert_array_equal(rows["twice"], expected["twice"])
        assert rows["nothing"] is None


def test_larger_steps_run_fewer_segments() -> None:
    def steps_of(unroll: Any) -> Any:
        loop = fuse(lambda x: tracefuse.fori_loop(0, 8, lambda i, y: y * 0.5 + i, x, unroll=unroll))
        return [node.op.name for node in loop.definition(X).fusion.nodes if node.op.name == "counted_loop"]

    assert [len(steps_of(unroll)) for unroll in (1, 4, 3)] == [1, 1, 2]


def test_a_body_may_write_what_it_makes() -> None:
    counter = Counter()

    def body(i: Any, value: Any) -> Any:
        made = Counter()
        made.history.append(value)
        made.count += 1
        return made.history[-1] + made.count + counter.count

    def run(x: Any) -> Any:
        counter.count += 1
        return tracefuse.fori_loop(0, 3, body, x)

    np.testing.assert_allclose(fuse(run)(X), X + 6, rtol=1e-14)
    assert counter.count == 1


def test_only_one_branch_runs() -> None:
    @fuse
    def chosen(x: Any, index: Any, use: Any) -> Any:
        return tracefuse.cond(use.any(), lambda: (x[index], 1), lambda: (x * 2, 0.5))

    index = np.array([0, 99, 0, 0, 0, 0, 0])
    taken, number = chosen(X, index, np.array([False, False]))
    np.testing.assert_allclose(taken, X * 2)
    assert (number, number.dtype) == (0.5, np.float64)
    with pytest.raises(tracefuse.OutOfRangeError):
        chosen(X, index, np.array([False, True]))
    number_as_predicate = fuse(lambda x, p: tracefuse.cond(p > 0.5, lambda v: v + 1, lambda v: v - 1, x))
    np.testing.assert_allclose(number_as_predicate(X, 1.0), X + 1)
    np.testing.assert_allclose(number_as_predicate(X, 0.0), X - 1)


def leaves() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from([0, 1.5, 2j, None, "name"])
    arrays = st.sampled_from([X, X.astype(np.float32), np.arange(4), np.float32(2)])
    return numbers | arrays


TREES = st.recursive(
    leaves(),
    lambda tree: st.tuples(tree, tree) | st.dictionaries(st.sampled_from("ab"), tree) | st.lists(tree, max_size=2),
    max_leaves=6,
)


def halved(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, str) else leaf * 2


@settings(max_examples=times(25), deadline=None)
@given(tree=TREES, count=st.integers(0, 3))
def test_carried_trees(tree: Any, count: int) -> None:
    import optree

    def step(i: Any, tree: Any) -> Any:
        return optree.tree_map(halved, tree, none_is_leaf=True)

    fused = fuse(lambda tree, n: tracefuse.fori_loop(0, n, step, tree), target="reference")
    result, structure = optree.tree_flatten(fused(tree, count), none_is_leaf=True)
    expected, same = optree.tree_flatten(tracefuse.fori_loop(0, count, step, tree), none_is_leaf=True)
    assert structure == same
    for one, two in zip(result, expected, strict=True):
        assert np.array_equal(one, two)
        assert getattr(two, "dtype", getattr(one, "dtype", None)) == getattr(one, "dtype", None)


@fuse
def shown(x: Any, n: int) -> Any:
    y = tracefuse.fori_loop(0, n, lambda i, y: y * 0.5 + x, x + 1)
    return tracefuse.while_loop(lambda z: z.sum() > 1, lambda z: np.tanh(z @ z) * z, y) * 2


def test_it_prints_and_the_text_rebuilds_it() -> None:
    definition = shown.definition(X, 3)
    text = repr(definition)
    scope: dict[str, Any] = {}
    exec(f"from tracefuse import *\n{text}", scope)
    name = text.partition("(")[0].removeprefix("def ")
    with FusionDefinition() as again:
        scope[name](again)
    expected = shown(X, 3)
    np.testing.assert_allclose(again.execute([X, 3])[0], expected)
    np.testing.assert_allclose(evaluate(again.fusion, [X, 3])[0], expected)
    typed = str(definition.fusion)
    assert "    body(v0, " in typed
    assert "    condition(" in typed
    segments = shown.segments(X, 3)
    assert [segment.template for segment in segments] == ["pointwise", "counted_loop", "while_loop", "pointwise"]
    assert "CountedLoop( 0, S1" in str(shown.host_program(X, 3))


def test_explain_shows_the_bodies_and_what_the_host_waits_for() -> None:
    with options(target="cuda"):
        report = str(shown.explain(ShapeDtype((7,), np.float64), 3))
    assert "while_loop (test_control_flow.py:" in report
    assert "the host reads the condition before every step; on a GPU it waits for it" in report
    assert report.index("  condition:") < report.index("  body:", report.index("  condition:"))
    assert "matmul" not in report or "library" in report


def test_check_mode_checks_every_step() -> None:
    with options(check=True):
        np.testing.assert_allclose(shown(X, 3), shown(X, 3))


def test_a_loop_with_symbolic_sizes_in_its_body() -> None:
    @fuse
    def centred(x: Any, n: int, scale: float) -> Any:
        def body(i: Any, y: Any) -> Any:
            return (y - y.sum() / y.shape[0]) * scale + np.zeros(x.shape[0]) + np.arange(n).sum()

        return tracefuse.fori_loop(0, n, body, x)

    for size, n, scale in ((7, 2, 0.5), (5, 3, 2.0)):
        x = expected = np.arange(size) ** 2.0
        for _ in range(n):
            expected = (expected - expected.mean()) * scale + np.arange(n).sum()
        np.testing.assert_allclose(centred(x, n, scale), expected)
    assert centred.cache_info().traces == 1


def test_views_of_the_enclosing_function_stay_right_after_a_body_read_them() -> None:
    @fuse
    def mixed(x: Any) -> Any:
        y = x * 2
        view = y[1:]
        y[0] = 5.0
        y[1] = 7.0
        total = tracefuse.fori_loop(0, 2, lambda i, c: c + view, np.zeros_like(view))
        return total + view

    y = X * 2
    y[0], y[1] = 5.0, 7.0
    np.testing.assert_allclose(mixed(X), 3 * y[1:])


def test_a_range_over_a_size_names_the_loop_that_works_for_every_size() -> None:
    @fuse
    def repeated(x: Any, n: int) -> Any:
        for _ in range(n):
            x = x * 0.5
        return x

    guards = str(repeated.explain(X, 3))
    assert "x = tracefuse.fori_loop(0, n, lambda i, x: f(x), x) repeats n times for every n" in guards

    @fuse
    def replaced(x: Any, n: int) -> Any:
        return tracefuse.fori_loop(0, n, lambda i, x: x * 0.5, x)

    for n in (3, 5):
        np.testing.assert_allclose(replaced(X, n), repeated(X, n))
    assert (replaced.cache_info().traces, repeated.cache_info().traces) == (1, 2)


def counted_far(x: Any) -> Any:
    return tracefuse.fori_loop(4090, 8200, lambda i, c: (c[0] * 0.5 + i, c[1] + x), (x, x))


@pytest.mark.parametrize(
    ("program", "argument"), [(partial(heat, tracefuse), U), (partial(filtered, tracefuse), U), (counted_far, X)]
)
def test_steps_by_address_as_on_a_gpu(program: Callable[..., Any], argument: Any) -> None:
    fusion = fuse(program).definition(argument).fusion
    plain = Executable(segment_fusion(fusion))([argument])
    addressed = Executable(segment_fusion(fusion), Addressed().target)
    for _ in range(2):
        for one, two in zip(addressed([argument]), plain, strict=True):
            assert np.array_equal(one, two)
