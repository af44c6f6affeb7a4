"""Tests that results share memory with arguments exactly where NumPy's do, and have NumPy's order in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.numpy_functions import numpy_samples
from tests.session.samples import in_suite
from tracefuse import fuse

CALLS = [
    (name, call) for name, calls in numpy_samples.SAMPLES.items() for call in calls
    if call != "np.broadcast_arrays(X, V)"  # NumPy warns that it will be read-only, which it is on traced values
]  # fmt: skip


def arrays_in(result: Any) -> Iterator[Any]:
    waiting = [result]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting += value
        elif getattr(value, "shape", ()) and not isinstance(value, type):
            yield value


def strides_of(array: Any) -> list[int]:
    """The strides along the axes on which there are several elements."""
    return [int(stride) for stride in np.squeeze(array).strides] if array.size else []


def overwriting(call: str) -> Any:
    """A function that fills what a call returns, and gives back the arrays that the call got.

    Its other results are the strides of what the call returns for arrays in Fortran order.
    """
    names = numpy_samples.used(call)
    own = eval(f"lambda {', '.join(names)}: {call}", {"np": np})

    def function(*arguments: Any) -> Any:
        copies = [x.copy() for x in arguments]
        for array in arrays_in(own(*copies)):
            array[...] = 1
        in_fortran_order = arrays_in(own(*[x.copy(order="F") for x in arguments]))
        return tuple(x * 1 for x in copies), [strides_of(array) for array in in_fortran_order]

    return function


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore:Casting complex")
@pytest.mark.parametrize(("name", "call"), [pytest.param(*one, id=one[1]) for one in in_suite(CALLS[::2], CALLS)])
def test_results_share_the_memory_and_have_the_strides_of_numpys(name: str, call: str) -> None:
    if not hasattr(np, name) and "." not in name:
        pytest.skip(f"this NumPy has no {name}")
    function = overwriting(call)
    arguments = [numpy_samples.NAMES[name] for name in numpy_samples.used(call)]
    fused = fuse(function, target="reference")
    try:
        with np.errstate(all="ignore"):
            expected, strides = function(*arguments)
    except ValueError:  # NumPy's result is read-only
        with pytest.raises(tracefuse.ReadOnlyError, match="which is read-only"):
            fused(*arguments)
        return
    found, found_strides = fused(*arguments)
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, right)
    assert found_strides == strides


FOLLOWING = (
    "np.nan_to_num", "np.insert", "np.delete", "np.append", "np.median", "np.nanmedian", "np.percentile", "np.where",
    "np.clip", "np.cumsum", "np.sort", "np.copy", "np.round", "np.take", "np.roll", "np.pad", "np.repeat", "np.mean",
    "np.concatenate", "np.choose", "np.select", "np.ones_like",
)  # fmt: skip
"""Functions whose results have an order in memory that follows that of an argument."""

LAYOUTS = {
    "inner axis with a step": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "outer axis with a step": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "first axis innermost, with a step": lambda x: np.repeat(x.T, 2, axis=-1)[..., ::2].T,
    "first and last axis swapped": lambda x: x.swapaxes(0, -1).copy().swapaxes(0, -1),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_results_of_arguments_in_other_layouts_have_numpys_strides(name: str) -> None:
    call = next(call for group, call in CALLS if f"np.{group}" == name)
    names = numpy_samples.used(call)
    own = eval(f"lambda {', '.join(names)}: {call}", {"np": np})

    def function(*arguments: Any) -> list[list[int]]:
        return [strides_of(array) for array in arrays_in(own(*arguments))]

    fused = fuse(function, target="reference")
    for layout in LAYOUTS.values():
        arguments = [layout(numpy_samples.NAMES[one]) for one in names]
        assert fused(*arguments) == function(*arguments)
