"""A write of a slice does not depend on an earlier write that it covers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.reference import evaluate
from tracefuse.passes.dead_code import drop_dead
from tracefuse.passes.overwritten_slices import skip_overwritten

EXTENT = 9
BOUNDS = st.tuples(st.integers(0, EXTENT), st.integers(0, EXTENT), st.integers(1, 3)).filter(lambda b: b[0] < b[1])


def recorded(function: Any, *arguments: Any) -> Fusion:
    fusion = fuse(function, disable="passes").definition(*arguments).fusion
    assert isinstance(fusion, Fusion)
    return fusion


def count_of_writes(fusion: Fusion) -> int:
    return sum(isinstance(node.op, Movement) and node.op.slices == "written" for node in fusion.nodes)


@settings(max_examples=times(30), deadline=None)
@given(st.lists(BOUNDS, min_size=2, max_size=6), st.booleans())
def test_slices_written_one_after_another_hold_what_numpy_leaves(bounds: list[Any], reads: bool) -> None:
    def write(u: Any) -> Any:
        u = u.copy()
        for count, (start, stop, step) in enumerate(bounds):
            before = u[start:stop:step] if reads else 1.0
            u[start:stop:step] = before * 2 + count
        return u

    u = np.arange(EXTENT, dtype=np.float64)
    fusion = drop_dead(skip_overwritten(recorded(write, u)))
    values = [u if fusion.values[number].is_tensor else 0 for number in fusion.inputs]
    np.testing.assert_array_equal(evaluate(fusion, values)[0], write(u))


@settings(max_examples=times(20), deadline=None)
@given(st.lists(st.tuples(BOUNDS, BOUNDS), min_size=1, max_size=4))
def test_slices_read_between_writes_hold_what_numpy_reads(bounds: list[Any]) -> None:
    def write(u: Any) -> Any:
        u, sums = u.copy(), []
        for (start, stop, step), (first, last, stride) in bounds:
            u[start:stop:step] *= 2.0
            sums.append(u[first:last:stride].sum())
        return u, *sums

    u = np.arange(EXTENT, dtype=np.float64)
    fusion = drop_dead(skip_overwritten(recorded(write, u)))
    values = [u if fusion.values[number].is_tensor else 0 for number in fusion.inputs]
    for computed, expected in zip(evaluate(fusion, values), write(u), strict=True):
        np.testing.assert_array_equal(computed, expected)


def test_a_slice_that_shares_nothing_with_those_written_is_read_from_before_the_writes() -> None:
    def halves(u: Any) -> None:
        u[1:-1:2] = 0.5 * (u[:-2:2] + u[2::2])
        u[2:-1:2, 1:-1:2] = 0.5 * (u[2:-1:2, :-2:2] + u[2:-1:2, 2::2])
        u[0] = u[2, 0]

    u, expected = np.arange(64.0).reshape(8, 8), np.arange(64.0).reshape(8, 8)
    fused = fuse(halves)
    fusion = drop_dead(skip_overwritten(recorded(halves, u)))
    reads = [node.operands[0] for node in fusion.nodes if isinstance(node.op, Movement) and node.op.slices == "read"]
    assert reads[:4] == [fusion.inputs[0]] * 4
    for _ in range(2):
        fused(u)
        halves(expected)
        np.testing.assert_array_equal(u, expected)


def test_of_writes_of_one_slice_the_last_remains() -> None:
    def inside(u: Any) -> Any:
        for step in range(5):
            u[1:-1] = float(step)
        return u

    fusion = recorded(inside, np.ones(6))
    assert count_of_writes(fusion) == 5
    assert count_of_writes(drop_dead(skip_overwritten(fusion))) == 1


def test_writes_of_other_slices_remain() -> None:
    def edges(u: Any) -> Any:
        u[:3] = 1.0
        u[1:4] = 2.0
        u[::2] = 3.0
        return u

    fusion = recorded(edges, np.ones(6))
    assert count_of_writes(drop_dead(skip_overwritten(fusion))) == 3
