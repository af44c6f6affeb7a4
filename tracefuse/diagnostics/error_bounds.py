"""The error that a kernel may make, propagated op by op: a value in float64 and an absolute bound for every element.

A node computes in its compute type (halves in float32) and may be rounded to its own type, if it is stored. Both are
counted for every value, so one bound holds for every segmentation, with and without contraction. An op that jumps
(comparison, cast to an integer) has bound 0 where its operands cannot cross the jump, else infinity: not known.
Of complex numbers the bound is one of the magnitude of the error.

The bounds are the textbook ones (Higham, Accuracy and Stability of Numerical Algorithms, chapters 3 and 4): a sum of n
terms in any order is off by at most (n - 1) u times the sum of magnitudes.

Knows: fusions, rounding. Must not know: kernels, segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import DType, complex128, float64
from tracefuse.ir.extents import Expression
from tracefuse.ir.extents import evaluate as evaluate_extent
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.reference import evaluate, extent_values, widest
from tracefuse.ops import Library, Movement, Pointwise, Reduction

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-52}
UNIT |= {"complex64": 4 * UNIT["float32"], "complex128": 4 * UNIT["float64"]}
"""Half the distance of 1 to the next number. For float64 twice that, since the reference rounds as well.
For complex numbers enough for a product or a quotient, which are a few roundings each."""

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
SMALLEST |= {"complex64": 4 * SMALLEST["float32"], "complex128": 4 * SMALLEST["float64"]}
"""The smallest subnormal number."""

LARGEST = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": 3.4e38, "float64": 1.7e308}
LARGEST |= {"complex64": LARGEST["float32"], "complex128": LARGEST["float64"]}

FUNCTION_UNITS = 16.0
"""Units that exp, log, tanh, ... may be off: 8 in the last place."""

Bounded = tuple[Any, Any]
Rule = Callable[..., Any]


def bounded_outputs(fusion: Fusion, arguments: Sequence[Any]) -> list[Bounded]:
    """(value in float64 or complex128, bound) of every output. Integer and bool values are exact or not known."""
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
    """The bound after rounding to `dtype`; infinite where the value may overflow."""
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
        holds_places = isinstance(node.op, Library) and position in node.op.indices
        operands.append((value, error) if holds_places else _converted(value, error, node))
    attributes = {name: _concrete(value, extents) for name, value in node.attributes.items()}
    unit = UNIT.get(node.compute.compute.name, 0.0)
    match node.op:
        case Pointwise():
            return _pointwise(node, operands, attributes, values[node.outputs[0]], unit)
        case Reduction():
            return _reduction(node, operands[0], attributes, values[node.outputs[0]], unit)
        case Movement():
            return _movement(node.op, operands, attributes)
        case Library():
            if node.op.attributes or node.op.indices:
                return _along_axis(node.op, operands, attributes, unit)
            return _product(node, operands, unit)
    raise AssertionError(f"no bound for an op of kind {node.op.kind}")


def _converted(value: Any, error: Any, node: Node) -> Bounded:
    """An operand in the type that the node computes in."""
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


def _quotient(a: Any, x: Any, b: Any, y: Any) -> Any:
    left = np.abs(b) - y
    return np.where(left > 0, (x + np.abs(a / b) * y) / left, np.where(y == 0, 0.0, np.inf))


def _through(function: Callable[[Any], Any]) -> Rule:
    """The bound of a monotonic function: its values at both ends of the operand's interval."""

    def rule(a: Any, x: Any) -> Any:
        middle = function(a)
        moved = np.maximum(np.abs(function(a + x) - middle), np.abs(function(a - x) - middle))
        return np.where(x == 0, 0.0, np.where(np.isnan(moved), np.inf, moved))

    return rule


def _slope(limit: float) -> Rule:
    return lambda a, x: limit * x


def _where(condition: Any, unsure: Any, b: Any, y: Any, c: Any, z: Any) -> Any:
    return np.where(unsure > 0, np.inf, np.where(condition.astype(bool), y, z))


