"""Library segments: ops that a library runs, through NumPy's functions on NumPy or CuPy arrays.

Operands of half precision are converted to float32 if the op or the library does not support them. cuBLAS supports
them. CuPy, however, passes batches of bfloat16 matrices to an integer kernel that does not support the type, so where
CuPy multiplies them, they are computed in float32 as well.

Must not know: kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import DType, bfloat16, float32
from tracefuse.errors import InternalError, UnsupportedError
from tracefuse.generated_code import compile_expression, compile_function
from tracefuse.ir.data_positions import located_errors
from tracefuse.ir.extents import Expression, Symbol, python_text
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library, WholeArrayOp
from tracefuse.ir.subfusion import extents_in
from tracefuse.runtime.targets.array_library import ArrayLibrary

LibraryLaunch: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], "Sequence[Any] | None"]


def library_launch(fusion: Fusion, node: Node, library: ArrayLibrary) -> LibraryLaunch:
    """Returns a launch that calls the op definition's function on its operands and returns new, contiguous results.

    fusion: the segment. Its inputs include the sizes that the attributes of the node use.
    """
    if isinstance(node.op, WholeArrayOp):
        return _whole_array_launch(fusion, node, node.op, library)
    op = node.op
    assert isinstance(op, Library)
    places = [(fusion.inputs.index(o), op.keeps_type(k)) for k, o in enumerate(node.operands) if isinstance(o, int)]
    attributes = dict(node.attributes)
    result = fusion.values[node.outputs[0]].dtype
    batched = any(len(fusion.shape_of(o)) > 2 for o in node.operands)
    has_halves = op.in_halves and library.has_halves
    kind = node.compute.compute if node.compute.is_half and not has_halves else node.compute
    compute = kind.numpy
    own = _library_function(fusion, node, kind, library)
    needs_float32 = batched and kind is bfloat16

    def run(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        given = [(inputs[place], position) for place, position in places]
        operands = [o if position or o.dtype == compute else o.astype(compute) for o, position in given]
        made = None if own is None else own(*operands)
        if made is None:
            if needs_float32:
                operands = [
                    o if position else o.astype(float32.numpy) for o, (_, position) in zip(operands, given, strict=True)
                ]
            with located_errors(node):
                (made,) = op.call(operands, attributes)
        made = made if made.dtype == result.numpy else made.astype(result.numpy)
        return (library.as_result(made, result),)

    return run


def _library_function(fusion: Fusion, node: Node, kind: DType, library: ArrayLibrary) -> Callable[..., Any] | None:
    """Returns the library's own function for a matrix product or an update of rows if it has one, else None."""
    op = node.op
    assert isinstance(op, Library)
    if op.row_update is not None:
        update = library.row_update(op.row_update(node.attributes), kind)
        return None if update is None else lambda x, index, rows: update(x, index.astype(np.int64, copy=False), rows)
    if op.product is None or len(node.operands) != 2 or any(len(fusion.shape_of(o)) < 2 for o in node.operands):
        return None
    multiply, transposed = library.product(kind), op.product == "ab'"
    if multiply is None:
        return None
    if op.orders:
        left_order, right_order = (node.attributes[name] for name in op.orders)
        return lambda a, b: multiply(a.transpose(left_order), b.transpose(right_order), transposed)
    return lambda a, b: multiply(a, b, transposed)


# ---------------------------------------------------------------------------------------------------------------------
# functions of whole arrays


def _whole_array_launch(fusion: Fusion, node: Node, op: WholeArrayOp, library: ArrayLibrary) -> LibraryLaunch:
    """Returns a launch of a function on whole arrays; it returns those results that the segment stores.

    The types and shapes of the results are compared with the rules of the op: later segments rely on them.
    """
    places = [fusion.inputs.index(o) for o in node.operands if isinstance(o, int)]
    attributes_of = _attributes_of(fusion, node)
    types = [fusion.values[number].dtype for number in fusion.outputs]
    stored = [(node.outputs.index(n), t, t.numpy) for n, t in zip(fusion.outputs, types, strict=True)]
    shapes_of, located = _shapes_of(fusion), located_errors(node)

    def run(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        operands = [inputs[place] for place in places]
        with located:
            results = op.call(operands, attributes_of(inputs))
        returned = []
        for (position, dtype, kind), shape in zip(stored, shapes_of(inputs), strict=True):
            array = library.as_array(results[position], dtype, operands)
            if array.shape != shape or array.dtype != kind:
                raise _unexpected(node, op, array, dtype, shape)
            returned.append(library.as_result(array, dtype))
        return returned

    return run


def _unexpected(node: Node, op: WholeArrayOp, array: Any, dtype: DType, shape: tuple[int, ...]) -> Exception:
    """Returns the error for a result of another type or shape than the op's rules say."""
    if op.sizes_from_data:
        return UnsupportedError(
            f"{op.name}: {op.sizes_from_data}", hint="compute it outside the fused function", where=node.where
        )
    return InternalError(
        f"{op.name} returned {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}", where=node.where
    )


def _shapes_of(fusion: Fusion) -> Callable[[Sequence[Any]], Sequence[tuple[int, ...]]]:
    """Returns a function from the inputs of a segment to the shapes of its outputs."""
    name_of = _names_of(fusion)
    shapes = (fusion.shape_of(number) for number in fusion.outputs)
    texts = (f"({''.join(f'{python_text(e, name_of)}, ' for e in shape)})" for shape in shapes)
    return compile_expression("i", f"({''.join(f'{text}, ' for text in texts)})", "shapes of a library call")


def _attributes_of(fusion: Fusion, node: Node) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Returns a function from the inputs of a segment to the attributes of its node."""
    fixed = dict(node.attributes)
    sized = {name: value for name, value in fixed.items() if any(extents_in({name: value}))}
    if not sized:
        return lambda inputs: fixed
    name_of, scope = _names_of(fusion), {"fixed": fixed, "min": min, "max": max}

    def text_of(attribute: Any) -> str:
        if isinstance(attribute, Expression):
            return python_text(attribute, name_of)
        if isinstance(attribute, tuple):
            return f"({''.join(f'{text_of(one)}, ' for one in attribute)})"
        scope[f"c{len(scope)}"] = attribute
        return f"c{len(scope) - 1}"

    entries = "".join(f"{name!r}: {text_of(value)}, " for name, value in sized.items())
    text = f"def attributes(i):\n    return {{**fixed, {entries}}}\n"
    return compile_function(text, "attributes", scope, "sizes of a library call")  # type: ignore[no-any-return]


def _names_of(fusion: Fusion) -> Callable[[Symbol], str]:
    """Returns the Python expression of a symbol of a segment, from the list `i` of the segment's inputs."""
    axis_of = {key: (fusion.inputs.index(value), axis) for key, value, axis in fusion.axis_ids()}

    def name_of(symbol: Symbol) -> str:
        assert symbol.id is not None
        if symbol.id >= 0:
            return f"i[{fusion.inputs.index(symbol.id)}]"
        position, axis = axis_of[symbol.id]
        return f"i[{position}].shape[{axis}]"

    return name_of
