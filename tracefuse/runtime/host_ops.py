"""Host operations: ops that NumPy or CuPy runs, into an output buffer, without a compiled kernel.

Each computes the same result as the reference implementation of its op. The output buffer may be strided. Ops that are
not in HOST_OPS need a kernel.
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
"""Called with the array library, the output buffer, the operands and the attributes of the node by name."""


def _set(xp: Any, out: Any, x: Any) -> None:
    out[...] = x


def _ufunc(name: str) -> Into:
    return lambda xp, out, a, b: getattr(xp, name)(a, b, out=out)


def _reduction(name: str, typed: bool = False) -> Into:
    def into(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
        keywords = {"dtype": out.dtype} if typed else {}
        getattr(xp, name)(x, axis=dims, keepdims=keepdim, out=out, **keywords)

    return into


def _min(xp: Any, out: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> None:
    if xp is np:
        np.min(x, axis=dims, keepdims=keepdim, out=out)
    else:
        # Where CUB computes the minimum, CuPy 13 and 14 take `out` for a dtype.
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
"""The ops that copy their operand bit by bit."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """A host operation with its attributes. dtype: of the result. `str` returns the name of the op."""

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
        """Whether it copies its operand bit by bit."""
        return self.op.name in _COPIES

    def shape(self, inputs: list[Any]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        (shape,) = self.op.shapes([tuple(x.shape) for x in inputs], self.attributes, _assume)
        return cast("tuple[int, ...]", shape)

    def __str__(self) -> str:
        return self.op.name


def _assume(left: Extent, relation: str, right: Extent, message: str, hint: str) -> None:
    """Accepts every requirement of a shape rule. All requirements are checked before anything runs."""


def host_call(fusion: Fusion, node: Node) -> HostCall | None:
    """Returns the host operation of a node, None if the array library has no such op or would convert the operands."""
    into = HOST_OPS.get(node.op.name)
    operands = [fusion.values[o] for o in node.operands if isinstance(o, int)]
    if into is None or len(operands) < len(node.operands) or not all(value.is_tensor for value in operands):
        return None
    result = fusion.values[node.outputs[0]].dtype
    dtypes = {value.dtype for value in operands}
    is_uniform = dtypes == {result} == {node.compute}
    is_plain = is_uniform and not result.is_half
    widens = len(dtypes) == 1 and node.op.name in ("sum", "prod") and node.compute is result and result.is_integer
    if not is_plain and not widens and not (node.op.name == "set" and is_uniform):
        return None
    return HostCall(node.op, into, dict(node.attributes), result)
