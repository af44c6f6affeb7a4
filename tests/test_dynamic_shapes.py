"""One compile for every size: reshapes and resizes resolved for the sizes of a call, and what compiles when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracefuse
from segments import Allocate, Integer, Launch, Loop, Program, Release, Runner, Select
from tracefuse import DataType, FusionDefinition, ShapeError, fuse, options
from tracefuse.compiler import compile_fusion
from tracefuse.concretize import concretize
from tracefuse.dtypes import float32
from tracefuse.evaluate import extent_values
from tracefuse.fusion_launch import FusionLaunch
from tracefuse.host_program import Allocation
from tracefuse.ir import verify
from tracefuse.kernel import compile_cpu
from tracefuse.regrouping import transforms_of
from tracefuse.targets import CpuBackend


def ramp(*shape: int) -> Any:
    """1, 2, 3, ... in float32."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def compiled() -> int:
    """Kernels that LLVM has compiled, or that were read from disk, since the process started."""
    counts = compile_cpu.statistics()
    return counts.compiled + counts.from_disk


def reshaping(rank: int, target: int) -> FusionDefinition:
    """A reshape by `target` scalar inputs, plus 1."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.reshape(x, fd.define_vector(target)), 1.0))
    return fd


def plans(fd: FusionDefinition) -> int:
    """How many plans a definition has compiled."""
    return sum(executable.compiles for executable in fd._split().executables)


def check(fd: FusionDefinition, shape: Sequence[int], *target: int) -> None:
    x = ramp(*shape)
    (made,) = fd.execute([x, *target])
    expected = x.reshape(target) + 1
    assert made.shape == expected.shape
    assert np.array_equal(made, expected)


# -- reshapes -----------------------------------------------------------------------------------------------------


def test_a_reshape_of_the_same_pattern_compiles_nothing() -> None:
    fd = reshaping(4, 4)
    check(fd, (8, 12, 7, 5), 8, 3, 28, 5)
    assert plans(fd) == 1
    check(fd, (8, 15, 7, 9), 8, 3, 35, 9)
    assert plans(fd) == 1
    check(fd, (8, 15, 7, 9), 8, 3, -1, 9)
    assert plans(fd) == 1
    check(fd, (8, 15, 7, 9), 8, 5, 21, 9)  # another factor of the same pattern
    assert plans(fd) == 1


def test_a_reshape_prints_as_merges_and_splits() -> None:
    fd = reshaping(4, 4)
    x = ramp(8, 12, 7, 5)
    found = fd.concretization([x, 8, 3, 28, 5])
    assert "merge(1) outer_split(1, 3)" in str(found)
    assert found.key == fd.concretization([ramp(8, 15, 7, 9), 8, 3, -1, 9]).key
    assert found.key != fd.concretization([x, 8, 12, 7, 5]).key
    assert str(found).splitlines()[0] == "T0 [i0, i1, i2, i3]"
    assert plans(fd) == 0  # nothing was compiled


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ((6, 4), (6, 4), "nothing"),
        ((6, 4), (24,), "merge(0)"),
        ((24,), (6, 4), "outer_split(0, 6)"),
        ((12, 7), (3, 28), "merge(0) outer_split(0, 3)"),
        ((6,), (2, 1, 3), "outer_split(0, 2) broadcast(1)"),
        ((2, 1, 3), (6,), "squeeze(1) merge(0)"),
        ((4,), (1, 4, 1), "broadcast(0) broadcast(2)"),
        ((1, 4, 1), (4,), "squeeze(2) squeeze(0)"),
        ((8, 6), (2, 2, 2, 6), "outer_split(0, 2) outer_split(1, 2)"),
        ((4, 9, 5), (6, 6, 5), "merge(0) outer_split(0, 6)"),
        ((1,), (1, 1, 1), "squeeze(0) broadcast(0) broadcast(1) broadcast(2)"),
    ],
)
def test_every_kind_of_reshape_prints_and_runs(source: tuple[int, ...], target: tuple[int, ...], text: str) -> None:
    fd = reshaping(len(source), len(target))
    check(fd, source, *target)
    x = ramp(*source)
    (entry,) = fd.concretization([x, *target]).reshapes
    assert str(entry) == text


@pytest.mark.parametrize(
    ("source", "target"),
    [((0, 4), (2, 0)), ((0,), (0, 5)), ((3, 0), (0, 7)), ((2, 0, 4), (-1, 4)), ((0, 4), (0, -1, 4))],
)  # fmt: skip
def test_reshapes_without_elements(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    fd = reshaping(len(source), len(target))
    x = np.zeros(source, np.float32)
    if target == (0, -1, 4):
        with pytest.raises(ShapeError, match="stands for no size"):
            fd.execute([x, *target])
        return
    (made,) = fd.execute([x, *target])
    assert made.shape == x.reshape(target).shape


def test_an_impossible_target_is_refused_before_anything_runs() -> None:
    fd = reshaping(2, 2)
    for target, message in (
        ((5, 5), "reshape: 24 elements do not fill a shape of 25"),
        ((-1, 5), "reshape: -1 beside the other entries leaves 4 elements over"),
        ((-1, -1), "reshape: 2 entries are -1"),
        ((-2, -12), "reshape: axis 0 would get -2 elements"),
    ):
        with pytest.raises(ShapeError, match=message) as error:
            fd.execute([ramp(6, 4), *target])
        assert "test_dynamic_shapes.py" in str(error.value)
    assert plans(fd) == 0


def test_one_array_with_other_target_scalars_gets_the_new_shape() -> None:
    fd = reshaping(2, 2)
    check(fd, (15, 7), 3, 35)
    check(fd, (15, 7), 5, 21)
    assert plans(fd) == 1


def test_a_scalar_that_reaches_no_shape_compiles_nothing() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        n, m, k = (fd.define_scalar(dtype=DataType.Int) for _ in range(3))
        fd.add_output(fd.ops.mul(fd.ops.reshape(x, [n, m]), k))
    x_ = ramp(6, 4)
    for factor in (1, 2, -7):
        (made,) = fd.execute([x_, 8, 3, factor])
        assert np.array_equal(made, x_.reshape(8, 3) * factor)
    assert plans(fd) == 1


def test_a_run_time_minus_one_is_replaced_before_anything_reads_an_extent() -> None:
    """What follows the reshape sees the size, also where it is asked for it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.reshape(x, fd.define_vector(2))
        rows = fd.ops.sum(y, dims=[1])
        fd.add_output(fd.ops.mul(rows, fd.ops.size(y, 0)))
    x_ = ramp(6, 4)
    for target in ((8, 3), (-1, 3), (8, -1), (-1, 6)):
        wanted = x_.reshape(target)
        (made,) = fd.execute([x_, *target])
        assert np.array_equal(made, wanted.sum(1) * wanted.shape[0])


