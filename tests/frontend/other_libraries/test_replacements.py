"""Tests the errors for unsupported uses of a traced array: each names a replacement and the user's line."""

from __future__ import annotations

import linecache
import math
import os
import re
import types
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.programs.comparison import difference
from tracefuse import fuse
from tracefuse.frontend.numpy_api.hints import foreign_methods

A = np.arange(12, dtype=np.float32).reshape(3, 4)
ALREADY = "a traced array is an array: use it as it is, x.copy() or x.astype(dtype); lists of arrays go to np.stack"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.asarray_chkfinite(x), f"np.asarray_chkfinite() @\n  hint: {ALREADY}"),
        (lambda x: math.sqrt(x), "math.sqrt() @\n  hint: write np.sqrt"),
        (lambda x: math.pow(x, 2), "math.pow() @\n  hint: write np.power"),
        (lambda x: float(x), "float() @\n  hint: keep it an array; np.where chooses elements"),
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
    exec("def f(x):\n    return np.asarray_chkfinite(x)", names)
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


def function_of(expression: str, *, is_statement: bool = False) -> Any:
    """A function of `x` that returns an expression, or runs a statement, with source that messages can quote."""
    text, name = f"def f(x):\n    {'' if is_statement else 'return '}{expression}\n", f"<{expression}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"np": np}
    exec(compile(text, name, "exec"), names)
    return names["f"]


WRITTEN = {
    "x.unsqueeze(0)": "np.expand_dims(x, 0)", "x.permute(1, 0)": "np.transpose(x, (1, 0))",
    "x.float()": "x.astype(np.float32)", "(x + 1).numpy()": "x + 1", "x.clamp(0, 1)": "np.clip(x, 0, 1)",
    "x.append(3)": "np.append(x, 3)", "x.mm(x.T)": "x @ x.T", "x.norm()": "np.linalg.norm(x)", "x.exp()": "np.exp(x)",
    "x.size(0)": "x.shape[0]", "x.relu()": "np.maximum(x, 0)", "x.values": "x", "x.T.t()": "x.T.T",
    "x.numel()": "x.size", "x.maximum(2)": "np.maximum(x, 2)", "x.sqrt_()": "np.sqrt(x, out=x)",
}  # fmt: skip
"""Expressions of other libraries, and what the message names instead."""


@pytest.mark.parametrize("expression", WRITTEN)
def test_methods_of_other_libraries_name_the_expression_to_write(expression: str) -> None:
    with pytest.raises((AttributeError, TypeError)) as error:
        fuse(function_of(expression), target="reference")(A)
    assert isinstance(error.value, tracefuse.TracefuseError)
    assert (error.value.hint, error.value.where) == (f"write {WRITTEN[expression]}", f"<{expression}>:2")
    fuse(function_of(WRITTEN[expression]), target="reference")(A)


ARGUMENTS = {
    "expand": "3, 4", "permute": "1, 0", "flip": "0", "tile": "2, 1", "unsqueeze": "0", "clamp": "2, 3", "cat": "x",
    "clamp_": "2, 3", **dict.fromkeys(("bmm", "matmul", "mm"), "x.T"), "mv": "x[0]", "append": "3", "extend": "[1, 2]",
    **dict.fromkeys(("pow", "pow_", "add_", "sub_", "mul_", "div_", "fill_", "copy_", "maximum", "minimum"), "2"),
}  # fmt: skip
"""The arguments of methods that take some."""
NAMES = [name for name, template in foreign_methods.TEMPLATES.items() if template.startswith("write ")]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_message_says_to_write_runs(name: str) -> None:
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(function_of(f"x.{name}({ARGUMENTS.get(name, '')})"), target="reference")(A.copy())
    assert error.value.hint is not None
    written = error.value.hint.removeprefix("write ")
    is_statement = re.search(r"[^=]=[^=]", re.sub(r"\(.*\)", "", written)) is not None
    plain, fused = (function_of(written, is_statement=is_statement) for _ in range(2))
    mine, right = (A + 1) / 16, (A + 1) / 16
    assert difference(fuse(fused, target="reference")(mine), plain(right), "result") is None
    assert difference(mine, right, "argument") is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("memoryview(x)", "memoryview(): a traced array has no bytes @\n  hint: return the array and read its bytes"),
        ("np.frombuffer(x)", "np.frombuffer(): a traced array has no bytes @\n  hint: return the array and read its"),
        (
            "np.float64(2).round(out=x[0])",
            "np.float64(2).round(): out= is a traced array @\n  hint: write np.round(np.f",
        ),
        ("x > 'a'", "'>' not supported between instances of 'numpy.ndarray' and 'str' @\n  hint: give numbers"),
        ("x.astype(str)", "dtype str is not supported @\n  hint: return the array of numbers and convert it"),
        (
            "x.view(np.matrix)",
            "x.view(matrix): a traced array is a plain ndarray @\n  hint: return the array and write",
        ),
        ("x.view(-1, 2)", "x.view(-1, ...): view takes a type @\n  hint: write x.reshape(shape)"),
    ],
)
def test_the_message_has_the_line_and_what_to_write(expression: str, message: str) -> None:
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(function_of(expression), target="reference")(A)
    assert str(error.value).startswith(message.replace("@", f"(<{expression}>:2)"))
