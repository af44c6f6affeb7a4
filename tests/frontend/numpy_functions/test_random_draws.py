"""Draws of random generators in a fused function: at every call, in program order, with the plain program's values."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.random import normal

from tracefuse import UnsupportedError, cond, fori_loop, fuse, grad, options, scan, while_loop

X = np.random.default_rng(0).random((4, 6)).astype(np.float32)
GENERATOR = np.random.default_rng(1)
LEGACY = np.random.RandomState(2)


def flat(result: Any) -> list[Any]:
    return [one for part in result for one in flat(part)] if isinstance(result, (tuple, list)) else [np.asarray(result)]


@contextmanager
def same_state() -> Iterator[Callable[[], None]]:
    """Yields what sets every generator to its state at the start, and does so at the end."""
    before = copy.deepcopy(GENERATOR.bit_generator.state), LEGACY.get_state(), np.random.get_state()

    def restore() -> None:
        GENERATOR.bit_generator.state = copy.deepcopy(before[0])
        LEGACY.set_state(before[1])
        np.random.set_state(before[2])

    yield restore
    restore()


def ten_calls(function: Any, *more: Any) -> list[Any]:
    """The results of ten calls, of two sizes, among draws of other code from the same generators."""
    results: list[Any] = []
    for k in range(10):
        results += flat(function(X[: 2 + k % 2], *more))
        results += [np.asarray(GENERATOR.random()), np.asarray(np.random.rand()), LEGACY.rand(2)]
    return results


def of_generator(x: Any) -> Any:
    a = GENERATOR.normal(size=x.shape)
    b = GENERATOR.integers(0, 10, x.shape[0])
    return x + a, b, GENERATOR.standard_normal(x.shape, dtype=np.float32), GENERATOR.normal(x, 2.0), a - a


def of_arrays(x: Any) -> Any:
    shuffled = x.copy()
    GENERATOR.shuffle(shuffled)
    return shuffled, GENERATOR.permutation(x.shape[0]), GENERATOR.choice(x, 2, axis=1), GENERATOR.permutation(x, axis=1)


def of_distributions(x: Any) -> Any:
    mean = x[0, :2]
    return (
        GENERATOR.multivariate_normal(mean, np.eye(2), 3), GENERATOR.multinomial(5, [0.25, 0.75], size=2),
        GENERATOR.dirichlet((1, 2.0, 3)), GENERATOR.integers(5), GENERATOR.choice(5, size=2, replace=False),
        GENERATOR.random(3, dtype=np.float32), GENERATOR.integers(3, size=4, dtype=np.uint8), LEGACY.randint(0, 9, 3),
    )  # fmt: skip


def of_legacy(x: Any) -> Any:
    np.random.seed(3)
    return np.random.uniform(-1, 1, x.shape), normal(x, 1.0), np.random.randn(*x.shape), LEGACY.poisson(3.0, 5)


def dropped_or_merged(x: Any) -> Any:
    GENERATOR.random(3)  # nothing reads it, and it advances the generator
    a, b = GENERATOR.random(x.shape[1]), GENERATOR.random(x.shape[1])
    return np.where(x > 0.5, a, b), a


def with_numbers(x: Any) -> Any:
    return x * GENERATOR.random(), x + np.random.rand(), x - GENERATOR.integers(5)


def of_one_call(x: Any) -> Any:
    fresh, legacy = np.random.default_rng(7), np.random.RandomState(7)
    order = legacy.permutation(x.shape[1])
    return fresh.standard_normal(x.shape), fresh.choice(x[0], 3), x[:, order], legacy.permutation(x[0])


FUNCTIONS = (of_generator, of_arrays, of_distributions, of_legacy, dropped_or_merged, with_numbers, of_one_call)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_ten_calls_give_what_the_plain_program_gives_bit_for_bit(function: Any, target: str) -> None:
    with same_state() as restore:
        expected = ten_calls(function)
        restore()
        fused = fuse(function, target=target)
        got = ten_calls(fused)
    assert fused.cache_info().traces == 1
    for own, wanted in zip(got, expected, strict=True):
        assert (own.dtype, own.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(own, wanted)


def test_a_generator_may_be_an_argument() -> None:
    def f(x: Any, rng: Any) -> Any:
        assert isinstance(rng, np.random.Generator)
        return x + rng.random(x.shape), rng

    one, other = np.random.default_rng(5), np.random.default_rng(5)
    fused = fuse(f)
    for _ in range(3):
        got = fused(X, one)
        np.testing.assert_array_equal(got[0], f(X, other)[0])
        assert got[1] is one
    assert fused.cache_info().traces == 1


class Holder:
    rng: Any = None


HOLDER = Holder()


def one_draw(x: Any, rng: Any) -> Any:
    return x + rng.normal(size=x.shape), rng.choice(x, 3), rng


def drawing_helper(x: Any, rngs: Any) -> Any:
    return sum((helper_draw(rng, x) for rng in rngs["all"]), x)


def helper_draw(rng: Any, x: Any) -> Any:
    y = x.copy()
    for _ in range(2):
        rng.shuffle(y)
        y = y * rng.random()
    return y


def stored(x: Any, rng: Any) -> Any:
    HOLDER.rng = rng
    return x * rng.random()


def in_a_loop_that_asks(x: Any, rng: Any) -> Any:
    while x.sum() < 9:
        x = x + rng.random(x.shape)
    return x


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize("function", [one_draw, stored, drawing_helper, in_a_loop_that_asks])
def test_every_call_draws_from_the_generator_that_it_gets(function: Any, kind: Any) -> None:
    x, fused = np.arange(4.0), fuse(function)
    repeated = kind(9), kind(9)
    for seed in (0, 1, None, 2, None, 0):
        mine, plain = repeated if seed is None else (kind(seed), kind(seed))
        given, wanted = ({"all": [g, g]} if function is drawing_helper else g for g in (mine, plain))
        found, expected = fused(x, given), function(x, wanted)
        if function is one_draw:
            assert found[2] is mine
            found, expected = np.concatenate(found[:2]), np.concatenate(expected[:2])
        if function is stored:
            fused(x, mine)
            assert HOLDER.rng is mine
            plain.random()
        np.testing.assert_allclose(found, expected, rtol=1e-14)
        assert mine.random() == plain.random()
    if function is not in_a_loop_that_asks:
        assert fused.cache_info().traces == 1


def test_two_generator_arguments_may_be_one() -> None:
    def both(x: Any, first: Any, second: Any) -> Any:
        return x + first.random() - second.random() * 2 + first.random()

    fused, x = fuse(both), np.zeros(2)
    for same in (False, True, False):
        mine, plain = ([np.random.default_rng(k) for k in (3, 4)] for _ in range(2))
        chosen = [0, 0] if same else [0, 1]
        wanted = both(x, *(plain[k] for k in chosen))
        np.testing.assert_array_equal(fused(x, *(mine[k] for k in chosen)), wanted)
    assert fused.cache_info().traces == 1


def test_threads_draw_from_their_own_generators() -> None:
    fused, results = fuse(lambda x, rng: x + rng.random(x.shape)), []

    def work(seed: int) -> None:
        mine, plain = np.random.default_rng(seed), np.random.default_rng(seed)
        results.append(all(np.array_equal(fused(np.zeros(3), mine), plain.random(3)) for _ in range(50)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_a_generator_that_is_rebound_is_the_one_that_is_drawn_from() -> None:
    global GENERATOR
    before, fused = GENERATOR, fuse(of_generator)
    fused(X)
    try:
        GENERATOR = np.random.default_rng(8)
        got = fused(X)
        GENERATOR = np.random.default_rng(8)
        np.testing.assert_array_equal(got[0], of_generator(X)[0])
    finally:
        GENERATOR = before


def test_check_mode_draws_once_and_streams_keep_the_order() -> None:
    with same_state() as restore:
        expected = flat(dropped_or_merged(X))
        for given in ({"check": True}, {"streams": 4}):
            restore()
            with options(**given):
                got = flat(fuse(dropped_or_merged)(X))
            for own, wanted in zip(got, expected, strict=True):
                np.testing.assert_array_equal(own, wanted)


def test_a_wrong_parameter_raises_numpys_error_with_the_line() -> None:
    with pytest.raises(ValueError, match="low >= high") as caught:
        fuse(lambda x: x + GENERATOR.integers(5, 2, x.shape))(X)
    assert "in random_draw (test_random_draws.py:" in "".join(caught.value.__notes__)


def test_draws_fill_arrays_of_their_type() -> None:
    def filled(x: Any, rng: Any) -> Any:
        first, second, third = np.zeros(3), np.empty((2, 2), np.float32), x.copy()
        rng.random(out=first)
        rng.standard_normal(out=second, dtype=np.float32)
        return first, second, rng.standard_gamma(2.0, out=third), third

    x = np.ones(4)
    results = fuse(filled)(x, np.random.default_rng(1)), filled(x, np.random.default_rng(1))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)
    with pytest.raises(TypeError, match="Expected float64, got float32"):
        fuse(lambda rng: rng.random(out=np.zeros(3, np.float32)))(np.random.default_rng(1))


def test_methods_that_draw_no_array_are_refused_with_the_line() -> None:
    with pytest.raises(UnsupportedError, match=r"spawn of a random generator cannot be fused \(test_random_draws.py:"):
        fuse(lambda x: x + len(GENERATOR.spawn(2)), target="reference")(X)


def test_explain_lists_draws_as_library_segments() -> None:
    with same_state():
        assert str(fuse(dropped_or_merged).explain(X)).count("1 library") == 3


def test_nothing_warns() -> None:
    with same_state(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in FUNCTIONS:
            fuse(function, target="reference")(X)


def drawn_in_steps(x: Any) -> Any:
    first = np.random.random()
    y = fori_loop(0, 5, lambda i, c: c * 0.5 + np.random.normal(size=c.shape) * i, x[0])
    return first, y, np.random.random()


def drawn_from_several(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return c + row * GENERATOR.standard_normal(6, dtype=np.float32), LEGACY.randint(0, 10)

    return scan(step, x[0] * 0, x, reverse=True), GENERATOR.random()


def drawn_until(x: Any) -> Any:
    own = np.random.default_rng(4)
    return while_loop(
        lambda c: c[1] < 4, lambda c: (c[0] + own.random(c[0].shape), c[1] + 1), (x + 0.0, 0)
    ), own.random()


def drawn_for_nothing(x: Any) -> Any:
    fori_loop(0, 3, lambda i, c: c + np.random.random(), 0.0)
    return x * 2, np.random.random()


def drawn_in_a_branch(x: Any) -> Any:
    y = cond(x.sum() > 5, lambda: x + np.random.random(), lambda: x * 2.0)
    return y, np.random.random()


def drawn_in_nested_loops(x: Any) -> Any:
    def inner(j: Any, d: Any) -> Any:
        d = d.copy()
        np.random.shuffle(d)
        return d + np.random.random(6) * j

    return fori_loop(0, 3, lambda i, c: fori_loop(0, 2, inner, c) * np.random.random(), x[0] + 0.0), np.random.random()


def drawn_before_a_question(x: Any) -> Any:
    y = fori_loop(0, 3, lambda i, c: c + np.random.random(6), x[0] + 0.0)
    if y.sum() > 12:
        y = y * 2
    return y, np.random.random()


@pytest.mark.parametrize("target", ["auto", "reference"])
@pytest.mark.parametrize(
    "function",
    [
        drawn_in_steps, drawn_from_several, drawn_until, drawn_for_nothing, drawn_in_a_branch, drawn_in_nested_loops,
        drawn_before_a_question,
    ],
)  # fmt: skip
def test_bodies_of_loops_draw_at_every_step(function: Callable[[Any], Any], target: str) -> None:
    x = X.astype(np.float64)
    fused = fuse(function, target=target)
    with same_state() as restore:
        expected = [flat(function(x * scale)) for scale in (1, 0, 2, 1)]
        after = np.random.random(), GENERATOR.random(), LEGACY.random()
        restore()
        for scale, values in zip((1, 0, 2, 1), expected, strict=True):
            for one, other in zip(flat(fused(x * scale)), values, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)
        assert (np.random.random(), GENERATOR.random(), LEGACY.random()) == after


def test_derivatives_of_loops_that_draw_and_draws_in_conditions_name_what_to_write() -> None:
    def drawing(x: Any) -> Any:
        return fori_loop(0, 3, lambda i, c: c * np.random.random(), x).sum()

    def with_an_array(x: Any) -> Any:
        return scan(lambda c, factor: (c * factor, None), x, np.random.random(3))[0].sum()

    with same_state() as restore:
        with pytest.raises(UnsupportedError, match=r"body draws random numbers.*\n.*pass the array to scan"):
            grad(drawing)(X[0])
        restore()
        found = grad(with_an_array)(X[0].astype(np.float64))
        restore()
        np.testing.assert_allclose(found, np.full(6, np.prod(np.random.random(3))))
    with pytest.raises(UnsupportedError, match=r"in the condition of while_loop \(test_random.*\n.*draw in the body"):
        fuse(lambda x: while_loop(lambda c: c.sum() < np.random.random(), lambda c: c + 1, x))(X)


def test_a_draw_without_a_size_is_a_number_of_the_type_that_numpy_gives() -> None:
    def drawn(rng: Any) -> Any:
        return rng.random(), rng.poisson(3), rng.integers(5), rng.random() < 0.5, 2 * rng.normal(), rng.random(2)[0]

    fused, right = fuse(drawn)(np.random.default_rng(0)), drawn(np.random.default_rng(0))
    assert fused == right
    kinds = [float, int, None, bool, float, None]
    assert all(kind is None or type(one) is kind for one, kind in zip(fused, kinds, strict=True))


def test_a_loop_that_is_recorded_after_draws_of_its_first_iteration_draws_the_same_numbers() -> None:
    def accepted(y: Any, rng: Any, steps: int) -> Any:
        position, chain = 0.0, []
        for _ in range(4):
            before, speed = position, rng.normal()
            for _ in range(steps):
                position += 0.1 * speed
            if rng.random() > np.exp(((y - position) ** 2).sum() - 4):
                position = before
            chain.append(position)
        return np.array(chain)

    fused, y = fuse(accepted), np.linspace(0, 1, 5)
    for make in (np.random.default_rng, np.random.RandomState):
        one, other = make(3), make(3)
        for _ in range(2):
            np.testing.assert_allclose(fused(y, one, 3), accepted(y, other, 3))
            assert one.random() == other.random()


def test_a_function_without_arrays_seeds_and_draws() -> None:
    def drawn(seed: int) -> Any:
        np.random.seed(seed)
        return np.random.rand(), np.random.rand(2)

    fused = fuse(drawn)
    for seed in (3, 4):
        for mine, wanted in zip(fused(seed), drawn(seed), strict=True):
            np.testing.assert_array_equal(mine, wanted)
