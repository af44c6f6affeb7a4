"""Tests products of tiles in local memory: types, what becomes of the sums before, pitches, and wrong tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernel.cpu_kernels import index, loop, number
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.interpreter.interpret import InterpreterError, interpret
from tracefuse.kernel.kernel_ir import AddProducts, Allocate, Axis, Buffer, Constant, Kernel, Load, Matrix, Store
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.linked_functions import module_text
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.kernel.llvm.tile_product import product_symbol

I, ROWS, TERMS = (index(name) for name in ("i", "rows", "terms"))
GROUP, COLUMNS, MOST = 6, 8, 14
SIDES = {"x": MOST * MOST, "y": MOST * COLUMNS, "z": MOST * COLUMNS, "s": MOST}


def product_kernel(dtype: DType, kind: str, *, by_terms: bool = False, target: str = "cpu") -> Kernel:
    """z = z + x @ y, s * z + x @ y, or x @ y, from copies in local memory. kind: "add", "scale" or "replace"."""
    arrays = {name: Buffer(name, dtype, written=name == "z") for name in SIDES}
    tiles = {name: Buffer(f"{name}_tile", dtype, "local", size) for name, size in SIDES.items()}
    copied = [loop(I, number(size), Store(tiles[n], I, Load(arrays[n], I))) for n, size in SIDES.items()]
    matrices = (
        Matrix(tiles["z"], number(0), COLUMNS),
        Matrix(tiles["x"], number(0), *((1, MOST) if by_terms else (MOST, 1))),
        Matrix(tiles["y"], number(0), COLUMNS),
    )
    scales = tiles["s"] if kind == "scale" else None
    multiplied = AddProducts(*matrices, ROWS, TERMS, GROUP, 2, COLUMNS // 2, scales, kind == "replace")
    stored = loop(I, number(SIDES["z"]), Store(arrays["z"], I, Load(tiles["z"], I)))
    body = (*map(Allocate, tiles.values()), *copied, multiplied, stored)
    parameters = (*arrays.values(), ROWS, TERMS)
    return Kernel("product", parameters, (Axis(index("g"), Constant(1, dtypes.int64)),), body, target)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("kind", ["add", "scale", "replace"])
def test_products_of_tiles_are_added(dtype: DType, kind: str) -> None:
    for by_terms in (False, True):
        kernel = product_kernel(dtype, kind, by_terms=by_terms)
        function = compile_cpu(kernel)
        for rows, terms in ((6, 14), (12, 1), (7, 5), (1, 0)):
            random = np.random.default_rng(rows)
            arrays = [random.integers(-9, 9, size).astype(dtype.numpy) for size in SIDES.values()]
            x, y, z, s = arrays[0].reshape(MOST, -1), *(a.reshape(-1, COLUMNS) for a in arrays[1:3]), arrays[3]
            added = (x.T if by_terms else x)[:rows, :terms] @ y[:terms]
            before = {"add": z, "scale": z * s[:, None], "replace": 0 * z}[kind][:rows]
            for run in (function, lambda *arguments, kernel=kernel: interpret(kernel, arguments)):
                given = [array.copy() for array in arrays]
                run(*given, rows, terms)
                assert np.array_equal(given[2].reshape(-1, COLUMNS)[:rows], before + added)


@pytest.mark.parametrize("flags", ["", "contract ", "nsz arcp afn contract "])
def test_a_function_is_named_after_all_that_its_code_depends_on(flags: str) -> None:
    texts = {}
    for dtype in (dtypes.float32, dtypes.float64):
        for kind in ("add", "scale", "replace"):
            (statement,) = (s for s in product_kernel(dtype, kind).body if isinstance(s, AddProducts))
            for shape in ({}, {"group": 12}, {"lanes": 8}, {"vectors": 1}):
                symbol = product_symbol(replace(statement, **shape), flags)
                texts[symbol] = module_text(symbol, host_processor()).text
                assert ("fmul contract" in texts[symbol]) == (flags == "contract ")
    assert len(texts) == len({text.replace(symbol, "") for symbol, text in texts.items()}) == 24
    assert get_machine().compile(texts[symbol])


def test_wrong_tiles_are_refused() -> None:
    kernel = product_kernel(dtypes.float32, "add")
    arrays = [np.zeros(size, np.float32) for size in SIDES.values()]
    with pytest.raises(InterpreterError, match="reaches outside z_tile"):
        interpret(kernel, (*arrays, 13, 14))
    statement = kernel.body[-2]
    assert isinstance(statement, AddProducts)
    other: Any = replace(statement.right, buffer=replace(statement.right.buffer, dtype=dtypes.float64))
    with pytest.raises(InterpreterError, match="must be local, of one dtype"):
        interpret(replace(kernel, body=(*kernel.body[:-2], replace(statement, right=other))), (*arrays, 1, 1))
    with pytest.raises(InternalError, match="contains AddProducts, which CUDA kernels do not support"):
        emit_cuda(product_kernel(dtypes.float32, "add", target="cuda"))


def test_the_text_names_the_tiles() -> None:
    text = kernel_text(product_kernel(dtypes.float32, "scale", by_terms=True))
    sizes = "rows rows, terms terms, 8 columns"
    assert f"z_tile[0 :: 8] = s_tile * z_tile[0 :: 8] + x_tile[0 :: 1, ::14] @ y_tile[0 :: 8] of {sizes}" in text
    assert "z_tile[0 :: 8] = x_tile[0 :: 14] @ y_tile" in kernel_text(product_kernel(dtypes.float32, "replace"))
