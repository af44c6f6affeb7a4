"""An update through views writes what changed in them, and no view as a whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.test_overwritten_slices import recorded
from tests.session.samples import times
from tracefuse import fuse
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.reference import evaluate
from tracefuse.passes.dead_code import drop_dead
from tracefuse.passes.narrowed_updates import narrow_updates
from tracefuse.passes.overwritten_slices import skip_overwritten
from tracefuse.passes.slice_updates import update_slices

SHAPE = (4, 5, 6)

VIEWS = st.lists(
    st.sampled_from([
        lambda u: u[1:], lambda u: u[..., ::2], lambda u: u[0], lambda u: u[..., 1], lambda u: u[1:, ..., 1:],
        lambda u: u.T, lambda u: u[None], lambda u: u[..., None, :], lambda u: u[::-1], lambda u: u[..., ::-1],
        lambda u: u.reshape(-1), lambda u: u.reshape(u.shape[0], -1),
    ]),
    min_size=1, max_size=3,
)  # fmt: skip


def written(fusion: Fusion) -> list[str]:
    """Returns the numbers of elements that the updates of a fusion write, as texts."""
    nodes = [node for node in fusion.nodes if isinstance(node.op, Movement) and node.op.slices == "written"]
    return [str(product(fusion.shape_of(node.inputs[1]))) for node in nodes]


@settings(max_examples=times(40), deadline=None)
@given(VIEWS, VIEWS, st.booleans())
def test_updates_of_views_leave_what_numpy_leaves(first: list[Any], second: list[Any], reads: bool) -> None:
    def write(u: Any, steps: int) -> Any:
        for k in range(1, steps):
            for count, moves in enumerate((first, second, first)):
                view = u
                for move in moves:
                    view = move(view) if view.ndim else view
                before = view[..., :1] * k if reads and view.ndim else 0
                view[...] = view + count + before
                if view.ndim:
                    view[..., 1:] *= 2
        return u

    u = np.arange(math.prod(SHAPE), dtype=np.float64).reshape(SHAPE)
    try:
        expected = write(u.copy(), 2)
    except IndexError:
        return
    nodes = recorded(write, u, 40).nodes
    if not nodes or "body" not in nodes[-1].attributes:  # a reshape has copied, so nothing is written
        np.testing.assert_array_equal(expected, u)
        return
    body = nodes[-1].attributes["body"].fusion
    narrowed = drop_dead(narrow_updates(body))
    for fusion in (body, narrowed):
        operands = [u.copy() if fusion.values[number].is_tensor else 1 for number in fusion.inputs]
        np.testing.assert_array_equal(evaluate(fusion, operands)[0], expected)


def test_an_element_of_a_row_of_a_view_is_written_alone() -> None:
    def write(u: Any) -> Any:
        inner = u[1:, :, 2:]
        row = inner[0, 1]
        for k in range(1, 40):
            row[k] = row[k - 1] + 1
        return u

    loop = recorded(write, np.zeros((4, 5, 60))).nodes[-1]
    body = loop.attributes["body"].fusion
    assert written(body)[:2] == ["1", "i2 - 2"]
    narrowed = drop_dead(narrow_updates(body))
    assert written(narrowed) == ["1"]
    u = np.arange(1200.0).reshape(4, 5, 60)
    (result,) = evaluate(narrowed, [3, u.copy()])
    u[1, 1, 5] = u[1, 1, 4] + 1
    np.testing.assert_array_equal(result, u)


WRITTEN_THROUGH_MOVEMENTS = {
    "a flipped row": (lambda u: u[1, ::-1], "1"),
    "a new axis": (lambda u: u[:, None][:, 0, :].T, "i0"),
    "all elements in one row": (lambda u: u.reshape(-1), "1"),
    "rows of pairs": (lambda u: u.reshape(-1, 2), "2"),
    "a turned array": (lambda u: u.T[::-1], "i0"),
}


@pytest.mark.parametrize("name", WRITTEN_THROUGH_MOVEMENTS)
def test_what_leads_back_from_a_view_moves_what_changed(name: str) -> None:
    view, count = WRITTEN_THROUGH_MOVEMENTS[name]

    def write(u: Any, steps: int) -> Any:
        x = view(u)
        for k in range(1, steps):
            x[k] = x[k - 1] + 1
        return u

    u = np.arange(3000.0).reshape(50, 60)
    body = recorded(write, u, 40).nodes[-1].attributes["body"].fusion
    narrowed = drop_dead(narrow_updates(body))
    assert written(narrowed) == [count]
    expected = u.copy()
    view(expected)[1] = view(expected)[0] + 1
    operands = [u.copy() if narrowed.values[number].is_tensor else 1 for number in narrowed.inputs]
    np.testing.assert_array_equal(evaluate(narrowed, operands)[0], expected)


@pytest.mark.parametrize("of_rows", [False, True], ids=["rows", "parts of rows"])
def test_two_views_are_read_as_they_are_after_the_updates_of_both(of_rows: bool) -> None:
    def write(u: Any, steps: int) -> Any:
        even, odd = (u[:, :-1:2], u[:, 1::2]) if of_rows else (u[::2], u[1::2])
        for k in range(1, steps):
            even[k] += odd[k - 1]
            odd[k] -= even[k - 1]
        return u

    u = np.arange(900.0).reshape(100, 9)
    narrowed = drop_dead(narrow_updates(recorded(write, u, 40).nodes[-1].attributes["body"].fusion))
    assert written(narrowed) == (["i1 // 2"] * 2 if of_rows else ["i1"] * 2)
    operands = [u.copy() if narrowed.values[number].is_tensor else 1 for number in narrowed.inputs]
    np.testing.assert_array_equal(evaluate(narrowed, operands)[0], write(u.copy(), 2))


def test_a_slice_without_elements_of_every_second_row_is_written() -> None:
    @fuse
    def write(u: Any, k: int) -> Any:
        rows = u[::2]
        rows[1:k] += 1
        rows[:k:2] *= 2
        return u

    for stop in range(7):
        u = np.arange(11.0)
        np.testing.assert_array_equal(write(u.copy(), stop), write.__wrapped__(u.copy(), stop))


def test_views_that_hold_something_else_are_written_whole() -> None:
    def another_row(u: Any) -> Any:
        u = u.copy()
        row = u[0] * 1
        row[1] = 7.0
        u[1] = row
        return u

    u = np.arange(12.0).reshape(3, 4)
    fusion = recorded(another_row, u)
    assert narrow_updates(fusion) is fusion


def _halves(u: Any) -> tuple[Any, Any]:
    half = u.shape[0] // 2
    return u[:half], u[half:]


PAIRS_OF_VIEWS = {
    "flipped": lambda u: (u[::-1], u[::-1]), "columns": lambda u: (u.T, u.T), "halves": _halves,
    "every second column": lambda u: (u[:, ::2], u[:, ::2]),
}  # fmt: skip


@pytest.mark.parametrize("views", PAIRS_OF_VIEWS.values(), ids=PAIRS_OF_VIEWS)
def test_views_that_are_read_between_updates_are_updated_in_place(views: Any) -> None:
    def update(u: Any) -> Any:
        first, second = views(u)
        for k in range(1, 5):
            first[k] += second[k - 1]
            second[k] += first[k - 1]
        return u

    u = np.arange(300.0).reshape(20, 15)
    fusion = drop_dead(update_slices(skip_overwritten(narrow_updates(recorded(update, u)))))
    assert set(fusion.outputs) == set(fusion.slice_updates)
    np.testing.assert_array_equal(fuse(update)(u.copy()), update(u.copy()))
