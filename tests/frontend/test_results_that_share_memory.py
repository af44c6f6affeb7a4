"""Tests that results share memory with arguments exactly where NumPy's do, and have NumPy's order in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy_samples
import pytest

import tracefuse
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
@pytest.mark.parametrize(("name", "call"), CALLS, ids=[call for _, call in CALLS])
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