def test_two_concretizations_in_turn_leave_the_fusion_as_it_was() -> None:
    fd = reshaping(2, 2)
    before, text = str(fd.fusion), repr(fd)
    first, second = ([ramp(6, 4), 24, 1], [ramp(6, 4), 2, 12])
    results = []
    for _ in range(2):
        for arguments in (first, second):
            sizes = extent_values(fd.fusion, arguments)
            found = concretize(fd.fusion, sizes)
            results.append(found)
            (made,) = compile_fusion(found.fusion)(arguments)
            assert np.array_equal(made, arguments[0].reshape(arguments[1:]) + 1)
    assert (str(fd.fusion), repr(fd)) == (before, text)
    assert results[0].key == results[2].key != results[1].key == results[3].key
    assert str(results[0].fusion) == str(results[2].fusion)


def test_an_axis_that_a_scalar_decides_cannot_be_lowered_before_it_is_looked_at() -> None:
    fd = reshaping(2, 2)
    with pytest.raises(tracefuse.ConcretizationError, match=r"axis 0 of value \d+ has .* elements.*test_dynamic"):
        verify(fd.fusion, lowerable=True)
    verify(fd.concretization([ramp(6, 4), 3, 8]).fusion, lowerable=True)


def test_the_shape_of_another_tensor_is_a_target() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.reshape(x, fd.ops.shape(y)), y))
    for source, target in (((6, 4), (2, 3, 4)), ((10, 9), (2, 5, 9)), ((6, 4), (6, 2, 2))):
        x_, y_ = ramp(*source), ramp(*target)
        assert np.array_equal(fd.execute([x_, y_])[0], x_.reshape(target) * y_)
    assert plans(fd) == 2  # the first axis split, or the second


def test_a_concretized_definition_runs_step_by_step() -> None:
    fd = example()
    steps = fd.execute_steps(arguments())
    live = []
    try:
        while True:
            live.append(sorted(next(steps)))
    except StopIteration as done:
        (made,) = done.value
    assert np.array_equal(made, arguments()[1] * padded(arguments()[0]))
    assert len(live) == 2
    assert live[0][0] == -10  # the extents of both inputs, also those that became static


