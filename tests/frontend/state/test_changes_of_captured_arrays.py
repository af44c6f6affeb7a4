"""Captured arrays that a function changes in place are changed at every call; views are as in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontend.state.state_layers import Layer, V
from tracefuse import fuse


def operator_in_place() -> Any:
    c = np.ones(3)

    def function(x: Any) -> Any:
        nonlocal c
        c += 1
        return x * c

    return function, c


def traced_operand() -> Any:
    c = np.ones(3)

    def function(x: Any) -> Any:
        nonlocal c
        c += x
        return x * c

    return function, c


def element_assigned() -> Any:
    layer = Layer(np.ones(3))

    def function(x: Any) -> Any:
        layer.w[0] = 5
        return layer(x)

    return function, layer.w


def slice_of_an_entry() -> Any:
    held = {"w": np.ones(3)}

    def function(x: Any) -> Any:
        held["w"][1:] += 1
        return x * held["w"]

    return function, held["w"]


def out_parameter() -> Any:
    buffer = np.ones(3)

    def function(x: Any) -> Any:
        np.add(buffer, 1, out=buffer)
        return x * buffer

    return function, buffer


def another_name() -> Any:
    weights = np.ones(3)

    def change(array: Any) -> None:
        view = array[1:]
        view *= 2

    def function(x: Any) -> Any:
        change(weights)
        return x * weights

    return function, weights


@pytest.mark.parametrize(
    "program",
    [operator_in_place, traced_operand, element_assigned, slice_of_an_entry, out_parameter, another_name],
)  # fmt: skip
def test_a_captured_array_that_is_changed_in_place_is_changed_at_every_call(program: Callable[[], Any]) -> None:
    function, array = program()
    plain, own = program()
    fused = fuse(function)
    for k in range(3):
        np.testing.assert_array_equal(fused(V + k), plain(V + k))
        np.testing.assert_array_equal(array, own)
        array *= 1.5
        own *= 1.5
    assert fused.cache_info().traces == 1
    assert array.flags.writeable


def test_what_is_written_instead_changes_the_array_at_every_call() -> None:
    c, own = np.ones(3), np.ones(3)

    @fuse
    def function(x: Any, c: Any) -> Any:
        c += 1
        return x * c

    for _ in range(3):
        own += 1
        np.testing.assert_array_equal(function(V, c), V * own)
        np.testing.assert_array_equal(c, own)


def test_captured_views_can_be_written_after_a_trace_and_read_only_ones_stay_so() -> None:
    base = np.ones(6)
    view, fixed = base[1:4], np.ones(3)
    fixed.setflags(write=False)
    fuse(lambda x: x * view + base[:3] + fixed)(V)
    assert (base.flags.writeable, view.flags.writeable, fixed.flags.writeable) == (True, True, False)

    def raises(x: Any) -> Any:
        raise KeyError(view[0] * base[0])

    with pytest.raises(KeyError):
        fuse(raises)(V)
    assert base.flags.writeable
    assert view.flags.writeable


def writes_itself(x: Any) -> None:
    x += 1


READ_ONLY: list[Callable[[Any], Any]] = [
    lambda a: np.diagonal(a), lambda a: a.diagonal(1), lambda a: np.linalg.diagonal(a), lambda a: np.diag(a),
    lambda a: np.broadcast_to(a, (2, 3, 3)), lambda a: np.broadcast_to(a, (3, 3)), lambda a: a.imag,
    lambda a: np.imag(a), lambda a: np.lib.stride_tricks.sliding_window_view(a[0], 2),
    lambda a: np.lib.stride_tricks.sliding_window_view(a, (), ()), lambda a: np.diagonal(a)[1:],
    lambda a: np.broadcast_to(a, (2, 3, 3)).T, lambda a: np.broadcast_to(a, (2, 3, 3))[0],
]  # fmt: skip
WRITABLE: list[Callable[[Any], Any]] = [
    lambda a: np.diagonal(a).copy(), lambda a: a.real, lambda a: np.einsum("ii->i", a), lambda a: (a + 0j).imag,
    lambda a: (a + 1j).real, lambda a: np.broadcast_arrays(a, a)[0], lambda a: np.broadcast_to(a, (2, 3, 3)) * 1,
    lambda a: np.repeat(a, 2), lambda a: np.meshgrid(a[0], a[1])[0].copy(), lambda a: np.diag(a[0]), lambda a: a.T,
]  # fmt: skip


@pytest.mark.parametrize("made", READ_ONLY + WRITABLE)
def test_results_that_numpy_does_not_let_be_written_are_refused_alike(made: Callable[[Any], Any]) -> None:
    def changed(a: Any) -> Any:
        result = made(a * 2)
        result += 1
        return result

    a = np.arange(9.0).reshape(3, 3)
    if made in WRITABLE:
        np.testing.assert_array_equal(fuse(changed)(a), changed(a))
        return
    with pytest.raises(ValueError, match="output array is read-only"):
        changed(a)
    message = r"which is read-only \(test_changes_of_captured_arrays\.py:\d+\)\n  hint: change a copy"
    with pytest.raises(ValueError, match=message):
        fuse(changed)(a)


@pytest.mark.parametrize("made", [np.diagonal, np.real, lambda z: z.imag], ids=["diagonal", "real", "imag"])
def test_a_view_shows_what_its_base_was_changed_to(made: Callable[[Any], Any]) -> None:
    def function(z: Any) -> Any:
        base = z * 2
        view = made(base)
        base += 1
        return view

    z = np.arange(9.0).reshape(3, 3) * (1 + 2j)
    np.testing.assert_array_equal(fuse(function)(z), function(z))


def test_slices_of_computed_bounds_are_returned() -> None:
    def parts(x: Any) -> Any:
        n, top = len(x), int(x.argmax())
        return slice(0, n // 2), {"top": (slice(top, n), slice(None))}

    fused = fuse(parts, target="reference")
    for n in (4, 7, 5):
        x = np.random.default_rng(n).random(n)
        assert fused(x) == parts(x)
    assert fused.cache_info().traces == 1
