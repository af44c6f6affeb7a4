"""Tests that results share memory with arguments exactly where NumPy's do."""

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


def overwriting(call: str) -> Any:
    """A function that fills what a call returns, and gives back the arrays that the call got."""
    names = numpy_samples.used(call)
    own = eval(f"lambda {', '.join(names)}: {call}", {"np": np})

    def function(*arguments: Any) -> Any:
        copies = [x.copy() for x in arguments]
        for array in arrays_in(own(*copies)):
            array[...] = 1
        return tuple(x * 1 for x in copies)

    return function


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore:Casting complex")
@pytest.mark.parametrize(("name", "call"), CALLS, ids=[call for _, call in CALLS])
def test_filling_a_result_changes_the_arguments_that_numpy_changes(name: str, call: str) -> None:
    if not hasattr(np, name) and "." not in name:
        pytest.skip(f"this NumPy has no {name}")
    function = overwriting(call)
    arguments = [numpy_samples.NAMES[name] for name in numpy_samples.used(call)]
    fused = fuse(function, target="reference")
    try:
        with np.errstate(all="ignore"):
            expected = function(*arguments)
    except ValueError:  # NumPy's result is read-only
        with pytest.raises(tracefuse.ReadOnlyError, match="which is read-only"):
            fused(*arguments)
        return
    for found, right in zip(fused(*arguments), expected, strict=True):
        np.testing.assert_array_equal(found, right)
