"""The reference implementation of a Fusion in NumPy: a loop over its nodes. Every test compares with it.

It has two modes. Native: every node computes in its compute type and rounds as the kernels do: halves are computed in
float32 and rounded only where a value is stored (outputs, values that cross a segment boundary, and the user's casts).
Wide: floats are computed in float64, for error bounds.

Must not know: segments, kernels, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import FusionError, InternalError
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.data_positions import check_positions, element_error, located_errors, takes_positions
from tracefuse.ir.extents import Expression
from tracefuse.ir.extents import evaluate as evaluate_extent
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, SubFusion
from tracefuse.ir.library_kinds import Library, WholeArrayOp
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.rounding import round_to_half


def extent_values(fusion: Fusion, arguments: Sequence[Any]) -> dict[int, int]:
    """Returns the value of every extent id (negative) and of every integer scalar input. arguments: in input order."""
    by_value = dict(zip(fusion.inputs, arguments, strict=True))
    values = {key: int(by_value[value].shape[axis]) for key, value, axis in fusion.axis_ids()}
    for number in fusion.scalar_inputs:
        if fusion.values[number].extent is not None:
            values[number] = int(by_value[number])
    return values


def check_requirements(fusion: Fusion, extents: Mapping[int, int]) -> None:
    """Raises the error of the first requirement that the sizes violate, by default a ShapeError."""
    for requirement in fusion.requirements:
        left, right = (evaluate_extent(e, extents) for e in (requirement.left, requirement.right))
        if not requirement.holds(left, right):
            raise requirement.error(left, right)


def evaluate(
    fusion: Fusion,
    arguments: Sequence[Any],
    *,
    wide: bool = False,
    rounded: Collection[int] | None = None,
    on_value: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Evaluates a fusion; returns the outputs as NumPy arrays.

    arguments: NumPy arrays and Python scalars, in input order. wide: compute floats in float64, complex numbers in
    complex128, and round nothing. rounded: the values to round to their own type as if they were stored; None: all.
    on_value: called with the number and the array of every value, in order.

    Raises FusionError for a wrong number of arguments, the requirement's error (by default ShapeError) for sizes that
    violate a requirement, and OutOfRangeError for an out-of-range index.
    """
    if len(arguments) != len(fusion.inputs):
        raise FusionError(f"{len(fusion.inputs)} inputs, got {len(arguments)} arguments")
    extents = extent_values(fusion, arguments)
    check_requirements(fusion, extents)
    environment: dict[int, Any] = {}
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        dtype = fusion.values[number].dtype
        environment[number] = _widened(np.asarray(argument, dtype.numpy), wide)
    stored = {*fusion.outputs}
    with np.errstate(all="ignore"):
        for node in fusion.nodes:
            results = _apply(fusion, node, environment, extents, wide)
            for number, result in zip(node.outputs, results, strict=True):
                _check_parts(node, result, fusion.values[number].dtype)
                round_it = rounded is None or number in rounded or number in stored or _rounds(node)
                environment[number] = _result(result, fusion.values[number].dtype, wide, round_it)
                if on_value is not None:
                    on_value(number, environment[number])
    # Comparisons of arrays without axes are NumPy scalars.
    results = [np.asarray(environment[number]) for number in fusion.outputs]
    return results if wide else [
        result.astype(fusion.values[o].dtype.numpy) for o, result in zip(fusion.outputs, results, strict=True)
    ]  # fmt: skip


def widest(dtype: DType) -> DType:
    """Returns float64 for floats, complex128 for complex types, else the type itself."""
    return dtypes.float64 if dtype.is_floating else dtypes.complex128 if dtype.is_complex else dtype


def _rounds(node: Node) -> bool:
    """Returns whether a node rounds its result even if nothing stores it: the user's casts do."""
    return isinstance(node.op, Pointwise) and node.op.result == "dtype"


def _widened(array: Any, wide: bool) -> Any:
    """Converts halves to float32, or every float to float64 in wide mode."""
    dtype = dtypes.dtype_of(array.dtype)
    if wide and widest(dtype) is not dtype:
        return array.astype(widest(dtype).numpy)
    return array.astype(np.float32) if dtype.is_half else array


def _check_parts(node: Node, result: Any, dtype: DType) -> None:
    """Raises InternalError if a function of whole arrays returned complex numbers where real ones were expected."""
    if isinstance(node.op, WholeArrayOp) and np.iscomplexobj(result) and not dtype.is_complex:
        raise InternalError(f"{node.op.name} returned {np.asarray(result).dtype}, not {dtype}", where=node.where)


def _result(result: Any, dtype: DType, wide: bool, round_it: bool) -> Any:
    array = np.asarray(result)
    if array.dtype.kind == "c" and dtype.is_floating:
        array = array.real
    if wide and (dtype.is_floating or dtype.is_complex):
        return array.astype(widest(dtype).numpy)
    if dtype.is_half:
        # Halves are held in float32; rounding converts to the half type and back.
        return np.asarray(round_to_half(array, dtype) if round_it else array, np.float32)
    return _converted(array, dtype)


def _converted(array: Any, dtype: DType) -> Any:
    """Casts as kernels do: float to integer saturates, NaN becomes 0, and complex to real drops the imaginary part."""
    if array.dtype.kind == "c" and not dtype.is_complex:
        return array != 0 if dtype.kind == "bool" else _converted(array.real, dtype)
    if dtype.is_integer and np.issubdtype(array.dtype, np.floating):
        limits = np.iinfo(dtype.name)
        truncated = np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = truncated <= float(limits.min), truncated >= float(limits.max)
        inside = np.where(low | high, 0, truncated).astype(dtype.numpy)
        return np.where(low, limits.min, np.where(high, limits.max, inside)).astype(dtype.numpy)
    return array.astype(dtype.numpy)


