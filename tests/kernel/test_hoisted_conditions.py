"""Conditions of steps that are tested before a compiled loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracefuse.dtypes import int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Constant, Expression, Variable, call
from tracefuse.kernel.llvm.hoisted_conditions import without_conditions
from tracefuse.kernel.loop_driver import ChooseStatements, CountedSteps, LoadNumber, StoreNumber

K, N, M, V = (Variable(name, int64) for name in ("k", "n", "m", "v"))
STORE = StoreNumber("p", K)


def number(value: int) -> Constant:
    return Constant(value, int64)


def value_of(e: Expression, numbers: dict[str, int]) -> int:
    match e:
        case Variable(name):
            return numbers[name]
        case Constant(int() as value):
            return value
        case ir.Call(name, (left, right)):
            a, b = value_of(left, numbers), value_of(right, numbers)
            return int({"add": a + b, "sub": a - b, "mul": a * b, "le": a <= b, "lt": a < b, "eq": a == b}[name])
    raise AssertionError(e)


def hold(conditions: tuple[Expression, ...], numbers: dict[str, int]) -> bool:
    return all(value_of(condition, numbers) for condition in conditions)


def loop_of(*conditions: Expression, flag: str | None = None) -> CountedSteps:
    return CountedSteps(K, M, N, False, (ChooseStatements(((conditions, (STORE,)),)),), flag)


LINEAR = st.recursive(
    st.one_of(st.sampled_from([K, N, M]), st.integers(-3, 3).map(number)),
    lambda inner: st.one_of(
        st.builds(call, st.sampled_from(["add", "sub"]), inner, inner),
        st.builds(lambda factor, one: call("mul", number(factor), one), st.integers(-3, 3), inner),
    ),
    max_leaves=5,
)


@given(st.sampled_from(["le", "lt", "eq"]), LINEAR, LINEAR, st.integers(-4, 4), st.integers(-4, 6))
def test_conditions_before_a_loop_hold_if_those_of_all_steps_do(
    comparison: str, left: Expression, right: Expression, start: int, stop: int
) -> None:
    condition = call(comparison, left, right)
    (tests,), loop = without_conditions(loop_of(condition))
    assert isinstance(tests, ChooseStatements)
    assert loop.body == (ChooseStatements((((), (STORE,)),)),)
    numbers = {"n": stop, "m": start}
    in_steps = all(hold((condition,), {**numbers, "k": k}) for k in range(start, stop))
    assert in_steps == any(hold(conditions, numbers) for conditions, _ in tests.choices)


@pytest.mark.parametrize(
    "loop",
    [
        loop_of(call("le", K, N), flag="f"),  # it may stop before the step that fails
        loop_of(call("le", call("mul", K, K), N)),
        loop_of(call("ne", K, N)),
        CountedSteps(K, M, N, False, (LoadNumber(V, "p"), *loop_of(call("le", V, N)).body)),
        CountedSteps(K, M, N, False, (ChooseStatements((((call("le", K, N),), (STORE,)), ((), ()))),)),
    ],
)  # fmt: skip
def test_other_conditions_are_tested_in_steps(loop: CountedSteps) -> None:
    assert without_conditions(loop) == ((), loop)
