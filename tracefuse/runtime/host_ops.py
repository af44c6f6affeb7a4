"""Host operations: ops that NumPy or CuPy runs, into an output buffer, without a compiled kernel.

The definition of an op provides the host operation as `into`. An op without it needs a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Fusion, Into, Node, Op
from tracefuse.ir.op_kinds import Reduction
from tracefuse.runtime.devices import cuda_arrays


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
        return self.op.is_copy

    def shape(self, inputs: list[Any]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        (shape,) = self.op.shapes([tuple(x.shape) for x in inputs], self.attributes, _assume)
        return cast("tuple[int, ...]", shape)

    def __str__(self) -> str:
        return self.op.name


def _assume(*_: Any) -> None:
    """Accepts every requirement of a shape rule. All requirements are checked before anything runs."""


def host_call(fusion: Fusion, node: Node) -> HostCall | None:
    """Returns the host operation of a node, None if the array library has no such op or would convert the operands."""
    op, into = node.op, node.op.into
    operands = [fusion.values[o] for o in node.operands if isinstance(o, int)]
    if into is None or len(operands) < len(node.operands) or not all(value.is_tensor for value in operands):
        return None
    result = fusion.values[node.outputs[0]].dtype
    dtypes = {value.dtype for value in operands}
    is_uniform = dtypes == {result} == {node.compute}
    is_plain = is_uniform and not result.is_half
    adds_up = isinstance(op, Reduction) and op.result == "sum" and len(dtypes) == 1
    widens = adds_up and node.compute is result and result.is_integer
    copies = op.is_copy and is_uniform
    if not is_plain and not widens and not copies:
        return None
    return HostCall(op, into, dict(node.attributes), result)
