"""Tests the errors for unsupported uses of a traced array: each names a replacement and the user's line."""

from __future__ import annotations

import math
import os
import types
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse

A = np.arange(12, dtype=np.float32).reshape(3, 4)
ALREADY = "a traced array is an array: use it as it is, x.copy() or x.astype(dtype); lists of arrays go to np.stack"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.asarray_chkfinite(x), f"np.asarray_chkfinite() @\n  hint: {ALREADY}"),
        (lambda x: np.float32(x), "np.float32() @\n  hint: write x.astype(np.float32)"),
        (lambda x: math.sqrt(x), "math.sqrt() @\n  hint: write np.sqrt"),
        (lambda x: math.pow(x, 2), "math.pow() @\n  hint: write np.power"),
        (lambda x: float(x), "float() @\n  hint: keep it an array; np.where chooses elements"),
        (
            lambda x: np.vectorize(abs)(x),
            "np.vectorize() @\n  hint: write the function on whole arrays, with np.where for its cases",
        ),
        (
            lambda x: np.ma.array(x),
            "np.ma.array() @\n  hint: keep the data and the mask as two arrays, and use np.where",
        ),
    ],
)  # fmt: skip
def test_what_asks_for_the_elements_names_what_to_write(function: Any, message: str) -> None:
    with pytest.raises(tracefuse.TraceError) as error:
        fuse(function, target="reference")(A)
    start, _, hint = message.partition(" @")
    assert str(error.value).startswith(f"{start} of a traced array, which depends on x (test_replacements.py:")
    assert str(error.value).endswith(hint)


def test_without_source_the_message_is_the_general_one() -> None:
    names: dict[str, Any] = {"np": np}
    exec("def f(x):\n    return np.float32(x)", names)
    with pytest.raises(tracefuse.TraceError, match=r"^np.asarray\(\) of a traced array") as error:
        fuse(names["f"], target="reference")(A)
    assert error.value.hint == "use the array's own methods, a function of np or of tracefuse.xp"


# As CuPy's: one that takes arrays of its own alone, in a file where CuPy's would be.
_SOURCE = 'def concatenate(arrays):\n    raise TypeError("Only cupy arrays can be concatenated")\n'
_names: dict[str, Any] = {"__name__": "cupy._stand_in"}
exec(compile(_SOURCE, os.path.join(os.sep, "site-packages", "cupy", "_stand_in.py"), "exec"), _names)
cupy = types.ModuleType("cupy")
cupy.concatenate = _names["concatenate"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [lambda x: cupy.concatenate([x, x]), lambda x: cupy.concatenate((x * 2, 1))])
def test_functions_of_cupy_that_take_its_own_arrays_alone_name_numpys(function: Any) -> None:
    with pytest.raises(tracefuse.UnsupportedError) as error:
        fuse(function, target="reference")(A)
    assert error.value.message == ("cupy.concatenate only takes CuPy arrays (Only cupy arrays can be concatenated)")
    assert error.value.hint == "write np.concatenate, which records"
    assert str(error.value.where).startswith("test_replacements.py:")


def test_an_error_of_cupy_over_its_own_arrays_stays_as_it_is() -> None:
    with pytest.raises(TypeError) as error:
        fuse(lambda x: cupy.concatenate([1, 1]), target="reference")(A)
    assert str(error.value) == "Only cupy arrays can be concatenated"
