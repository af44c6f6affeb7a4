"""Library segments: ops that a library runs, through NumPy's functions on NumPy or CuPy arrays.

Operands of half precision are converted to float32 if the op or the library does not support them. cuBLAS supports
them. CuPy, however, passes batches of bfloat16 matrices to an integer kernel that does not support the type, so where
CuPy multiplies them, they are computed in float32 as well.

Must not know: kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from tracefuse.caches import memoized
from tracefuse.dtypes import DType, bfloat16, float32
from tracefuse.errors import InternalError, UnsupportedError
from tracefuse.generated_code import compile_function
from tracefuse.ir.data_positions import located_errors
from tracefuse.ir.extents import Expression, Extent, Symbol, product, python_text
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
    has_halves = op.in_halves and library.has_halves
    kind = node.compute.compute if node.compute.is_half and not has_halves else node.compute
    multiply_into = library.product_into()
    if multiply_into is not None and _is_product_of(fusion, node, op, kind):
        return _product_launch(_product_text(fusion, node, op), kind, multiply_into, library)
    return compile_function(*_call_text(fusion, node, op, kind, library), "library call")  # type: ignore[no-any-return]


def _call_text(
    fusion: Fusion, node: Node, op: Library, kind: DType, library: ArrayLibrary
) -> tuple[str, str, dict[str, Any]]:
    """Returns the text of a launch of a library op, the name of its function, and what it uses."""
    result = fusion.values[node.outputs[0]].dtype
    batched = any(len(fusion.shape_of(o)) > 2 for o in node.operands)
    scope: dict[str, Any] = {
        "compute": kind.numpy, "single": float32.numpy, "kind": result.numpy, "dtype": result, "function": op.numpy,
        "locate": located_errors(node).__exit__, "as_result": library.as_result,
    }  # fmt: skip
    names, numbers, lines = [], [], ["def run(i, o):"]
    for k, operand in enumerate(node.operands):
        if isinstance(operand, int):
            names.append(f"x{k}")
            lines.append(f"    x{k} = i[{fusion.inputs.index(operand)}]")
            if not op.keeps_type(k):
                numbers.append(f"x{k}")
                # NumPy has one object for most of its types.
                lines.append(f"    if x{k}.dtype is not compute and x{k}.dtype != compute:")
                lines.append(f"        x{k} = x{k}.astype(compute)")
    call = [f"try:\n    y = function({', '.join((*names, *_keywords(node, scope)))})"]
    call += ["except BaseException as error:\n    locate(type(error), error, None)\n    raise"]
    call += ["if type(y) is tuple:\n    (y,) = y"]
    if batched and kind is bfloat16:
        call[:0] = [f"{name} = {name}.astype(single)" for name in numbers]
    own = _library_function(fusion, node, kind, library)
    if own is not None:
        scope["own"] = own
        lines += [f"    y = own({', '.join(names)})", "    if y is None:"]
    indent = "    " if own is None else "        "
    lines += [indent + line for block in call for line in block.split("\n")]
    lines += ["    if y.dtype is not kind and y.dtype != kind:", "        y = y.astype(kind)"]
    return "\n".join([*lines, "    return (as_result(y, dtype),)", ""]), "run", scope


def _keywords(node: Node, scope: dict[str, Any]) -> Iterator[str]:
    """Yields the keywords with the attributes of a node; their values go to `scope`."""
    for name, value in node.attributes.items():
        scope[f"a_{name}"] = value
        yield f"{name}=a_{name}"


def _is_product_of(fusion: Fusion, node: Node, op: Library, kind: DType) -> bool:
    """Whether a node is a product of two arrays that have the type `kind`, as the result has."""
    types = {fusion.values[number].dtype for number in (*node.operands, *node.outputs) if isinstance(number, int)}
    return bool(op.product or op.contraction) and len(node.operands) == 2 and types == {kind}


def _product_text(fusion: Fusion, node: Node, op: Library) -> str:
    """Returns the text of a launch that writes a product into a new array."""
    factors = [f"i[{fusion.inputs.index(o)}]" for o in node.operands if isinstance(o, int)]
    orders = [tuple(node.attributes[name]) for name in op.orders or op.contraction[:2]]
    for position, order in enumerate(orders):
        if order != tuple(range(len(order))):
            factors[position] += f".transpose({order})"
    if op.product == "ab'" and len(fusion.shape_of(node.operands[1])) > 1:
        factors[1] += ".swapaxes(-1, -2)"
    result, name_of = "r", names_of_inputs(fusion)
    if op.contraction:
        shapes = _matrices_of(fusion, node, op)
        texts = [None if operand_text is None else _shape_text(operand_text, name_of) for operand_text in shapes]
        *factors, result = (
            operand_text if text is None else f"{operand_text}.reshape({text})"
            for operand_text, text in zip((*factors, result), texts, strict=True)
        )
    shape = _shape_text(fusion.shape_of(node.outputs[0]), name_of)
    lines = (f"r = empty({shape}, dtype)", f"multiply({', '.join(factors)}, {result})", "return (r,)")
    return "def run(i, o):\n" + "".join(f"    {line}\n" for line in lines)


def _shape_text(shape: Sequence[Extent], name_of: Callable[[Symbol], str]) -> str:
    return f"({''.join(f'{python_text(extent, name_of)}, ' for extent in shape)})"


def _matrices_of(fusion: Fusion, node: Node, op: Library) -> list[tuple[Extent, ...] | None]:
    """Returns the shapes of both operands and the result of a contraction as stacks of matrices.

    None: the ordered array has that shape.
    """
    a_dims, b_dims, stack, summed = (node.attributes[name] for name in op.contraction)
    left, right = (
        [fusion.shape_of(o)[k] for k in dims] for o, dims in zip(node.operands, (a_dims, b_dims), strict=True)
    )
    rows, columns = left[stack : len(left) - summed], right[stack + summed :]
    groups = ((rows, left[len(left) - summed :]), (right[stack : stack + summed], columns), (rows, columns))
    return [
        None if len(left_axes) == len(right_axes) == 1 else (*left[:stack], product(left_axes), product(right_axes))
        for left_axes, right_axes in groups
    ]


@memoized("launches of matrix products", key="text, element type, library", most=256)
def _product_launch(text: str, dtype: DType, multiply: Callable[..., Any], library: ArrayLibrary) -> LibraryLaunch:
    scope = {"empty": library.empty, "dtype": dtype, "multiply": multiply, "min": min, "max": max}
    return compile_function(text, "run", scope, "matrix product")  # type: ignore[no-any-return]


def _library_function(fusion: Fusion, node: Node, kind: DType, library: ArrayLibrary) -> Callable[..., Any] | None:
    """Returns the library's own function for a matrix product or an update of rows if it has one, else None."""
    op = node.op
    assert isinstance(op, Library)
    if op.row_update is not None:
        return library.row_update(op.row_update(node.attributes), kind)
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
    operands = "".join(f"i[{fusion.inputs.index(o)}], " for o in node.operands if isinstance(o, int))
    attributes_of = _attributes_of(fusion, node)
    scope: dict[str, Any] = {
        "call": op.caller(dict(node.attributes)) if attributes_of is None else op.call, "attributes": attributes_of,
        "locate": located_errors(node).__exit__, "array_type": library.array_type, "as_array": library.as_array,
        "as_result": library.as_result, "expected": functools.partial(_expected, node, op), "min": min, "max": max,
    }  # fmt: skip
    lines = [
        "def run(i, o):", f"    x = ({operands})", "    try:",
        f"        y = {'call(*x)' if attributes_of is None else 'call(x, attributes(i))'}",
        "    except BaseException as error:", "        locate(type(error), error, None)", "        raise",
        "    if type(y) is not tuple and not isinstance(y, (tuple, list)):", "        y = (y,)",
    ]  # fmt: skip
    name_of = names_of_inputs(fusion)
    is_operand = "".join(f" or ? is x[{k}]" for k in range(sum(isinstance(o, int) for o in node.operands)))
    for k, number in enumerate(fusion.outputs):
        value = fusion.values[number]
        shape = f"({''.join(f'{python_text(extent, name_of)}, ' for extent in value.shape)})"
        scope |= {f"d{k}": value.dtype, f"k{k}": value.dtype.numpy}
        lines += [
            f"    r{k} = y[{node.outputs.index(number)}]",
            f"    if type(r{k}) is not array_type or r{k}.base is not None{is_operand.replace('?', f'r{k}')}:",
            f"        r{k} = as_array(r{k}, d{k}, x)",
            f"    if r{k}.shape != {shape} or r{k}.dtype != k{k}:", f"        r{k} = expected(r{k}, d{k}, {shape})",
        ]  # fmt: skip
    results = "".join(f"as_result(r{k}, d{k}), " for k in range(len(fusion.outputs)))
    text = "\n".join([*lines, f"    return ({results})", ""])
    return compile_function(text, "run", scope, "library call")  # type: ignore[no-any-return]


