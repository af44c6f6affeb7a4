"""Numbers that a function makes of its arrays are Python's, recorded, and as Python computes them at every call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.frontend import plain_names
from tracefuse import TraceError, fuse, options

X = np.array([3.0, 1.0, 2.0])
as_float = float


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives: its value, or the type and the words of its exception."""
    try:
        return function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    except (ArithmeticError, ValueError, TypeError) as error:
        return type(error), str(error)


def is_same(got: Any, want: Any) -> bool:
    """Whether two results have equal types and values; floats up to the last places of a function of `math`."""
    if isinstance(want, tuple):
        return type(got) is tuple and len(got) == len(want) and all(map(is_same, got, want))
    if isinstance(want, np.ndarray | np.generic):
        return got.dtype == want.dtype and np.allclose(got, want, rtol=1e-14, equal_nan=True)
    if type(got) is not type(want):
        return False
    if isinstance(want, float | complex):
        return bool(np.isclose(got, want, rtol=1e-14, atol=0, equal_nan=True))
    return bool(got == want)


def check(function: Callable[..., Any], *calls: tuple[Any, ...], traces: int | None = None) -> None:
    fused = fuse(function)
    for arguments in calls:
        for _ in range(2):
            got, want = outcome(fused, *arguments), outcome(function, *arguments)
            assert is_same(got, want), (arguments, got, want)
    if traces is not None:
        assert fused.cache_info().traces == traces


