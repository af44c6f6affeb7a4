"""What LLVM must not make of kernels for the CPU: instructions and calls that take many times as long as the loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import fuse
from tracefuse.kernel.llvm.machine_code import get_machine


def assembly_of(function: Any, *arguments: Any) -> str:
    (segment,) = fuse(function).segments(*arguments)
    return get_machine().assembly(segment.source)


def test_columns_of_extremes_are_not_stored_under_masks() -> None:
    """On processors with AVX2 alone a masked store takes ten times as long, and the next row waits for it."""
    assert "vmaskmov" not in assembly_of(lambda x: np.min(x, axis=0), np.zeros((500, 700), np.float32))


def test_copies_of_slices_call_no_function() -> None:
    """For tiles whose addresses differ by less than a page, memcpy may take ten times as long as a loop."""
    assert "memcpy" not in assembly_of(lambda x: x[3:].copy(), np.zeros(200000))
    assert "memset" not in assembly_of(lambda x: np.zeros_like(x), np.zeros(200000))


def test_elements_at_positions_are_loaded_one_by_one_on_processors_of_amd() -> None:
    """There, a gather instruction takes longer than loads of its elements."""
    machine = get_machine()
    taken = assembly_of(lambda x, k: np.take_along_axis(x, k, 1), np.zeros((80, 900)), np.zeros((80, 900), np.int32))
    assert machine.cpu.startswith("znver") <= ("gather" not in taken)
