"""Short names for kernel expressions, and kernels that run row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernel.cpu_kernels import index, loop
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import (
    Axis,
    Buffer,
    Constant,
    Expression,
    Kernel,
    Load,
    Statement,
    Store,
    call,
)

F32 = dtypes.float32
ROWS, COLUMNS, I, J = index("rows"), index("columns"), index("i"), index("j")


def add(a: Expression, b: Expression) -> Expression:
    return call("add", a, b)


def mul(a: Expression, b: Expression) -> Expression:
    return call("mul", a, b)


def at(row: Expression, column: Expression) -> Expression:
    return add(mul(row, COLUMNS), column)


def real(value: float, dtype: DType = F32) -> Constant:
    return Constant(value, dtype)


def by_row(name: str, buffers: tuple[Buffer, ...], *body: Statement, contract: bool = True) -> Kernel:
    """A kernel with one grid iteration for each row; parameters: the buffers, rows, columns."""
    parameters = (*buffers, ROWS, COLUMNS)
    return Kernel(name, parameters, (Axis(I, ROWS),), body, "cpu", work=mul(ROWS, COLUMNS), contract=contract)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).normal(size=shape) * 3
    return values.astype(dtype)


def map_kernel(name: str, dtype: DType = F32) -> Kernel:
    x, out = Buffer("x", dtype), Buffer("out", dtype, written=True)
    return by_row(name, (x, out), loop(J, COLUMNS, Store(out, at(I, J), call(name, Load(x, at(I, J)))), kind="vector"))