RECORDED: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: float(x.sum()),
    "float of an element": lambda x: x / float(x[1]),
    "another name": lambda x: as_float(x.sum()) * 2,
    "in a nested function": lambda x: (lambda y: float(y) + 1)(x.sum()),
    "in a comprehension": lambda x: tuple([float(x[k]) for k in range(3)]),
    "int": lambda x: int(x.sum()) + 1,
    "item": lambda x: (x.sum().item(), (x > 1).any().item(), x.argmax().item()),
    "bool": lambda x: bool((x > 1).any()),
    "complex": lambda x: complex(x[0]) * 1j,
    "max": lambda x: max(float(x[0]), 1.5),
    "min of three": lambda x: min(float(x[0]), float(x[1]), float(x[2])),
    "max of a list": lambda x: max([float(x[0]), float(x[1])]),
    "max of scalars of NumPy": lambda x: max(x[0], x[1]) * x,
    "sum": lambda x: sum([float(x[0]), 0.1, float(x[1])], 1),
    "round": lambda x: round(float(x.mean())),
    "abs": lambda x: abs(-float(x[0])),
    "divmod": lambda x: divmod(float(x[0]), 0.7),
    "float // and %": lambda x: (float(x[0]) // 0.7, float(x[0]) % -0.7),
    "mixed kinds": lambda x: (int(x[0]) * float(x[1]), int(x[0]) / 2, True + int(x[0])),
    "integers": lambda x: (int(x[0]) // 2, int(x[0]) % 2, -int(x[0]), int(x[0]) ** 3, int(x[0]) & 1, ~int(x[0])),
    "truth values": lambda x: ((bool(x[0] > 1)) + (bool(x[1] > 0)), bool(x[0]) * x, (x[0] > 2).item() & True),
    "powers": lambda x: (float(x[0]) ** 2, float(x[0]) ** 0.5, 2.0 ** float(x[1])),
    "comparisons": lambda x: (float(x[0]) < 2, int(x[0]) == 3, float(x[1]) <= 1.5),
    "beside an array": lambda x: (x.astype(np.float32) * float(x[0]), x * int(x[0]), float(x[0]) - x),
    "an argument of a function": lambda x: np.clip(x, float(x.min()), float(x.mean())),
    "of NumPy": lambda x: np.sqrt(float(x[0])),
    "into an array": lambda x: np.array([float(x[0]), 2.0, int(x[1])]),
    "math": lambda x: (math.sqrt(x[0]), math.exp(x[1]), math.log(x[0], 2), math.floor(x[0] / 2), math.isnan(x[1])),
    "math of two": lambda x: (math.atan2(x[0], x[1]), math.fmod(x[0], 2), math.pow(x[0], 2), math.copysign(x[0], -1)),
    "a class of numbers": lambda x: isinstance(float(x[0]), float) and not isinstance(int(x[0]), float),
    "parts": lambda x: (float(x[0]).real, float(x[0]).imag, complex(x[0], ).conjugate().imag),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_numbers_are_recorded_and_come_back_as_numbers_of_python(name: str) -> None:
    check(RECORDED[name], (X,), (X * 1.5,), (X + 0.25,), traces=1)


ASKED: dict[str, Callable[[Any], Any]] = {
    "an exponent": lambda x: 2 ** int(x[0]),
    "max of kinds": lambda x: max(0, float(x[0] - 2)),
    "a shift": lambda x: 1 << int(x[0]),
    "format": lambda x: f"{float(x[0]):.3f} {int(x[1])}",
    "text": lambda x: str([float(x[0])]),
    "a key": lambda x: {3.0: 1, 6.0: 2}[float(x[0])],
    "a range": lambda x: list(range(int(x[0]))),
    "digits": lambda x: round(float(x.mean()), 2),
    "types written in C": lambda x: (str(Decimal(float(x[0]))), timedelta(seconds=x[1]).total_seconds()),
    "a method": lambda x: float(x[0]).as_integer_ratio(),
    "math of integers": lambda x: math.gcd(int(x[0]), 6),
    "map": lambda x: tuple(map(float, [x[0], x[1]])),
    "a name of another module": lambda x: plain_names.to_float(x.sum()),
    "a branch": lambda x: 1.0 if float(x[0]) > 4 else 2.0,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_needs_the_number_asks_for_it(name: str) -> None:
    check(ASKED[name], (X,), (X * 2,), (X,))


SPECIAL = np.array([0.0, -1.0, 1e300, np.inf, -np.inf, np.nan, 2.0**62, 2.0**53 + 2, 1e-320])

PARTIAL: dict[str, Callable[[Any], Any]] = {
    "/": lambda x: 1 / float(x[0]),
    "//": lambda x: 1.0 // float(x[0]),
    "%": lambda x: 2 % float(x[0]),
    "int": lambda x: int(x[0]) * 4,
    "int /": lambda x: int(x[0]) / 3,
    "**": lambda x: float(x[0]) ** 2,
    "** 0.5": lambda x: float(x[0]) ** 0.5,
    "** -1": lambda x: float(x[0]) ** -1,
    "round": lambda x: round(float(x[0])),
    "floor": lambda x: math.floor(x[0]),
    "sqrt": lambda x: math.sqrt(x[0]),
    "log": lambda x: math.log(x[0]),
    "exp": lambda x: math.exp(x[0]),
    "fmod": lambda x: math.fmod(x[0], x[0]),
    "max": lambda x: (max(float(x[0]), 0.0), max(0.0, float(x[0])), min(1.0, float(x[0]))),
    "a handler": lambda x: _inverse(float(x[0])),
    "an update": lambda x: _halved(x),
}


def _inverse(value: float) -> float:
    try:
        return 1 / value
    except ZeroDivisionError:
        return -1.0


def _halved(x: Any) -> Any:
    total = float(x[0])
    x *= 0.5
    return 1 / total, x[0]


@pytest.mark.filterwarnings("ignore:.*of a computed value had more than 4 values")
@pytest.mark.parametrize("name", PARTIAL)
def test_where_python_raises_or_widens_calls_do(name: str) -> None:
    function = PARTIAL[name]
    calls = [(np.array([value]),) for value in (1.5, *SPECIAL, 1.5)]
    with np.errstate(all="ignore"):
        check(function, *calls)


def test_a_call_that_raises_for_a_number_changes_no_argument() -> None:
    x = np.array([0.0, 4.0])
    with pytest.raises(ZeroDivisionError):
        fuse(_halved)(x)
    np.testing.assert_array_equal(x, [0.0, 4.0])


class Best:
    """Numbers that a method stores. method: wraps the method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.loss, self.steps, self.history = 9.0, 0, []
        self.step = method(self.take_step)

    def take_step(self, x: Any) -> float:
        loss = float((x * x).sum())
        self.history.append(loss)
        self.loss, self.steps = loss / 2, self.steps + int(x[0])
        return self.loss


def test_state_takes_numbers_of_python() -> None:
    plain, traced = Best(lambda method: method), Best(fuse)
    for k in range(4):
        assert type(traced.step(X + k)) is float
        plain.step(X + k)
        assert (traced.loss, traced.steps, traced.history) == (plain.loss, plain.steps, plain.history)
        assert type(traced.steps) is int
    assert traced.step.cache_info().traces == 1


def test_output_buffers_and_the_reference_target_take_the_same_conditions() -> None:
    for target in ("cpu", "reference"):
        with options(target=target):
            fused = fuse(lambda x: x * (1 / float(x[0])))
            np.testing.assert_array_equal(fused(X), X * (1 / 3.0))
            with pytest.raises(ZeroDivisionError):
                fused(np.zeros(3))


def test_a_division_in_the_body_of_a_loop_names_the_way_out() -> None:
    from tracefuse import fori_loop

    fused = fuse(lambda x: fori_loop(0, 3, lambda k, c: c / (1 / float(c.sum())), x))
    with pytest.raises(TraceError, match=r"tracefuse\.cond"):
        fused(X)


NUMBERS = st.one_of(
    st.integers(-(2**54), 2**54), st.integers(-9, 9), st.floats(allow_nan=False, width=64), st.booleans(),
    st.sampled_from([0, 0.0, -0.0, 1, -1, 2.0**53, 1e308, 5e-324, math.inf]),
)  # fmt: skip
OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "<": lambda a, b: a < b, "==": lambda a, b: a == b,
    "&": lambda a, b: a & b, "max": lambda a, b: max(a, b), "neg": lambda a, b: (-a, abs(b), +b),
}  # fmt: skip


@functools.cache
def _fused_operator(name: str, first: type, second: type) -> Any:
    function = OPERATORS[name]
    return fuse(lambda a, b: function(first(a[0]), second(b[0])))


@pytest.mark.filterwarnings("ignore:.*of a computed value had more than 4 values")
@given(st.sampled_from(sorted(OPERATORS)), NUMBERS, NUMBERS)
def test_operators_give_what_python_gives(name: str, a: Any, b: Any) -> None:
    fused = _fused_operator(name, type(a), type(b))
    want = outcome(OPERATORS[name], a, b)
    assume(not isinstance(want, complex))
    got = outcome(fused, np.array([a]), np.array([b]))
    assert type(got) is type(want)
    assert got == want or (got != got and want != want), (got, want)


def test_conditions_go_with_output_buffers_donation_and_draws() -> None:
    def scaled(x: Any) -> Any:
        return x * (1 / float(x[0]))

    buffer = X.copy()
    assert fuse(scaled)(buffer, out=buffer) is buffer
    np.testing.assert_array_equal(buffer, scaled(X))
    with pytest.raises(ZeroDivisionError):
        fuse(scaled, donate_argnums=0)(np.zeros(3))

    def noisy(x: Any, generator: np.random.Generator) -> Any:
        return generator.standard_normal(), _inverse(float(x[0])), generator.standard_normal()

    fused, first, second = fuse(noisy), np.random.default_rng(7), np.random.default_rng(7)
    for value in (2.0, 0.0, 4.0, 0.0):
        x = np.array([value])
        assert fused(x, first) == noisy(x, second)
    assert first.bit_generator.state == second.bit_generator.state


def test_a_number_as_a_key_of_a_dict_that_stays_is_its_value() -> None:
    table: dict[Any, Any] = {}

    def function(x: Any) -> Any:
        table[int(x[0])] = x.sum()
        table[float(x[1]), 2] = x
        return x

    fused = fuse(function)
    for k in range(3):
        fused(X + k)
    assert [*table] == [3, (1.0, 2), 4, (2.0, 2), 5, (3.0, 2)]
    assert {type(key) for key in table} == {int, tuple}


def test_exceptions_of_python_show_the_frames_of_the_user_alone() -> None:
    for function in (lambda x: math.sqrt(x[0]), lambda x: math.log(x[0]) + x, lambda x: 1 / float(x[1])):
        with pytest.raises((ValueError, ZeroDivisionError)) as caught:
            fuse(function)(np.array([-1.0, 0.0]))
        assert {entry.path.name for entry in caught.traceback} == {"test_python_numbers.py"}


def with_identity(x: Any) -> Any:
    is_large = float(x.sum()) > 1
    return x if is_large is True else -x


def with_patterns(x: Any) -> Any:
    match int(x[0]), bool(x.sum() > 0):
        case 0, True:
            return x
        case 1, False:
            return x * 2
        case _, True:
            return x * 3
        case _:
            return x * 4


@pytest.mark.parametrize("function", [with_identity, with_patterns])
def test_truth_values_are_pythons_where_code_compares_them_by_identity(function: Callable[[Any], Any]) -> None:
    fused = fuse(function)
    for values in ([1.0, 1, 1], [-1.0, -1, 0], [0.0, 1, 2], [1.0, -5, 1], [2.0, -5, 1]):
        x = np.array(values)
        np.testing.assert_array_equal(fused(x), function(x))


OF_ONE_NUMBER = [
    "math.sqrt(s)", "math.exp(-s)", "math.log(s + 1, 3)", "math.pow(s, 2)", "math.atan2(s, 2)", "math.hypot(s, 3)",
    "math.degrees(s)", "math.fmod(s, 2)", "math.copysign(s, -1)", "math.gamma(s)", "math.erf(s)", "math.floor(s / 2)",
    "float(s)", "int(s)", "int(math.sqrt(s))", "bool(s)", "round(float(s), 1)", "max(float(s), 3.0)",
    "math.isfinite(s)", "math.isclose(s, 4)", "float(s).real", "math.fsum([s, 0.1])",
]  # fmt: skip
FIX_INTEGERS = ("int(s)", "math.hypot(s, 3)")


@pytest.mark.parametrize("expression", OF_ONE_NUMBER)
def test_numbers_that_a_call_passes_and_sizes_need_one_trace(expression: str) -> None:
    """Where Python asks an integer for its value, each is a trace of its own: `int(s)` fixes a size."""
    of_number = eval(f"lambda x, s: x * ({expression})", {"math": math})
    of_size = eval(f"lambda x: (s := x.shape[0]) * x[:1] * ({expression})", {"math": math})
    with options(target="reference"):
        for function, calls in (
            (fuse(of_number), [(X, s) for s in (2.5, 4.0, 6.25, 1.5)]),
            *(() if expression in FIX_INTEGERS else (
                (fuse(of_number), [(X, s) for s in (2, 4, 7, 3)]),
                (fuse(of_size), [(np.arange(float(size)) + 1,) for size in (3, 5, 9, 4)]),
            )),
        ):  # fmt: skip
            plain = of_number if len(calls[0]) == 2 else of_size
            for arguments in calls:
                assert is_same(function(*arguments), plain(*arguments)), (expression, arguments[1:])
            assert function.cache_info().traces == 1
