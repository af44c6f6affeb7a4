"""`np.nditer` of traced arrays gives the elements, positions and writes that NumPy gives, in NumPy's order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.programs.comparison import difference
from tracefuse import fuse
from tracefuse.errors import UnsupportedError


def numerical_gradient(w: Any, scale: Any) -> Any:
    gradient, step = np.zeros(w.shape), 1e-3
    positions = np.nditer(w, flags=["multi_index"], op_flags=["readwrite"])
    while not positions.finished:
        place = positions.multi_index
        before = w[place]
        w[place] = before + step
        above = np.tanh(w * scale).sum()
        w[place] = before
        gradient[place] = (above - np.tanh(w * scale).sum()) / step
        positions.iternext()
    return gradient


def writes_elements(x: Any, y: Any) -> Any:
    with np.nditer(x, op_flags=["readwrite"]) as elements:
        for k, element in enumerate(elements):
            element[...] = element * k
    return x.sum(0)


def allocates_result(x: Any, y: Any) -> Any:
    with np.nditer([x, y[0], None]) as elements:
        for a, b, result in elements:
            result[...] = a - 2 * b
        return elements.operands[2]


def reads_positions(x: Any, y: Any) -> Any:
    elements, found = np.nditer([x, y, 2.0], flags=["f_index", "multi_index"], order="C"), []
    for _ in range(elements.itersize):
        found.append((elements.index, elements.multi_index, elements[0] + elements.value[1] * elements[2]))
        elements.iternext()
    return found


def moves_in_a_nest_of_loops(x: Any, y: Any) -> Any:
    elements, total = np.nditer(x), 0.0
    for row in range(x.shape[0]):
        for _ in range(x.shape[1]):
            total = total * 0.5 + next(elements) * row
    elements.reset()
    return total, next(elements) + 0.0


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x),
    "reversed": lambda x: x[::-1].copy()[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "function",
    [numerical_gradient, writes_elements, allocates_result, reads_positions, moves_in_a_nest_of_loops],
)
def test_values_positions_and_writes_are_those_of_numpy(function: Callable[..., Any], layout: str) -> None:
    values = np.random.default_rng(3).normal(size=(2, 3, 4))
    mine, right = ([LAYOUTS[layout](x.copy()) for x in values[:, :2]] for _ in range(2))
    result, expected = fuse(function, target="reference")(*mine), function(*right)
    if function is reads_positions:
        assert [one[:2] for one in result] == [one[:2] for one in expected]
        result, expected = ([one[2] for one in found] for found in (result, expected))
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mine, right)


def test_elements_are_read_only_and_flags_without_a_meaning_here_are_refused() -> None:
    def writes(x: Any) -> None:
        for element in np.nditer(x):
            element[...] = 0

    reference = functools.partial(fuse, target="reference")
    with pytest.raises(ValueError, match="read-only"):
        reference(writes)(np.ones(3))
    with pytest.raises(UnsupportedError, match=r"np\.nditer with buffered cannot be fused yet"):
        reference(lambda x: [*np.nditer(x, flags=["external_loop", "buffered"])])(np.ones(3))
    with pytest.raises(UnsupportedError, match="copy_if_overlap"):  # NumPy would read a copy
        reference(lambda x: [*np.nditer([x, x[::-1]], flags=["copy_if_overlap"])])(np.ones(3))
    with pytest.raises(ValueError, match="flags must be a list or tuple of strings"):
        reference(lambda x: [a * 2 for a in np.nditer(x, "c_index")])(np.ones(3))
    with pytest.raises(ValueError, match="not tracking a multi-index"):
        reference(lambda x: np.nditer(x).multi_index)(np.ones(3))


def inner_loops(op: Any, order: str = "K") -> list[Any]:
    loops = np.nditer(op, flags=["external_loop"], order=order)
    return [[np.array(part) for part in loop] if isinstance(loop, tuple) else np.array(loop) for loop in loops]


def writes_inner_loops(x: Any) -> Any:
    with np.nditer([x, x[:, :1] + 1.0], [*{"external_loop"}], [["readwrite"], ["readonly"]]) as loops:
        for part, other in loops:
            part *= other
            part[0] = 7
    return x


def broadcast_elements(x: Any) -> Any:
    pairs = np.broadcast(x, x[:1], 2.0)
    first = next(pairs)
    place = pairs.index
    pairs.reset()
    out = np.empty(pairs.shape)
    out.flat = [a * b - c for a, b, c in pairs]
    return out, first, place, pairs.ndim, pairs.size, pairs.numiter


VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x, lambda x: x.T, lambda x: x[:, ::2], lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x * 2,
    lambda x: x.reshape(2, -1, 2).transpose(1, 2, 0), lambda x: x[1:, 1:3], lambda x: x[0],
]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [inner_loops(view(x), order) for view in VIEWS for order in "KF"],
        lambda x: (inner_loops([x, x[0]]), inner_loops([x, x[:, :1] * 2]), inner_loops([x, 2.0])),
        writes_inner_loops,
        broadcast_elements,
    ],
)
def test_inner_loops_and_broadcast_elements_are_those_of_numpy(function: Callable[..., Any]) -> None:
    fused = fuse(function, target="reference")
    for n in (4, 6):
        for layout in LAYOUTS.values():
            mine, right = (layout(np.arange(4.0 * n).reshape(4, n)) for _ in range(2))
            assert difference(fused(mine), function(right), "result") is None
            assert difference(mine, right, "argument") is None
