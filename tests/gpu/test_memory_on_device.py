"""Memory of results on a GPU: updates of arguments, given buffers, what the pool is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.frontend.tracing.fast_calls import only_fast_paths
from tests.runtime.stream_parallel import sets
from tests.ways import why_not
from tracefuse import FusionDefinition, fuse, options, rules, stream_parallel
from tracefuse.errors import DeviceError, FusionError, OutOfMemoryError
from tracefuse.runtime.donated_arrays import DONORS

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402


class Counted(cupy.cuda.MemoryHook):  # type: ignore[misc]
    """Counts what is asked of CuPy's pool."""

    name = "counted"

    def __init__(self) -> None:
        self.count = 0

    def malloc_preprocess(self, **given: Any) -> None:
        self.count += 1


class Peak(cupy.cuda.MemoryHook):  # type: ignore[misc]
    """The most bytes that were alive of those that CuPy's pool gave, and how many times it was asked."""

    name = "peak"

    def __init__(self) -> None:
        self.live = self.peak = self.count = 0

    def malloc_postprocess(self, *, mem_size: int, **given: Any) -> None:
        self.count += 1
        self.live += mem_size
        self.peak = max(self.peak, self.live)

    def free_postprocess(self, *, mem_size: int, **given: Any) -> None:
        self.live -= mem_size


def measured(fd: FusionDefinition, *arguments: Any) -> tuple[int, int, int]:
    """The bytes that are planned at most, those that the pool gave, and what it may have rounded up."""
    planned = fd.explain(arguments).memory.peak
    fd.execute(arguments)
    with Peak() as pool:
        fd.execute(arguments)
    return planned, pool.peak, 512 * pool.count


@contextmanager
def counted() -> Iterator[Counted]:
    with Counted() as hook:
        yield hook


def values(*shape: int) -> Any:
    return cupy.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def adds(x: Any, y: Any) -> None:
    x += y


def test_an_argument_is_updated_by_its_kernel() -> None:
    fused = fuse(adds)
    x, y = values(33, 64), values(33, 64)
    fused(x, y)
    with counted() as pool:
        fused(x, y)
    assert pool.count == 0
    cupy.testing.assert_array_equal(x, 3 * y)


@pytest.mark.parametrize("merge", [None, rules.one_op_a_segment])
@pytest.mark.parametrize("n", [1000, 1 << 20])
def test_an_update_from_other_coordinates_of_the_same_input(n: int, merge: Any) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        fd.add_output(fd.ops.add(x, fd.ops.roll(x, 1, 0)), alias_input=x)
    fd.segment(merge=merge)
    array = cupy.arange(n, dtype=np.float32)
    expected = array + cupy.roll(array, 1)
    for _ in range(3):
        own = cupy.arange(n, dtype=np.float32)
        assert fd.execute([own]) == []
        cupy.testing.assert_array_equal(own, expected)


MEMORY: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "new": lambda shape: cupy.empty(shape, np.float32),
    "every second": lambda shape: cupy.empty((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2],
    "backwards": lambda shape: cupy.empty(shape, np.float32)[::-1],
    "turned": lambda shape: cupy.empty(shape[::-1], np.float32).T,
    "at 4 bytes": lambda shape: cupy.empty(int(np.prod(shape)) + 1, np.float32)[1:].reshape(shape),
}


@pytest.mark.parametrize("memory", MEMORY)
def test_every_template_writes_any_layout(memory: str) -> None:
    x, y = values(48, 260) % 7, values(48, 260) % 5
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x * y, lambda x, y: x.T - y.T, lambda x, y: x - x.max(1, keepdims=True),
        lambda x, y: (x * y).sum(0), lambda x, y: (x * y).sum(1), lambda x, y: x - x.sum(0),
        lambda x, y: np.concatenate([x, y[::-1]]), lambda x, y: x @ y.T,
    ]  # fmt: skip
    for function in functions:
        expected = function(x.get(), y.get())
        out = MEMORY[memory](expected.shape)
        assert fuse(function)(x, y, out=out) is out
        np.testing.assert_array_equal(out.get(), expected)


def test_a_given_buffer_is_written_directly() -> None:
    fused = fuse(lambda x, y: (x * y).sum(1))
    x, out = values(64, 64) % 3, cupy.empty(64, np.float32)
    fused(x, x, out=out)
    with counted() as pool:
        fused(x, x, out=out)
    assert pool.count == 0


@pytest.mark.parametrize("shift", [-1, 0, 1, 7])
def test_a_buffer_that_overlaps_an_argument_reads_it_as_it_was(shift: int) -> None:
    memory = cupy.arange(5000, dtype=np.float32)
    x, out = memory[10:4010], memory[10 + shift : 4010 + shift]
    expected = x * 2 + x[::-1]
    fuse(lambda x: x * 2 + x[::-1])(x, out=out)
    cupy.testing.assert_array_equal(out, expected)


