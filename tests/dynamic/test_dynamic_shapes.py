"""Tests reshapes that are resolved for the sizes of a call, and which calls compile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracefuse
from tests.dynamic.dynamic_definitions import compiled, plans, ramp, reshaping
from tracefuse import DataType, FusionDefinition, ShapeError, fuse, options
from tracefuse.compiler.executable import compile_fusion
from tracefuse.dynamic.concretize import concretize
from tracefuse.dynamic.regrouping import transforms_of
from tracefuse.ir.fusion import verify
from tracefuse.ir.reference import extent_values


def check(fd: FusionDefinition, shape: Sequence[int], *target: int) -> None:
    x = ramp(*shape)
    (made,) = fd.execute([x, *target])
    expected = x.reshape(target) + 1
    assert made.shape == expected.shape
    assert np.array_equal(made, expected)


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
        assert "dynamic_definitions.py" in str(error.value)
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
    with pytest.raises(
        tracefuse.ConcretizationError, match=r"axis 0 of value \d+ is symbolic: .*dynamic_definitions.py"
    ):
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


def test_a_reshape_of_a_fused_function_follows_its_arguments() -> None:
    @fuse
    def f(x: Any, n: int, m: int) -> Any:
        return x.reshape(x.shape[0], n, m, -1) + 1

    for shape, n, m in (((8, 12, 7, 5), 3, 28), ((8, 15, 7, 9), 3, 35), ((8, 15, 7, 9), 5, 21)):
        x = ramp(*shape)
        assert np.array_equal(f(x, n, m), x.reshape(8, n, m, -1) + 1)
    assert f.cache_info() == (1, 1, 2)


def test_the_shape_as_arguments_compiles_one_kernel() -> None:
    @fuse
    def f(x: Any, a: int, b: int, c: int, d: int) -> Any:
        return x.reshape(a, b, c, d) - 3

    counts = []
    for shape, target in (
        ((8, 12, 7, 5), (8, 3, 28, 5)),
        ((8, 15, 7, 9), (8, 3, 35, 9)),
        ((8, 15, 7, 9), (8, 3, -1, 9)),  # traced again, to the same kernel
        ((8, 15, 7, 9), (8, 5, 21, 9)),
    ):
        before = compiled()
        x = ramp(*shape)
        assert np.array_equal(f(x, *target), x.reshape(target) - 3)
        counts.append(compiled() - before)
    assert counts == [1, 0, 0, 0]


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
