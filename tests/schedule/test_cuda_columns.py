"""Columns on a GPU: one pass for a mean and a variance, chunks that a launch combines, one division for all lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers
from tracefuse.kernel import kernel_ir as ir
from tracefuse.schedule.gpu import gpu_column


def normalized(x: Any) -> Any:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def names(lowered: Any) -> list[str]:
    return [kernel.name.removeprefix("k_") for kernel in lowered.kernels]


@pytest.mark.parametrize("columns", [4, 7, 30])
@pytest.mark.parametrize("rows", [5003])
def test_the_states_of_chunks_are_combined_once(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_column, "LEAST_COMBINED", 0)
    lowered = case(normalized, numbers(rows, columns)).check()
    assert names(lowered) == ["column_0", "chunks_0", "column_1"]


def test_small_columns_take_no_launch_for_it() -> None:
    assert names(case(normalized, numbers(5000, 12)).check()) == ["column_0", "column_1"]


def test_sums_take_no_launch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_column, "LEAST_COMBINED", 0)
    lowered = case(lambda x: x / (np.abs(x).sum(0) + 1), numbers(5000, 12)).check()
    assert names(lowered) == ["column_0", "column_1"]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_variance_over_columns_reads_its_input_once(axis: int) -> None:
    x = numbers(5000, 12) if axis == 0 else numbers(3, 5000, 12)
    lowered = case(lambda x: x.var(axis), x).check()
    assert names(lowered) == ["column_0", "column_1"]
    assert [p.name for p in lowered.kernels[1].parameters if p.name.startswith("T0")] == []


def test_means_after_means_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_column, "LEAST_COMBINED", 0)

    def function(x: Any) -> Any:
        y = normalized(x)
        return y.max(0), np.exp(y - y.max(0)).sum(0)

    case(function, numbers(5000, 12)).check()


def test_lanes_share_the_number_of_elements() -> None:
    lowered = case(lambda x: x.var(0), numbers(5000, 16)).check()
    first = lowered.kernels[0]
    (turn,) = (
        s for s in ir.walk_statements(first.body) if isinstance(s, ir.For) and s.variable.name.startswith("turn")
    )
    declared = [s for s in turn.body if isinstance(s, ir.Declare)]
    assert len(declared) == 1 + 2 * 4