def test_arrays_elsewhere_are_refused() -> None:
    fused = fuse(lambda x: x + 1)
    with pytest.raises(DeviceError, match="no CuPy array"):
        fused(values(4), out=np.empty(4, np.float32))
    with pytest.raises(DeviceError, match="is given to a function for the CPU"):
        fused(np.ones(4, np.float32), out=values(4))


def test_an_updated_argument_that_overlaps_another_is_what_cupy_computes() -> None:
    memory, expected = values(8), values(8)
    with pytest.warns(UserWarning, match="lies in the same memory"):
        fuse(adds)(memory[:5], memory[3:])
    adds(expected[:5], expected[3:])
    cupy.testing.assert_array_equal(memory, expected)


def test_updates_and_buffers_on_another_stream() -> None:
    fused = fuse(adds)
    x, y = values(1 << 20), values(1 << 20)
    fused(x.copy(), y)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        fused(x, y)
    stream.synchronize()
    cupy.testing.assert_array_equal(x, 2 * y)


def test_torch_tensors_are_updated() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(100, device="cuda")
    fuse(adds)(x, x.clone())
    out = torch.empty(100, device="cuda")
    assert fuse(lambda x: x * 2)(x, out=out) is out
    torch.cuda.synchronize()
    assert bool((out == 4).all())
    assert bool((x == 2).all())


def test_a_loop_that_donates_its_state_asks_for_nothing() -> None:
    step = fuse(lambda x, y: x * 0.5 + y, donate_argnums=0)
    x, y = cupy.zeros(1 << 16, np.float32), cupy.ones(1 << 16, np.float32)
    x = step(x, y)
    with counted() as pool:
        for _ in range(10):
            x = step(x, y)
    assert pool.count == 0
    cupy.testing.assert_allclose(x, sum(0.5**k for k in range(11)), rtol=1e-6)


def test_a_donated_array_is_not_passed_again_and_check_mode_spoils_it() -> None:
    fused = fuse(lambda x: x + 1, donate_argnums=0)
    x = values(1000)
    result = fused(x)
    assert result.data.ptr == x.data.ptr
    with pytest.raises(FusionError, match="was donated; its buffer now holds a result"):
        fused(x)
    del result
    cupy.testing.assert_array_equal(fused(x)[-1], 1001)
    x = values(1000)
    fuse(lambda x: x.sum(), donate_argnums=0, donation="ignore", check=True)(x)
    assert bool(cupy.isnan(x).all())


def test_what_was_donated_before_lies_in_the_newest_result() -> None:
    fused = fuse(lambda x: x + 1, donate_argnums=0)
    first = values(1000)
    second = fused(first)
    third = fused(second)
    for old in (first, second):
        with pytest.raises(FusionError, match="was donated; its buffer now holds a result"):
            fused(old)
    cupy.testing.assert_array_equal(third, values(1000) + 2)
    del third
    assert not DONORS
    cupy.testing.assert_array_equal(fused(first), values(1000) + 3)


def test_a_buffer_that_lies_otherwise_is_noticed_without_taking_the_call_apart() -> None:
    fused = fuse(lambda x: x + x[::-1])
    memory, plain = cupy.zeros((7, 80), np.float32), values(3, 64)

    def filled() -> Any:
        memory[2:5, 8:72] = plain
        return memory[2:5, 8:72]

    new = cupy.empty(4 * 200 + 4, np.uint8)
    buffers = [
        cupy.empty((3, 64), np.float32), memory[3:6, 8:72], memory[2:5, 8:72], memory[2:5, 7:71], memory[:3, 16:],
        cupy.empty((3, 128), np.float32)[:, ::2], cupy.empty((64, 3), np.float32).T, memory[4:1:-1, 8:72],
        cupy.empty((3, 64), np.float32)[::-1], cupy.ndarray((3, 64), np.float32, new.data + 4),
    ]  # fmt: skip
    for _ in range(2):
        for buffer in buffers:
            assert fused(filled(), out=buffer) is buffer
            cupy.testing.assert_array_equal(buffer, plain + plain[::-1])
    with only_fast_paths():
        for buffer in buffers:
            fused(filled(), out=buffer)
            cupy.testing.assert_array_equal(buffer, plain + plain[::-1])


