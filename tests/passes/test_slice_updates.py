"""A slice written into an argument writes that slice, and nothing else of the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segments import Alias, CopyBuffer
from tracefuse import DataType, FusionDefinition, fuse


def heat(u: Any, k: Any) -> None:
    u[1:-1, 1:-1] += k * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])


def scaled_inside(u: Any, k: Any) -> None:
    u[1:-1, ::2] *= k


def edges(u: Any, k: Any) -> Any:
    u[0] = 0
    u[-1] = k
    u[:, 0] = u[:, 1]
    u[1:-1] *= 2
    return u.sum()


def first_rows(u: Any, k: Any) -> Any:
    u[:3] += k
    return u * 2


def shifted(u: Any, k: Any) -> None:
    u[1:] = u[:-1]


def of_an_argument(u: Any, v: Any) -> Any:
    u[2:4] = v[:2]
    u[0] = v[0]
    return v


def whole_and_slice(u: Any, k: Any) -> None:
    u *= k
    u[1:3] += 1


def even_and_odd(u: Any, k: Any) -> None:
    u[::2] *= k
    u[1::2] += 1


def halves(u: Any, k: Any) -> None:
    u[:3] = u[3:6] * k + u[:3]


def sum_of_the_other_half(u: Any, k: Any) -> None:
    u[:4] += u[4:].sum() * k
    u[4:] -= 1


def swapped_halves(u: Any, k: Any) -> None:
    u[:3], u[3:6] = u[3:6] * k, u[:3] * k


FUNCTIONS = [heat, scaled_inside, edges, first_rows, shifted, of_an_argument, whole_and_slice]
FUNCTIONS += [even_and_odd, halves, sum_of_the_other_half, swapped_halves]

LAYOUTS = (lambda x: x, np.asfortranarray, lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2], lambda x: x[::-1])


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_argument_holds_what_numpy_leaves(function: Any, target: str) -> None:
    fused = fuse(function, target=target)
    for arrange in LAYOUTS[: 1 if target == "cpu" else 4]:
        for shape in ((6, 5), (9, 8)):
            own, expected = (arrange(np.random.default_rng(1).random(shape)) for _ in range(2))
            other = np.ones(shape) if function is of_an_argument else 0.25
            for _ in range(2):
                wanted = function(expected, other)
                result = fused(own, other)
            np.testing.assert_allclose(own, expected, rtol=1e-14)
            if wanted is not None:
                np.testing.assert_allclose(result, wanted, rtol=1e-14)


def instructions(function: Any, kind: type) -> list[Any]:
    u = np.ones((8, 9))
    return [one for one in fuse(function).host_program(u, 0.5).program.instructions if isinstance(one, kind)]


def test_a_slice_that_is_read_at_other_places_goes_through_memory_of_its_size() -> None:
    program = fuse(heat).host_program(np.ones((8, 9)), 0.5)
    assert len(instructions(heat, CopyBuffer)) == 1
    assert "ALLOCATE" in str(program)
    assert "{6}" in str(program)
    assert "{7}" in str(program)


def test_a_slice_that_is_read_where_it_is_written_is_updated_in_place() -> None:
    assert len(instructions(scaled_inside, Alias)) == 1
    assert not instructions(scaled_inside, CopyBuffer)
    assert len(instructions(first_rows, CopyBuffer)) == 1  # the result reads the other rows after the update


@pytest.mark.parametrize("function", [even_and_odd, halves, swapped_halves])
def test_slices_that_are_updated_beside_reads_of_others_are_written_in_place(function: Any) -> None:
    assert not instructions(function, CopyBuffer)


def test_definitions_update_slices_too_and_print_the_whole() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True, DataType.Double)
        part = fd.ops.slice(x, [1], [3])
        fd.add_output(fd.ops.slice_scatter(x, fd.ops.mul(part, 2.0), [1], [3], [1]), alias_input=x)
    own = np.arange(5.0)
    assert fd.execute([own]) == []
    np.testing.assert_array_equal(own, [0, 2, 4, 3, 4])
    assert "slice_scatter(T0" in str(fd)


def test_disabled_the_whole_argument_is_written() -> None:
    u, expected = np.ones((4, 5)), np.ones((4, 5))
    fuse(heat, disable="update_slices")(u, 0.5)
    heat(expected, 0.5)
    np.testing.assert_allclose(u, expected)


@pytest.mark.parametrize("position", [0, 2, 7])
@pytest.mark.parametrize("order", [0, 1])
def test_updates_that_may_overlap_happen_in_order(position: int, order: int) -> None:
    def wide(x: Any, y: Any, i: Any) -> None:
        x[i:] += i

    def thin(x: Any, y: Any, i: Any) -> None:
        x[i] = np.maximum(y[i], y[0])

    def last(x: Any, y: Any, i: Any) -> None:
        x[-1] = y[1]

    steps = ((wide, thin, last), (thin, last, wide))[order]

    def function(x: Any, y: Any, i: Any) -> Any:
        for step in steps:
            step(x, y, i)
        return y + 1

    ours, theirs, y = np.arange(8.0), np.arange(8.0), np.arange(8.0)[::-1].copy()
    fuse(function)(ours, y, position)
    function(theirs, y, position)
    np.testing.assert_array_equal(ours, theirs)
