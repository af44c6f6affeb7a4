"""Gradients against central differences in float64, and against jax where conventions decide."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracefuse as tf
import tracefuse.frontend.frontends as frontends_module
from tests.frontend.gradient_cases import ARRAYS, CONVENTIONS, OF_OPS, SCIPY, SMOOTH, function_of
from tests.session.samples import times

STEP = 1e-6


def weighted(expression: str, numpy: Any = np) -> tuple[Callable[..., Any], list[Any]]:
    """A sum over the results of an expression, each with a weight of its own, and its arguments."""
    function, arrays = function_of(expression, numpy)
    shape = np.shape(function(*arrays))
    weights = np.random.default_rng(1).uniform(0.5, 1, shape)
    return lambda *given: (function(*given) * weights).sum(), arrays


def directions(arrays: list[Any]) -> list[Any]:
    random = np.random.default_rng(2)
    return [random.uniform(-1, 1, np.shape(array)) for array in arrays]


def along(function: Callable[..., Any], arrays: list[Any], moves: list[Any]) -> Any:
    """The central difference of a function along a direction."""
    after = function(*(a + STEP * d for a, d in zip(arrays, moves, strict=True)))
    before = function(*(a - STEP * d for a, d in zip(arrays, moves, strict=True)))
    return (after - before) / (2 * STEP)


def dot(left: Any, right: Any) -> float:
    return float(sum(np.sum(a * b) for a, b in zip(left, right, strict=True)))


@pytest.fixture
def on_reference() -> Iterator[None]:
    """The reference implementation: it compiles nothing."""
    with tf.options(target="reference"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        yield


@pytest.mark.parametrize("expression", SMOOTH + SCIPY + OF_OPS)
@pytest.mark.usefixtures("on_reference")
def test_first_and_second_derivatives_are_central_differences(expression: str) -> None:
    function, arrays = weighted(expression)
    numbers = tuple(range(len(arrays)))
    moves = directions(arrays)
    gradient = tf.grad(function, numbers)
    first = gradient(*arrays)
    assert [g.shape for g in first] == [a.shape for a in arrays]
    expected = along(function, arrays, moves)
    assert dot(first, moves) == pytest.approx(expected, rel=2e-6, abs=2e-6)
    value, tangent = tf.jvp(function, arrays, moves)
    assert value == pytest.approx(function(*arrays))
    assert tangent == pytest.approx(dot(first, moves), rel=1e-9, abs=1e-9)

    def bent(*given: Any) -> Any:
        return sum((np.sin(g) * d).sum() for g, d in zip(gradient(*given), moves, strict=True))

    second = tf.grad(bent, numbers)(*arrays)
    assert dot(second, moves) == pytest.approx(float(along(bent, arrays, moves)), rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("expression", CONVENTIONS)
@pytest.mark.usefixtures("on_reference")
def test_ties_and_zeros_have_the_derivatives_of_jax(expression: str) -> None:
    jax = pytest.importorskip("jax")
    function, arrays = weighted(expression)
    with jax.enable_x64(True):
        other, _ = weighted(expression, jax.numpy)
        expected = jax.grad(other, tuple(range(len(arrays))))(*arrays)
        found = tf.grad(function, tuple(range(len(arrays))))(*arrays)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, np.asarray(two), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("on_reference")
def test_holomorphic_gradients_are_those_of_jax() -> None:
    jax = pytest.importorskip("jax")
    z = ARRAYS["x"] + 1j * ARRAYS["y"]
    with jax.enable_x64(True):
        for text in ("(z * z).sum()", "np.exp(z).sum()", "np.sin(z).mean()", "(z[0] @ z[1])", "np.fft.fft(z).sum()"):
            function, other = (eval(f"lambda z: {text}", {"np": one}) for one in (np, jax.numpy))
            expected = jax.grad(other, holomorphic=True)(z)
            np.testing.assert_allclose(tf.grad(function, holomorphic=True)(z), expected, rtol=1e-9, atol=1e-12)
        for text in ("np.abs(z).sum()", "np.real(z * z).sum()", "np.imag(np.conj(z) ** 3).sum()"):
            function, other = (eval(f"lambda z: {text}", {"np": one}) for one in (np, jax.numpy))
            (expected,) = jax.vjp(other, z)[1](1.0)
            np.testing.assert_allclose(tf.vjp(function, z)[1](1.0)[0], expected, rtol=1e-9, atol=1e-12)


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b * 0.5, lambda a, b: np.tanh(a) * b, lambda a, b: np.sin(a - b), lambda a, b: a @ b.T,
    lambda a, b: a[::-1] + b.mean(0), lambda a, b: np.concatenate([a[1:], b[:1]]), lambda a, b: np.maximum(a, b),
    lambda a, b: a - a.max(1, keepdims=True), lambda a, b: np.cumsum(a, 0) + b, lambda a, b: a / (1 + b * b),
    lambda a, b: np.roll(a, 1, 1) * b, lambda a, b: np.where(a > 0, a, b), lambda a, b: np.exp(-a * a) + b,
]  # fmt: skip


def chain(choices: list[tuple[int, int, int]]) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        values = [x, y]
        for operation, left, right in choices:
            values.append(OPERATIONS[operation](values[left % len(values)], values[right % len(values)]))
        return sum(np.sin(value).sum() for value in values)

    return function


@settings(max_examples=times(6), deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 9), st.integers(0, 9)), max_size=7))
def test_random_functions_in_compiled_kernels(choices: list[tuple[int, int, int]]) -> None:
    function = chain(choices)
    random = np.random.default_rng(3)
    arrays = [random.normal(size=(4, 4)), random.normal(size=(4, 4))]
    moves = directions(arrays)
    value, gradients = tf.value_and_grad(function, (0, 1))(*arrays)
    assert value == pytest.approx(float(function(*arrays)), rel=1e-9)
    assert dot(gradients, moves) == pytest.approx(float(along(function, arrays, moves)), rel=1e-4, abs=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# loops and branches


def recurrence(weights: Any, start: Any, inputs: Any) -> Any:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        carry = np.tanh(weights @ carry + x)
        return carry, carry * carry

    final, rows = tf.scan(step, start, inputs)
    return final.sum() + (rows**2).sum()


def counted(weights: Any, start: Any) -> Any:
    return tf.fori_loop(0, 4, lambda k, carry: np.sin(weights @ carry) * (k + 1), start).sum()


def branched(weights: Any, start: Any) -> Any:
    return tf.cond(start.sum() > 2, lambda w: (w @ w).sum(), lambda w: w.sum(), weights) * start[0]


@pytest.mark.parametrize("function", [recurrence, counted, branched], ids=lambda f: f.__name__)
def test_loops_and_branches(function: Callable[..., Any]) -> None:
    random = np.random.default_rng(4)
    arrays = [random.normal(size=(3, 3)) / 2, np.ones(3), random.normal(size=(5, 3))]
    arrays = arrays[: function.__code__.co_argcount]
    moves = directions(arrays)
    numbers = tuple(range(len(arrays)))
    gradient = tf.grad(function, numbers)
    assert dot(gradient(*arrays), moves) == pytest.approx(float(along(function, arrays, moves)), rel=1e-6)
    assert tf.jvp(function, arrays, moves)[1] == pytest.approx(dot(gradient(*arrays), moves), rel=1e-9)


def test_reverse_mode_runs_a_loop_once_and_stores_what_it_reads() -> None:
    """The counter that the scan carries is not read. A second gradient, and a checkpoint, are other loops."""

    def step(carry: Any, x: Any) -> Any:
        return (np.tanh(carry[0] * x), carry[1] + 1), carry[0]

    def loss(start: Any, xs: Any) -> Any:
        (last, _), rows = tf.scan(step, (start, 0), xs)
        return last.sum() + (rows**2).sum()

    start, xs = np.linspace(0.1, 1, 3), np.linspace(-1, 1, 15).reshape(5, 3)
    for function, loops in ((loss, 2), (tf.checkpoint(loss), 3)):
        both = tf.fuse(lambda start, xs, function=function: tf.value_and_grad(function)(start, xs))
        with tf.options(target="reference"):
            gradient = both(start, xs)[1]
        assert repr(both.definition(start, xs)).count("fd.ops.counted_loop(") == loops
        central = [(loss(start + d, xs) - loss(start - d, xs)) / 2e-6 for d in np.eye(3) * 1e-6]
        np.testing.assert_allclose(gradient, central, rtol=1e-6)
    text = str(tf.fuse(lambda start, xs: tf.grad(loss)(start, xs)).explain(start, xs))
    assert text.count("starts of steps, 120 B") == 1
    assert text.count("starts of steps") == 1


def test_functions_that_a_traced_function_creates_are_differentiated_twice() -> None:
    """They read its arguments."""

    def function(w: Any, x: Any) -> Any:
        return tf.grad(lambda w: (tf.grad(lambda v: (v**3 * x).sum())(w) * x).sum())(w)

    w, x = np.arange(3.0), np.arange(1.0, 4.0)
    with tf.options(target="reference"):
        np.testing.assert_allclose(tf.fuse(function)(w, x), 6 * w * x**2)


def test_while_loop_has_forward_mode_and_refuses_reverse_mode() -> None:
    def grown(x: Any) -> Any:
        return tf.while_loop(lambda c: c.sum() < 50, lambda c: c * c + 1, x).sum()

    x, move = np.ones(3), np.array([1.0, -0.5, 2.0])
    assert tf.jvp(grown, (x,), (move,))[1] == pytest.approx(float(along(grown, [x], [move])), rel=1e-6)
    with pytest.raises(tf.UnsupportedError, match="while_loop has no reverse mode") as raised:
        tf.grad(grown)(x)
    assert "fori_loop or scan" in str(raised.value)


def test_a_checkpoint_keeps_the_arguments_alone() -> None:
    def layer(x: Any, w: Any) -> Any:
        return np.sin(np.cos(x @ w) * x)

    def loss(step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w: step(step(step(x, w), w), w).sum()

    random = np.random.default_rng(6)
    arrays = [random.normal(size=(4, 4)), random.normal(size=(4, 4))]
    kept, again = (tf.grad(loss(step), (0, 1)) for step in (layer, tf.checkpoint(layer)))
    for one, two in zip(kept(*arrays), again(*arrays), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
    fused = [tf.fuse(tf.grad(loss(step), (0, 1))) for step in (layer, tf.checkpoint(layer))]
    products = [repr(function.definition(*arrays)).count("matmul") for function in fused]
    assert products[1] == products[0] + 2  # of the last call only what is recorded again is read


# ---------------------------------------------------------------------------------------------------------------------
# what a function may do


def test_a_training_step_traces_once_for_all_batch_sizes() -> None:
    def loss(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        hidden = np.maximum(x @ parameters["w"] + parameters["b"], 0)
        return ((hidden.sum(1) - y) ** 2).mean()

    @tf.fuse
    def step(parameters: dict[str, Any], x: Any, y: Any, rate: float) -> Any:
        value, gradient = tf.value_and_grad(loss)(parameters, x, y)
        return {name: parameters[name] - rate * gradient[name] for name in parameters}, value

    random = np.random.default_rng(5)
    parameters = {"w": random.normal(size=(4, 8)).astype("f4") / 4, "b": np.zeros(8, "f4")}
    losses = []
    for count in (40, 33, 40, 17, 40, 40, 40, 40, 40):
        x = random.normal(size=(count, 4)).astype("f4")
        parameters, value = step(parameters, x, np.abs(x).sum(1), 0.02)
        losses.append(float(value))
    assert step.cache_info().traces == 1
    assert parameters["w"].dtype == np.float32
    assert losses[-1] < losses[0] / 2


def test_assignment_views_and_questions_are_differentiated() -> None:
    def written(x: Any) -> Any:
        y = x.copy()
        y[1:] *= 2
        y[0] += y[1]
        y.reshape(1, -1)[0, 2] = x[0] ** 2
        if x[0] > 0:
            y = y * 3
        return (y**2).sum()

    for x in (np.array([0.5, -1.0, 2.0, 0.25]), np.array([-0.5, 1.0, 2.0, 0.25])):
        move = np.array([1.0, 0.5, -2.0, 0.1])
        expected = float(along(written, [x], [move]))
        assert dot([tf.grad(written)(x)], [move]) == pytest.approx(expected, rel=1e-6)


def test_captured_arrays_are_constants_that_are_read_at_each_call() -> None:
    weights = np.ones(3)
    gradient = tf.grad(lambda x: (x * weights).sum())
    assert gradient(np.zeros(3)).tolist() == [1, 1, 1]
    weights[:] = 7
    assert gradient(np.zeros(3)).tolist() == [7, 7, 7]


def test_state_is_written_once_for_each_call() -> None:
    class Model:
        def __init__(self) -> None:
            self.calls = 0

        def loss(self, x: Any) -> Any:
            self.calls += 1
            return (x * x).sum()

    model = Model()
    gradient = tf.grad(model.loss)
    for calls in (1, 2, 3):
        assert gradient(np.ones(2)).tolist() == [2, 2]
        assert model.calls == calls


def test_arguments_aux_and_pytrees_have_the_signatures_of_jax() -> None:
    def loss(p: dict[str, Any], x: Any, *, scale: float = 1.0) -> tuple[Any, Any]:
        return (p["a"] * x).sum() * scale + p["b"], x * 2

    p, x = {"a": np.arange(3.0), "b": 2.0}, np.ones(3)
    (value, aux), gradient = tf.value_and_grad(loss, has_aux=True)(p, x, scale=3.0)
    assert (float(value), aux.tolist()) == (11.0, [2, 2, 2])
    assert gradient["a"].tolist() == [3, 3, 3]
    assert float(gradient["b"]) == 1
    both, _ = tf.grad(loss, argnums=(0, 1), has_aux=True)(p, x)
    assert both[1].tolist() == [0, 1, 2]
    result, pull_back = tf.vjp(lambda p: {"s": p["a"].sum() * p["b"], "d": p["a"] * 2}, p)
    (cotangent,) = pull_back({"s": 1.0, "d": np.ones(3)})
    assert float(result["s"]) == 6
    assert cotangent["a"].tolist() == [4, 4, 4]
    assert float(cotangent["b"]) == 3


def test_vjp_and_jvp_outside_of_a_trace_record_a_function_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    record = frontends_module.trace

    def counted(function: Any, *arguments: Any, **keywords: Any) -> Any:
        names.append(function.__name__)
        return record(function, *arguments, **keywords)

    monkeypatch.setattr(frontends_module, "trace", counted)

    def squared(x: Any) -> Any:
        return x * x

    for _ in range(3):
        assert tf.jvp(squared, (np.ones(2),), (np.ones(2),))[1].tolist() == [2, 2]
        assert tf.vjp(squared, np.ones(2))[1](np.ones(2))[0].tolist() == [2, 2]
    assert sorted(names) == ["pull_back", "push_forward", "squared"]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tf.grad(np.sum)(np.arange(3)), tf.DtypeError, "argument 0 has dtype int64: integers"),
        (lambda: tf.grad(lambda x: x * 2)(np.ones(3)), tf.ShapeError, "the function returned an array with 1 axes"),
        (lambda: tf.grad(lambda x: x.sum(), 2)(np.ones(3)), tf.TraceError, "argnums=2 and 1 positional arguments"),
        (lambda: tf.grad(lambda x: (x.sum(), x))(np.ones(3)), tf.TraceError, "the function returned"),
        (lambda: tf.grad(lambda x: (x > 1).sum())(np.ones(3)), tf.DtypeError, "the result has dtype int64"),
        (lambda: tf.grad(lambda x: np.histogram(x, 3)[1].sum())(np.ones(3)), tf.UnsupportedError, "no derivative rule"),
        (lambda: tf.grad(lambda x: np.unique(x).sum())(np.ones(3)), tf.UnsupportedError, "np.unique has no derivative"),
        (lambda: tf.vjp(np.unique, np.ones(3))[1](np.ones(1)), tf.UnsupportedError, "np.unique has no derivative rule"),
        (lambda: tf.jvp(np.sin, (np.ones(3),), (np.ones(2),)), tf.ShapeError, "axis 0 of the tangent has 2 elements"),
        (lambda: tf.jvp(np.sin, (np.ones(3),), ()), tf.TraceError, "1 primals and 0 tangents"),
        (lambda: tf.vjp(lambda x: x * 2, np.ones(3))[1]((1, 2)), tf.TraceError, "the cotangent is"),
    ],
)  # fmt: skip
def test_what_has_no_gradient_is_refused(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as raised:
        call()
    assert "hint:" in str(raised.value)


def test_a_gradient_of_many_ops_is_linear_in_their_number() -> None:
    def long(x: Any) -> Any:
        for _ in range(1500):
            x = x * 0.999 + 0.001
        return x.sum()

    assert tf.grad(long)(np.ones(4)) == pytest.approx(0.999**1500)
