"""How the array library computes an op into given memory, with no compiled kernel: what definitions declare as `into`.

Each function is called with the array library (NumPy or CuPy), the result's array, whose memory may be strided, the
operands, and the op's attributes by name.

Must not know: ops, kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.ir.fusion import Into


def copy_into(xp: Any, out: Any, x: Any) -> None:
    """Copies the operand."""
    out[...] = x


def ufunc_into(name: str) -> Into:
    """A ufunc of two operands."""
    return lambda xp, out, a, b: getattr(xp, name)(a, b, out=out)


def reduction_into(name: str, typed: bool = False) -> Into:
    """A reduction; typed: it computes in the type of the result."""

    def into(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
        more = {"dtype": out.dtype} if typed else {}
        getattr(xp, name)(x, axis=dims, keepdims=keepdim, out=out, **more)

    return into


def min_into(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
    """The smallest element."""
    if xp is np:
        np.min(x, axis=dims, keepdims=keepdim, out=out)
    else:
        # CuPy 13 and 14 take `out` for a type where CUB computes the minimum.
        out[...] = xp.min(x, axis=dims, keepdims=keepdim)


def matmul_into(xp: Any, out: Any, a: Any, b: Any) -> None:
    """A matrix product."""
    xp.matmul(a, b, out=out)


def linear_into(xp: Any, out: Any, a: Any, weight: Any, bias: Any = None) -> None:
    """A product with a transposed matrix, plus a bias if there is one."""
    xp.matmul(a, weight.T, out=out)
    if bias is not None:
        xp.add(out, bias, out=out)
