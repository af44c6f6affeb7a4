"""Calls that pass addresses, as on a GPU, run with the CPU's kernels: slots of one allocation, and graphs."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import fusions
from tests.random_programs.test_random_fusions import predicates
from tests.random_programs.test_random_streams import counts, marked
from tests.session.samples import times
from tests.ways import assert_equal_bits
from tracefuse import (
    DeviceError,
    FusionDefinition,
    OutOfMemoryError,
    UnsupportedError,
    fuse,
    options,
    rules,
    stream_parallel,
)
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.dtypes import DType
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime import automatic_graphs
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.devices.gemm_calls import ProductForm
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


class AddressedProduct:
    """A product of the library that takes addresses, as cuBLAS does."""

    def __init__(self, dtype: DType, form: ProductForm) -> None:
        self.dtype, self.form = dtype, form

    def launch(self, a: int, b: int, result: int, *sizes: int) -> None:
        form, rank = self.form, len(self.form.left_order)
        left, right = self._at(a, sizes[:rank]), self._at(b, sizes[rank:])
        left, right = left.transpose(form.left_order), right.transpose(form.right_order)
        terms = math.prod(left.shape[left.ndim - form.terms :])
        stacks = [x.shape[:depth] for x, depth in zip((left, right), form.stacks, strict=True)]
        shape = form.result_shape(sizes[:rank], sizes[rank:])
        product = left.reshape((*stacks[0], -1, terms)) @ right.reshape((*stacks[1], terms, -1))
        self._at(result, shape)[...] = product.reshape(shape)

    def _at(self, address: int, shape: Sequence[int]) -> Any:
        size = math.prod(shape) * self.dtype.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(address), self.dtype.numpy).reshape(shape)


class AddressedLibrary(NumpyLibrary):
    def prepared_product(self, dtype: DType, form: ProductForm) -> Any | None:
        return AddressedProduct(dtype, form)


class Graph:
    """A graph that keeps the arguments of every key, and runs its functions in any order that it may have."""

    def __init__(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]], graphs: list[int]) -> None:
        self.functions, self.order, self.graphs = functions, order, graphs
        self.random = random.Random(len(functions))
        self.kept: dict[tuple[Any, ...], Sequence[tuple[Any, ...]]] = {}
        self.size, self.changes = len(functions), 0

    def replay(self, key: tuple[Any, ...]) -> bool:
        assert key[0] == 7
        if key not in self.kept:
            return False
        self._run(self.kept[key])
        return True

    def launch(self, key: tuple[Any, ...], arguments: Sequence[tuple[Any, ...]]) -> None:
        assert key not in self.kept
        self.kept[key] = arguments
        self.changes += self.size
        self._run(arguments)

    def _run(self, arguments: Sequence[tuple[Any, ...]]) -> None:
        self.graphs.append(len(self.functions))
        assert len(self.functions) == len(self.order) == len(arguments)
        waiting = set(range(len(self.functions)))
        while waiting:
            ready = [k for k in sorted(waiting) if waiting.isdisjoint(self.order[k])]
            position = self.random.choice(ready)
            waiting.remove(position)
            self.functions[position].launch(*arguments[position])


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
        self.launchers: list[weakref.ref[Graph]] = []
        self.library: NumpyLibrary = NumpyLibrary()
        self.templates = CPU_TEMPLATES
        self.repeats = False
        self.records = False

    @property
    def target(self) -> Target:
        return Target("cpu", self.templates, self, self, self.library, self)

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

    def empty_text(self, shape: str, dtype: DType, name: str, size: str) -> str:
        return f"new({shape}, {name})"

    @property
    def has_graphs(self) -> bool:
        return self.repeats

    def is_recording(self) -> bool:
        return self.records

    def require_graphs(self) -> None:
        pass

    def graph(self, functions: Sequence[Any], order: Sequence[tuple[int, ...]]) -> Graph:
        launcher = Graph(functions, order, self.graphs)
        self.launchers.append(weakref.ref(launcher))
        return launcher

    def persistent_arena(self) -> Callable[[int, int], Any]:
        kept: dict[int, Memory] = {}

        def arena(stream: int, size: int) -> Memory:
            assert stream == 7
            if size not in kept:
                kept[size] = self.allocate(size)
            return kept[size]

        return arena

    def allocate(self, size: int) -> Memory:
        self.arenas.append(size)
        memory = np.empty(size + 256, np.uint8)
        memory.fill(0xA5)
        allocated = Memory(memory)
        self.allocated.append(weakref.ref(allocated))
        return allocated

    def new(self, shape: tuple[int, ...], dtype: DType) -> Any:
        self.arrays += 1
        return cpu_memory.empty(shape, dtype)

    def names(self) -> dict[str, Any]:
        return {**super().names(), "allocate": self.allocate, "new": self.new}


def chain(count: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for step in range(count):
            x = fd.ops.add(fd.ops.neg(x), float(step))
        fd.add_output(x)
    return fd


def executable(fusion: Any, backend: Addressed, merge: Any = None, graph: bool | str = False) -> Executable:
    with options(graph=graph):
        return Executable(segment_fusion(fusion, merge=merge), backend.target, options=resolve())


@settings(max_examples=times(15), deadline=None)
@given(st.data(), st.booleans())
def test_random_fusions_give_the_same_bits_from_addresses(data: st.DataObject, graph: bool) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    merge = data.draw(st.sampled_from([None, rules.one_op_a_segment, rules.reduction_ends_segment]))
    expected = Executable(segment_fusion(fusion, merge=merge))(arguments)
    for _ in range(2):
        for own, wanted in zip(executable(fusion, Addressed(), merge, graph)(arguments), expected, strict=True):
            assert_equal_bits(np.asarray(own), np.asarray(wanted), "from addresses")


@settings(max_examples=times(25), deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
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


@pytest.mark.parametrize("graph", [False, True])
def test_products_of_a_library_take_addresses_and_are_part_of_a_graph(graph: bool) -> None:
    def layers(x: Any, w: Any, v: Any) -> Any:
        for _ in range(2):
            x = np.tanh(x @ w)
        return np.einsum("bij,bkj->ik", x.reshape(2, -1, x.shape[-1]), v), x @ w.T

    random = np.random.default_rng(0)
    backend = Addressed()
    backend.library = AddressedLibrary()
    backend.templates = replace(CPU_TEMPLATES, tiled_products=None)
    definition = fuse(layers).definition(*(np.empty(s, np.float32) for s in ((14, 40), (40, 40), (2, 9, 40))))
    run = executable(definition.fusion, backend, rules.one_op_a_segment, graph)
    for rows in (14, 14, 60):
        given = [random.normal(size=s).astype(np.float32) for s in ((rows, 40), (40, 40), (2, 9, 40))]
        found = [run(given) for _ in range(3)][-1]
        for own, wanted in zip(found, layers(*given), strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-3, atol=1e-3)
    launched = [s for s in run.plan_for(given)[0].segments if s.is_launched and s.lowered is None]
    assert len(launched) == 4
    assert len(set(backend.graphs)) == graph


def test_launches_of_a_graph_follow_those_whose_memory_they_share() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1], True), fd.define_tensor([-1], True)
        first, second = fd.ops.neg(x), fd.ops.neg(y)
        joined = fd.ops.add(first, second)
        fd.add_output(fd.ops.sum(joined, dims=[0]))
        fd.add_output(fd.ops.exp(x))
    backend = Addressed()
    run = executable(fd.fusion, backend, rules.one_op_a_segment, graph=True)
    run([np.ones(5, np.float32)] * 2)
    launcher = backend.launchers[0]()
    assert launcher is not None
    assert [*launcher.order] == [(), (), (1, 0), (2,), ()]


def test_a_graph_tells_zeros_of_other_signs_apart() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], True), fd.define_scalar()
        fd.add_output(fd.ops.neg(fd.ops.mul(x, s)))
    run = executable(fd.fusion, Addressed(), rules.one_op_a_segment, graph=True)
    x = np.ones(5, np.float32)
    signs = [np.signbit(run([x, value])[0][0]) for value in (0.0, -0.0, 0.0)]
    assert signs == [True, False, True]


def calls(run: Executable, x: Any, count: int) -> None:
    expected = Executable(segment_fusion(run.fusion))([x])[0]
    for _ in range(count):
        assert_equal_bits(run([x])[0], expected, "repeated")


def test_a_repeated_call_becomes_a_graph_unless_its_work_is_recorded_or_takes_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automatic_graphs, "MOST_BYTES", 40_000)
    backend = Addressed()
    backend.repeats = True
    run = executable(chain(3).fusion, backend, rules.one_op_a_segment, graph="auto")
    x = np.random.default_rng(0).random((30, 40), np.float32)
    calls(run, x, automatic_graphs.CALLS_BEFORE)
    assert not backend.graphs
    calls(run, x, 3)
    assert backend.graphs == [6] * 3
    backend.records = True
    calls(run, x, 2)
    backend.records = False
    calls(run, np.ones((300, 40), np.float32), 2)
    assert backend.graphs == [6] * 3
    calls(run, x, 1)
    assert backend.graphs == [6] * 4


def test_a_repeated_call_stays_without_a_graph_if_sizes_differ_each_time() -> None:
    backend = Addressed()
    backend.repeats = True
    run = executable(chain(3).fusion, backend, rules.one_op_a_segment, graph="auto")
    most = automatic_graphs.CALLS_BEFORE + automatic_graphs.WINDOW
    for length in range(2, 2 * most):
        calls(run, np.ones((3, length), np.float32), 1)
    assert 0 < len(backend.graphs) <= automatic_graphs.WINDOW
    gc.collect()
    assert backend.launchers[0]() is None


@pytest.mark.parametrize("error", [OutOfMemoryError, DeviceError])
def test_a_repeated_call_goes_on_without_a_graph_that_cannot_be_made(error: type[Exception]) -> None:
    class Short(Addressed):
        def persistent_arena(self) -> Callable[[int, int], Any]:
            def arena(stream: int, size: int) -> Memory:
                raise error("no memory")

            return arena

    backend = Short()
    backend.repeats = True
    run = executable(chain(3).fusion, backend, rules.one_op_a_segment, graph="auto")
    calls(run, np.ones((3, 4), np.float32), automatic_graphs.CALLS_BEFORE + 3)
    assert not backend.graphs
    gc.collect()
    assert backend.launchers[0]() is None


def test_short_calls_stay_without_a_graph() -> None:
    backend = Addressed()
    backend.repeats = True
    run = executable(chain(1).fusion, backend, rules.one_op_a_segment, graph="auto")
    calls(run, np.ones((3, 4), np.float32), automatic_graphs.CALLS_BEFORE + 2)
    assert not backend.graphs


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
