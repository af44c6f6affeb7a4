"""Tests slices, pads, concatenations and rolls by sizes of the call: their keys, and which extents become static."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.dynamic.dynamic_definitions import arguments, example, padded, plans, ramp
from tracefuse import DataType, FusionDefinition, ShapeError, fuse, options


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


def test_auto_leaves_an_axis_dynamic_once_it_met_a_second_size() -> None:
    @fuse
    def f(x: Any, n: int) -> Any:
        return x[:n] + 1

    x = ramp(10)
    keys = []
    for n in (3, 4, 3, 5):
        assert np.array_equal(f(x, n), x[:n] + 1)
        keys += [entry.key for entry in f.concretization(x, n).resizes]
    assert keys == [(10, 0, -7), (-1, 2, 2), (-1, 2, 2), (-1, 2, 2)]
    assert f.cache_info().compiles == 2


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


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_a_slice_of_one_row_expands(mode: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        n = fd.define_scalar(dtype=DataType.Int)
        columns = fd.ops.size(x, 1)
        fd.add_output(fd.ops.expand(fd.ops.slice(x, [0, 0], [n, columns]), [4, columns]))
    x_ = ramp(6, 3)
    with options(concretize_resize_extents=mode):
        for n_ in (4, 1, 4):
            assert np.array_equal(fd.execute([x_, n_])[0], np.broadcast_to(x_[:n_], (4, 3)))
        with pytest.raises(ShapeError, match="expand: axis 0 has extent 3, not 4"):
            fd.execute([x_, 3])


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_halves_of_any_length_that_change_places(mode: str) -> None:
    """Extents that were taken to be equal may turn out to be what contradicts it: one column and four."""

    @fuse(concretize_resize_extents=mode)
    def f(x: Any, k: int) -> Any:
        left, right = x[:, :k], x[:, k:]
        return np.concatenate([right, left], 1) + x, left.max(1)

    for shape in ((3, 8), (2, 5), (3, 8)):
        for k in (1, 2, 4):
            x = ramp(*shape)
            moved, largest = f(x, k)
            assert np.array_equal(moved, np.concatenate([x[:, k:], x[:, :k]], 1) + x)
            assert np.array_equal(largest, x[:, :k].max(1))
