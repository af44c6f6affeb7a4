"""Small kernels written by hand, for the tests of the CPU backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import (
    Axis,
    Buffer,
    Cast,
    Constant,
    Expression,
    For,
    Kernel,
    Load,
    Statement,
    Store,
    Variable,
    call,
)
from tracefuse.kernel.llvm import cpu_functions

INDEX = dtypes.int64
BLOCK = 4096


def number(value: int) -> Constant:
    return Constant(value, INDEX)


def index(name: str) -> Variable:
    return Variable(name, INDEX)


def loop(variable: Variable, stop: Expression, *body: Statement, kind: str = "serial") -> For:
    return For(variable, number(0), stop, number(1), kind, body)


def pointwise(
    values: tuple[Expression, ...], inputs: tuple[Buffer, ...], *, contract: bool = False, name: str = "pointwise"
) -> Kernel:
    """outk[j] = values[k] for j in range(n), in blocks; `values` read their inputs at the variable j."""
    n, i, j = index("n"), index("i"), index("j")
    outs = tuple(Buffer(f"out{k}", value.dtype, written=True) for k, value in enumerate(values))
    start = call("mul", i, number(BLOCK))
    stop = call("minimum", n, call("add", start, number(BLOCK)))
    stores = tuple(Store(out, j, value) for out, value in zip(outs, values, strict=True))
    body = For(j, start, stop, number(1), "vector", stores)
    extent = call("floordiv", call("add", n, number(BLOCK - 1)), number(BLOCK))
    return Kernel(name, (*inputs, *outs, n), (Axis(i, extent),), (body,), "cpu", work=n, contract=contract)


def primitives_kernel(names: tuple[str, ...], *types: DType, result: DType | None = None) -> Kernel:
    """outk = names[k](a, b, ...) element by element."""
    buffers = tuple(Buffer(f"in{k}", dtype) for k, dtype in enumerate(types))
    loads = [Load(buffer, index("j")) for buffer in buffers]
    return pointwise(tuple(call(name, *loads, dtype=result) for name in names), buffers, name="primitives")


def cast_kernel(source: DType, *targets: DType) -> Kernel:
    buffer = Buffer("in0", source)
    return pointwise(tuple(Cast(Load(buffer, index("j")), target) for target in targets), (buffer,), name="casts")


def run_pointwise(kernel: Kernel, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a pointwise kernel on flat inputs of one length."""
    outs = [np.empty(inputs[0].size, buffer.dtype.numpy) for buffer in kernel.buffers if buffer.written]
    cpu_functions.compile_cpu(kernel)(*inputs, *outs, inputs[0].size)
    return outs
