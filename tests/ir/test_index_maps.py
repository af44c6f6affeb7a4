"""Tests values that one kernel reads at several places with an index for each use, and the text of such kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tests.ways import check
from tracefuse import FusionDefinition, ShapeDtype, fuse, options
from tracefuse.compiler.executable import Executable
from tracefuse.kernel.kernel_ir import Allocate, Barrier, If, walk_statements
from tracefuse.partition.segmentation import MATERIALIZED, segment_fusion
from tracefuse.schedule.recomputation import EXPENSIVE, STORE, values_to_store

GOLDEN = Path(__file__).parents[1] / "kernel" / "golden"
Body = Callable[[Any, Any], Any]


def definition(body: Body, rank: int = 2) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(body(fd, fd.define_tensor([-1] * rank, contiguity=True)))
    return fd


# ---------------------------------------------------------------------------------------------------------------------
# rotation with a residual


def rotated(fd: Any, t0: Any) -> Any:
    n = t0.size(0)
    t1, t2 = fd.ops.slice(t0, [0], [n // 2]), fd.ops.slice(t0, [n // 2], [n])
    return fd.ops.add(t0, fd.ops.cat([t2, t1], 0))


def without_remarks(text: str) -> str:
    """A kernel without the user's lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r"\s*(#|//) ", line))


def rotation_text(target: str, mode: str) -> str:
    with options(target=target, concretize_resize_extents=mode):
        (segment,) = definition(rotated, 1).segment([ShapeDtype((4096,), "float32")])
        if target == "cpu":
            return without_remarks(str(segment.kernel)) + "\n"
        source = segment.source
    return without_remarks(source[source.index('extern "C"') :])


TEXTS = {"rotation_symbolic.txt": ("cpu", "off"), "rotation.txt": ("cpu", "on"), "rotation.cu": ("cuda", "on")}


@pytest.mark.parametrize("name", TEXTS)
def test_the_kernel_of_a_rotation_with_its_residual_is_the_golden_text(name: str) -> None:
    text = rotation_text(*TEXTS[name])
    assert text == (GOLDEN / name).read_text()
    assert "__syncthreads" not in text
    assert "__shared__" not in text


def test_a_rotation_with_its_residual_is_right(backend: str) -> None:
    fd = definition(rotated, 1)
    check(fd, [np.arange(8, dtype=np.float32)], backend, bits=True)
    assert np.array_equal(fd.execute([np.arange(8, dtype=np.float32)])[0], [4, 6, 8, 10, 4, 6, 8, 10])


# ---------------------------------------------------------------------------------------------------------------------
# every movement op beside its own operand, and mixes of them