def test_trees_buffers_and_donated_leaves_are_direct() -> None:
    step = fuse(lambda state, x: {"w": state["w"] - x, "b": (state["b"] + x, 3)}, donate_argnums=0)
    x = values(48, 64)
    state = {"w": x.copy(), "b": x * 2}
    result = step(state, x)
    with only_fast_paths():
        for _ in range(3):
            result = step({"w": result["w"], "b": result["b"][0]}, x)
    cupy.testing.assert_array_equal(result["b"][0], x * 6)
    assert {result["w"].data.ptr, result["b"][0].data.ptr} == {state["w"].data.ptr, state["b"].data.ptr}
    fused = fuse(lambda t: (t[0] * t[1], t[0].sum(0)))
    out = (cupy.empty((48, 128), np.float32)[:, ::2], cupy.empty(64, np.float32))
    fused([x, x], out=out)
    with only_fast_paths():
        assert fused([x, x + 1], out=out)[1] is out[1]
    cupy.testing.assert_array_equal(out[0], x * (x + 1))


def test_several_arguments_are_updated_by_one_kernel() -> None:
    def step(w: Any, m: Any, v: Any, g: Any) -> None:
        m *= 0.5
        m += g
        v += g * g
        w -= m / (v + 1)

    for n in (1000, 1003, 1 << 20):
        given, own = ([cupy.arange(k, k + n, dtype=np.float32) % 8 for k in range(4)] for _ in "12")
        fused = fuse(step)
        fused(*(a.copy() for a in given))
        with counted() as pool:
            fused(*given)
        assert pool.count == 0
        step(*own)
        for array, expected in zip(given, own, strict=True):
            cupy.testing.assert_allclose(array, expected, rtol=1e-6)


class Watched(cupy.cuda.MemoryHook):  # type: ignore[misc]
    """What is taken of CuPy's pool, and the most that was, in its own rounded sizes."""

    name = "watched"

    def __init__(self) -> None:
        self.live = self.peak = 0

    def malloc_postprocess(self, **given: Any) -> None:
        self.live += given["mem_size"]
        self.peak = max(self.peak, self.live)

    def free_postprocess(self, **given: Any) -> None:
        self.live -= given["mem_size"]


@pytest.mark.parametrize("n", [1 << 12, 1 << 20, (1 << 20) + 1])
def test_the_plan_says_what_the_pool_gives(n: int) -> None:
    def chain(x: Any) -> Any:
        for _ in range(25):
            x = np.sin(x) * 1.5
        return x

    x = cupy.ones(n, np.float32)
    fd = fuse(chain).definition(x)
    fd.segment([x], merge=lambda a, b: len(a.nodes) + len(b.nodes) <= 5)
    fd.execute([x])
    use = fd.explain([x]).memory
    with Watched() as pool:
        result = fd.execute([x])
    assert use.outputs <= pool.live <= use.outputs + 512
    # The pool rounds each of its two blocks, the room of the intermediates and the result, up to 512 bytes.
    assert use.peak <= pool.peak <= use.peak + 2 * 512
    assert use.peak <= 3 * x.nbytes + 1024
    assert result[0].shape == (n,)


def test_out_of_memory_names_the_segment_and_the_next_call_works() -> None:
    fused = fuse(lambda x, y: x + y)
    x, y = cupy.ones((1 << 20, 1), np.float32), cupy.ones((1, 1 << 20), np.float32)
    with pytest.raises(OutOfMemoryError, match="out of memory at segment 0"):
        fused(x, y)
    assert fused(x[:5], y[:, :7]).shape == (5, 7)


@pytest.mark.parametrize("marks", [(True,), (True, True), (True, False, True)])
@pytest.mark.parametrize("reuses", [True, False])
def test_the_programs_with_streams_need_what_their_plan_says(marks: tuple[bool, ...], reuses: bool) -> None:
    for count in (1, 3, 4, 20):
        with options(number_of_streams=count, disable="" if reuses else "loop_buffer_reuse"):
            fd = sets(*marks)
            fd.segment(merge=rules.one_op_a_segment)
            planned, peak, rounded = measured(fd, values(10, 10_000))
        print(f"copies {marks}, {count} streams, {reuses=}: {planned} bytes planned, {peak} measured")
        assert planned <= peak <= planned + rounded


def test_what_each_stream_needs_while_it_runs_counts() -> None:
    def sums(x: Any) -> Any:
        return stream_parallel(np.exp(x).sum(-1), 0)

    for count in (1, 3, 8):
        fd = fuse(sums, number_of_streams=count).definition(values(6, 1 << 22))
        with options(number_of_streams=count):
            planned, peak, rounded = measured(fd, values(6, 1 << 22))
        assert 24 < planned <= peak <= planned + rounded


def test_a_network_of_twelve_layers_needs_what_its_plan_says() -> None:
    def network(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = np.maximum(x @ weight + 0.5, 0)
        return x

    x, weights = values(256, 512), [values(512, 512) for _ in range(12)]
    fd = fuse(network).definition(x, *weights)
    planned, peak, rounded = measured(fd, x, *weights)
    print(f"12 layers: {planned} bytes planned, {peak} measured")
    assert planned == 2 * x.nbytes
    assert planned <= peak <= planned + rounded
