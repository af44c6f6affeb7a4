"""Memory layouts that whole functions read in place, and sizes that need 64-bit positions.

`test_op_results.py` tests each op in every layout. This module tests templates (rows, columns, gathers, conditions on
positions) on views, which layouts need another compilation, and how many bits the positions have.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from tests.ops.op_definitions import LAYOUTS, laid_out
from tests.ways import backend_of, check
from tracefuse import ShapeDtype, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, int32, int64
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.schedule.gpu.gpu_problem import NARROW_INDEX


def whole_functions() -> dict[str, FusionDefinition]:
    """Definitions of two inputs (6, 9), one for each template and way of reading."""
    made: dict[str, FusionDefinition] = {}
    for name in ("softmax", "columns", "halves", "gather", "turned", "everything"):
        made[name] = FusionDefinition()
        with made[name] as fd:
            x, y = fd.define_tensor([-1, -1], True), fd.define_tensor([-1, -1], True)
            fd.add_output(BODIES[name](fd, x, y))
    return made


def softmax(fd: Any, x: Any, y: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.mul(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), y)


def columns(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.sub(y, fd.ops.mean(x, [0], keepdim=True))


def halves(fd: Any, x: Any, y: Any) -> Any:
    front = fd.ops.slice(x, [0, 4], [x.size(0), x.size(1)])
    back = fd.ops.slice(x, [0, 0], [x.size(0), 4])
    return fd.ops.add(fd.ops.mul(x, y), fd.ops.cat([front, back], 1))


def gather(fd: Any, x: Any, y: Any) -> Any:
    index = fd.ops.remainder(fd.ops.cast(y, DataType.Int), x.size(1))
    return fd.ops.take_along_axis(x, index, 1)


def turned(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.roll(fd.ops.flip(x, [1]), 2, 0), fd.ops.roll(y, -3, 1))


def everything(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.add(fd.ops.sum(fd.ops.mul(x, y)), fd.ops.min(y))


BODIES: dict[str, Any] = {f.__name__: f for f in (softmax, columns, halves, gather, turned, everything)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BODIES)
def test_functions_read_views_where_they_are(backend: str, name: str, layout: str) -> None:
    if backend == ("interpreter", "interpreter-cuda")[(list(BODIES).index(name) + list(LAYOUTS).index(layout)) % 2]:
        pytest.skip("interpreted kernels take long: the other interpreter reads this layout in this function")
    random = np.random.default_rng(8)
    arguments = [random.uniform(-4, 4, (6, 9)).astype(np.float32).round(2), random.integers(-20, 20, (6, 9))]
    check(whole_functions()[name], laid_out([a.astype(np.float32) for a in arguments], layout), backend)


@pytest.mark.parametrize("name", BODIES)
def test_arguments_that_are_the_same_memory_are_read_as_two(backend: str, name: str) -> None:
    x = np.random.default_rng(9).integers(-9, 9, (9, 9)).astype(np.float32)
    check(whole_functions()[name], [x, x.T], backend)


def test_views_of_one_layout_share_a_plan_and_another_layout_has_its_own() -> None:
    function = fuse(lambda x: x * 2 + 1)
    wide = np.arange(2400, dtype=np.float32).reshape(40, 60)
    for view in (wide[::2, ::3], wide[:, ::2], wide[1::3, 5::4]):
        np.testing.assert_array_equal(function(view), view * 2 + 1)
    assert function.cache_info().compiles <= 2
    np.testing.assert_array_equal(function(wide), wide * 2 + 1)
    np.testing.assert_array_equal(function(wide[::-1]), wide[::-1] * 2 + 1)
    np.testing.assert_array_equal(function(wide.T), wide.T * 2 + 1)


def test_kernels_on_the_cpu_know_short_strides_of_much_work() -> None:
    """The last element of each view is the last of its memory, beyond which vectors must not read."""
    function = fuse(lambda x: (x * 2 + 1, x.sum(-1)))
    for step in (2, 4, -1, 5, 2):
        wide = np.arange(9001 * abs(step), dtype=np.float32).reshape(1, -1) % 31
        view = wide[:, step - 1 if step > 0 else None :: step]
        doubled, total = function(view)
        np.testing.assert_array_equal(doubled, view * 2 + 1)
        np.testing.assert_array_equal(total, view.astype(np.float64).sum(-1))
        (segment,) = function.segments(view)
        assert ("t0s1" in segment.kernel.split("\n", 1)[1]) == (step == 5)


def test_results_are_fresh_contiguous_and_aligned_and_inputs_stay_as_they_are() -> None:
    wide = np.arange(600, dtype=np.float32).reshape(20, 30)
    before = wide.copy()
    functions = {
        "views": lambda x: (x.T, x[1:], x[::2, ::-1], x.reshape(-1), np.broadcast_to(x[:1], (5, 30))),
        "made": lambda x: (x + 1, x.sum(), x.max(axis=0), x[:, None] * x[0]),
    }
    for function in functions.values():
        for result in fuse(function)(wide):
            assert result.flags.c_contiguous
            assert result.flags.writeable
            assert result.ctypes.data % 64 == 0
            assert not np.shares_memory(result, wide)
            result[...] = -1
    np.testing.assert_array_equal(wide, before)


def test_read_only_and_memory_mapped_arrays_are_read() -> None:
    memory = mmap.mmap(-1, 4 * 600)
    mapped = np.frombuffer(memory, np.float32).reshape(20, 30)
    mapped[...] = np.arange(600).reshape(20, 30)
    frozen = mapped[::2]
    frozen.flags.writeable = False
    np.testing.assert_array_equal(fuse(lambda x: x.sum(axis=1))(frozen), frozen.sum(axis=1))


# ---------------------------------------------------------------------------------------------------------------------
# sizes


def kernel_for(fd: FusionDefinition, arguments: list[Any]) -> tuple[Kernel, list[str]]:
    """The GPU kernel that a call with these arguments would run, and the guards; nothing is allocated or run."""
    executable = Executable(segment_fusion(fd.fusion), backend_of("interpreter-cuda"))
    plan, _ = executable.plan_for(arguments)
    (segment,) = plan.segments
    assert segment.lowered is not None
    return segment.lowered.launches[0].kernel, [str(guard) for guard in plan.guards]


def doubled(rank: int, dtype: Any = DataType.Char) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, True, dtype)
        fd.add_output(fd.ops.add(x, x))
    return fd


@pytest.mark.parametrize(
    ("shape", "wide"),
    [
        ((100,), False), ((NARROW_INDEX,), False), ((NARROW_INDEX + 1,), True), ((2**31 + 5,), True),
        ((2**16, 2**15 - 2), False), ((2**16, 2**15), True), ((3, 2**40), True),
    ],
    ids=str,
)  # fmt: skip
def test_positions_are_counted_in_64_bits_where_32_do_not_hold_them(shape: tuple[int, ...], wide: bool) -> None:
    kernel, guards = kernel_for(doubled(len(shape)), [ShapeDtype(shape, "int8")])
    assert {axis.variable.dtype for axis in kernel.grid} == {int64 if wide else int32}
    assert any("32 bits" in guard for guard in guards)


def test_a_small_array_that_reaches_far_needs_64_bits() -> None:
    far = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (2, 3), (2**33, 1))
    kernel, _ = kernel_for(doubled(2), [far])
    assert {axis.variable.dtype for axis in kernel.grid} == {int64}


def test_a_large_array_and_a_small_one_have_plans_of_their_own() -> None:
    executable = Executable(segment_fusion(doubled(1).fusion), backend_of("interpreter-cuda"))
    plans = [executable.plan_for([ShapeDtype((n,), "int8")])[0] for n in (100, 2**31 + 5, 200, 2**32)]
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    assert plans[0] is not plans[1]


def test_a_reduction_runs_over_more_than_two_to_the_31_elements_on_the_cpu() -> None:
    count = 2**31 + 12345
    ones = np.broadcast_to(np.ones(1, np.int8), (count,))
    assert int(fuse(lambda x: x.sum())(ones)) == count
