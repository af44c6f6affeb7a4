"""Launches of a call become a graph where they may, on a device of addresses in NumPy."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.runtime.addressed_device import Addressed, Memory, chain, executable
from tests.ways import assert_equal_bits
from tracefuse import (
    DeviceError,
    FusionDefinition,
    OutOfMemoryError,
    UnsupportedError,
    fuse,
    rules,
)
from tracefuse.compiler.executable import Executable
from tracefuse.dtypes import DType
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime import automatic_graphs
from tracefuse.runtime.devices.gemm_calls import ProductForm
from tracefuse.runtime.targets.cpu.cpu_target import NumpyLibrary
from tracefuse.schedule.cpu.cpu_templates import CPU_TEMPLATES


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
