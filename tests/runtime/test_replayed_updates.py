"""Calls that update arguments and are replayed: what a record copies, and when it is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse
from tracefuse.kernel.llvm.replay_copies import is_safe_within, runs_of
from tracefuse.kernel.llvm.replay_records import ReplayChain, can_replay

pytestmark = pytest.mark.skipif(not can_replay(), reason="this Python does not count references exactly")


def shifted(x: Any, y: Any) -> None:
    x[:-3] = x[3:]


def doubled_column(x: Any, y: Any) -> None:
    x[:, 3] *= 2


def borders(x: Any, y: Any) -> None:
    x[0], x[-1] = x[1] * 1, x[-2] * 1
    x[:, 0] = x[:, 1]
    x[:, -1] = x[:, -2]


def interior(x: Any, y: Any) -> None:
    x[1:-1, 1:-1] += 0.25 * (y[2:, 1:-1] - y[:-2, 1:-1])


def reversed_rows(x: Any, y: Any) -> None:
    x[...] = x[::-1]


def turned(x: Any, y: Any) -> None:
    x[:5, :5] = x[2:7, 1:6].T


def both(x: Any, y: Any) -> Any:
    x[1:] = y[:-1]
    y[:, ::2] = x[:, ::2] - 1
    return x.sum(1)


def every_second(x: Any, y: Any) -> None:
    x[:, ::2] = x[:, 1::2]


UPDATES: list[Callable[[Any, Any], Any]] = [
    shifted, doubled_column, borders, interior, reversed_rows, turned, both, every_second,
]  # fmt: skip


@pytest.mark.parametrize("function", UPDATES)
def test_replayed_updates_are_numpys(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    records, add = [], ReplayChain.add
    monkeypatch.setattr(ReplayChain, "add", lambda *arguments: (records.append(1), add(*arguments))[1])
    fused, random = fuse(function, target="cpu"), np.random.default_rng(4)
    for layout in (np.ascontiguousarray, np.asfortranarray):
        for _ in range(4):
            x, y = (layout(random.random((9, 12))) for _ in range(2))
            other, same = x.copy(order="K"), y.copy(order="K")
            result, expected = fused(x, y), function(other, same)
            np.testing.assert_allclose(x, other, rtol=1e-12)
            np.testing.assert_allclose(y, same, rtol=1e-12)
            assert (result is None) == (expected is None)
    assert records


@pytest.mark.filterwarnings("ignore:.*in the same memory")
def test_overlapping_and_read_only_arguments_leave_the_record() -> None:
    fused = fuse(interior, target="cpu")
    for shift in (0, 0, 0, 48, 13, 96, 0):
        memory = np.arange(216.0) ** 1.5
        x, y = memory[:96].reshape(8, 12), memory[120 - shift :][:96].reshape(8, 12)
        expected = memory.copy()
        interior(expected[:96].reshape(8, 12), expected[120 - shift :][:96].reshape(8, 12))
        fused(x, y)
        np.testing.assert_allclose(memory, expected, rtol=1e-12)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fused(x, y)


@settings(max_examples=times(25))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_runs_copy_every_element_and_a_safe_copy_reads_none_that_it_wrote(extents: list[int], data: Any) -> None:
    shape, steps = tuple(extents), [data.draw(st.sampled_from([-2, -1, 1, 2])) for _ in extents]
    room = [1 + (extent - 1) * 2 + 2 for extent in extents]
    starts = [[data.draw(st.integers(0, 2)) for _ in extents] for _ in range(2)]

    def view(array: Any, start: Sequence[int]) -> Any:
        first = [s if step > 0 else s + (n - 1) * -step for s, step, n in zip(start, steps, shape, strict=True)]
        at = array[tuple(slice(f, None, step) for f, step in zip(first, steps, strict=True))]
        return at[tuple(slice(0, n) for n in shape)]

    memory = np.arange(int(np.prod(room)), dtype=np.int64).reshape(room)
    source, target = view(memory, starts[0]), view(memory, starts[1])
    runs = runs_of(shape, source.strides, target.strides, 8)
    if runs is None:
        return
    addresses = [v.__array_interface__["data"][0] - memory.__array_interface__["data"][0] for v in (source, target)]
    expected = memory.copy()
    view(expected, starts[1])[...] = source
    elements, flat, (run, *loops) = memory.copy().reshape(-1), memory.reshape(-1), runs
    safe = is_safe_within(runs, addresses[0] - addresses[1])
    for k, j in itertools.product(range(loops[0]), range(loops[3])):
        places = [a + k * loops[1 + side] + j * loops[4 + side] for side, a in enumerate(addresses)]
        read, written = (slice(place // 8, (place + run) // 8) for place in places)
        elements[written] = (elements if safe else flat)[read].copy()
    np.testing.assert_array_equal(elements.reshape(room), expected)
