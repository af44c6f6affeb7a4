"""Loops, branches and questions about computed values on a GPU: values as on the CPU, sizes that change, streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.loops.test_control_flow import PROGRAMS
from tests.frontend.questions.test_continuations import branches, converges
from tests.ways import why_not
from tracefuse import fuse, options

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402


def equal(one: Any, other: Any, rtol: float = 2e-5) -> None:
    if isinstance(one, dict):
        one, other = list(one.values()), list(other.values())
    if isinstance(one, tuple | list):
        for a, b in zip(one, other, strict=True):
            equal(a, b, rtol)
    elif isinstance(one, cupy.ndarray):
        np.testing.assert_allclose(cupy.asnumpy(one), other, rtol=rtol, atol=1e-6)
    else:
        assert one == other


@pytest.mark.parametrize(("program", "argument"), PROGRAMS[1:], ids=[p.__name__ for p, _ in PROGRAMS[1:]])
def test_control_flow_gives_the_values_of_the_cpu(program: Any, argument: Any) -> None:
    fused = fuse(lambda x: program(tracefuse, x))
    expected = fused(argument)
    equal(fused(cupy.asarray(argument)), expected)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = fused(cupy.asarray(argument))
        stream.synchronize()
        equal(result, expected)
    with options(check=True):
        equal(fused(cupy.asarray(argument)), expected)


def test_slices_that_are_not_aligned_and_many_steps() -> None:
    fused = fuse(lambda x: tracefuse.scan(lambda c, row: (c * 0.5 + row, c.sum()), x[0] * 0, x))
    for shape in ((5, 3), (4, 4), (5000, 7)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        equal(fused(cupy.asarray(x)), fused(x), rtol=1e-4)


def test_questions_about_computed_values() -> None:
    fused, loop = fuse(branches), fuse(converges)
    for sign in (1.0, -1.0, -0.01, 1.0):
        x = sign * np.linspace(0.1, 3, 5)
        equal(fused(cupy.asarray(x)), branches(x))
    x = np.random.default_rng(1).normal(size=8)
    for tol in (2e-1, 1e-1, 2e-1):
        equal(loop(cupy.asarray(x), tol), converges(x, tol))


def relaxed(u: Any, steps: int) -> Any:
    for k in range(steps):
        u[1:-1] = 0.5 * (u[:-2] + u[2:])
        if k % 100 == 0:
            u[0] = u[0] + 1
    return u


def accumulated(x: Any) -> Any:
    total = 0  # an array without axes after the first step, which the next ones change in place
    for i in range(x.shape[0]):
        total += x[i].sum()
    return total


def swept(x: Any) -> Any:
    total = x[0] * 0
    for i in range(1, x.shape[0]):
        for j in range(3):
            x[i, j] = 0.5 * (x[i, j] + x[i - 1, j])
        total = total + x[i]
    return x, total


@pytest.mark.parametrize(
    ("function", "arguments"), [(relaxed, (np.linspace(0, 1, 50), 1500)), (swept, (np.arange(1200.0).reshape(400, 3),))]
)
def test_a_long_loop_is_recorded_once(function: Any, arguments: tuple[Any, ...]) -> None:
    fused, expected = fuse(function), function(arguments[0].copy(), *arguments[1:])
    for _ in range(2):
        equal(fused(cupy.asarray(arguments[0]), *arguments[1:]), expected)
    nodes = fused.explain(cupy.asarray(arguments[0]), *arguments[1:]).segmentation.fusion.nodes
    assert any(node.op.name == "range_loop" for node in nodes)


def test_a_number_that_becomes_an_array_in_a_long_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracefuse.frontend.control_flow.unrolled_loops.MOST_UNROLLED_OPS", 20)
    x = np.arange(60.0).reshape(20, 3)
    equal(fuse(accumulated)(cupy.asarray(x)), accumulated(x))


def test_a_loop_of_few_ops_is_unrolled() -> None:
    def steps(x: Any) -> Any:
        for _ in range(200):
            x = 3.7 * x * (1 - x)
        return x

    x, fused = np.linspace(0.1, 0.9, 30), fuse(steps)
    equal(fused(cupy.asarray(x)), steps(x), rtol=1e-6)
    nodes = fused.explain(cupy.asarray(x)).segmentation.fusion.nodes
    assert all(node.op.kind != "control flow" for node in nodes)