def halves(fd: Any, x: Any) -> tuple[Any, Any]:
    rows, columns = x.size(0), x.size(1)
    return fd.ops.slice(x, [0, 0], [rows, columns // 2]), fd.ops.slice(x, [0, columns // 2], [rows, columns])


def three_offsets(fd: Any, x: Any) -> Any:
    rows, columns = x.size(0), x.size(1)
    left, middle, right = (fd.ops.slice(x, [0, k], [rows, columns - 2 + k]) for k in range(3))
    return fd.ops.sub(fd.ops.add(left, right), middle)


def reshape_cycle(fd: Any, x: Any) -> Any:
    flat = fd.ops.reshape(x, [x.size(0) * x.size(1)])
    return fd.ops.add(x, fd.ops.reshape(fd.ops.neg(flat), [x.size(0), x.size(1)]))


def turned_through_memory(fd: Any, x: Any) -> Any:
    """Row-major order of the transposed array, in the shape of the array: no two elements keep their places."""
    turned = fd.ops.reshape(fd.ops.permute(x, [1, 0]), [x.size(0), x.size(1)])
    return fd.ops.add(x, turned)


def rolled_sum(fd: Any, x: Any) -> Any:
    total = fd.ops.sum(fd.ops.roll(x, 1, 1), [1], keepdim=True)
    return fd.ops.add(x, total)


def chain(fd: Any, x: Any) -> Any:
    first, second = halves(fd, x)
    joined = fd.ops.cat([second, fd.ops.neg(first)], 1)
    padded = fd.ops.pad(joined, [0, 0, 1, -1])
    turned = fd.ops.permute(fd.ops.reshape(padded, [x.size(1), x.size(0)]), [1, 0])
    return fd.ops.add(fd.ops.mul(x, joined), fd.ops.add(padded, turned))


BODIES: dict[str, Body] = {
    "pad": lambda fd, x: fd.ops.add(x, fd.ops.pad(x, [0, 0, 1, -1])),
    "pad both": lambda fd, x: fd.ops.add(fd.ops.pad(x, [0, 0, 2, -2]), fd.ops.pad(x, [-1, 1, -1, 1], 3.0)),
    "slice": lambda fd, x: fd.ops.add(x, fd.ops.pad(fd.ops.slice(x, [0, 1], [x.size(0), x.size(1)]), [0, 1, 0, 0])),
    "slice scatter": lambda fd, x: fd.ops.add(
        x, fd.ops.slice_scatter(x, fd.ops.neg(halves(fd, x)[0]), [0, 0], [x.size(0), x.size(1) // 2], [1, 1])
    ),
    "cat": lambda fd, x: fd.ops.add(x, fd.ops.cat([*reversed(halves(fd, x))], 1)),
    "cat of rows": lambda fd, x: fd.ops.mul(fd.ops.cat([x, fd.ops.neg(x)], 0), 2.0),
    "flip": lambda fd, x: fd.ops.add(x, fd.ops.flip(x, [0, 1])),
    "roll": lambda fd, x: fd.ops.add(fd.ops.add(x, fd.ops.roll(x, 1, 0)), fd.ops.roll(x, -2, 1)),
    "permute": lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [1, 0])),
    "reshape cycle": reshape_cycle,
    "turned through memory": turned_through_memory,
    "three offsets": three_offsets,
    "three offsets of a computed value": lambda fd, x: three_offsets(fd, fd.ops.mul(x, 3.0)),
    "rolled sum": rolled_sum,
    "chain": chain,
}
SQUARE = {"permute"}


@pytest.mark.parametrize("name", BODIES)
def test_a_value_beside_its_moved_self_is_one_kernel(backend: str, name: str) -> None:
    fd = definition(BODIES[name])
    x = np.random.default_rng(3).integers(-9, 9, (6, 6) if name in SQUARE else (6, 8)).astype(np.float32)
    check(fd, [x], backend, bits=True)
    assert len(fd.segment([x])) == 1, fd.explain([x])


@pytest.mark.parametrize("axis", [0, 1])
def test_loops_are_cut_where_a_concatenation_changes(axis: int) -> None:
    """No test in the innermost loop on the CPU, whichever axis is concatenated."""
    fd = definition(lambda fd, x: fd.ops.mul(fd.ops.cat([x, fd.ops.neg(x)], axis), 2.0))
    (segment,) = fd.segment([ShapeDtype((300, 40), "float32")])
    (kernel,) = (launch.kernel for launch in segment.launches)
    innermost = [s for s in walk_statements(kernel.body) if getattr(s, "kind", "") == "vector"]
    assert len(innermost) == 2
    assert not any(isinstance(s, If) for loop in innermost for s in walk_statements(loop.body))
    assert not any(isinstance(s, (Barrier, Allocate)) for s in walk_statements(kernel.body))


def test_the_result_of_a_reduction_read_elsewhere_is_a_boundary_with_its_reason() -> None:
    def body(fd: Any, x: Any) -> Any:
        total = fd.ops.sum(x, [1])
        return fd.ops.add(total, fd.ops.roll(total, 1, 0))

    fd = definition(body)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert len(fd.segment([x])) == 2
    assert "the result of a reduction is read at other coordinates" in str(fd.explain([x]))
    check(fd, [x], bits=True)


def test_costly_work_is_done_again_within_a_limit_and_explain_says_so() -> None:
    def cheap(x: Any) -> Any:
        y = np.exp(x) * 2
        return y[:-2] + y[1:-1] + y[2:]

    def costly(x: Any) -> Any:
        y = np.exp(np.sin(x) + np.cos(x)) * 2
        return y[:-2] + y[1:-1] + y[2:]

    x = np.linspace(-1, 1, 50, dtype=np.float32)
    again = fuse(cheap).explain(x)
    assert again.recomputed == ({1: 3},)
    assert "recomputed rather than stored:\n  segment 0: T1 at 3 places" in str(again)
    stored = fuse(costly).explain(x)
    assert stored.recomputed == ({}, {})
    assert stored.boundaries[(0, 1)].reason == MATERIALIZED
    np.testing.assert_allclose(fuse(costly)(x), costly(x.astype(np.float64)), rtol=1e-5)


def test_what_is_done_again_never_goes_over_its_limit() -> None:
    def deep(x: Any) -> Any:
        for _ in range(4):
            y = np.exp(np.tanh(x))
            x = y[:-2] + y[1:-1] + y[2:]
        return x

    x = np.linspace(-1, 1, 50, dtype=np.float32)
    for found in fuse(deep).explain(x).recomputed:
        assert (sum(found.values()) - len(found)) * EXPENSIVE <= STORE
    np.testing.assert_allclose(fuse(deep)(x), deep(x.astype(np.float64)), rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# classes of (axis, use)


def test_the_axes_of_a_broadcast_copy_and_its_reader_have_four_classes() -> None:
    """T2[b1, I1] = set(T0[b0, I0]) read by T3[I2, I3] = add(T2, T1[I4, I5])."""
    with FusionDefinition() as fd:
        t0, t1 = fd.define_tensor([1, -1], contiguity=[None, True]), fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.set(t0), t1))
    names = {
        (0, 0): "b0",
        (2, 0): "b1",
        (0, 1): "I0",
        (2, 1): "I1",
        (3, 0): "I2",
        (3, 1): "I3",
        (1, 0): "I4",
        (1, 1): "I5",
    }
    found = {frozenset(f"{names[use.value, use.axis]},{use.op}" for use in members) for members in fd.indexing.classes}
    assert found == {
        frozenset({"b0,set", "b1,set", "b1,add"}),
        frozenset({"I0,set", "I1,set"}),
        frozenset({"I1,add", "I5,add", "I3,add"}),
        frozenset({"I2,add", "I4,add"}),
    }
    assert "{T0.0 in T2 = set; T2.0 in T2 = set; T2.0 in T3 = add}" in str(fd.indexing).splitlines()


def test_a_value_read_beside_its_rotated_self_has_an_index_for_each_read() -> None:
    indexing = fuse(lambda x: x + np.roll(x, 1, 0)).indexing(np.ones(5, np.float32))
    here = indexing.class_of(0, 0, result=2)
    assert [str(use) for use in here] == ["T0.0 in T2 = add", "T1.0 in T2 = add", "T2.0 in T2 = add"]
    assert indexing.class_of(0, 0, result=1) != indexing.class_of(0, 0, result=1, read=1) != here
    with pytest.raises(KeyError, match="axis 1 of T0 is not used"):
        indexing.class_of(0, 1, result=2)


# ---------------------------------------------------------------------------------------------------------------------
# chains of movements


def moved(library: Any, x: Any, step: tuple[str, int]) -> Any:
    """`x` with two axes, moved: every step keeps the number of elements along each axis."""
    name, by = step
    rows, columns = x.shape
    if name == "flip":
        return x[:, ::-1] if by % 2 else x[::-1]
    if name == "roll":
        return library.roll(x, by, by % 2)
    if name == "turn":
        return library.reshape(library.transpose(x), (rows, columns))
    if name == "cut":
        kept = x[:, by % 3 :]
        return library.concatenate((kept, x[:, : by % 3]), axis=1)
    if name == "pad":
        return library.pad(x[by % 2 :], ((0, by % 2), (0, 0)))
    return library.reshape(library.reshape(x, (columns, rows)), (rows, columns))


steps = st.tuples(st.sampled_from(["flip", "roll", "turn", "cut", "pad", "through"]), st.integers(0, 5))


@settings(max_examples=times(25))
@given(st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=5))
def test_chains_of_movements_are_numpys_in_one_kernel_for_each_stored_value(
    chosen: list[tuple[tuple[str, int], bool]],
) -> None:
    def function(x: Any) -> Any:
        value = x
        for step, residual in chosen:
            result = moved(np, value, step)
            value = result + value if residual else result
        return value + x

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    fused = fuse(function)
    assert np.array_equal(fused(x), function(x)), chosen
    stored = values_to_store(fused.definition(x).fusion)
    assert len(fused.segments(x)) <= 1 + len(stored), chosen