def evaluate_scalars(
    fusion: Fusion, nodes: Sequence[Node], arguments: Mapping[int, Any], extents: Mapping[int, int]
) -> list[Any]:
    """Evaluates host scalar nodes to Python numbers. arguments: the inputs by value number."""
    environment = {k: np.asarray(v, fusion.values[k].dtype.numpy) for k, v in arguments.items()}
    results = []
    for node in nodes:
        number = node.outputs[0]
        with np.errstate(all="ignore"):
            (result,) = _apply(fusion, node, environment, extents, False)
        environment[number] = _result(result, fusion.values[number].dtype, False, True)
        results.append(environment[number].item())
    return results


def number_function(fusion: Fusion, node: Node) -> Callable[..., Any] | None:
    """Returns a function that computes one host scalar as `evaluate_scalars` does, from numbers of Python.

    It takes the operands that are no literals, in order. None for an op with attributes or with numbers of half types.
    """
    op, result = node.op, fusion.values[node.outputs[0]].dtype
    types = [None if isinstance(operand, Literal) else fusion.values[operand].dtype for operand in node.operands]
    halves = any(dtype is not None and dtype.is_half for dtype in (*types, result, node.compute))
    if not isinstance(op, Pointwise) or node.attributes or halves or op.varies or op.refused:
        return None
    literals = {k: np.asarray(operand.value) for k, operand in enumerate(node.operands) if isinstance(operand, Literal)}
    computes = [
        np.bool_ if op.promotion == "where" and k == 0 else node.compute.numpy for k in range(len(node.operands))
    ]
    arguments = [(k, dtype.numpy) for k, dtype in enumerate(types) if dtype is not None]

    def compute(*values: Any) -> Any:
        operands = {**literals, **{k: np.asarray(v, dtype) for (k, dtype), v in zip(arguments, values, strict=True)}}
        with np.errstate(all="ignore"):
            value = op.numpy(*(operands[k].astype(kind) for k, kind in enumerate(computes)))
            return _result(value, result, False, True).item()

    return compute


def _apply(
    fusion: Fusion, node: Node, environment: Mapping[int, Any], extents: Mapping[int, int], wide: bool
) -> Sequence[Any]:
    attributes = concrete_attributes(node, extents)
    operands = [_operand(fusion, node, position, o, environment, wide) for position, o in enumerate(node.operands)]
    match node.op:
        case ControlFlow():
            return node.op.evaluate(_evaluate_sub_fusion, operands, attributes)
        case Pointwise():
            attributes.pop("dtype", None)
            try:
                return (node.op.numpy(*operands, **attributes),)
            except ValueError:
                if node.op.refused is None:
                    raise
                raise element_error(node) from None
        case Reduction():
            return (_reduce(node.op, operands[0], attributes),)
        case Movement() if takes_positions(node):
            check_positions(node, operands[1], operands[0].shape[attributes["dim"]])
            return (node.op.numpy(*operands, **attributes),)
        case Library():
            with located_errors(node):
                return node.op.call(operands, attributes)
        case Movement():
            return (node.op.numpy(*operands, **attributes),)
    raise FusionError(f"{node.op.name} has no reference implementation in NumPy")


def _evaluate_sub_fusion(part: SubFusion, operands: Sequence[Any]) -> list[Any]:
    return evaluate(part.fusion, part.select(operands))


def concrete_attributes(node: Node, extents: Mapping[int, int]) -> dict[str, Any]:
    """Returns the attributes of a node with every extent evaluated. extents: their values, by id."""
    return {name: _concrete(value, extents) for name, value in node.attributes.items()}


def _concrete(attribute: Any, extents: Mapping[int, int]) -> Any:
    if isinstance(attribute, Expression):
        return evaluate_extent(attribute, extents)
    if isinstance(attribute, tuple):
        return tuple(_concrete(a, extents) for a in attribute)
    return attribute


def _operand(
    fusion: Fusion, node: Node, position: int, operand: Operand, environment: Mapping[int, Any], wide: bool
) -> Any:
    array = np.asarray(operand.value) if isinstance(operand, Literal) else environment[operand]
    op = node.op
    if isinstance(op, ControlFlow):
        return array
    if isinstance(op, Movement) and position >= (op.data or len(node.operands)):
        return array
    if isinstance(op, Library) and op.keeps_type(position):
        stored_dtype = None if isinstance(operand, Literal) else fusion.values[operand].dtype
        return array if stored_dtype is None or wide or not stored_dtype.is_half else array.astype(stored_dtype.numpy)
    if isinstance(op, Pointwise) and op.promotion == "where" and position == 0:
        return array.astype(np.bool_)
    if isinstance(op, Reduction) and op.result == "bool":
        return array
    compute = widest(node.compute) if wide else node.compute.compute
    if isinstance(op, Pointwise) and op.result == "dtype":
        return array
    if isinstance(op, Movement) and node.compute.is_half and not wide and array.dtype.kind in "iuf":
        return round_to_half(array, node.compute).astype(np.float32)
    if isinstance(op, Pointwise) and op.native:
        compute = node.compute
    return _converted(array, compute)


def _reduce(op: Reduction, operand: Any, attributes: dict[str, Any]) -> Any:
    axis, keepdims = tuple(attributes.pop("dims")), attributes.pop("keepdim")
    attributes.pop("dtype", None)
    return op.numpy(operand, axis=axis, keepdims=keepdims, **attributes)
