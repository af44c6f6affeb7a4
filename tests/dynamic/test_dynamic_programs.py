"""Tests concretized fusions as a whole: on every backend, with kept and new segments, and in loops."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from segments import AllocateBuffer, HostLoop, Integer, Launch, Program, Release, Runner, Select
from tests.dynamic.dynamic_definitions import arguments, compiled, example, padded, plans, ramp, reshaping
from tests.ways import backend_of, on_backend
from tracefuse import DataType, FusionDefinition, options
from tracefuse.compiler.executable import Executable, compile_fusion
from tracefuse.compiler.fusion_launch import FusionLaunch
from tracefuse.dtypes import float32
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.devices.array_descriptions import on_host
from tracefuse.runtime.host_program import Allocation
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_every_backend_runs_what_was_concretized(mode: str, backend: str) -> None:
    """One executable each for a reshape and for resizes, with plans made for other sizes in between."""
    with options(concretize_resize_extents=mode):
        reshape = Executable(segment_fusion(reshaping(4, 4).fusion), backend_of(backend))
        resize = Executable(segment_fusion(example().fusion), backend_of(backend))
    for shape, target in (
        ((8, 12, 7, 5), (8, 3, 28, 5)),
        ((4, 15, 7, 3), (4, 5, -1, 3)),
        ((2, 6, 1, 5), (2, 3, 2, 5)),
        ((8, 12, 7, 5), (8, 12, 7, 5)),
    ):
        x = ramp(*shape)
        (made,) = reshape([on_backend(backend, x), *target])
        assert np.array_equal(on_host(made), x.reshape(target) + 1)
    for inputs in (arguments(), arguments(axis1=5), arguments(axis2=3), arguments()):
        (made,) = resize([on_backend(backend, a) for a in inputs])
        assert np.array_equal(on_host(made), inputs[1] * padded(inputs[0]))


def test_segments_that_a_new_size_leaves_alone_keep_their_kernels() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        w = fd.define_tensor([-1, -1], contiguity=True)
        n = fd.define_scalar(dtype=DataType.Int)
        first = fd.ops.exp(fd.ops.matmul(x, w))
        second = fd.ops.matmul(first, w)
        rows = fd.ops.slice(second, [0, 0], [n, fd.ops.size(w, 1)])
        fd.add_output(first)
        fd.add_output(fd.ops.sum(fd.ops.mul(rows, 2.0), dims=[1]))
    x_, w_ = ramp(8, 4) / 32, ramp(4, 4) / 16
    with options(concretize_resize_extents="on"):
        seen = []
        for n_ in (3, 6):
            before = compiled()
            made = fd.execute([x_, w_, n_])
            expected = np.exp(x_ @ w_)
            np.testing.assert_allclose(made[0], expected, rtol=1e-5)
            np.testing.assert_allclose(made[1], ((expected @ w_)[:n_] * 2).sum(1), rtol=1e-5)
            plan, _ = fd._split().plan_for([x_, w_, n_])
            seen.append((compiled() - before, [s.functions for s in plan.segments if s.lowered is not None]))
    (first_count, old), (second_count, new) = seen
    assert (first_count, second_count) == (2, 0)  # the extent of the grid is no part of the machine code
    assert len(old) == len(new) == 2
    changed = [
        cpu_functions.identity(a[0].kernel) != cpu_functions.identity(b[0].kernel)
        for a, b in zip(old, new, strict=True)
    ]
    assert changed == [False, True]


def test_sizes_that_bring_segments_together_split_the_fusion_again() -> None:
    """A sum over the rows of a slice and one over those of the whole share a kernel where the slice is the whole."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        n = fd.define_scalar(dtype=DataType.Int)
        part = fd.ops.slice(x, [0, 0], [fd.ops.size(x, 0), n])
        fd.add_output(fd.ops.sum(fd.ops.exp(x), dims=[1]))
        fd.add_output(fd.ops.max(part, dims=[1]))
    x_ = ramp(4, 6) / 24
    counts = []
    for n_ in (4, 6, 4):
        made = fd.execute([x_, n_])
        np.testing.assert_allclose(made[0], np.exp(x_).sum(1), rtol=1e-6)
        assert np.array_equal(made[1], x_[:, :n_].max(1))
        counts.append(len(fd.segment([x_, n_])))
    assert counts == [2, 1, 2]
    assert plans(fd) == 2


class SlicingCpu(CpuDevice):
    """The CPU with slices of buffers."""

    def select(self, buffer: Any, axis: int, index: int, size: int | None) -> Any:
        assert size is None
        return buffer[(*[slice(None)] * axis, index)]


def in_a_loop(fd: FusionDefinition, length: int, mode: str, *arguments: Any) -> list[Any]:
    """The result of each of 7 iterations of a host program that launches a definition with the loop's index.

    length: how many elements the definition's result has. The index is the last input.
    """
    with options(concretize_resize_extents=mode):
        launch = FusionLaunch(compile_fusion(fd.fusion), "body")
    inputs = tuple(range(len(arguments)))
    results, index, part = 10, 11, 12
    spec = Allocation(float32, (7, length), lambda values: (7, length), f"f32[7, {length}]")
    number = Integer(f"t{index}", (index,), lambda values: cast("int", values[index]), index)
    body = (Select(part, results, 0, number), Launch(0, (*inputs, index), (part,), launch))
    instructions = [AllocateBuffer(results, spec), HostLoop(index, 0, 7, 1, body), *map(Release, inputs)]
    program = Program(inputs, (results,), instructions)
    assert "for t11 in range(0, 7, 1):" in str(program)
    (made,) = Runner(program, SlicingCpu())(arguments)
    return list(np.asarray(made))


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_slice_that_depends_on_the_index_is_another_one_in_each_iteration(mode: str) -> None:
    with FusionDefinition() as fd:
        t2 = fd.define_tensor([-1], contiguity=True)
        i = fd.define_scalar(dtype=DataType.Int)
        ops = fd.ops
        t0 = ops.iota(7, dtype=DataType.Float)
        a = ops.maximum(0, ops.where(ops.ge(i, 0), i, i + 7))
        b = ops.maximum(a, ops.minimum(7, ops.where(ops.ge(i + 1, 0), i + 1, i + 8)))
        t1 = ops.slice(t0, [a], [b])
        fd.add_output(ops.add(t2, t1))
    t2_ = ramp(4)
    for number, made in enumerate(in_a_loop(fd, 4, mode, t2_)):
        assert np.array_equal(made, t2_ + number)
    with options(concretize_resize_extents=mode):
        for number in (-7, -2, 3):  # bounds below 0 count from the end
            assert np.array_equal(fd.execute([t2_, number])[0], t2_ + number % 7)


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_reshape_that_depends_on_the_index_is_another_one_in_each_iteration(mode: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        i = fd.define_scalar(dtype=DataType.Int)
        rows = fd.ops.reshape(x, [-1, i + 1])
        fd.add_output(fd.ops.add(fd.ops.reshape(fd.ops.permute(rows, [1, 0]), [-1]), 0.5))
    x_ = ramp(420)
    for number, made in enumerate(in_a_loop(fd, 420, mode, x_)):
        assert np.array_equal(made, x_.reshape(-1, number + 1).T.reshape(-1) + 0.5)