EMPTY: dict[str, Callable[[Any], Any]] = {
    "flipped, reshaped": lambda x: np.flip(x.reshape(2, 3, 4)[:, 1:1], 2).reshape(4, 0) + 1,
    "reshaped twice": lambda x: x.reshape(3, 8)[:, 5:5].reshape(0, 7) * 2,
    "transposed, reshaped": lambda x: x[:, 2:2].T.reshape(3, 0) * 2,
    "a sum of nothing": lambda x: x.reshape(3, 8)[:, 5:5].reshape(8, 0, 3).sum(1),
    "beside what has elements": lambda x: np.concatenate([x.reshape(3, 8)[:, 1:1], x.reshape(3, 8)], 1),
    "padded": lambda x: np.pad(x.reshape(3, 8)[0:0], ((1, 1), (0, 0))),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", EMPTY)
def test_slices_without_elements_move_as_others_do(name: str, dynamic: bool) -> None:
    function = EMPTY[name]
    for x in (np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(24, dtype=np.float32).reshape(6, 4).T):
        np.testing.assert_array_equal(fuse(function, dynamic=dynamic)(x), function(x), strict=True)


def test_a_slice_without_elements_that_nothing_reads_divides_by_nothing() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([1], [None])
        t1 = fd.define_tensor([2, 1, 2], [True, None, True])
        doubled = fd.ops.add(t0, t0)
        fd.ops.slice(t1, [0, 1, 0], [2, 1, 2], [1, 1, 1])
        fd.add_output(doubled)
    as_recorded = Executable(segment_fusion(fd.fusion))  # with what a pass would drop
    (result,) = as_recorded([np.full(1, 2, np.float32), np.ones((2, 1, 2), np.float32)])
    assert result.tolist() == [4]


if __name__ == "__main__":
    for golden, (target, mode) in TEXTS.items():
        (GOLDEN / golden).write_text(rotation_text(target, mode))
