"""Outputs that update inputs: `add_output(t, alias_input=x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from segments import Alias, CopyBuffer
from tracefuse import DataType, FusionDefinition, rules
from tracefuse.errors import DtypeError, FusionError, ShapeError, UnsupportedError
from tracefuse.ir.fusion import Fusion

N = 300


def definition(body: Callable[..., None], inputs: int = 1, rank: int = 1) -> FusionDefinition:
    """`body(fd, *tensors)` recorded on float32 tensors."""
    with FusionDefinition() as fd:
        body(fd, *(fd.define_tensor([-1] * rank, True) for _ in range(inputs)))
    return fd


def values(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-50, 50, shape or (N,)).astype(np.float32)


MERGES = [None, rules.one_op_a_segment, rules.reduction_ends_segment]


@pytest.mark.parametrize("merge", MERGES)
def test_an_input_is_updated_and_nothing_is_returned_for_it(merge: Any) -> None:
    fd = definition(lambda fd, x, y: fd.add_output(fd.ops.mul(fd.ops.add(x, y), y), alias_input=x), 2)
    fd.segment(merge=merge)
    x, y = values(0), values(1)
    expected = (x + y) * y
    assert fd.execute([x, y]) == []
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, values(1))


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("name", ["roll", "flip", "slices", "sum"])
def test_an_update_from_other_coordinates_of_the_same_input(name: str, merge: Any) -> None:
    def body(fd: FusionDefinition, x: Any) -> None:
        moved = {
            "roll": lambda: fd.ops.roll(x, 1, 0),
            "flip": lambda: fd.ops.flip(x, [0]),
            "slices": lambda: fd.ops.cat([fd.ops.slice(x, [7], [N]), fd.ops.slice(x, [0], [7])], 0),
            "sum": lambda: fd.ops.broadcast_in_dim(fd.ops.sum(x, [0]), [N], []),
        }[name]()
        fd.add_output(fd.ops.add(x, moved), alias_input=x)

    fd = definition(body)
    fd.segment(merge=merge)
    x = values(2)
    moves = {"roll": np.roll(x, 1), "flip": x[::-1], "slices": np.roll(x, -7), "sum": x.sum()}
    expected = x + moves[name]
    fd.execute([x])
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("merge", MERGES)
def test_other_readers_and_outputs_see_the_input_as_it_was(merge: Any) -> None:
    def body(fd: FusionDefinition, x: Any, y: Any) -> None:
        total = fd.ops.sum(x, [0])
        new = fd.ops.add(x, y)
        fd.add_output(new, alias_input=x)
        fd.add_output(fd.ops.mul(x, fd.ops.broadcast(total, [True])))
        fd.add_output(fd.ops.sub(new, x), alias_input=y)
        fd.add_output(total)
        fd.add_output(new)

    fd = definition(body, 2)
    fd.segment(merge=merge)
    x, y = values(3), values(4)
    before, other = x.copy(), y.copy()
    product, total, copy = fd.execute([x, y])
    np.testing.assert_array_equal(x, before + other)
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(product, before * before.sum())
    assert total == before.sum()
    np.testing.assert_array_equal(copy, before + other)
    assert not np.shares_memory(copy, x)


def test_two_inputs_are_swapped() -> None:
    def body(fd: FusionDefinition, x: Any, y: Any) -> None:
        fd.add_output(y, alias_input=x)
        fd.add_output(x, alias_input=y)

    fd = definition(body, 2)
    x, y = values(5), values(6)
    fd.execute([x, y])
    np.testing.assert_array_equal(x, values(6))
    np.testing.assert_array_equal(y, values(5))


def test_one_value_updates_two_inputs_and_is_returned() -> None:
    def body(fd: FusionDefinition, x: Any, y: Any) -> None:
        new = fd.ops.add(x, y)
        fd.add_output(new, alias_input=x)
        fd.add_output(new, alias_input=y)
        fd.add_output(new)

    fd = definition(body, 2)
    x, y = values(7), values(8)
    expected = x + y
    (new,) = fd.execute([x, y])
    for array in (x, y, new):
        np.testing.assert_array_equal(array, expected)
    assert not np.shares_memory(new, x)


def test_an_input_updated_by_itself_is_unchanged() -> None:
    fd = definition(lambda fd, x: fd.add_output(x, alias_input=x))
    x = values(9)
    assert fd.execute([x]) == []
    np.testing.assert_array_equal(x, values(9))


@pytest.mark.parametrize(
    "view", [lambda m: m[::2], lambda m: m[::-1], lambda m: m[1:].T, lambda m: m[:, ::3]], ids=["2", "-1", "T", "3"]
)
def test_inputs_of_any_strides_are_updated_in_place(view: Callable[[Any], Any]) -> None:
    fd = definition(lambda fd, x: fd.add_output(fd.ops.add(x, 1.0), alias_input=x), rank=2)
    memory = values(10, 12, 15)
    expected = memory.copy()
    view(expected)[...] += 1
    fd.execute([view(memory)])
    np.testing.assert_array_equal(memory, expected)


def test_inputs_that_overlap_are_read_as_they_were() -> None:
    fd = definition(lambda fd, x, y: fd.add_output(fd.ops.add(x, y), alias_input=x), 2)
    memory = values(11)
    before = memory.copy()
    fd.execute([memory[:-1], memory[1:]])
    np.testing.assert_array_equal(memory[:-1], before[:-1] + before[1:])
    whole = values(12)
    fd.execute([whole, whole])
    np.testing.assert_array_equal(whole, 2 * values(12))


def test_a_pointwise_update_is_written_by_its_kernel_and_another_is_copied() -> None:
    x = values(13)
    direct = definition(lambda fd, x: fd.add_output(fd.ops.add(x, 1.0), alias_input=x))
    copied = definition(lambda fd, x: fd.add_output(fd.ops.add(x, fd.ops.flip(x, [0])), alias_input=x))
    kinds = [
        {type(i) for i in fd._split().plan_for([x])[0].program.instructions} & {Alias, CopyBuffer}
        for fd in (direct, copied)
    ]
    assert kinds == [{Alias}, {CopyBuffer}]


def test_an_update_shows_in_the_printed_definition_and_comes_back_from_it() -> None:
    fd = definition(lambda fd, x: fd.add_output(fd.ops.add(x, 1.0), alias_input=x))
    assert "fd.add_output(T1, alias_input=T0)" in repr(fd)
    names: dict[str, Any] = {}
    exec("from tracefuse import *", names)
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names[f"nvfuser_fusion_id{fd.id()}"](again)
    assert again.fusion.aliases == fd.fusion.aliases == {1: 0}


def test_steps_and_validate_support_updates() -> None:
    fd = definition(lambda fd, x, y: fd.add_output(fd.ops.add(x, y), alias_input=x), 2)
    fd.validate([values(0), values(1)])
    x = values(0)
    steps = list(fd.execute_steps([x, values(1)]))
    assert len(steps) == 2
    np.testing.assert_array_equal(x, values(0) + values(1))


def add(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.add(x, y)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            lambda fd, x, y: fd.add_output(add(fd, x, y), alias_input=add(fd, x, y)),
            FusionError,
            "T3 is not an in",
        ),
        (lambda fd, x, y: fd.add_output(fd.ops.cast(x, DataType.Double), alias_input=x), DtypeError, "is float64"),
        (lambda fd, x, y: fd.add_output(fd.ops.sum(x, [0]), alias_input=x), ShapeError, "0 axes"),
        (
            lambda fd, x, y: [fd.add_output(add(fd, x, y), alias_input=x) for _ in "12"],
            FusionError,
            "already updates",
        ),
        (
            lambda fd, x, y: fd.add_output(add(fd, x, y), alias_input=fd.define_scalar(2)),
            FusionError,
            "is not an input",
        ),
    ],
    ids=["intermediate", "dtype", "shape", "twice", "scalar"],
)
def test_an_invalid_update_is_refused_while_it_is_recorded(body: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        definition(body, 2)


def test_sizes_that_do_not_fit_are_refused_before_anything_runs() -> None:
    fd = definition(lambda fd, x, y: fd.add_output(fd.ops.mul(y, 2.0), alias_input=x), 2)
    x = values(14)
    with pytest.raises(ShapeError, match=r"T2 has 5 elements on axis 0, T0, which it updates, 300"):
        fd.execute([x, np.ones(5, np.float32)])
    np.testing.assert_array_equal(x, values(14))


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (read_only(values(15)), UnsupportedError, "T0, which is updated in place, is read-only"),
        (np.broadcast_to(values(15, 1), (N,)), UnsupportedError, "read-only"),
        (np.lib.stride_tricks.as_strided(values(15), (N,), (0,)), UnsupportedError, "300 elements on axis 0 share one"),
        (values(15).astype(np.float64), DtypeError, "float64"),
        ([1.0, 2.0], DtypeError, "list"),
    ],
    ids=["read-only", "broadcast", "stride 0", "dtype", "list"],
)
def test_arrays_that_cannot_be_updated_are_refused(array: Any, error: Any, message: str) -> None:
    fd = definition(lambda fd, x: fd.add_output(fd.ops.add(x, 1.0), alias_input=x))
    with pytest.raises(error, match=message):
        fd.execute([array])


def test_two_updated_inputs_that_overlap_are_refused() -> None:
    def body(fd: FusionDefinition, x: Any, y: Any) -> None:
        fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
        fd.add_output(fd.ops.add(y, 2.0), alias_input=y)

    fd, memory = definition(body, 2), values(16)
    for pair in ((memory, memory), (memory[1:], memory[:-1])):
        with pytest.raises(FusionError, match="T3 and T2 overlap"):
            fd.execute(pair)
    np.testing.assert_array_equal(memory, values(16))
    fd.execute([memory[::2], memory[1::2]])
    np.testing.assert_array_equal(memory, values(16) + np.tile([1, 2], N // 2))


def test_jax_arrays_cannot_be_updated() -> None:
    jax = pytest.importorskip("jax")
    fd = definition(lambda fd, x: fd.add_output(fd.ops.add(x, 1.0), alias_input=x))
    with pytest.raises(UnsupportedError, match="JAX arrays are immutable"):
        fd.execute([jax.numpy.ones(4, "float32")])


def test_a_fusion_keeps_its_updates_through_every_pass() -> None:
    fd = definition(lambda fd, x: fd.add_output(fd.ops.add(fd.ops.mul(x, 1.0), 0.0), alias_input=x))
    fusion: Fusion = fd._split().segmentation.fusion
    assert list(fusion.aliases.values()) == [0]
