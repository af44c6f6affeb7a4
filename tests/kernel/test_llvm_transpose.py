"""Tests tiles transposed in local memory: every element size, partial tiles, both vector widths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernel.cpu_kernels import index, loop, number
from tracefuse import dtypes, fuse
from tracefuse.dtypes import DType
from tracefuse.kernel.interpreter.interpret import InterpreterError, interpret
from tracefuse.kernel.kernel_ir import Allocate, Axis, Buffer, Constant, Kernel, Load, Store, Transpose, call
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.tile_transpose import transpose_function, transpose_symbol

TYPES = (dtypes.int8, dtypes.bool_, dtypes.bfloat16, dtypes.float32, dtypes.float64, dtypes.int64)
I, J, ROWS, COLUMNS = (index(name) for name in ("i", "j", "rows", "columns"))


def tile_kernel(dtype: DType, side: int = 48, width: int = 1, *, within: bool = False) -> Kernel:
    """y = x.T for x of rows x columns elements of `width` parts, at most `side` of each.

    within: the tile is transposed from x itself, not from a copy.
    """
    x, y = Buffer("x", dtype), Buffer("y", dtype, written=True)
    along, turned = (Buffer(name, dtype, "local", side * side * width) for name in ("along", "turned"))

    def at(a: Any, pitch: Any, b: Any) -> Any:
        return call("add", call("mul", call("mul", a, pitch), number(width)), b)

    parts = [call("mul", extent, number(width)) for extent in (COLUMNS, ROWS)]
    read = loop(I, ROWS, loop(J, parts[0], Store(along, at(I, number(side), J), Load(x, at(I, COLUMNS, J)))))
    written = loop(I, COLUMNS, loop(J, parts[1], Store(y, at(I, ROWS, J), Load(turned, at(I, number(side), J)))))
    body: tuple[Any, ...] = (
        Allocate(along),
        Allocate(turned),
        read,
        Transpose(turned, side, along, side, ROWS, COLUMNS, width),
        written,
    )
    if within:
        moved = Transpose(turned, side, x, COLUMNS, ROWS, COLUMNS, width, start=number(0))
        body = (Allocate(turned), moved, written)
    return Kernel("tile", (x, y, ROWS, COLUMNS), (Axis(index("g"), Constant(1, dtypes.int64)),), body, "cpu")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("within", [False, True])
def test_a_tile_is_transposed(dtype: DType, width: int, within: bool) -> None:
    kernel = tile_kernel(dtype, width=width, within=within)
    function = compile_cpu(kernel)
    for rows, columns in ((48, 48), (1, 1), (16, 33), (47, 5), (3, 40), (31, 32), (0, 3)):
        bits = np.random.default_rng(rows).integers(0, 2, (rows, columns, width * dtype.itemsize), np.uint8)
        x = bits.view(dtype.numpy).reshape(rows, columns, width)
        interpreted = dtype is dtypes.bfloat16 and rows < 20
        for run in (function, lambda *arguments: interpret(kernel, arguments))[: 1 + interpreted]:
            y = np.zeros((columns, rows, width), dtype.numpy)
            run(x, y, rows, columns)
            assert y.tobytes() == np.ascontiguousarray(x.transpose(1, 0, 2)).tobytes()


@pytest.mark.parametrize("vector_bits", [256, 512])
@pytest.mark.parametrize("bits", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("within", [False, True])
def test_the_function_compiles_for_every_element_and_vector(bits: int, vector_bits: int, within: bool) -> None:
    text = transpose_function(transpose_symbol(bits, within=within), vector_bits)
    assert text is not None
    assert get_machine().compile(text + "\nattributes #1 = { nounwind }\n")
    side = min(vector_bits // bits, 16)
    assert text.count("shufflevector") == side * (side.bit_length() - 1)


def test_the_interpreter_refuses_a_tile_that_is_too_small() -> None:
    kernel = tile_kernel(dtypes.float32, side=16)
    with pytest.raises(InterpreterError, match=r"outside|more than along has"):
        interpret(kernel, (np.zeros((17, 3), np.float32), np.zeros((3, 17), np.float32), 17, 3))
    moved = kernel.body[3]
    assert isinstance(moved, Transpose)
    wrong = replace(moved, source=replace(moved.source, dtype=dtypes.int32))
    with pytest.raises(InterpreterError, match="both must be local with equal dtypes"):
        interpret(
            replace(kernel, body=(*kernel.body[:3], wrong)),
            (np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), 2, 2),
        )


def test_the_text_names_both_tiles() -> None:
    assert "turned[:48] = transposed along[:48] of rows, columns" in kernel_text(tile_kernel(dtypes.float32))
    text = kernel_text(tile_kernel(dtypes.float32, within=True))
    assert "turned[:48] = transposed x[0 :: columns] of rows, columns" in text


SIZES = ((16, 16), (17, 200), (130, 129), (64, 128), (257, 40))


@pytest.mark.parametrize("dtype", [*TYPES, dtypes.complex64, dtypes.complex128], ids=str)
def test_transposes_beside_other_work_are_numpys(dtype: DType) -> None:
    @fuse
    def both(x: Any, y: Any, z: Any) -> Any:
        return x.T | y if dtype is dtypes.bool_ else (x.T - y) + z.T

    @fuse
    def batched(x: Any) -> Any:
        return ~x.transpose(0, 2, 1) if dtype is dtypes.bool_ else x.transpose(0, 2, 1) + x.transpose(0, 2, 1)

    random = np.random.default_rng(2)
    for rows, columns in SIZES:
        x, y, z = (random.integers(-3, 3, (rows, columns)).astype(dtype.numpy) for _ in range(3))
        y = y.reshape(columns, rows)
        expected = x.T | y if dtype is dtypes.bool_ else (x.T - y) + z.T
        assert np.array_equal(both(x, y, z), expected)
        raw = np.zeros(x.nbytes + 1, np.uint8)  # elements at addresses that are no multiple of their size
        slanted = raw[1:].view(dtype.numpy).reshape(x.shape)
        slanted[...] = x
        assert np.array_equal(both(slanted, y, z), expected)
        stack = random.integers(-3, 3, (3, rows, columns)).astype(dtype.numpy)
        turned = stack.transpose(0, 2, 1)
        assert np.array_equal(batched(stack), ~turned if dtype is dtypes.bool_ else turned + turned)
    assert [s.template for s in both.segments(x, y, z)] == ["transpose"]
