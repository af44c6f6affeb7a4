"""Tests the readable text of kernels."""

from __future__ import annotations

import pytest

from tests.kernel import cuda_algorithms
from tests.kernel import cuda_kernels as cases
from tracefuse.dtypes import bool_, float32, int32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_text import expression, kernel_text

A, B, C = (ir.Variable(name, float32) for name in "abc")
P, Q = (ir.Variable(name, bool_) for name in "pq")
I = ir.Variable("i", int32)


def call(name: str, *arguments: ir.Expression) -> ir.Expression:
    return ir.call(name, *arguments)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (call("mul", call("add", A, B), C), "(a + b) * c"),
        (call("add", call("mul", A, B), C), "a * b + c"),
        (call("add", A, call("add", B, C)), "a + (b + c)"),
        (call("sub", call("sub", A, B), C), "a - b - c"),
        (call("neg", call("neg", A)), "-(-a)"),
        (call("select", call("lt", A, B), A, call("select", P, B, C)), "a if a < b else b if p else c"),
        (call("and", call("or", P, Q), call("not", P)), "(p or q) and not p"),
        (call("not", call("and", P, Q)), "not (p and q)"),
        (call("and", I, call("not", I)), "i & ~i"),
        (call("maximum", A, ir.Constant(-1.0, float32)), "max(a, -1.0)"),
        (ir.Cast(call("add", A, B), int64), "i64(a + b)"),
        (ir.call("bitcast", A, dtype=int32), "bitcast_i32(a)"),
        (ir.Load(cases.source("T0", float32), call("add", I, I), "streaming"), "T0[i + i, streaming]"),
    ],
)
def test_expressions_are_infix_with_the_parentheses_they_need(value, text):
    assert expression(value).text == text


def test_a_kernel_prints_its_parameters_grid_loops_and_comments():
    assert kernel_text(cuda_algorithms.softmax(float32, 64, 16, 2)) == (
        """\
kernel softmax_f32_64(x: const f32*, y: f32*, rows: i64)  target cuda, 16 threads as thread, 2 blocks a multiprocessor
  grid row in rows
    # softmax over the last axis: the row stays in registers
    let start: i64 = row * 64 + i64(thread) * 2
    local raw: f32[2]
    local values: f32[4]
    most: f32 = -inf
    for chunk in range(0, 2) unroll:
      raw[0 : +2] = x[start + i64(chunk) * 32 : +2, streaming]
      for k in range(0, 2) unroll:
        values[chunk * 2 + k] = raw[k]
        most = max(most, values[chunk * 2 + k])
    most = reduce over 16 threads ((left0), (right0)) -> (max(left0, right0))
    total: f32 = 0.0
    for j in range(0, 4) unroll:
      values[j] = exp(values[j] - most)
      total += values[j]
    total = reduce over 16 threads ((left0), (right0)) -> (left0 + right0)
    let scale: f32 = 1.0 / total
    for o in range(0, 2) unroll:
      for q in range(0, 2) unroll:
        raw[q] = values[o * 2 + q] * scale
      y[start + i64(o) * 32 : +2] = raw[0 : +2, streaming]
"""
    )


def test_every_statement_of_the_ir_prints():
    text = (
        kernel_text(cuda_algorithms.transpose(float32))
        + kernel_text(cuda_algorithms.moments(64))
        + kernel_text(cuda_algorithms.argmax(64))
    )
    for part in ("barrier", "shared tile: f32[1056]", "grid across in truncdiv(m + 31, 32)", "no contraction", "if "):
        assert part in text
    text = kernel_text(cuda_algorithms.cluster_sum(float32, 2, 32))
    for part in (
        "clusters of 2 blocks", "held[i64(thread) : +1] = x[at : +1], awaited later", "await copies",
        "sums of block i64(thread)[rank] = state", "barrier of the cluster",
    ):  # fmt: skip
        assert part in text
    branch = ir.If(P, (ir.Assign(A, B),), (ir.Accumulate(A, "minimum", B), ir.Comment("two\nlines")))
    kernel = ir.Kernel("k", (P,), (), (branch,), "cpu")
    assert kernel_text(kernel) == (
        "kernel k(p: bool)  target cpu\n  if p:\n    a = b\n  else:\n    a = min(a, b)\n    # two\n    # lines\n"
    )