def _expected(node: Node, op: WholeArrayOp, array: Any, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Returns a result that is narrower than the op's rules give in their type, as a quantile of NaN may be.

    Raises for one of another shape or kind.
    """
    if op.sizes_from_data:
        raise UnsupportedError(
            f"{op.name}: {op.sizes_from_data}", hint="compute it outside the fused function", where=node.where
        )
    is_narrower = array.dtype.kind == dtype.numpy.kind == "f" and array.dtype.itemsize < dtype.numpy.itemsize
    if array.shape == shape and is_narrower:
        return array.astype(dtype.numpy)
    raise InternalError(
        f"{op.name} returned {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}", where=node.where
    )


def _attributes_of(fusion: Fusion, node: Node) -> Callable[[Sequence[Any]], dict[str, Any]] | None:
    """Returns a function from the inputs of a segment to the attributes of its node, None if they depend on no size."""
    fixed = dict(node.attributes)
    sized = {name: value for name, value in fixed.items() if any(extents_in({name: value}))}
    if not sized:
        return None
    name_of, scope = names_of_inputs(fusion), {"fixed": fixed, "min": min, "max": max}

    def text_of(attribute: Any) -> str:
        if isinstance(attribute, Expression):
            return python_text(attribute, name_of)
        if isinstance(attribute, tuple):
            return f"({''.join(f'{text_of(entry)}, ' for entry in attribute)})"
        scope[f"c{len(scope)}"] = attribute
        return f"c{len(scope) - 1}"

    entries = "".join(f"{name!r}: {text_of(value)}, " for name, value in sized.items())
    text = f"def attributes(i):\n    return {{**fixed, {entries}}}\n"
    return compile_function(text, "attributes", scope, "sizes of a library call")  # type: ignore[no-any-return]


def names_of_inputs(fusion: Fusion) -> Callable[[Symbol], str]:
    """Returns the Python expression of a symbol of a segment, from the list `i` of the segment's inputs."""
    axis_of = {key: (fusion.inputs.index(value), axis) for key, value, axis in fusion.axis_ids()}

    def name_of(symbol: Symbol) -> str:
        assert symbol.id is not None
        if symbol.id >= 0:
            return f"i[{fusion.inputs.index(symbol.id)}]"
        position, axis = axis_of[symbol.id]
        return f"i[{position}].shape[{axis}]"

    return name_of
