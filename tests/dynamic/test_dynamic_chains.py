"""Chains of reshapes and resizes whose sizes are run-time scalars, in every mode, against NumPy.

One definition is run for several sizes in turn, so that plans that were made for others are met.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import DataType, FusionDefinition, options


@dataclass
class Step:
    """One op; its scalar inputs for each of the runs."""

    op: str
    axis: int = 0
    scalars: list[tuple[int, ...]] = field(default_factory=list)


def factors(draw: st.DrawFn, total: int, rank: int) -> tuple[int, ...]:
    shape = []
    for _ in range(rank - 1):
        divisors = [d for d in range(1, total + 1) if total % d == 0] if total else [0, 1, 3]
        shape.append(draw(st.sampled_from(divisors)))
        total = total // shape[-1] if shape[-1] else 0
    return (*shape, total)


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[int, ...]], list[Step]]:
    """(rank of the input, its shape in each run, steps)."""
    runs = draw(st.integers(2, 3))
    rank = draw(st.integers(1, 3))
    starts = [tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))) for _ in range(runs)]
    shapes = list(starts)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(["reshape", "slice", "pad", "cat", "roll", "mul", "scale"]))
        now = len(shapes[0])
        step = Step(op, draw(st.integers(0, now - 1)))
        if op == "reshape":
            target = draw(st.integers(1, 3))
            new = []
            for shape in shapes:
                size = int(np.prod(shape))
                entries = list(factors(draw, size, target))
                new.append(tuple(entries))
                if size and draw(st.booleans()):
                    entries[draw(st.integers(0, target - 1))] = -1
                step.scalars.append(tuple(entries))
            shapes = new
        elif op == "slice":
            new = []
            for shape in shapes:
                n = shape[step.axis]
                a = draw(st.integers(0, n))
                b = draw(st.integers(a, n + 2))
                step.scalars.append((a, b))
                new.append((*shape[: step.axis], min(b, n) - a, *shape[step.axis + 1 :]))
            shapes = new
        elif op == "pad":
            new = []
            for shape in shapes:
                n = shape[step.axis]
                left = draw(st.integers(-n, 2))
                right = draw(st.integers(-n - min(left, 0) if left < 0 else -n, 2))
                right = max(right, -n - left)
                step.scalars.append((left, right))
                new.append((*shape[: step.axis], n + left + right, *shape[step.axis + 1 :]))
            shapes = new
        elif op == "cat":
            shapes = [(*s[: step.axis], 2 * s[step.axis], *s[step.axis + 1 :]) for s in shapes]
        elif op == "roll":
            step.scalars = [(draw(st.integers(-4, 9)),) for _ in shapes]
        steps.append(step)
    return rank, starts, steps


def record(rank: int, steps: list[Step]) -> FusionDefinition:
    with FusionDefinition() as fd:
        value = fd.define_tensor([-1] * rank, contiguity=True, dtype=DataType.Float)
        sums = []
        for step in steps:
            scalars = [fd.define_scalar(dtype=DataType.Int) for _ in range(len(step.scalars[0]) if step.scalars else 0)]
            ops, now = fd.ops, value.ndim
            if step.op == "reshape":
                value = ops.reshape(value, scalars)
            elif step.op == "slice":
                starts = [scalars[0] if k == step.axis else 0 for k in range(now)]
                ends = [scalars[1] if k == step.axis else value.size(k) for k in range(now)]
                value = ops.slice(value, starts, ends)
            elif step.op == "pad":
                widths: list[Any] = []
                for k in reversed(range(now)):
                    widths += scalars if k == step.axis else [0, 0]
                value = ops.pad(value, widths)
            elif step.op == "cat":
                value = ops.cat([value, ops.mul(value, 2.0)], step.axis)
            elif step.op == "roll":
                value = ops.roll(value, scalars[0], step.axis)
            elif step.op == "mul":
                value = ops.add(value, value.size(step.axis))
            else:
                value = ops.mul(value, 0.5)
            sums.append(ops.sum(value, dims=[value.ndim - 1]))
        fd.add_output(ops.add(value, 1.0))
        for total in sums:
            fd.add_output(total)
    return fd


def expected(x: Any, steps: list[Step], run: int) -> list[Any]:
    sums = []
    for step in steps:
        scalars = step.scalars[run] if step.scalars else ()
        if step.op == "reshape":
            x = x.reshape(scalars)
        elif step.op == "slice":
            x = x[(*[slice(None)] * step.axis, slice(*scalars))]
        elif step.op == "pad":
            left, right = scalars
            n = x.shape[step.axis]
            x = x[(*[slice(None)] * step.axis, slice(max(0, -left), n + min(0, right)))]
            x = np.pad(x, [(max(0, left), max(0, right)) if k == step.axis else (0, 0) for k in range(x.ndim)])
        elif step.op == "cat":
            x = np.concatenate([x, x * 2], step.axis)
        elif step.op == "roll":
            x = np.roll(x, scalars[0], step.axis)
        elif step.op == "mul":
            x = x + np.float32(x.shape[step.axis])
        else:
            x = x * np.float32(0.5)
        sums.append(x.sum(-1))
    return [x + 1, *sums]


@given(programs(), st.sampled_from(["auto", "on", "off"]))
@settings(max_examples=times(12))
def test_chains_of_run_time_sizes(program: tuple[int, list[tuple[int, ...]], list[Step]], mode: str) -> None:
    rank, starts, steps = program
    fd = record(rank, steps)
    with options(concretize_resize_extents=mode):
        for run in (*range(len(starts)), 0):
            x = np.arange(np.prod(starts[run]), dtype=np.float32).reshape(starts[run])
            scalars = [s for step in steps if step.scalars for s in step.scalars[run]]
            wanted = expected(x, steps, run)
            for made, result in zip(fd.execute([x, *scalars]), wanted, strict=True):
                assert made.shape == result.shape
                assert np.array_equal(made, result)
