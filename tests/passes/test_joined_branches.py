"""Tests the pass that joins branches: equal results in a kernel of nested choices, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.cuda_kernels import THREAD
from tracefuse.dtypes import float32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.passes.joined_branches import join_branches

THREADS = 32
X, Y = ir.Buffer("x", float32), ir.Buffer("y", float32, written=True)
OTHER = ir.Buffer("other", float32)
BLOCK, POSITION = ir.Variable("block", int64), ir.Variable("position", int64)
RESULT, TWO = ir.Variable("result", float32), ir.Constant(2.0, float32)


def integer(value: int) -> ir.Constant:
    return ir.Constant(value, int64)


def kernel(*body: ir.Statement) -> ir.Kernel:
    start = (ir.Let(POSITION, ir.Cast(THREAD, int64)), ir.Declare(RESULT, ir.Constant(0.0, float32)))
    end = ir.Store(Y, POSITION, RESULT)
    axis = ir.Axis(BLOCK, integer(1))
    return ir.Kernel("some", (X, OTHER, Y), (axis,), (*start, *body, end), "cuda", THREADS, THREAD)


def read(index: ir.Expression, name: str, buffer: ir.Buffer = X, scale: float = 2.0) -> tuple[ir.Statement, ...]:
    loaded, scaled = ir.Variable(f"v{name}", float32), ir.Variable(f"w{name}", float32)
    product = ir.call("mul", loaded, ir.Constant(scale, float32))
    return (
        ir.Let(loaded, ir.Load(buffer, index)),
        ir.Comment(name),
        ir.Let(scaled, product),
        ir.Assign(RESULT, scaled),
    )


def below(bound: int) -> ir.Call:
    return ir.call("lt", POSITION, integer(bound))


def results(one: ir.Kernel) -> Any:
    x, y = np.arange(3 * THREADS, dtype=np.float32), np.zeros(THREADS, np.float32)
    interpret(one, [x, -x, y])
    return y


def branches(one: ir.Kernel) -> int:
    return sum(isinstance(statement, ir.If) for statement in ir.walk_statements(one.body))


@st.composite
def choices(draw: st.DrawFn, depth: int = 3, name: str = "") -> tuple[ir.Statement, ...]:
    """Reads of x at places that depend on nested conditions."""
    if depth == 0 or draw(st.booleans()):
        step = integer(draw(st.integers(0, 1)))
        index = ir.call("add", ir.call("mul", POSITION, step), integer(draw(st.integers(0, THREADS))))
        return read(index, f"{name}_{depth}")
    first, second = draw(choices(depth - 1, f"{name}a")), draw(choices(depth - 1, f"{name}b"))
    return (ir.If(below(draw(st.integers(-1, THREADS + 1))), first, second),)


@given(choices())
def test_nested_choices_between_reads_of_one_array_are_one_read(body: tuple[ir.Statement, ...]) -> None:
    before, after = kernel(*body), join_branches(kernel(*body))
    assert branches(after) == 0
    np.testing.assert_array_equal(results(after), results(before))


FIRST = read(POSITION, "a")
DEPENDENT = (ir.Let(ir.Variable("place", int64), integer(3)), *read(ir.Variable("place", int64), "b"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIRST, read(POSITION, "b", OTHER)),
        (FIRST, read(integer(0), "b", scale=3.0)),
        (FIRST, ()),
        (FIRST, (*read(integer(0), "b"), ir.Assign(RESULT, TWO))),
        ((ir.Let(ir.Variable("there", int64), POSITION), *read(ir.Variable("there", int64), "a")), DEPENDENT),
        ((ir.Assign(RESULT, TWO),), (ir.Assign(RESULT, TWO),)),
    ],
    ids=["other array", "other work", "one branch", "more work", "place computed inside", "no read"],
)
def test_branches_that_do_different_work_stay(
    first: tuple[ir.Statement, ...], second: tuple[ir.Statement, ...]
) -> None:
    one = kernel(ir.If(below(7), first, second))
    assert join_branches(one) == one
