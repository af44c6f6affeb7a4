"""The kernels that update rows of a table compile without warnings, for every type and ufunc that they take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.session.samples import in_suite
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.runtime.devices import row_update_texts, row_updates

UFUNCS = ("add", "multiply", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor")
_PLACES = {"add": "shared", "minimum": "dynamic"}
REAL = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def texts() -> Iterator[tuple[str, str]]:
    for how in UFUNCS:
        for name in REAL:
            dtype = np.dtype(name)
            if row_updates.row_update(how, dtype) is None:
                continue
            if dtype.kind == "f":
                yield (
                    f"{how} {name}",
                    row_update_texts.runs_text(
                        how, dtype, row_update_texts.key_type(10**3 if how == "add" else 10**10)
                    ),
                )
                yield f"few rows: {how} {name}", row_update_texts.few_text(how, dtype)
            else:
                yield f"{how} {name}", row_update_texts.atomic_text(how, dtype, _PLACES.get(how, "memory"))
    for itemsize in (1, 2, 4, 8, 16):
        yield f"assign {itemsize}", row_update_texts.assign_text(itemsize)
    for rows in (256, 257, 2**31, 2**31 + 1):
        yield f"keys of {rows} rows", row_update_texts.keys_text(row_update_texts.key_type(rows))
    short = np.dtype(np.int32)
    yield "int32 positions: add", row_update_texts.atomic_text("add", np.dtype(np.int64), "memory", short)
    yield "int32 positions: assign", row_update_texts.assign_text(4, short)
    yield "int32 positions: keys", row_update_texts.keys_text(short, short)


TEXTS = [pytest.param(text, id=name) for name, text in texts()]
IN_TURNS = [text for k, text in enumerate(TEXTS) if (k + k // len(REAL)) % 2 == 0]
"""Every other text, with other types for the next ufunc."""


@pytest.mark.parametrize("text", in_suite(IN_TURNS, TEXTS))
def test_a_kernel_that_updates_rows_compiles_without_warnings(text: str) -> None:
    # Code that is not optimized takes a third of the time, and has the same warnings about its text.
    options = in_suite(["--Ofast-compile=max"], [])
    binary, log = compile_with_log(text, "update", architecture="sm_90", options=options)
    assert len(binary) > 0
    assert log.strip("\0\n ") == ""


@pytest.mark.parametrize("how", ["power", "divide", "arctan2", "logical_and"])
def test_other_ufuncs_have_no_kernel(how: str) -> None:
    assert all(row_updates.row_update(how, np.dtype(name)) is None for name in (*REAL, "complex64", "bool"))
