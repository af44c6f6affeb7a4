"""What an assignment or a concatenation reads is loaded outside of loops and branches that it does not depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import numbers
from tests.ways import check
from tracefuse import ShapeDtype, fuse, options
from tracefuse.definition.fusion_definition import FusionDefinition


def column(x: Any, v: Any, w: Any) -> Any:
    y = x.copy()
    y[:, 0] = v
    return y


def row_and_last_column(x: Any, v: Any, w: Any) -> Any:
    y = np.zeros_like(x)
    y[1] = w
    y[:, -1] = v * 2
    return y


def corner_of_one_value(x: Any, v: Any, w: Any) -> Any:
    y = np.zeros_like(v)
    y[:2] = w[0] + 1
    y[3:] = v[1]
    return y


def joined(x: Any, v: Any, w: Any) -> Any:
    return np.concatenate([v[:, None], x, np.exp(v)[:, None]], 1)


PROGRAMS = [column, row_and_last_column, corner_of_one_value, joined]


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_have_numpys_values(program: Callable[..., Any], backend: str) -> None:
    arguments = [numbers(6, 40), numbers(6), numbers(40)]
    made = fuse(program).definition(*arguments)
    check(made.fusion if isinstance(made, FusionDefinition) else made, arguments, backend)


def test_a_new_column_is_loaded_once_for_its_row() -> None:
    (segment,) = fuse(column).segments(*(np.ones(shape) for shape in ((6, 12), 6, 12)))
    lines = str(segment.kernel).splitlines()
    loads = [line for line in lines if "T1[" in line]
    depth = {line: len(line) - len(line.lstrip()) for line in lines}
    assert len(loads) == 1
    assert depth[loads[0]] < max(depth[line] for line in lines if "T0[" in line)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_a_thread_of_a_gpu_loads_one_element_of_a_padded_array(mode: str) -> None:
    """A few steps of a thread repeat too little for loads of the corners that all of its elements would wait for."""
    with options(target="cuda"):
        (segment,) = fuse(lambda x: np.pad(x * 2, 3, mode=mode)).segments(ShapeDtype((5000, 131), np.float32))
    assert str(segment.kernel).count("= T0[") == 2, "one in the steps of whole blocks, one in those of the last"
