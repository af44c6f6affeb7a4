"""Records the equations of a jaxpr through the tracer.

A primitive has one rule in PRIMITIVES, which the modules of this package fill. Types are JAX's: every result is
converted to the type of its variable. Dimensions that JAX keeps symbolic become sizes of the recording.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import InternalError, UnsupportedError
from tracefuse.frontend.tracer import traced_ops
from tracefuse.frontend.tracer.recorded_ops import converted, emit
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ir.extents import Extent, floordiv, maximum, minimum, mod, product


@dataclass(frozen=True)
class Equation:
    """One equation while it is recorded. inputs: traced arrays. sizes: the size of each symbolic dimension by name."""

    recorder: Recorder
    inputs: Sequence[Any]
    parameters: Mapping[str, Any]
    results: Sequence[Any]
    sizes: Mapping[str, Extent]

    def emit(self, op: str, *operands: Any, **attributes: Any) -> Any:
        """Records an op by name."""
        return emit(self.recorder, op, *operands, **attributes)

    def extent(self, dimension: Any) -> Extent:
        """Returns a dimension of JAX as an extent."""
        return extent_of(self.recorder, dimension, self.sizes)

    def extents(self, shape: Sequence[Any]) -> tuple[Extent, ...]:
        return tuple(self.extent(dimension) for dimension in shape)

    def record(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
        """Records a jaxpr of the parameters on other inputs."""
        return record_jaxpr(self.recorder, closed, inputs, self.sizes)


Rule: TypeAlias = Callable[[Equation], Any]
"""Records an equation and returns its result, or a list of several."""

PRIMITIVES: dict[str, Rule] = {}
"""The rule of each primitive by name."""


def primitive(*names: str) -> Callable[[Rule], Rule]:
    """Decorates the rule of primitives."""

    def add(rule: Rule) -> Rule:
        PRIMITIVES.update(dict.fromkeys(names, rule))
        return rule

    return add


def extent_of(recorder: Recorder, dimension: Any, sizes: Mapping[str, Extent]) -> Extent:
    """Returns a dimension of JAX, an integer or an expression of names, as an extent of the recording.

    The text of an expression is the form that jax.export.symbolic_shape reads.
    """
    if isinstance(dimension, (int, np.integer)):
        return int(dimension)
    return recorder.simplify(_evaluated(ast.parse(str(dimension).replace("^", "**"), mode="eval").body, sizes))


_FUNCTIONS: dict[str, Callable[..., Extent]] = {
    "floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum,
}  # fmt: skip


def _evaluated(node: ast.expr, sizes: Mapping[str, Extent]) -> Extent:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluated(operand, sizes)
        case ast.Call(ast.Name(name), [left, right]):
            return _FUNCTIONS[name](_evaluated(left, sizes), _evaluated(right, sizes))
        case ast.BinOp(left, ast.Pow(), ast.Constant(int(power))):
            return product([_evaluated(left, sizes)] * power)
        case ast.BinOp(left, operator, right):
            one, two = _evaluated(left, sizes), _evaluated(right, sizes)
            if isinstance(operator, ast.Mult):
                return one * two
            return one + two if isinstance(operator, ast.Add) else one - two
    raise InternalError(f"{ast.unparse(node)} is no dimension of JAX that is known")


def record_jaxpr(recorder: Recorder, closed: Any, inputs: Sequence[Any], sizes: Mapping[str, Extent]) -> list[Any]:
    """Records a closed jaxpr, or a jaxpr without constants, on traced arrays; returns its results."""
    jaxpr = getattr(closed, "jaxpr", closed)
    constants = getattr(closed, "consts", ())
    values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
    values.update((v, _constant(recorder, c)) for v, c in zip(jaxpr.constvars, constants, strict=True))

    def read(variable: Any) -> Any:
        return _literal(variable) if hasattr(variable, "val") else values[variable]

    for equation in jaxpr.eqns:
        results = _record(recorder, equation, [read(v) for v in equation.invars], sizes)
        for variable, result in zip(equation.outvars, results, strict=True):
            values[variable] = _typed(recorder, result, variable.aval)
    return [_typed(recorder, read(v), v.aval) for v in jaxpr.outvars]


def _record(recorder: Recorder, equation: Any, inputs: Sequence[Any], sizes: Mapping[str, Extent]) -> Sequence[Any]:
    name = equation.primitive.name
    rule = PRIMITIVES.get(name)
    if rule is None:
        raise without_rule(name, equation.params)
    result = rule(Equation(recorder, inputs, equation.params, [v.aval for v in equation.outvars], sizes))
    return result if isinstance(result, (list, tuple)) else [result]


def without_rule(name: str, parameters: Mapping[str, Any]) -> UnsupportedError:
    """Returns the error for a primitive that cannot be recorded."""
    shown = ", ".join(f"{key}={value!r}" for key, value in parameters.items() if value is not None)
    text = shown if len(shown) <= 200 else f"{shown[:200]} ..."
    return UnsupportedError(
        f"the JAX primitive {name}[{text}] cannot be recorded",
        hint="compute it outside of the fused function", where=source.user_line(),
    )  # fmt: skip


def _literal(variable: Any) -> Any:
    """A constant of a jaxpr as a NumPy scalar, which has JAX's type."""
    dtype = dtype_of(variable.aval.dtype)
    return dtype.numpy.type(np.asarray(variable.val).item())


def _constant(recorder: Recorder, value: Any) -> Any:
    return traced_ops.as_traced(np.asarray(value))


def _typed(recorder: Recorder, value: Any, aval: Any) -> Any:
    """Returns a result as a traced array in the type of its variable."""
    if isinstance(value, SymbolicSize):
        value = recorder.scalar(recorder.plain(value))
    if not isinstance(value, Traced) or value.on_host:
        value = recorder.movement("full", [value], shape=())
    return converted(recorder, value, dtype_of(aval.dtype))