POINTWISE: dict[str, Rule] = {
    "add": lambda a, x, b, y: x + y,
    "sub": lambda a, x, b, y: x + y,
    "mul": lambda a, x, b, y: np.where(x > 0, np.abs(b) * x, 0) + np.where(y > 0, np.abs(a) * y, 0) + x * y,
    "div": _quotient,
    "maximum": lambda a, x, b, y: np.maximum(x, y),
    "minimum": lambda a, x, b, y: np.maximum(x, y),
    "neg": _slope(1.0),
    "abs": _slope(1.0),
    "set": _slope(1.0),
    "segment_set": _slope(1.0),
    "cast": _slope(1.0),
    "real": _slope(1.0),
    "imag": _slope(1.0),
    "conj": _slope(1.0),
    "complex": lambda a, x, b, y: x + y,
    "sqrt": _through(np.sqrt),
    "rsqrt": _through(lambda a: 1 / np.sqrt(a)),
    "exp": _through(np.exp),
    "log": _through(np.log),
    "sin": _slope(1.0),
    "cos": _slope(1.0),
    "tan": _through(np.tan),
    "asin": _through(np.arcsin),
    "acos": _through(np.arccos),
    "atan": _slope(1.0),
    "sinh": _through(np.sinh),
    "asinh": _slope(1.0),
    "acosh": _through(np.arccosh),
    "atanh": _through(np.arctanh),
    "exp2": _through(np.exp2),
    "expm1": _through(np.expm1),
    "log2": _through(np.log2),
    "log10": _through(np.log10),
    "log1p": _through(np.log1p),
    "reciprocal": lambda a, x: _quotient(np.ones(()), 0.0, a, x),
    "tanh": _slope(1.0),
    "erf": _slope(2 / math.sqrt(math.pi)),
    "sigmoid": _slope(0.25),
    "silu": _slope(1.1),
    "relu": _slope(1.0),
    "clamp": lambda a, x, b, y, c, z: np.maximum(x, np.maximum(y, z)),
    "where": _where,
    "iota": lambda a, x, b, y: 0.0,
    "extent": lambda: 0.0,
}
"""The bound of the exact function of operands that are off: (a, error of a, b, error of b, ...)."""

ON_COMPLEX = (
    *("add", "sub", "mul", "div", "neg", "set", "segment_set", "cast", "where", "real", "imag", "conj", "complex"),
    *("iota", "extent"),
)
"""The rows whose bounds above hold for complex numbers."""

ROUNDED_ONCE = ("add", "sub", "mul", "div", "sqrt")
NEVER_ROUNDED = (
    *("maximum", "minimum", "neg", "abs", "set", "segment_set", "cast", "where", "extent", "relu", "clamp"),
    *("real", "imag", "conj", "complex"),
)
JUMPS = ("eq", "ne", "lt", "le", "gt", "ge")


def _function_of_complex(node: Node, operands: Sequence[Bounded], value: Any, unit: float) -> Any:
    """A function of exact complex numbers; how far it moves with operands that are off is not known."""
    inexact = sum(np.asarray(error) for _, error in operands)
    if value.dtype.kind not in "fc":
        return np.where(inexact > 0, np.inf, 0.0)
    rounding = FUNCTION_UNITS * (unit * np.abs(value) + SMALLEST[node.compute.compute.name])
    return np.where(inexact > 0, np.inf, rounding)


def _pointwise(node: Node, operands: Sequence[Bounded], attributes: Mapping[str, Any], value: Any, unit: float) -> Any:
    name = node.op.name
    if name in JUMPS:
        (a, x), (b, y) = operands
        sure = (x + y == 0) | (np.abs(np.subtract(a, b, dtype=np.result_type(a, b, np.float64))) > x + y)
        return np.where(sure, 0.0, np.inf)
    if any(np.asarray(a).dtype.kind == "c" for a, _ in operands) and name not in ON_COMPLEX:
        return _function_of_complex(node, operands, value, unit)
    if name not in POINTWISE:
        return _of_exact_operands(node, operands, attributes, value, unit)
    bound = POINTWISE[name](*(part for pair in operands for part in pair))
    if name in NEVER_ROUNDED or not _is_inexact(node.compute):
        return bound
    units = 2.0 if name in ROUNDED_ONCE or name == "iota" else FUNCTION_UNITS
    computed = value.astype(node.compute.compute.numpy)
    # A value in float64 says nothing about float64's own rounding, which a fused multiply-add leaves out.
    widest_already = node.compute in (float64, complex128)
    rounds = name not in ROUNDED_ONCE or widest_already or not np.array_equal(computed, value)
    exact = not rounds and bool(np.all(bound == 0))
    smallest = SMALLEST[node.compute.compute.name]
    return bound if exact else bound + units * (unit * (np.abs(value) + bound) + smallest)


def _of_exact_operands(
    node: Node, operands: Sequence[Bounded], attributes: Mapping[str, Any], value: Any, unit: float
) -> Any:
    """Of an op without a rule nothing is known but for exact operands: then it is what NumPy gives in the compute type,
    off by some units of the largest that goes in or comes out."""
    inexact = sum(np.asarray(error) for _, error in operands)
    op = node.op
    if not isinstance(op, Pointwise) or not node.compute.is_floating:
        return np.where(inexact > 0, np.inf, 0.0)
    given = {k: v for k, v in attributes.items() if k != "dtype"}
    narrow = (a if a.dtype == np.bool_ else a.astype(node.compute.compute.numpy) for a, _ in operands)
    native = np.asarray(op.numpy(*narrow, **given)).astype(np.float64)
    largest = np.abs(native)
    for a, _ in operands:
        largest = np.maximum(largest, np.abs(a.astype(np.float64)))
    off = np.where(native == value, 0.0, np.abs(native - np.asarray(value, np.float64)))
    units = 4.0 if op.exact else FUNCTION_UNITS
    rounding = units * (unit * largest + SMALLEST[node.compute.compute.name]) if op.result != "bool" else 0.0
    return np.where(inexact > 0, np.inf, off + rounding)


