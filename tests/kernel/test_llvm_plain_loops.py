"""Tests loops that fill, copy and add arrays: which ones linked functions run, and that they do what the loops do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.cpu_kernels import index, loop, number
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.kernel_ir import (
    Allocate,
    Axis,
    Buffer,
    Cast,
    Constant,
    Expression,
    For,
    Kernel,
    Let,
    Load,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.linked_functions import module_text
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.plain_loops import plain_function, plain_loop
from tracefuse.kernel.llvm.text_builder import host_processor

I, J, ROWS, COLUMNS, PLACE = (index(name) for name in ("i", "j", "rows", "columns", "place"))
SIZE = 400


def add(*terms: Expression) -> Expression:
    total, *rest = terms
    for term in rest:
        total = call("add", total, term)
    return total


def nest(dtype: DType, function: str, first: int, *, kind: str = "vector") -> tuple[For, Buffer, Buffer]:
    """y[1 + 20 i + j] = 2, x[...], or y[...] + x[...] at 3 + columns * i + j, for j from `first` on."""
    x, y = Buffer("x", dtype), Buffer("y", dtype, written=True)
    to = add(call("mul", PLACE, number(20)), J, number(1))
    value = Variable("value", dtype)
    read = Load(x, add(call("mul", COLUMNS, PLACE), number(3), J))
    values = {"fill": Constant(2, dtype), "copy": value, "add": call("add", Load(y, to), value)}
    body = (*([] if function == "fill" else [Let(value, read)]), Store(y, to, values[function]))
    inner = For(J, number(first), COLUMNS, number(1), kind, body)
    return loop(I, ROWS, Let(PLACE, call("sub", I, number(0))), inner), x, y


def kernel_of(statements: tuple[Any, ...], *parameters: Buffer) -> Kernel:
    return Kernel(
        "plain", (*parameters, ROWS, COLUMNS), (Axis(index("g"), Constant(1, dtypes.int64)),), statements, "cpu"
    )


FUNCTIONS = [("fill", t) for t in (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int16)]
FUNCTIONS += [("copy", t) for t in (dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.uint8)]
FUNCTIONS += [("add", t) for t in (dtypes.float32, dtypes.float64)]


@pytest.mark.parametrize(("function", "dtype"), FUNCTIONS, ids=str)
def test_linked_functions_do_what_loops_do(function: str, dtype: DType) -> None:
    rows, x, y = nest(dtype, function, 2)
    row = next(s for s in rows.body if isinstance(s, For))
    assert getattr(plain_loop(rows, 512), "function", None) == function
    kernels = [kernel_of((rows,), x, y), kernel_of((Let(PLACE, number(0)), row), x, y)]
    compiled = [compile_cpu(kernel) for kernel in kernels]
    assert all("call void @tf." in run.source and "vectorize" not in run.source for run in compiled)

    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 4), st.integers(0, 70))
    def check(rows: int, columns: int) -> None:
        x = np.random.default_rng(columns).integers(0, 9, SIZE).astype(dtype.numpy)
        for kernel, run in zip(kernels, compiled, strict=True):
            results = [x[::-1].copy(), x[::-1].copy()]
            run(x, results[0], rows, columns)
            interpret(kernel, (x, results[1], rows, columns))
            assert results[0].tobytes() == results[1].tobytes()

    check()


@pytest.mark.parametrize(("vector_bits", "masks"), [(256, False), (512, False), (512, True)])
def test_functions_have_vectors_of_both_widths(vector_bits: int, masks: bool) -> None:
    for symbol in ("tf.fill.i8", "tf.copy.i16", "tf.add.float"):
        text = plain_function(symbol, vector_bits, masks=masks)
        assert text is not None
        assert f"<{2 * vector_bits // {'i8': 8, 'i16': 16}.get(symbol[8:], 32)} x" in text
    assert get_machine().compile(module_text("tf.copy.i8", host_processor()).text)


def test_other_loops_stay_loops() -> None:
    rows, x, _y = nest(dtypes.float64, "copy", 0)
    row = next(s for s in rows.body if isinstance(s, For))
    let, store = row.body
    assert isinstance(let, Let)
    assert isinstance(store, Store)
    gathered = Load(x, Cast(Load(x, J), dtypes.int64))
    others = [
        replace(row, kind="unroll"),
        replace(row, kind="serial"),  # y may be x
        replace(row, step=number(2)),
        replace(row, stop=number(8)),  # 8 elements may be a register
        replace(row, body=(let, replace(store, cache="streaming"))),
        replace(row, body=(let, store, replace(store, index=J))),
        replace(row, body=(replace(let, value=gathered), store)),
        replace(row, body=(replace(let, value=Load(x, call("mul", J, J))), store)),
        replace(row, body=(replace(let, value=Load(x, call("mul", J, number(2)))), store)),
        replace(row, body=(replace(let, value=call("mul", Load(x, J), Load(x, J))), store)),
        replace(row, body=(replace(let, value=Load(x, call("sub", COLUMNS, J))), store)),
    ]
    assert [plain_loop(other, 512) for other in others] == [None] * len(others)
    local = Buffer("local", dtypes.float64, "local", SIZE)
    kept = replace(row, kind="serial", body=(let, replace(store, buffer=local)))
    assert plain_loop(kept, 512)
    assert not plain_loop(replace(rows, body=(Allocate(local), row)), 512)
    triangle = replace(rows, body=(*rows.body[:-1], replace(row, stop=I)))
    assert plain_loop(triangle, 512) is None
    assert plain_loop(replace(row, stop=I), 512) is not None
    short = replace(rows, body=(*rows.body[:-1], replace(row, stop=number(8))))
    assert plain_loop(short, 512) is None  # a call for each of many such loops takes longer than its rows
