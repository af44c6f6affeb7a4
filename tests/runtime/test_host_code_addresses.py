"""Calls that pass addresses, as on a GPU, run with the CPU's kernels: slots of one allocation, and graphs."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import fusions
from tests.random_programs.test_random_fusions import predicates
from tests.random_programs.test_random_streams import counts, marked
from tests.ways import assert_equal_bits
from tracefuse import FusionDefinition, UnsupportedError, fuse, options, rules, stream_parallel
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.dtypes import DType
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.cpu.cpu_target import NumpyLibrary
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.cpu.cpu_templates import CPU_TEMPLATES


@dataclass(eq=False)
class Memory:
    array: Any

    @property
    def ptr(self) -> int:
        start = int(self.array.ctypes.data)
        return start + -start % 256


@dataclass
class Stream:
    ptr: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


class Addressed(CpuKernelCompiler, CpuDevice, CallText):
    """The compiler, device and call texts of a target in one object.

    It counts allocations and graph launches, and fills new memory with a pattern that no value has.
    """

    addresses = True

    def __init__(self) -> None:
        super().__init__(self)
        self.arenas: list[int] = []
        self.arrays = 0
        self.loops: list[int] = []
        self.allocated: list[weakref.ref[Memory]] = []
        self.graphs: list[int] = []
        self.launchers: list[weakref.ref[Any]] = []

    @property
    def target(self) -> Target:
        return Target("cpu", CPU_TEMPLATES, self, self, NumpyLibrary(), self)

    def entry(self, function: Any) -> Callable[..., None]:
        return lambda stream, *arguments: function.launch(*arguments)

    def stream_worker_count(self, size: int, streams: int) -> int:
        return streams

    def run_stream_workers(
        self, caller: Any, start_worker: Callable[[Any, int], Callable[[int], None]], total: int, streams: int
    ) -> None:
        assert caller == 7
        self.loops.append(total)
        self.allocated.clear()
        workers = [start_worker(Stream(k), k) for k in range(min(total, streams))]
        # The scratch memory lives as long as the iterations.
        assert all(memory() is not None for memory in self.allocated)
        for k in range(total):
            workers[k % streams](k)

    def copier(self, source: Any, target: Any) -> Callable[[Any], Callable[..., None]] | None:
        if not (source.flags.c_contiguous and target.flags.c_contiguous):
            return None
        size = source.nbytes
        return lambda stream: lambda source, target: ctypes.memmove(target, source, size) and None

    def argument_text(self, name: str) -> str:
        return f"{name}.ctypes.data"

    def stream_text(self) -> str | None:
        return "7"

    def empty_text(self, shape: str, dtype: str, size: str) -> str:
        return f"new({shape}, {dtype}, {size})"

    def require_graphs(self) -> None:
        pass

    def graph(self, functions: Sequence[Any]) -> Callable[..., None]:
        def launch(stream: int, arguments: Sequence[tuple[Any, ...]]) -> None:
            self.graphs.append(len(functions))
            for function, own in zip(functions, arguments, strict=True):
                function.launch(*own)

        self.launchers.append(weakref.ref(launch))
        return launch

    def persistent_arena(self) -> Callable[[int], Any]:
        return self.allocate

    def allocate(self, size: int) -> Memory:
        self.arenas.append(size)
        memory = np.empty(size + 256, np.uint8)
        memory.fill(0xA5)
        allocated = Memory(memory)
        self.allocated.append(weakref.ref(allocated))
        return allocated

    def new(self, shape: tuple[int, ...], dtype: DType, size: int) -> Any:
        self.arrays += 1
        array = cpu_memory.empty(shape, dtype)
        assert array.nbytes == size
        return array

    def names(self) -> dict[str, Any]:
        return {**super().names(), "allocate": self.allocate, "new": self.new}


def chain(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for step in range(count):
            x = fd.ops.add(fd.ops.neg(x), float(step))
        fd.add_output(x)
    return fd


def executable(fusion: Any, backend: Addressed, merge: Any = None, graph: bool = False) -> Executable:
    with options(graph=graph):
        return Executable(segment_fusion(fusion, merge=merge), backend.target, options=resolve())


@settings(max_examples=30, deadline=None)
@given(st.data(), st.booleans())
def test_random_fusions_give_the_same_bits_from_addresses(data: st.DataObject, graph: bool) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    merge = data.draw(st.sampled_from([None, rules.one_op_a_segment, rules.reduction_ends_segment]))
    expected = Executable(segment_fusion(fusion, merge=merge))(arguments)
    for _ in range(2):
        for own, wanted in zip(executable(fusion, Addressed(), merge, graph)(arguments), expected, strict=True):
            assert_equal_bits(np.asarray(own), np.asarray(wanted), "from addresses")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(drawn=marked("exact"), merge=predicates(), count=counts(), reuses=st.booleans())
def test_random_stream_parallel_loops_give_the_same_bits_from_addresses(
    drawn: Any, merge: Any, count: int, reuses: bool
) -> None:
    fusion, arguments = drawn
    expected = Executable(segment_fusion(fusion, merge=merge))(arguments)
    with options(number_of_streams=count, disable="" if reuses else "loop_buffer_reuse"):
        run = Executable(segment_fusion(fusion, merge=merge), Addressed().target, options=resolve())
    for _ in range(2):
        for own, wanted in zip(run(arguments), expected, strict=True):
            assert_equal_bits(np.asarray(own), np.asarray(wanted), "from addresses")


def test_a_chain_of_twenty_segments_needs_an_arena_of_two_slots() -> None:
    backend = Addressed()
    run = executable(chain(10).fusion, backend, rules.one_op_a_segment)
    x = np.ones((30, 40), np.float32)
    (result,) = run([x])
    assert len(run.plan_for([x])[0].segments) == 20
    assert (backend.arenas, backend.arrays) == ([2 * 4864], 1)  # 4,800 bytes, up to a multiple of 256
    np.testing.assert_array_equal(result, np.full((30, 40), 6, np.float32))


def test_a_graph_takes_all_kernels_between_library_calls() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        y = fd.ops.exp(fd.ops.neg(x))
        z = fd.ops.abs(fd.ops.sin(fd.ops.matmul(y, y)))
        fd.add_output(fd.ops.neg(z))
        fd.add_output(y)
    backend = Addressed()
    run = executable(fd.fusion, backend, rules.one_op_a_segment, graph=True)
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    first = run([x])
    again = run([x * 2])
    assert backend.graphs == [2, 3, 2, 3]
    y = np.exp(-x)
    np.testing.assert_allclose(first[1], y, rtol=1e-6)
    np.testing.assert_allclose(first[0], -np.abs(np.sin(y @ y)), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(first[0], again[0])


def test_a_graph_goes_with_the_function_that_launches_it() -> None:
    backend = Addressed()
    run = executable(chain(3).fusion, backend, rules.one_op_a_segment, graph=True)
    run([np.ones((4, 4), np.float32)])
    (launcher,) = backend.launchers
    assert launcher() is not None
    del run
    gc.collect()
    assert launcher() is None


def test_sizes_of_many_kinds_are_allocated_one_by_one() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        for count in range(1, 8):
            x = fd.ops.neg(fd.ops.cat([x, fd.ops.full([64 * count], 1.0)], 0))
        fd.add_output(x)
    backend = Addressed()
    (result,) = executable(fd.fusion, backend, rules.one_op_a_segment)([np.zeros(5, np.float32)])
    assert len(backend.arenas) > 6
    assert result.shape == (5 + 64 * 28,)


def test_graphs_are_refused_on_the_cpu() -> None:
    with pytest.raises(UnsupportedError, match="graph=True launches kernels as one CUDA graph") as caught:
        fuse(lambda x: x + 1, graph=True)(np.ones(3))
    assert "pass CuPy arrays, or leave graph= out" in str(caught.value)


def test_every_template_of_a_gpu_is_called_by_a_name() -> None:
    many, few = np.empty((4096, 32768), np.float32), np.empty((2, 1 << 20), np.float32)

    def rows(x: Any) -> Any:
        return x - x.mean(1, keepdims=True)

    with options(target="cuda"):
        found = {fuse(function).explain(x).templates[0] for function, x in (
            (rows, many), (rows, few), (lambda x: x.sum(0), many), (lambda x: x.T + 1, many), (rows, many[:, :64]),
        )}  # fmt: skip
    assert found == {"long row", "split", "column", "transpose", "row"}


def test_memory_between_the_kernels_of_a_slice_is_reused_and_each_stream_has_its_own() -> None:
    def rows(x: Any) -> Any:
        y = stream_parallel(np.exp(x) * 2, 0)
        return stream_parallel((y * x).sum(-1), 0)

    fused = fuse(rows, merge=rules.reduction_ends_segment)
    x = np.random.default_rng(0).random((7, 1 << 18), np.float32)
    backend = Addressed()
    with options(number_of_streams=3):
        run = Executable(segment_fusion(fused.definition(x).fusion), backend.target, options=resolve())
    for _ in range(2):
        (result,) = run([x])
        np.testing.assert_allclose(result, (np.exp(x) * 2 * x).sum(-1), rtol=1e-4)
    assert backend.loops == [7, 7]
    assert len(backend.allocated) >= 3
