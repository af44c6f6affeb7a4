"""Arrays that a loop repeats, on a GPU: a thread stores each repetition of what it reads once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers
from tracefuse.kernel import kernel_ir as ir
from tracefuse.schedule.gpu import gpu_repetitions


@pytest.mark.parametrize(
    ("function", "shapes", "repetitions"),
    [
        (lambda x: np.tile(x * 2, (4, 1)), ((33, 53),), 4),
        (lambda x: np.tile(np.exp(x), (3, 1, 1)), ((6, 10, 128),), 3),
        (lambda x, w: np.broadcast_to(x + 1, (5, *x.shape)) * w, ((40, 52), (5, 1, 1)), 5),
        (lambda x, w: np.tile(x, (2, 1)) + w, ((33, 53), (66, 53)), 0),
        (lambda x: np.tile(x * 2, (1, 4)), ((33, 53),), 0),
        (lambda x: np.tile(x[::-1], (17, 1)), ((33, 53),), 0),
    ],
)
def test_what_a_loop_repeats_is_read_once(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], repetitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for least in ("LEAST_REPEATED", "REPEATED_BYTES"):
        monkeypatch.setattr(gpu_repetitions, least, 1)
    lowered = case(function, *(numbers(*shape) for shape in shapes)).check()
    (kernel,) = lowered.kernels
    stores = [
        loop.stop
        for loop in ir.walk_statements(kernel.body)
        if isinstance(loop, ir.For) and loop.variable.name.startswith("k")
        for statement in loop.body
        if isinstance(statement, (ir.Store, ir.Copy)) and loop.kind == "unroll"
    ]
    assert {int(stop.value.real) for stop in stores if isinstance(stop, ir.Constant)} == {repetitions} - {0}
