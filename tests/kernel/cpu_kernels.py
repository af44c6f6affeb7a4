"""Small kernels written by hand, for the tests of the CPU backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel import compile_cpu
from tracefuse.kernel.ir import (
    Axis,
    Buffer,
    Call,
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

INDEX = dtypes.int64
BLOCK = 4096


def number(value: int) -> Constant:
    return Constant(value, INDEX)


def index(name: str) -> Variable:
    return Variable(name, INDEX)


def loop(variable: Variable, stop: Expression, *body: Statement, kind: str = "serial") -> For:
    return For(variable, number(0), stop, number(1), kind, body)


def pointwise(
    value: Expression, inputs: tuple[Buffer, ...], dtype: DType, *, contract: bool = False, name: str = "pointwise"
) -> Kernel:
    """out[j] = value for j in range(n), in blocks; `value` reads its inputs at the variable j."""
    n, i, j = index("n"), index("i"), index("j")
    out = Buffer("out", dtype, written=True)
    start = call("mul", i, number(BLOCK))
    stop = call("minimum", n, call("add", start, number(BLOCK)))
    body = For(j, start, stop, number(1), "vector", (Store(out, j, value),))
    extent = call("floordiv", call("add", n, number(BLOCK - 1)), number(BLOCK))
    return Kernel(name, (*inputs, out, n), (Axis(i, extent),), (body,), "cpu", work=n, contract=contract)


def primitive_kernel(name: str, *types: DType, result: DType | None = None) -> Kernel:
    """out = name(a, b, ...) element by element."""
    buffers = tuple(Buffer(f"in{k}", dtype) for k, dtype in enumerate(types))
    loads = [Load(buffer, index("j")) for buffer in buffers]
    value = call(name, *loads, dtype=result)
    return pointwise(value, buffers, value.dtype, name=name)


def cast_kernel(source: DType, target: DType) -> Kernel:
    buffer = Buffer("in0", source)
    return pointwise(Cast(Load(buffer, index("j")), target), (buffer,), target, name="cast")


def run_pointwise(kernel: Kernel, *inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The output of a pointwise kernel on flat inputs of one length."""
    out = np.empty(inputs[0].size, kernel.buffers[-1].dtype.numpy)
    compile_cpu.compile_cpu(kernel)(*inputs, out, inputs[0].size)
    return out


__all__ = ["Call"]
