"""Error bounds of kernels, propagated op by op: a float64 value and an absolute bound for every element.

A node computes in its compute type (float32 for half types), and storing its result rounds to its own type. Every value
counts both, so one bound holds for every partition, with and without contraction. A discontinuous op (a comparison, a
cast to an integer) has bound 0 where its operands cannot cross the discontinuity, else infinity, which means unknown.
The bound of a complex number is on the magnitude of its error.

The error of an op's own arithmetic is a field of its definition, see ir/error_models.py. This module propagates bounds
from value to value.

Must not know: single ops, kernels, segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import DType, complex128, float64
from tracefuse.ir.error_models import FUNCTION_UNITS, Bounded, Reduced, exact_or_unknown, largest_error
from tracefuse.ir.extents import Expression
from tracefuse.ir.extents import evaluate as evaluate_extent
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.reference import evaluate, extent_values, widest
from tracefuse.ops import Library, Movement, Pointwise, Reduction

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-52}
UNIT |= {"complex64": 4 * UNIT["float32"], "complex128": 4 * UNIT["float64"]}
"""The unit roundoff, half the distance from 1 to the next number. Twice that for float64, since the reference
implementation rounds as well. For complex types it covers a product or a quotient, of a few roundings each."""

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
SMALLEST |= {"complex64": 4 * SMALLEST["float32"], "complex128": 4 * SMALLEST["float64"]}
"""The smallest subnormal number."""

LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.7e308}
LARGEST |= {"complex64": LARGEST["float32"], "complex128": LARGEST["float64"]}


def bounded_outputs(fusion: Fusion, arguments: Sequence[Any]) -> list[Bounded]:
    """(value in float64 or complex128, bound) of every output. Integer and bool values are exact or unknown."""
    values: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        array = np.asarray(argument)
        exact = array.astype(fusion.values[number].dtype.numpy)
        values[number] = exact.astype(widest(fusion.values[number].dtype).numpy)
        errors[number] = np.zeros(array.shape)
    evaluate(fusion, arguments, wide=True, on_value=values.__setitem__)
    extents = extent_values(fusion, arguments)
    with np.errstate(all="ignore"):
        for node in fusion.nodes:
            bound = _node_bound(fusion, node, values, errors, extents)
            for number in node.outputs:
                of_it = bound if number == node.outputs[0] else np.inf
                errors[number] = _stored(of_it, values[number], fusion.values[number].dtype)
    return [(values[number], np.broadcast_to(errors[number], values[number].shape)) for number in fusion.outputs]


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def _stored(bound: Any, value: Any, dtype: DType) -> Any:
    """The bound after rounding to `dtype`; infinite if the value may overflow."""
    bound = np.where(np.isnan(bound), np.inf, bound) * np.ones(np.shape(value))
    if not _is_inexact(dtype):
        return np.where(bound > 0, np.inf, 0.0)
    rounding = UNIT[dtype.name] * (np.abs(value) + bound) + SMALLEST[dtype.name]
    exact = (bound == 0) & (value == value.astype(dtype.numpy))
    total = np.where(exact, 0.0, bound + rounding)
    return np.where(np.isfinite(value) & (np.abs(value) + total > LARGEST[dtype.name]), np.inf, total)


def _node_bound(
    fusion: Fusion, node: Node, values: Mapping[int, Any], errors: Mapping[int, Any], extents: Mapping[int, int]
) -> Any:
    operands = []
    for position, operand in enumerate(node.operands):
        value = np.asarray(operand.value) if isinstance(operand, Literal) else values[operand]
        error = np.zeros(value.shape) if isinstance(operand, Literal) else errors[operand]
        keeps_type = isinstance(node.op, Library) and node.op.keeps_type(position)
        operands.append((value, error) if keeps_type else _converted(value, error, node))
    attributes = {name: _concrete(value, extents) for name, value in node.attributes.items()}
    unit = UNIT.get(node.compute.compute.name, 0.0)
    match node.op:
        case Pointwise():
            return _pointwise(node, node.op, operands, attributes, values[node.outputs[0]], unit)
        case Reduction():
            return _reduction(node, node.op, operands[0], attributes, values[node.outputs[0]], unit)
        case Movement():
            return _movement(node.op, operands, attributes)
        case Library():
            return _library(node.op, operands, attributes, unit)
    raise AssertionError(f"no bound for an op of kind {node.op.kind}")


def _converted(value: Any, error: Any, node: Node) -> Bounded:
    """An operand converted to the compute type of the node."""
    if value.dtype == np.bool_ or isinstance(node.op, Movement):
        return value, error
    compute = node.compute.compute
    if value.dtype.kind == "c" and not compute.is_complex:
        return _converted(value.real, error, node)
    if _is_inexact(compute):
        wide = value.astype(widest(compute).numpy)
        exact = wide == wide.astype(compute.numpy)
        return wide, error + np.where(exact, 0.0, UNIT[compute.name] * np.abs(wide) + SMALLEST[compute.name])
    return value, error


def _concrete(attribute: Any, extents: Mapping[int, int]) -> Any:
    if isinstance(attribute, Expression):
        return evaluate_extent(attribute, extents)
    if isinstance(attribute, tuple):
        return tuple(_concrete(a, extents) for a in attribute)
    return attribute


# ---------------------------------------------------------------------------------------------------------------------
# pointwise


def _function_of_complex(node: Node, operands: Sequence[Bounded], value: Any, unit: float) -> Any:
    """The bound of a function of complex numbers: known for exact operands only."""
    inexact = sum(np.asarray(error) for _, error in operands)
    if value.dtype.kind not in "fc":
        return np.where(inexact > 0, np.inf, 0.0)
    rounding = FUNCTION_UNITS * (unit * np.abs(value) + SMALLEST[node.compute.compute.name])
    return np.where(inexact > 0, np.inf, rounding)


def _pointwise(
    node: Node, op: Pointwise, operands: Sequence[Bounded], attributes: Mapping[str, Any], value: Any, unit: float
) -> Any:
    error = op.error
    if any(np.asarray(a).dtype.kind == "c" for a, _ in operands) and not (error and error.on_complex):
        return _function_of_complex(node, operands, value, unit)
    if error is None:
        return _of_exact_operands(node, op, operands, attributes, value, unit)
    bound = error.carried(op.numpy, *(part for pair in operands for part in pair))
    if not error.units or not _is_inexact(node.compute):
        return bound
    computed = value.astype(node.compute.compute.numpy)
    # The float64 reference value cannot show float64's own rounding, which a fused multiply-add skips.
    widest_already = node.compute in (float64, complex128)
    rounds = not error.rounds_once or widest_already or not np.array_equal(computed, value)
    exact = not rounds and bool(np.all(bound == 0))
    smallest = SMALLEST[node.compute.compute.name]
    return bound if exact else bound + error.units * (unit * (np.abs(value) + bound) + smallest)


def _of_exact_operands(
    node: Node, op: Pointwise, operands: Sequence[Bounded], attributes: Mapping[str, Any], value: Any, unit: float
) -> Any:
    """The bound of an op that declares no error: unknown unless its operands are exact.

    For exact operands, the result is that of the reference implementation in the compute type, within some units of the
    largest operand or result.
    """
    inexact = sum(np.asarray(error) for _, error in operands)
    if not node.compute.is_floating:
        return np.where(inexact > 0, np.inf, 0.0)
    keywords = {k: v for k, v in attributes.items() if k != "dtype"}
    narrow = (a if a.dtype == np.bool_ else a.astype(node.compute.compute.numpy) for a, _ in operands)
    native = np.asarray(op.numpy(*narrow, **keywords)).astype(np.float64)
    largest = np.abs(native)
    for a, _ in operands:
        largest = np.maximum(largest, np.abs(a.astype(np.float64)))
    off = np.where(native == value, 0.0, np.abs(native - np.asarray(value, np.float64)))
    units = 4.0 if op.exact else FUNCTION_UNITS
    rounding = units * (unit * largest + SMALLEST[node.compute.compute.name]) if op.result != "bool" else 0.0
    return np.where(inexact > 0, np.inf, off + rounding)


# ---------------------------------------------------------------------------------------------------------------------
# the other kinds


def _reduction(
    node: Node, op: Reduction, operand: Bounded, attributes: Mapping[str, Any], value: Any, unit: float
) -> Any:
    a, error = operand
    axes, keepdims = tuple(attributes["dims"]), bool(attributes["keepdim"])
    count = int(np.prod([a.shape[k] for k in axes]))
    reduced = Reduced(a, np.broadcast_to(error, a.shape), value, axes, keepdims, count, unit, attributes)
    model = op.error_model
    if not _is_inexact(node.compute) and model is not largest_error:
        return exact_or_unknown(reduced)
    return np.full(np.shape(value), np.inf) if model is None else model(reduced)


def _movement(op: Movement, operands: Sequence[Bounded], attributes: Mapping[str, Any]) -> Any:
    moved = op.data if op.data is not None else len(operands)
    unsure = [np.any(error > 0) for _, error in operands[moved:]]
    arrays = [np.broadcast_to(error, value.shape) for value, error in operands[:moved]]
    moved_bounds = op.numpy(
        *arrays, *(value for value, _ in operands[moved:]), **{**attributes, **_no_value(attributes)}
    )
    return np.full(moved_bounds.shape, np.inf) if any(unsure) else moved_bounds


def _no_value(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes for moving bounds: padding is exact, so its bound is 0."""
    return {"value": 0.0} if "value" in attributes else {}


def _library(op: Library, operands: list[Bounded], attributes: Mapping[str, Any], unit: float) -> Any:
    if not op.exact:
        return op.error(op.numpy, operands, attributes, unit)
    unsure = any(np.any(error > 0) for _, error in operands)
    value = op.numpy(*(a for a, _ in operands), **attributes)
    return np.full(value.shape, np.inf if unsure else 0.0)
