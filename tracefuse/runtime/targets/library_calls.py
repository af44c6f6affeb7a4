"""Library segments: ops that BLAS or cuBLAS runs, through NumPy's functions on NumPy or CuPy arrays.

Operands of half precision are converted to float32 if the op or the library does not support them. cuBLAS supports
them. CuPy, however, passes batches of bfloat16 matrices to an integer kernel that does not support the type, so where
CuPy multiplies them, they are computed in float32 as well.

Must not know: kernels, which targets there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.dtypes import DType, bfloat16, float32
from tracefuse.errors import OutOfRangeError
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Library
from tracefuse.runtime.targets.array_library import ArrayLibrary


def library_launch(
    fusion: Fusion, node: Node, library: ArrayLibrary
) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any] | None]:
    """Returns a launch that calls the op definition's function on its operands and returns a new, contiguous result."""
    op = node.op
    assert isinstance(op, Library)
    places = [(fusion.inputs.index(o), k in op.indices) for k, o in enumerate(node.operands) if isinstance(o, int)]
    attributes = dict(node.attributes)
    result = fusion.values[node.outputs[0]].dtype
    batched = any(len(fusion.shape_of(o)) > 2 for o in node.operands)
    has_halves = op.in_halves and library.has_halves
    kind = node.compute.compute if node.compute.is_half and not has_halves else node.compute
    compute = kind.numpy
    product = _library_product(fusion, node, kind, library)
    needs_float32 = batched and kind is bfloat16

    def run(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        given = [(inputs[place], position) for place, position in places]
        operands = [o if position or o.dtype == compute else o.astype(compute) for o, position in given]
        made = None if product is None else product(*operands)
        if made is None:
            if needs_float32:
                operands = [
                    o if position else o.astype(float32.numpy) for o, (_, position) in zip(operands, given, strict=True)
                ]
            try:
                made = op.numpy(*operands, **attributes)
            except IndexError as error:
                raise OutOfRangeError(f"{op.name}: {error}", where=node.where) from None
        made = made if made.dtype == result.numpy else made.astype(result.numpy)
        return (library.as_result(made, result),)

    return run


def _library_product(
    fusion: Fusion, node: Node, kind: DType, library: ArrayLibrary
) -> Callable[[Any, Any], Any] | None:
    """Returns the library's own matrix product if the node is one and the library has it, else None."""
    op = node.op
    assert isinstance(op, Library)
    if op.product is None or len(node.operands) != 2 or any(len(fusion.shape_of(o)) < 2 for o in node.operands):
        return None
    multiply, transposed = library.product(kind), op.product == "ab'"
    if multiply is None:
        return None
    if op.orders:
        left_order, right_order = (node.attributes[name] for name in op.orders)
        return lambda a, b: multiply(a.transpose(left_order), b.transpose(right_order), transposed)
    return lambda a, b: multiply(a, b, transposed)