def test_sizes_that_bring_segments_together_split_the_fusion_anew() -> None:
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


def test_a_reshape_of_a_fused_function_follows_its_arguments() -> None:
    @fuse
    def f(x: Any, n: int, m: int) -> Any:
        return x.reshape(x.shape[0], n, m, -1) + 1

    for shape, n, m in (((8, 12, 7, 5), 3, 28), ((8, 15, 7, 9), 3, 35), ((8, 15, 7, 9), 5, 21)):
        x = ramp(*shape)
        assert np.array_equal(f(x, n, m), x.reshape(8, n, m, -1) + 1)
    assert f.cache_info() == (1, 1, 2)


def test_a_reshape_to_the_shape_of_another_array() -> None:
    @fuse
    def f(x: Any, y: Any) -> Any:
        return x.reshape(y.shape) * y

    for source, target in (((6, 4), (8, 3)), ((10, 6), (12, 5)), ((6, 4), (6, 4)), ((35, 2), (5, 14))):
        x, y = ramp(*source), ramp(*target)
        assert np.array_equal(f(x, y), x.reshape(target) * y)
    assert f.cache_info().compiles <= 3  # merged and split, split alone, unchanged
    with pytest.raises(ShapeError, match="24 elements do not fill a shape of 25"):
        f(ramp(6, 4), ramp(5, 5))


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@st.composite
def same_size(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes with as many elements."""
    factors = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    sides = []
    for _ in range(2):
        shuffled = draw(st.permutations(factors))
        cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=3)))
        edges = [0, *cuts, len(factors)]
        sides.append([int(np.prod(shuffled[a:b], dtype=int)) for a, b in itertools.pairwise(edges)])
    return sides[0], sides[1]


@given(same_size())
def test_the_transforms_of_any_reshape_make_its_shape(pair: tuple[list[int], list[int]]) -> None:
    source, target = pair
    shape = list(source)
    for step in transforms_of(source, target):
        if step.name == "squeeze":
            assert shape.pop(step.axis) == 1
        elif step.name == "merge":
            shape[step.axis : step.axis + 2] = [shape[step.axis] * shape[step.axis + 1]]
        elif step.name == "outer_split":
            assert step.factor is not None
            assert shape[step.axis] % step.factor == 0
            shape[step.axis : step.axis + 1] = [step.factor, shape[step.axis] // step.factor]
        else:
            shape.insert(step.axis, 1)
    assert shape == target


ranked: dict[tuple[int, int], FusionDefinition] = {}


@given(same_size(), st.booleans(), st.data())
def test_any_reshape_is_right_with_plans_made_for_others(
    pair: tuple[list[int], list[int]], infer: bool, data: st.DataObject
) -> None:
    source, target = pair
    fd = ranked.setdefault((len(source), len(target)), reshaping(len(source), len(target)))
    if infer:
        target = list(target)
        target[data.draw(st.integers(0, len(target) - 1))] = -1
    with options(target="reference"):
        expected = fd.execute([ramp(*source), *target])[0]
    sizes = extent_values(fd.fusion, [ramp(*source), *target])
    found = concretize(fd.fusion, sizes)
    assert all(guard.holds(sizes) for guard in found.guards)
    check(fd, source, *target)
    assert expected.shape == ramp(*source).reshape(target).shape


# -- resizes ------------------------------------------------------------------------------------------------------


def example() -> FusionDefinition:
    """T3 = T1 * pad(T0) with run-time widths."""
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1] * 5, contiguity=True)
        t1 = fd.define_tensor([-1] * 5, contiguity=True)
        widths = [fd.define_scalar(dtype=DataType.Int) for _ in range(10)]
        t2 = fd.ops.pad(t0, [w for axis in reversed(range(5)) for w in widths[2 * axis : 2 * axis + 2]])
        fd.add_output(fd.ops.mul(t1, t2))
    return fd


WIDTHS = (0, 0, -1, -1, 1, 1, 0, -4, 0, -1)


def padded(t0: Any) -> Any:
    return np.pad(t0[:, 1:-1, :, :-4, :-1], ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))


def arguments(i0: int = 7, axis1: int = 3, axis2: int = 2, axis3: int = 5) -> list[Any]:
    t0 = ramp(i0, axis1, axis2, axis3, 6)
    return [t0, ramp(i0, 4 if axis1 == 3 else axis1 - 2, axis2 + 2, 3 if axis3 == 5 else axis3 - 4, 5), *WIDTHS]


def run_example(fd: FusionDefinition, given: list[Any], mode: str) -> None:
    with options(concretize_resize_extents=mode):
        (made,) = fd.execute(given)
    assert np.array_equal(made, given[1] * padded(given[0]))


def test_resizes_keyed_by_their_extents_become_static() -> None:
    fd = example()
    given = arguments()
    expected = np.pad(given[0][:, 1:2, :, 0:1, 0:5], ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))
    assert np.array_equal(padded(given[0]), expected)
    with options(concretize_resize_extents="on"):
        found = fd.concretization(given)
    t2, t3 = fd.fusion.nodes[-2].outputs[0], fd.fusion.outputs[0]
    assert found.extents_of(0) == ("i0", "3", "2", "5", "6")
    assert found.extents_of(1) == ("i5", "i6", "i7", "i8", "i9")
    assert found.extents_of(t2) == ("i0", "b1", "4", "b1", "5")
    assert found.extents_of(t3) == ("i5", "i6", "i7", "i8", "i9")
    assert found.keys_of(t2) == ((3, -1, -1), (2, 1, 1), (5, 0, -4), (6, 0, -1))
    assert f"T{t2} [i0, b1, 4, b1, 5] = pad(T0): keys (3, -1, -1) (2, 1, 1) (5, 0, -4) (6, 0, -1)" in str(found)
    run_example(fd, given, "on")
    assert plans(fd) == 1
    run_example(fd, arguments(i0=9), "on")
    assert plans(fd) == 1
    run_example(fd, arguments(axis1=4), "on")
    assert plans(fd) == 2


def test_resizes_that_stay_dynamic_are_keyed_by_whether_they_broadcast() -> None:
    fd = example()
    given = arguments()
    with options(concretize_resize_extents="off"):
        found = fd.concretization(given)
    t2 = fd.fusion.nodes[-2].outputs[0]
    assert found.keys_of(t2) == ((-1, 1, 1), (-1, 2, 2), (-1, 1, 1), (-1, 2, 2))
    extents = found.extents_of(t2)
    assert (extents[1], extents[3]) == ("b1", "b1")
    assert "i2" in extents[2]
    assert "i4" in extents[4]
    assert found.extents_of(0) == ("i0", "i1", "i2", "i3", "i4")
    run_example(fd, given, "off")
    run_example(fd, arguments(i0=9), "off")
    run_example(fd, arguments(axis2=6), "off")  # the same pattern of one and several elements
    assert plans(fd) == 1
    run_example(fd, arguments(axis3=7), "off")  # axis 3 no longer broadcasts
    assert plans(fd) == 2


def test_modes_share_no_entry_and_a_mode_that_comes_back_compiles_nothing() -> None:
    fd = example()
    given = arguments()
    run_example(fd, given, "off")
    run_example(fd, given, "on")
    before = plans(fd)
    run_example(fd, given, "off")
    assert before == plans(fd) == 2


def test_the_feature_can_be_disabled_by_name() -> None:
    fd = example()
    given = arguments()
    with options(disable="concretize_resize_extents"):
        found = fd.concretization(given)
    assert {entry.key[0] for entry in found.resizes} == {-1}
    (made,) = fd.execute(given, _disable_options=["concretize_resize_extents"])
    assert np.array_equal(made, given[1] * padded(given[0]))
    run_example(fd, given, "off")
    assert plans(fd) == 1


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_slice_of_the_whole_axis_is_no_slice(mode: str) -> None:
    @fuse(concretize_resize_extents=mode)
    def f(x: Any, n: int) -> Any:
        return x[0:n] * 2

    for n in (5, 9, 100):
        assert np.array_equal(f(ramp(n), n), ramp(n) * 2)
    assert f.cache_info() == (1, 1, 2)
    found = f.concretization(ramp(5), 5)
    assert [entry.key for entry in found.resizes] == [(-1, -1, -1)]
    assert "slice(" not in str(found)
    assert "slice" not in str(found.fusion)
    assert "slice(" in str(f.concretization(ramp(5), 4))


def test_a_bound_that_is_provably_the_extent_records_nothing() -> None:
    @fuse
    def f(x: Any) -> Any:
        return x[0 : x.shape[0] * 2 // 2] + 1

    assert np.array_equal(f(ramp(6)), ramp(6) + 1)
    assert "slice" not in repr(f.definition(ramp(6)))


def test_a_slice_of_an_expanded_axis_reads_it_with_stride_0() -> None:
    @fuse
    def f(x: Any) -> Any:
        return np.broadcast_to(x, (5, 4))[1:3] + 1

    @fuse
    def g(x: Any) -> Any:
        return x[1:3] + 1

    x = ramp(4)
    expanded = np.broadcast_to(x, (5, 4))
    assert expanded.strides[0] == 0
    for made, kernel in ((f(x), f.segments(x)[0].kernel), (g(expanded), g.segments(expanded)[0].kernel)):
        assert np.array_equal(made, expanded[1:3] + 1)
        (load,) = [line for line in kernel.splitlines() if "= T0[" in line]
        index = load.partition("T0[")[2].partition("]")[0]
        assert "k0" not in index, kernel


def test_a_growing_cache_compiles_at_most_twice() -> None:
    @fuse
    def append(cache: Any, new: Any) -> Any:
        return np.concatenate([cache, new], 1)

    cache = ramp(3, 2, 4)
    for step in range(50):
        new = np.full((3, 1, 4), step, np.float32)
        grown = append(cache, new)
        assert np.array_equal(grown, np.concatenate([cache, new], 1))
        cache = grown
    assert append.cache_info().compiles <= 2


def bounds(n: int) -> list[int]:
    return [-n - 3, -n, -n + 1, -1, 0, 1, n // 2, n - 1, n, n + 4]


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_bounds_from_scalars_are_taken_as_numpy_takes_them(mode: str) -> None:
    @fuse(concretize_resize_extents=mode)
    def f(x: Any, a: int, b: int) -> Any:
        return x[a:b] + 1

    for n in (4, 7):
        x = ramp(n)
        for a in bounds(n):
            for b in bounds(n):
                assert np.array_equal(f(x, a, b), x[a:b] + 1), (n, a, b)


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_roll_by_a_scalar(mode: str) -> None:
    @fuse(concretize_resize_extents=mode)
    def f(x: Any, k: int) -> Any:
        return x + np.roll(x, k)

    for n in (5, 8):
        for k in (0, 1, 3, n, -2, 12):
            assert np.array_equal(f(ramp(n), k), ramp(n) + np.roll(ramp(n), k))


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_computed_extent_of_1_broadcasts(mode: str) -> None:
    """In a definition, whose sizes are not known while it is recorded."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        n = fd.define_scalar(dtype=DataType.Int)
        filled = fd.ops.full([n, 1], 3.0, DataType.Float)
        fd.add_output(fd.ops.add(fd.ops.mul(x, filled), fd.ops.slice(y, [0, 0], [n, 5])))
    with options(concretize_resize_extents=mode):
        for n_ in (1, 4):
            x_, y_ = ramp(4, 5), ramp(6, 5)
            (made,) = fd.execute([x_, y_, n_])
            assert np.array_equal(made, x_ * 3 + y_[:n_])
        with pytest.raises(ShapeError, match="extents differ on axis 0"):
            fd.execute([ramp(4, 5), ramp(6, 5), 3])


def test_a_concretized_definition_prints_and_rebuilds() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.reshape(x, [fd.define_scalar(dtype=DataType.Int), fd.define_scalar(dtype=DataType.Int)]))
    found = fd.concretization([ramp(6, 4), 8, 3])
    text = repr(FusionDefinition.from_fusion(found.fusion))
    names: dict[str, Any] = {**vars(tracefuse), "FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    with FusionDefinition() as again:
        names[text.partition("def ")[2].partition("(")[0]](again)
    assert repr(again).partition("\n")[2] == text.partition("\n")[2]


# -- what is kept -------------------------------------------------------------------------------------------------


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
    assert (first_count, second_count) == (2, 1)
    assert len(old) == len(new) == 2
    canonical = compile_cpu.canonical
    changed = [canonical(a[0].source) != canonical(b[0].source) for a, b in zip(old, new, strict=True)]
    assert changed == [False, True]


# -- in a loop ----------------------------------------------------------------------------------------------------


class SlicingCpu(CpuBackend):
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
    instructions = [Allocate(results, spec), Loop(index, 0, 7, 1, body), *map(Release, inputs)]
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
