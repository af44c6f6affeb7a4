"""Positions of extremes on the CPU: groups and blocks of a loop, with ties, NaN and infinities across their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.session.samples import in_suite
from tracefuse import fuse
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.schedule.cpu.cpu_selections import GROUPS, SEARCHED_BYTES

SEARCHED = SEARCHED_BYTES // 4
GROUPED = tuple(group.least + more for group in GROUPS[4] for more in (-1, 0, 1))
LENGTHS = (1, *GROUPED, SEARCHED - 1, SEARCHED, SEARCHED + 1, 3 * SEARCHED + 7)


def contents(length: int) -> Iterator[np.ndarray[Any, Any]]:
    """Rows of few different values, and rows with NaN or infinities at the ends of blocks."""
    random = np.random.default_rng(length)
    for values in ((-1, 0, 1), (-0.0, 0.0), (-np.inf,), (np.inf, 3)):
        yield random.choice(np.array(values, np.float32), length)
    for place in {0, min(SEARCHED, length) - 1, SEARCHED % length, length - 1}:
        for special in (np.nan, -np.inf, np.inf, 9):
            row = random.standard_normal(length, np.float32)
            row[place:] = special
            yield row


VIEWS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "rows": lambda rows: rows,
    "every other element": lambda rows: np.repeat(rows, 2, 1)[:, ::2],
    "columns in memory": np.asfortranarray,
}


@pytest.mark.parametrize("axis", [1, None])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_positions_are_those_of_the_first_extreme_or_nan(view: Any, axis: int | None) -> None:
    positions = fuse(lambda x: (np.argmax(x, axis=axis), np.argmin(x * 2, axis=axis), np.sum(x, axis=axis)))
    first = list(VIEWS.values()).index(view) % 2
    for length in in_suite(LENGTHS if (view, axis) == (VIEWS["rows"], 1) else LENGTHS[first::2], LENGTHS):
        rows = view(np.stack(list(contents(length))))
        with np.errstate(invalid="ignore"):
            expected = [np.argmax(rows, axis), np.argmin(rows, axis), np.sum(rows, axis)]
            for result, reference in zip(positions(rows), expected, strict=True):
                np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int64", "float16", "float64", "bool"])
def test_positions_in_every_type(kind: str) -> None:
    size = np.dtype(kind).itemsize
    positions = fuse(lambda x: (np.argmin(x, axis=1), np.argmax(x, axis=1)))
    for length in (*(group.least + more for group in GROUPS[size] for more in (-1, 1)), SEARCHED_BYTES // size + 5):
        elements = np.random.default_rng(length).integers(0, 2 if kind == "bool" else 100, (3, length)).astype(kind)
        elements[1:] = elements.max()
        elements[2, -3:-1] = elements.min()
        for result, expected in zip(positions(elements), (elements.argmin(1), elements.argmax(1)), strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["float32", "bool"])
def test_positions_in_groups_run_in_the_interpreter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elements = np.random.default_rng(0).integers(0, 3, (3, GROUPS[4][0].least + 5)).astype(kind)
    elements[1, 7:] = np.nan if kind == "float32" else False
    monkeypatch.setattr(CpuKernelCompiler, "compile", lambda self, kernel, *_: kernel)
    monkeypatch.setattr(CpuKernelCompiler, "entry", lambda self, made: lambda *arguments: interpret(made, arguments))
    np.testing.assert_array_equal(fuse(lambda x: np.argmax(x, axis=1))(elements), elements.argmax(1))


def test_the_first_true_is_found_in_the_first_vector_of_a_block_and_behind_it() -> None:
    first = fuse(lambda x: (x.argmax(1), (x > 0).argmin(1)))
    for columns in (15, 33, 2100):
        elements = np.tri(columns, dtype=bool).T[:: max(columns // 40, 1)]
        for x in (elements, ~elements):
            np.testing.assert_array_equal(first(x), (x.argmax(1), (x > 0).argmin(1)))


@pytest.mark.parametrize("axes", [(1, 0), (1, 0, 2), (2, 1, 0), (1, 2, 0), (3, 1, 0, 2)], ids=str)
def test_of_equal_elements_the_first_along_the_axes_counts_in_every_order_in_memory(axes: tuple[int, ...]) -> None:
    elements = np.random.default_rng(0).integers(0, 3, (5, 8, 3, 4)[: len(axes)]).astype(np.float32)
    positions = fuse(lambda x: (np.argmax(x.transpose(axes)), np.argmin(x.transpose(axes))))
    expected = (np.argmax(elements.transpose(axes)), np.argmin(elements.transpose(axes)))
    assert positions(elements) == expected
