"""Calls that are replayed for sizes that come again: what a record runs, and what leaves it to Python."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, clear_caches, fuse, while_loop
from tracefuse.kernel.llvm.replay_functions import MOST_RECORDS
from tracefuse.kernel.llvm.replay_records import ReplayChain, can_replay
from tracefuse.runtime import replayed_calls
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler

pytestmark = pytest.mark.skipif(not can_replay(), reason="this Python does not count references exactly")

RANDOM = np.random.default_rng(3)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[ReplayChain]:
    """The chains of the functions of a test, in the order in which their calls were compiled."""
    found: list[ReplayChain] = []

    def chain(self: CpuKernelCompiler, missed: Callable[[Any], Any], make: Callable[[Any, Any], Any]) -> ReplayChain:
        found.append(ReplayChain(missed, make))
        return found[-1]

    monkeypatch.setattr(CpuKernelCompiler, "chain", chain)
    return found


def two_segments(x: Any, y: Any) -> Any:
    rows = x / (x.sum(axis=1, keepdims=True) + 3)
    return (rows / (rows.sum(axis=0, keepdims=True) + y) + 1) / rows.sum(axis=1, keepdims=True), x + y


def check(f: Any, function: Any, *arguments: Any) -> None:
    for got, expected in zip(f(*arguments), function(*arguments), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        assert got.dtype == expected.dtype


def test_a_call_of_several_segments_is_replayed_from_its_third_time_on(chains: list[ReplayChain]) -> None:
    f, x, y = fuse(two_segments), RANDOM.random((40, 60)), RANDOM.random(60)
    check(f, two_segments, x, y)
    assert sum(chain.count for chain in chains) == 0
    check(f, two_segments, x, y)
    assert sum(chain.count for chain in chains) == 1
    for _ in range(3):
        check(f, two_segments, RANDOM.random((40, 60)), RANDOM.random(60))


def test_results_of_replayed_calls_share_no_memory_while_they_live() -> None:
    f = fuse(lambda x: x + 1)
    x = RANDOM.random(500)
    kept = [f(x) for _ in range(100)]
    assert len({cpu_memory.address(a) for a in kept}) == 100
    assert all(cpu_memory.address(a) % 64 == 0 and a.flags.c_contiguous and a.flags.writeable for a in kept)
    assert all(np.array_equal(a, x + 1) for a in kept)
    view = kept[3][5:]
    kept.clear()
    fresh = [f(x) for _ in range(100)]
    assert not any(np.shares_memory(view, a) for a in fresh)


def test_many_living_results_keep_no_memory_from_later_calls() -> None:
    f, x = fuse(lambda x: x + 1), RANDOM.random(321)
    kept = [f(x) for _ in range(300)]
    before = cpu_memory.cached_bytes()
    for _ in range(500):
        f(x)
    assert cpu_memory.cached_bytes() < before + 20 * x.nbytes
    assert all(np.array_equal(a, x + 1) for a in kept)


def test_other_sizes_types_and_layouts_leave_a_record() -> None:
    f = fuse(two_segments)
    for _ in range(3):
        for rows, columns in ((4, 70), (40, 60), (41, 60), (7, 9)):
            x, y = RANDOM.random((rows, columns)), RANDOM.random(columns)
            check(f, two_segments, x, y)
            check(f, two_segments, np.asfortranarray(x), y)
            check(f, two_segments, x[::-1], y)
            check(f, two_segments, (9 * x + 1).astype(np.int32), y)
    assert f(x, y)[0].shape == (7, 9)


def test_a_chain_stops_at_its_most_records(chains: list[ReplayChain]) -> None:
    f = fuse(lambda x: x * 2)
    for _ in range(3):
        for size in range(100, 100 + 2 * MOST_RECORDS):
            x = RANDOM.random(size)
            assert np.array_equal(f(x), x * 2)
    assert [chain.count for chain in chains] == [MOST_RECORDS]


def test_sizes_that_never_come_again_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_calls, "MOST_SEEN", 4)
    f = fuse(lambda x: x * 2)
    for size in (100, 101, 102, 103, 104, 104, 104, 100, 100):
        assert f(np.ones(size)).shape == (size,)


def test_numbers_are_read_at_each_call(chains: list[ReplayChain]) -> None:
    f = fuse(lambda x, s: x * s)
    for dtype in (np.float32, np.float64):
        x: Any = RANDOM.random(50).astype(dtype)
        for s in (1.5, 2.5, -0.1, 1e300 if dtype is np.float64 else 7.0, 3.0):
            assert np.array_equal(f(x, s), x * s)
    assert [chain.count for chain in chains] == [1, 1]
    assert np.array_equal(f(x, 3), x * 3)


def test_strides_and_integers_are_part_of_a_record(chains: list[ReplayChain]) -> None:
    f, x = fuse(lambda x, k: x * (k / 4) + x.shape[0] + k), RANDOM.random((30, 40))
    views = x, np.asfortranarray(x), x[::2], x[1::2], x[::-1], x[:, ::3], np.broadcast_to(x[0], (30, 40)), x[:15]
    for _ in range(4):
        for view in views:
            for k in (3, -7):
                np.testing.assert_allclose(f(view, k), view * (k / 4) + view.shape[0] + k, rtol=1e-12)
    assert sum(chain.count for chain in chains) > 8
    assert f(x, 2**40)[0, 0] == x[0, 0] * 2**38 + 30 + 2**40
    np.testing.assert_allclose(f(x, 2**200), x * 2**198 + 30.0 + 2.0**200)


def test_an_index_out_of_range_raises_in_a_replayed_call(chains: list[ReplayChain]) -> None:
    f, x, k = fuse(lambda x, k: x[k] + 1), RANDOM.random(50), RANDOM.integers(-50, 50, 20)
    for _ in range(4):
        assert np.array_equal(f(x, k), x[k] + 1)
    assert [chain.count for chain in chains] == [1]
    k[7] = 50
    for _ in range(3):
        with pytest.raises(IndexError, match="50"):
            f(x, k)
    k[7] = 49
    assert np.array_equal(f(x, k), x[k] + 1)


def test_threads_replay_one_call_at_once() -> None:
    f, x, y = fuse(two_segments), RANDOM.random((300, 400)), RANDOM.random(400)
    expected = [f(x, y) for _ in range(3)][-1]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(30):
            if not all(map(np.array_equal, f(x, y), expected)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_whose_memory_is_cleared_makes_new_arrays() -> None:
    f, x = fuse(lambda x: x + 1), RANDOM.random(700)
    for _ in range(3):
        f(x)
    cpu_memory.clear_cache()
    assert np.array_equal(f(x), x + 1)
    clear_caches()
    assert np.array_equal(f(x), x + 1)


def test_a_record_without_memory_leaves_the_call_to_python(chains: list[ReplayChain], monkeypatch: Any) -> None:
    f, x = fuse(lambda x: x + 1), RANDOM.random(900)
    kept = [f(x) for _ in range(3)]

    def full(self: Any, shape: Any, dtype: Any) -> Any:
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(cpu_memory.BufferCache, "_make", full)
        with pytest.raises(MemoryError, match="memory"):
            kept += [f(x) for _ in range(2000)]
    assert np.array_equal(f(x), kept[0])


def test_a_chain_is_freed_with_its_function(chains: list[ReplayChain]) -> None:
    f, x = fuse(lambda x: x + 1), RANDOM.random(30)
    for _ in range(3):
        f(x)
    chain = weakref.ref(chains.pop())
    del f
    gc.collect()
    assert chain() is None


def test_numbers_of_the_host_are_results_of_python() -> None:
    with FusionDefinition() as fd:
        t, s = fd.define_tensor([-1], True), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.mul(t, fd.ops.add(s, s)))
        fd.add_output(fd.ops.add(s, s))
    for k in (2, 3, 2, 2, 2):
        array, number = fd.execute([np.ones(5, np.float32), k])
        assert (array.tolist(), int(number)) == ([2.0 * k] * 5, 2 * k)


def test_empty_arrays_and_loops_are_left_to_python(chains: list[ReplayChain]) -> None:
    f = fuse(lambda x: x + 1)
    g = fuse(lambda x: while_loop(lambda v: v.sum() < 100, lambda v: v * 2, x))
    for _ in range(4):
        assert f(np.ones((0, 3))).shape == (0, 3)
        assert g(np.ones(3)).tolist() == [64.0, 64.0, 64.0]
    assert all(chain.count == 0 for chain in chains)


def test_a_definition_without_inputs_runs_again_and_again() -> None:
    with FusionDefinition() as fd:
        for length, start, step, dtype in ((2, 0, 2, DataType.Int), (3, 100, 1, DataType.Int32)):
            fd.add_output(fd.ops.iota(*map(fd.define_scalar, (length, start, step)), dtype))
    for _ in range(4):
        first, second = fd.execute([])
        assert (first.tolist(), second.tolist()) == ([0, 2], [100, 101, 102])
