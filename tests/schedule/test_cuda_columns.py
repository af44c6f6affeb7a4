"""Columns on a GPU: one pass for a mean and a variance, one division for all lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers
from tracefuse.kernel import kernel_ir as ir
from tracefuse.schedule.gpu import gpu_column, gpu_column_tiles


def normalized(x: Any) -> Any:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def names(lowered: Any) -> list[str]:
    return [kernel.name.removeprefix("k_") for kernel in lowered.kernels]


@pytest.mark.parametrize(("columns", "passes"), [(4, 3), (30, 3), (30_000, 2)])
def test_stored_columns_take_one_pass_for_their_reductions_if_they_have_few_chunks(columns: int, passes: int) -> None:
    if passes == 3:
        lowered = case(normalized, numbers(5003, columns)).check()
    else:
        lowered = case(normalized, np.empty((1100, columns), np.float32))
    assert sum(any(p.name == "T0" for p in kernel.parameters) for kernel in lowered.kernels) == passes


@pytest.mark.parametrize(("rows", "columns"), [(700, 33), (90, 61), (2500, 5), (40, 12), (150, 89), (140, 261)])
def test_a_block_takes_all_columns_of_a_narrow_matrix(rows: int, columns: int) -> None:
    lowered = case(lambda x: x / np.sqrt((x * x).sum(0) + x.max(0)), numbers(rows, columns)).check()
    assert "columns" in {p.name for p in lowered.kernels[0].parameters}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_warps_store_complete_sectors_of_rows_that_begin_anywhere(dtype: Any) -> None:
    lowered = case(lambda x: x / (1 + (x * x).sum(0)), numbers(150, 139, dtype=dtype)).check()
    assert names(lowered) == ["column_0", "column_0_joined", "column_1"]
    tiles = next(count for s, count in lowered.lowered.derived.items() if s.name == "stored_tiles")
    assert lowered.integer(tiles) == 5


@pytest.mark.parametrize("axis", [0, 1])
def test_a_variance_over_columns_reads_its_input_once(axis: int) -> None:
    x = numbers(5000, 12) if axis == 0 else numbers(3, 5000, 12)
    lowered = case(lambda x: x.var(axis), x).check()
    assert names(lowered) == ["column_0", "column_1"]
    assert [p.name for p in lowered.kernels[1].parameters if p.name.startswith("T0")] == []


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("shape", "column"), [((900, 128, 2), True), ((70, 45, 3), True), ((70, 20, 3), False)])
def test_adjacent_threads_take_adjacent_short_runs(shape: tuple[int, ...], column: bool, normalised: bool) -> None:
    def scaled(x: Any) -> Any:
        total = (x * x).sum((0, 2), keepdims=True)
        return x / total if normalised else total

    lowered = case(scaled, numbers(*shape)).check()
    assert names(lowered)[0].startswith("column") == column
    assert not any(isinstance(s, ir.Copy) for s in ir.walk_statements(lowered.kernels[0].body)), "lanes are apart"


def test_means_that_are_rounded_to_different_types_share_a_sum() -> None:
    lowered = case(lambda x: x.mean(-1) * x.var(-1), numbers(30, 24, dtype=np.float16)).check()
    (kernel,) = lowered.kernels
    assert sum(isinstance(s, ir.Declare) for s in ir.walk_statements(kernel.body)) == 2, "a sum and a sum of squares"


def test_lanes_share_the_number_of_elements() -> None:
    lowered = case(lambda x: x.var(0), numbers(5000, 16)).check()
    first = lowered.kernels[0]
    (turn,) = (
        s for s in ir.walk_statements(first.body) if isinstance(s, ir.For) and s.variable.name.startswith("turn")
    )
    declared = [s for s in turn.body if isinstance(s, ir.Declare)]
    assert len(declared) == 1 + 2 * 4


@pytest.mark.parametrize(("shape", "alone"), [((6_100, 20, 43), True), ((61, 20, 43), False), ((6_100, 49, 43), False)])
def test_a_thread_takes_few_rows_of_many_columns_alone(shape: tuple[int, ...], alone: bool) -> None:
    lowered = case(lambda x: (x * x).sum(1), np.empty(shape, np.float32))
    assert any(isinstance(s, ir.Barrier) for s in lowered.kernels[0].body) != alone


@pytest.mark.parametrize("rows", [9, 16, 17, 63, 64, 65, 100, 140])
@pytest.mark.parametrize("columns", [(2, 67), (3, 32)])
def test_the_rows_after_the_last_whole_turn_are_read_together(rows: int, columns: tuple[int, int]) -> None:
    x = numbers(columns[0], rows, columns[1])
    case(lambda x: (x * x).sum(1) + x.max(1), x).check()


@pytest.mark.parametrize(
    ("shape", "dtype", "threads", "held"),
    [
        ((3, 150, 40), np.float32, 256, True),
        ((2, 600, 16), np.float32, 512, True),
        ((4, 300, 22), np.float32, 512, True),
        ((2, 400, 19), np.float32, 512, True),
        ((2, 300, 64), np.float16, 256, False),
        ((2, 1100, 16), np.float32, 256, False),
        ((1, 1700, 17), np.float32, 1024, False),
    ],
)
def test_blocks_hold_long_columns_that_are_read_again(
    shape: tuple[int, ...], dtype: Any, threads: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_column, "FEW_TILES", 0)  # as many tiles as of large arrays
    for bound in ("FEW_TILES", "MATRIX_GROUPS", "MOST_NARROW", "MOST_NARROW_OF_LONG"):
        monkeypatch.setattr(gpu_column_tiles, bound, 0)
    lowered = case(lambda x: x / np.sqrt(1 + (x * x).sum(1, keepdims=True)), numbers(*shape, dtype=dtype)).check()
    (kernel,) = lowered.kernels
    allocated = [s.buffer for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Allocate)]
    assert kernel.threads == threads
    assert any(b.name.startswith("held") for b in allocated) == held


@pytest.mark.parametrize("columns", [2, 5, 12])
def test_many_rows_of_threads_combine_their_states_in_parts(columns: int) -> None:
    lowered = case(lambda x: (x.sum(0), x.argmax(0), x.var(0)), numbers(700, columns)).check()
    assert sum(isinstance(s, ir.Barrier) for s in ir.walk_statements(lowered.kernels[0].body)) > 1


@pytest.mark.parametrize(
    ("shape", "dtype", "stored", "matrices"),
    [
        ((70, 5, 3), np.float32, True, True),
        ((41, 17, 2), np.float16, True, True),
        ((2, 9, 40, 7), np.float32, True, True),
        ((7, 150, 3), np.float64, True, True),
        ((5, 1000, 2), np.float32, True, True),
        ((5, 200, 5), np.float32, True, False),  # blocks of adjacent columns cache them
        ((30, 3, 3), np.float32, True, False),
        ((11, 70, 12), np.float32, False, True),
        ((11, 70, 3), np.float32, False, False),
        ((3, 1500, 4), np.float32, False, True),
    ],
)
def test_threads_take_adjacent_elements_of_narrow_matrices(
    shape: tuple[int, ...], dtype: Any, stored: bool, matrices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (gpu_column, gpu_column_tiles):
        monkeypatch.setattr(module, "FEW_TILES", 0)  # as many tiles as of large arrays

    def function(x: Any) -> Any:
        total = (x * x).sum(-2, keepdims=True)
        return (x - x.mean(-2, keepdims=True)) / (total + 1) if stored else (total, x.max(-2))

    lowered = case(function, numbers(*shape, dtype=dtype)).check()
    assert ("matrices" in {p.name for p in lowered.kernels[0].parameters}) == matrices


def test_elements_are_loaded_before_the_results_of_chunks_are_stored() -> None:
    lowered = case(lambda x: x / (1 + (x * x).sum()), numbers(149, 139)).check()
    assert names(lowered) == ["split_0", "split_1"]
    allocated = [s.buffer for s in ir.walk_statements(lowered.kernels[1].body) if isinstance(s, ir.Allocate)]
    assert any(b.name.startswith("x0") for b in allocated)


def softmax_of_columns(x: Any) -> Any:
    e = np.exp(x - x.max(-2, keepdims=True))
    return e / e.sum(-2, keepdims=True)


def scaled_and_summed(x: Any) -> Any:
    total = (x * x).sum(-2, keepdims=True)
    return x * 2, x / (total + 1), total


@pytest.mark.parametrize("function", [softmax_of_columns, scaled_and_summed])
@pytest.mark.parametrize(("shape", "dtype"), [((2, 140, 301), np.float16), ((140, 601), np.float32)])
def test_columns_that_are_read_again_from_memory_are_stored_in_long_runs(
    function: Any, shape: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_column_tiles, "HOLDING", {})
    monkeypatch.setattr(gpu_column, "AGAIN_BYTES", 0)
    lowered = case(function, numbers(*shape, dtype=dtype)).check()
    assert names(lowered)[-1] == ("column_2" if function is softmax_of_columns else "column_1")
    last = lowered.lowered.launches[-1]
    stored = {s.name for s in lowered.lowered.derived} & {"stored_chunks", "stored_tiles"}
    assert (len(stored), last.kernel.threads) == (2, gpu_column_tiles.THREADS)
