"""Operations that the array library runs on the host's side, into given memory, with no compiled kernel.

Each writes what the row means of arrays of NumPy or CuPy, whichever they are; the result's memory may be strided. A row
that is not here needs a kernel.

Knows: functions of NumPy that CuPy has, too. Must not know: programs, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion, Node, Op
from tracefuse.runtime.devices import cuda_arrays

Into: TypeAlias = Callable[..., Any]
"""Called with the array library, the result's array, the operands and the row's attributes by name."""


def _set(xp: Any, out: Any, x: Any) -> None:
    out[...] = x


def _ufunc(name: str) -> Into:
    return lambda xp, out, a, b: getattr(xp, name)(a, b, out=out)


def _reduction(name: str, typed: bool = False) -> Into:
    def into(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
        more = {"dtype": out.dtype} if typed else {}
        getattr(xp, name)(x, axis=dims, keepdims=keepdim, out=out, **more)

    return into


def _min(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
    if xp is np:
        np.min(x, axis=dims, keepdims=keepdim, out=out)
    else:
        # CuPy 13 and 14 take `out` for a type where CUB computes the minimum.
        out[...] = xp.min(x, axis=dims, keepdims=keepdim)


def _matmul(xp: Any, out: Any, a: Any, b: Any) -> None:
    xp.matmul(a, b, out=out)


def _linear(xp: Any, out: Any, a: Any, weight: Any, bias: Any = None) -> None:
    xp.matmul(a, weight.T, out=out)
    if bias is not None:
        xp.add(out, bias, out=out)


HOST_OPS: Mapping[str, Into] = {
    "set": _set,
    "add": _ufunc("add"), "sub": _ufunc("subtract"), "mul": _ufunc("multiply"), "div": _ufunc("divide"),
    "sum": _reduction("sum", typed=True), "prod": _reduction("prod", typed=True), "max": _reduction("max"),
    "min": _min, "matmul": _matmul, "linear": _linear,
}  # fmt: skip


_COPIES = frozenset({"set"})
"""Those that change no bit of what they read."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """One operation with its attributes. dtype: of its result. `str` is its name."""

    op: Op
    into: Into
    attributes: Mapping[str, Any]
    dtype: DType

    def __call__(self, inputs: list[Any], output: Any) -> None:
        """Writes the result for `inputs` into `output`."""
        if not isinstance(output, np.ndarray):
            self.into(cuda_arrays.namespace(), output, *inputs, **self.attributes)
        elif self.copies:
            self.into(np, output, *inputs)
        else:
            with np.errstate(all="ignore"):
                self.into(np, output, *inputs, **self.attributes)

    @property
    def copies(self) -> bool:
        """Whether it copies its operand as it is."""
        return self.op.name in _COPIES

    def shape(self, inputs: list[Any]) -> tuple[int, ...]:
        """The shape of the result."""
        (shape,) = self.op.shapes([tuple(x.shape) for x in inputs], self.attributes, _is_known)
        return cast("tuple[int, ...]", shape)

    def __str__(self) -> str:
        return self.op.name


def _is_known(left: Extent, relation: str, right: Extent, message: str, hint: str) -> None:
    """What the fusion requires was checked before anything ran."""


def host_call(fusion: Fusion, node: Node) -> HostCall | None:
    """How the array library computes a node, None where it does not without converting anything."""
    into = HOST_OPS.get(node.op.name)
    operands = [fusion.values[o] for o in node.operands if isinstance(o, int)]
    if into is None or len(operands) < len(node.operands) or not all(value.is_tensor for value in operands):
        return None
    result = fusion.values[node.outputs[0]].dtype
    own = {value.dtype for value in operands}
    is_plain = own == {result} == {node.compute} and not result.is_half
    widens = len(own) == 1 and node.op.name in ("sum", "prod") and node.compute is result and result.is_integer
    if not is_plain and not widens and not (node.op.name == "set" and own == {result} == {node.compute}):
        return None
    return HostCall(node.op, into, dict(node.attributes), result)
