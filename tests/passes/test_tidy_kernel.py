"""Tests the kernel passes that tidy: equal results, less text, and short unique names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.kernel import cuda_algorithms
from tracefuse.dtypes import float32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.passes.tidy_kernel import tidy

X, Y = ir.Buffer("x", float32), ir.Buffer("y", float32, written=True)
N, ROW = ir.Variable("n", int64), ir.Variable("row", int64)
ZERO, ONE, TWO = (ir.Constant(k, int64) for k in range(3))


def kernel(*body: ir.Statement) -> ir.Kernel:
    return ir.Kernel("some", (X, Y, N), (ir.Axis(ROW, N),), body, "cpu")


def let(name: str, value: ir.Expression) -> ir.Let:
    return ir.Let(ir.Variable(name, value.dtype), value)


def test_what_nothing_reads_goes_with_all_that_it_alone_read() -> None:
    x0, held = ir.Load(X, ROW), ir.Buffer("held_3", float32, "local", 2)
    unused = let("v1_2", ir.call("add", ir.Variable("v0_1", float32), ir.Variable("v0_1", float32)))
    loop = ir.For(ir.Variable("k_4", int64), ZERO, TWO, ONE, "unroll", (ir.Store(held, ir.Variable("k_4", int64), x0),))
    total = ir.Variable("acc_5", float32)
    dead = (ir.Declare(total, x0), ir.Accumulate(total, "add", x0), ir.If(ir.call("lt", ROW, ZERO), (ir.Comment("?"),)))
    made = kernel(let("v0_1", x0), unused, ir.Allocate(held), loop, *dead, ir.Store(Y, ROW, x0))
    assert kernel_text(tidy(made)) == (
        "kernel some(x: const f32*, y: f32*, n: i64)  target cpu\n  grid row in n\n    y[row] = x[row]\n"
    )


def test_a_name_that_is_alone_loses_its_number_and_the_others_count_from_one() -> None:
    first, second, alone, parameter = let("v0_7", ir.Load(X, ROW)), let("v0_9", ir.Load(X, ZERO)), "v2_8", "n_3"
    total = let(alone, ir.call("add", first.variable, second.variable))
    size = let(parameter, ir.call("add", N, ONE))
    real, imaginary = let("v5_4_re", total.variable), let("v5_4_im", total.variable)
    stored = ir.call("add", real.variable, imaginary.variable)
    made = tidy(kernel(first, second, total, size, real, imaginary, ir.Store(Y, size.variable, stored)))
    assert [statement.variable.name for statement in made.body if isinstance(statement, ir.Let)] == [
        "v0_1", "v0_2", "v2", "n_1", "v5_re", "v5_im",
    ]  # fmt: skip


def test_tidied_kernels_of_a_gpu_compute_the_same() -> None:
    x = np.random.default_rng(3).standard_normal((3, 256)).astype(np.float32)
    results = []
    for one in (cuda_algorithms.softmax(float32, 256, 64, 4), tidy(cuda_algorithms.softmax(float32, 256, 64, 4))):
        y = np.zeros_like(x)
        interpret(one, [x, y, 3])
        results.append(y)
    np.testing.assert_array_equal(*results)
    x, y = np.arange(45 * 70, dtype=np.float32).reshape(45, 70), np.zeros((70, 45), np.float32)
    interpret(tidy(cuda_algorithms.transpose(float32)), [x, y, 45, 70])
    np.testing.assert_array_equal(y, x.T)


def test_tidying_twice_changes_nothing_more() -> None:
    once = tidy(cuda_algorithms.softmax(float32, 256, 64, 4))
    assert tidy(once) == once
    assert replace(once, name="other") == replace(tidy(once), name="other")
