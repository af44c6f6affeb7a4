"""Writes of few elements of an argument cost what they touch, through whatever chain of views they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from segments import AllocateBuffer
from tracefuse import fuse
from tracefuse.ir.extents import evaluate


def flat_diagonal(x: Any, v: Any) -> None:
    x.flat[:: x.shape[0] + 1] = v


def flat_diagonal_updated(x: Any, v: Any) -> None:
    x.flat[:: x.shape[0] + 1] += v


def antidiagonal_of_ranges(x: Any, v: Any) -> None:
    n = x.shape[0]
    np.fliplr(x)[range(n), range(n)] = v


def antidiagonal_filled(x: Any, v: Any) -> None:
    np.fill_diagonal(np.fliplr(x), v[0])


def flattened(x: Any, v: Any) -> None:
    x.reshape(-1)[3:20:2] += v[0]


def columns(x: Any, v: Any) -> None:
    x[:, np.array([3, 1, 3])] = v[:3]


def put(x: Any, v: Any) -> None:
    np.put(x, [5, 1, 5], v[:3])


def flipped_slice(x: Any, v: Any) -> None:
    x[::-1][1:3] = v
    x.T[::-1][2, 1:] += 1
    np.flipud(x)[0, ::-2] = 7


def both_ends(x: Any, v: Any) -> None:
    x[:3] *= v
    x[-3:] *= v[::-1]


PROGRAMS = (
    flat_diagonal, flat_diagonal_updated, antidiagonal_of_ranges, antidiagonal_filled, flattened, columns, put,
    flipped_slice, both_ends,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_few_elements_are_written_in_place(program: Callable[..., Any]) -> None:
    fused = fuse(program)
    for size in (40, 40, 52):
        mine, right = (np.arange(1.0 * size**2).reshape(size, size) for _ in range(2))
        v = np.arange(1.0, size + 1)
        fused(mine, v)
        program(right, v)
        assert np.array_equal(mine, right)
    made = fused.host_program(mine, v)
    whole = mine.size
    for step in made.program.instructions:
        if isinstance(step, AllocateBuffer):
            values = {-1: mine.shape[0], -2: mine.shape[1], -3: len(v)}
            assert np.prod([evaluate(extent, values) for extent in step.spec.extents]) < whole / 4


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_they_are_written_in_every_layout(program: Callable[..., Any]) -> None:
    fused = fuse(program, target="reference")
    wide = np.arange(4.0 * 40**2).reshape(40, 160)
    for layout in (np.asfortranarray, lambda a: a[::-1, ::-1], lambda a: a.repeat(2, 0)[::2]):
        mine = layout(wide[:, ::4].copy())
        right = layout(wide[:, ::4].copy())
        v = np.arange(1.0, 41)
        fused(mine, v)
        program(right, v)
        assert np.array_equal(mine, right)