# ---------------------------------------------------------------------------------------------------------------------
# the other kinds


def _reduction(node: Node, operand: Bounded, attributes: Mapping[str, Any], value: Any, unit: float) -> Any:
    a, x = operand
    axes, keep = tuple(attributes["dims"]), bool(attributes["keepdim"])
    x = np.broadcast_to(x, a.shape)
    count = int(np.prod([a.shape[k] for k in axes]))

    def total(array: Any) -> Any:
        return np.sum(array, axis=axes, keepdims=keep)

    name = node.op.name
    if isinstance(node.op, Reduction) and node.op.result == "index":
        return np.where(total(x) > 0, np.inf, 0.0)
    if name in ("max", "min"):
        return np.max(x, axis=axes, keepdims=keep)
    if not _is_inexact(node.compute) or name in ("any", "all"):
        return np.where(total(x) > 0, np.inf, 0.0)
    if name in ("sum", "mean"):
        bound = total(x) + (count + 1) * unit * total(np.abs(a) + x)
        return bound if name == "sum" else bound / count + 2 * unit * np.abs(value)
    if name == "prod":
        large = np.prod(np.abs(a) + x, axis=axes, keepdims=keep)
        return large * (1 + unit) ** (count + 1) - np.prod(np.abs(a), axis=axes, keepdims=keep)
    if name == "sum_of_exponentials":
        largest = np.max(a, axis=axes, keepdims=True)
        below = largest - a
        error = x + np.max(x, axis=axes, keepdims=True) + 4 * unit * (below + x)
        terms = np.exp(error - below)
        return total(terms * error) + (count + 3) * (FUNCTION_UNITS + 2) * unit * total(terms)
    if name in ("var", "sum_of_squares"):
        mean = np.mean(a, axis=axes, keepdims=True)
        off = np.mean(x + (count + 1) * unit * (np.abs(a) + x), axis=axes, keepdims=True) + 2 * unit * np.abs(mean)
        deviation = np.abs(a - mean)
        error = x + off + 2 * unit * (deviation + x + off)
        bound = total(2 * deviation * error + error**2) + (count + 3) * unit * total((deviation + error) ** 2)
        terms = max(count - attributes["correction"], 0) if name == "var" else 1
        return bound / terms + 4 * unit * np.abs(value)
    return np.full(np.shape(value), np.inf)


def _movement(op: Movement, operands: Sequence[Bounded], attributes: Mapping[str, Any]) -> Any:
    moved = op.data if op.data is not None else len(operands)
    unsure = [np.any(error > 0) for _, error in operands[moved:]]
    arrays = [np.broadcast_to(error, value.shape) for value, error in operands[:moved]]
    made = op.numpy(*arrays, *(value for value, _ in operands[moved:]), **{**attributes, **_no_value(attributes)})
    return np.full(made.shape, np.inf) if any(unsure) else made


def _no_value(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What is padded is exact."""
    return {"value": 0.0} if "value" in attributes else {}


def _along_axis(op: Library, operands: Sequence[Bounded], attributes: Mapping[str, Any], unit: float) -> Any:
    """Scans, sorting and scattering: of exact operands, up to n terms of the size of what the magnitudes give."""
    unsure = any(np.any(error > 0) for _, error in operands)
    value = op.numpy(*(a for a, _ in operands), **attributes)
    if unsure or op.exact or not np.issubdtype(value.dtype, np.inexact):
        return np.full(value.shape, np.inf if unsure else 0.0)
    large = op.numpy(*(np.abs(a) for a, _ in operands), **attributes)
    shape = operands[0][0].shape
    return 2 * (shape[attributes["dim"]] if "dim" in attributes else max(shape)) * unit * large


def _product(node: Node, operands: Sequence[Bounded], unit: float) -> Any:
    (a, x), (b, y) = operands[:2]
    extent = a.shape[-1]
    op = node.op
    assert isinstance(op, Library)
    a, b = np.abs(a), np.abs(b)
    bound = op.numpy(a, y) + op.numpy(x, b) + op.numpy(x, y)
    bound = bound + (extent + 2) * unit * op.numpy(a + x, b + y)
    for c, z in operands[2:]:
        bound = bound + z + 2 * unit * (np.abs(c) + z)
    return bound
