"""A kernel that runs a table of launches: its text compiles, and blocks find their launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers, softmax
from tracefuse.kernel.cuda.cuda_compiler import options_of
from tracefuse.kernel.cuda.emit_table import PARAMETER_BYTES, emit_table, entries, fits_table
from tracefuse.kernel.cuda.nvrtc import compile_with_log


def kernels() -> dict[str, Any]:
    """A kernel of each kind that small arrays have."""
    functions = {
        "pointwise": (lambda x, y: x - 0.01 * y, [numbers(40, 64), numbers(40, 64)]),
        "odd": (lambda x, y: x - 0.01 * y, [numbers(41, 63)[:, :61], numbers(41, 61)]),
        "half": (lambda x, s: x * s, [numbers(7, 9, dtype=np.float16), np.float16(2)]),
        "row": (softmax(-1), [numbers(40, 100)]),
        "column": (lambda x: x.sum(0), [numbers(8, 100)]),
        "transpose": (lambda x, y: x.T + y, [numbers(40, 64), numbers(64, 40)]),
    }
    return {name: case(function, *arguments).kernels[0] for name, (function, arguments) in functions.items()}


@pytest.mark.parametrize("name", ["pointwise", "odd", "half", "row", "column", "transpose"])
def test_a_table_compiles_without_warnings(name: str) -> None:
    kernel = kernels()[name]
    assert fits_table(kernel)
    text, entry = emit_table(kernel)
    cubin, log = compile_with_log(text, entry, architecture="sm_90", options=options_of(kernel))
    assert len(cubin) > 0
    assert log.strip("\0\n ") == ""
    assert 8 * entries(kernel) * (len(kernel.parameters) + 1) + 8 <= PARAMETER_BYTES


def test_kernels_that_differ_in_names_alone_have_one_table() -> None:
    first, second = (case(lambda x, y: x + 2 * y, numbers(n, 64), numbers(n, 64)).kernels[0] for n in (40, 56))
    assert emit_table(first) == emit_table(second)
