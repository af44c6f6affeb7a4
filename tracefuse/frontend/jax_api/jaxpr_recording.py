"""Records the equations of a jaxpr through the tracer.

A primitive has one rule in PRIMITIVES, which the modules of this package fill. Types are JAX's: every result is
converted to the type of its variable. Dimensions that JAX keeps symbolic become sizes of the recording. An array of
random keys is recorded as its words, unsigned integers along one more axis.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import InternalError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted, emit
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Expression, Extent, floordiv, maximum, minimum, mod, product
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops.host_primitives import HOST_PRIMITIVE, is_computed
from tracefuse.ops.jax_primitives import JAX_PRIMITIVE, PrimitiveCall, has_public_name, is_literal


class StaticSizesNeeded(Exception):
    """A rule needs the value of a size. extent: the size, None where a primitive that JAX computes has several."""

    def __init__(self, extent: Extent | None = None) -> None:
        super().__init__()
        self.extent = extent


@dataclass(frozen=True)
class Equation:
    """One equation while it is recorded.

    primitive: of JAX. inputs: traced arrays, with their types in `operands`. results: types of the results.
    """

    recording: JaxprRecording
    primitive: Any
    inputs: Sequence[Any]
    parameters: Mapping[str, Any]
    operands: Sequence[Any]
    results: Sequence[Any]

    @property
    def recorder(self) -> Recorder:
        return self.recording.recorder

    def emit(self, op: str, *operands: Any, **attributes: Any) -> Any:
        """Records an op by name."""
        return emit(self.recorder, op, *operands, **attributes)

    def extent(self, dimension: Any) -> Extent:
        """Returns a dimension of JAX as an extent."""
        return self.recording.extent(dimension)

    def extents(self, shape: Sequence[Any]) -> tuple[Extent, ...]:
        return tuple(self.extent(dimension) for dimension in shape)

    def integer(self, dimension: Any) -> int:
        """Returns a dimension or an extent as an integer. Raises StaticSizesNeeded if it is symbolic."""
        extent = self.recorder.simplify(dimension) if isinstance(dimension, Expression) else self.extent(dimension)
        if not isinstance(extent, int):
            raise StaticSizesNeeded(extent)
        return extent

    def record(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
        """Records a jaxpr of the parameters on other inputs."""
        return self.recording.record(closed, inputs)

    def record_function(self, function: Callable[..., Any], *types: Any) -> list[Any]:
        """Records a function of jax.numpy on the inputs, with these shapes and types."""
        import jax

        return self.recording.record(jax.make_jaxpr(function)(*types), self.inputs)

    def by_jax(self, bind: Callable[..., Any] | None = None) -> Any:
        """Records a library segment in which JAX computes the primitive. bind: how, if not by its parameters."""
        import jax

        if any(_is_symbolic(value) for value in self.parameters.values()):
            raise StaticSizesNeeded
        name, parameters = self.primitive.name, tuple(self.parameters.items())
        if bind is None and has_public_name(name) and all(is_literal(value) for _, value in parameters):
            return self._whole(JAX_PRIMITIVE, primitive=name, parameters=parameters)
        types = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in self.operands]
        return self._whole(JAX_PRIMITIVE, call=PrimitiveCall(name, self.parameters, bind or self._bound(), types))

    def by_libraries(self) -> Any:
        """Records a library segment in which NumPy or SciPy computes the primitive; on a GPU, JAX."""
        parameters = tuple(self.parameters.items())
        is_plain = all(is_literal(value) for _, value in parameters)
        if self.recorder.device is not None or not is_plain or not is_computed(self.primitive.name, self.parameters):
            return self.by_jax()
        return self._whole(HOST_PRIMITIVE, primitive=self.primitive.name, parameters=parameters)

    def _whole(self, op: WholeArrayOp, **attributes: Any) -> Any:
        operands = [
            converted(self.recorder, traced_ops.as_tensor(x), dtype_of(t.dtype)) if not is_key(t) else x
            for x, t in zip(self.inputs, self.operands, strict=True)
        ]
        types = tuple(dtype_of(result.dtype) for result in self.results)
        shapes = tuple(self.extents(result.shape) for result in self.results)
        return record_whole(self.recorder, op, operands, **attributes, types=types, shapes=shapes)

    def _bound(self) -> Callable[..., Any]:
        primitive, parameters = self.primitive, self.parameters

        def bind(*arrays: Any) -> list[Any]:
            result = primitive.bind(*arrays, **parameters)
            return list(result) if primitive.multiple_results else [result]

        return bind


Rule: TypeAlias = Callable[[Equation], Any]
"""Records an equation and returns its result, or a list of several."""

PRIMITIVES: dict[str, Rule] = {}
"""The rule of each primitive by name."""

OF_KEYS: set[str] = set()
"""The primitives whose rules take random keys as their words; of others each word is recorded by itself."""


def primitive(*names: str, of_keys: bool = False) -> Callable[[Rule], Rule]:
    """Decorates the rule of primitives. of_keys: whether it takes random keys as their words."""

    def add(rule: Rule) -> Rule:
        PRIMITIVES.update(dict.fromkeys(names, rule))
        OF_KEYS.update(names if of_keys else ())
        return rule

    return add


def is_key(aval: Any) -> bool:
    """Whether a type is that of random keys."""
    import jax

    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended))


def _is_symbolic(value: Any) -> bool:
    """Whether a parameter holds a symbolic dimension."""
    import jax.export

    if isinstance(value, (tuple, list)):
        return any(map(_is_symbolic, value))
    return bool(jax.export.is_symbolic_dim(value))


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
            first, second = _evaluated(left, sizes), _evaluated(right, sizes)
            if isinstance(operator, ast.Mult):
                return first * second
            return first + second if isinstance(operator, ast.Add) else first - second
    raise InternalError(f"{ast.unparse(node)} is no dimension of JAX that is known")


@dataclass(frozen=True)
class JaxprRecording:
    """Records jaxprs in one trace.

    sizes: of each symbolic dimension by name. falls_back: JAX computes primitives without a rule.
    """

    recorder: Recorder
    sizes: Mapping[str, Extent]
    falls_back: bool = False

    def extent(self, dimension: Any) -> Extent:
        """Returns a dimension of JAX, an integer or an expression of names, as an extent of the recording.

        The text of an expression is the form that jax.export.symbolic_shape reads.
        """
        if isinstance(dimension, (int, np.integer)):
            return int(dimension)
        text = str(dimension).replace("^", "**")
        return self.recorder.simplify(_evaluated(ast.parse(text, mode="eval").body, self.sizes))

    def record(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
        """Records a closed jaxpr, or a jaxpr without constants, on traced arrays; returns its results."""
        jaxpr = getattr(closed, "jaxpr", closed)
        constants = getattr(closed, "consts", ())
        values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update((v, self._constant(c, v.aval)) for v, c in zip(jaxpr.constvars, constants, strict=True))

        def read(variable: Any) -> Any:
            return self._literal(variable) if hasattr(variable, "val") else values[variable]

        for equation in jaxpr.eqns:
            line, inputs = _line_of(equation), [read(v) for v in equation.invars]
            if line is None:
                results = self._record(equation, inputs)
            else:
                results = source.on_behalf_of(line, self._record, equation, inputs)
            values.update(zip(equation.outvars, results, strict=True))
        return [self._typed(read(v), v.aval) for v in jaxpr.outvars]

    def _record(self, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        name, operands = equation.primitive.name, [v.aval for v in equation.invars]
        results = [v.aval for v in equation.outvars]
        recorded_equation = Equation(self, equation.primitive, inputs, equation.params, operands, results)
        rule = PRIMITIVES.get(name)
        if name not in OF_KEYS and any(map(is_key, (*operands, *results))):
            result = _by_words(recorded_equation)
        elif rule is not None:
            result = rule(recorded_equation)
        elif self.falls_back:
            result = recorded_equation.by_jax()
        else:
            raise without_rule(name, equation.params)
        recorded = result if isinstance(result, (list, tuple)) else [result]
        return [self._typed(recorded_equation, aval) for recorded_equation, aval in zip(recorded, results, strict=True)]

    def _literal(self, variable: Any) -> Any:
        """A constant of a jaxpr as a NumPy scalar, which has JAX's type."""
        dtype = dtype_of(variable.aval.dtype)
        return dtype.numpy.type(np.asarray(variable.val).item())

    def _constant(self, value: Any, aval: Any) -> Any:
        if is_key(aval):
            import jax

            value = jax.random.key_data(value)
        return traced_ops.as_traced(np.asarray(value))

    def _typed(self, value: Any, aval: Any) -> Any:
        """Returns a result as a traced array in the type of its variable."""
        recorder = self.recorder
        if isinstance(value, SymbolicSize):
            value = recorder.scalar(recorder.plain(value))
        if not isinstance(value, Traced) or value.on_host:
            value = recorder.movement("full", [value], shape=())
        return value if is_key(aval) else converted(recorder, value, dtype_of(aval.dtype))


def _line_of(equation: Any) -> str | None:
    """Returns the user's line that traced an equation, None if JAX does not know it."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return None
    return source.innermost_line((frame.file_name, frame.line_num) for frame in traceback.frames)


def _by_words(e: Equation) -> list[Any]:
    """Records a primitive that moves random keys for each of their words."""
    import jax

    def bind(*arrays: Any) -> Any:
        return e.primitive.bind(*arrays, **e.parameters)

    keys = [is_key(operand) for operand in e.operands]
    axes = tuple(-1 if key else None for key in keys)
    return e.record_function(jax.vmap(bind, in_axes=axes, out_axes=-1), *map(words_of, e.operands))


def words_of(aval: Any) -> Any:
    """Returns the type of the words of random keys; any other type as it is."""
    import jax

    if not is_key(aval):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.ShapeDtypeStruct((*aval.shape, *aval.dtype._impl.key_shape), np.dtype("uint32"))


def without_rule(name: str, parameters: Mapping[str, Any]) -> UnsupportedError:
    """Returns the error for a primitive that cannot be recorded, with the parameters that are plain values."""
    shown = ", ".join(
        f"{key}={value!r}" for key, value in parameters.items() if value is not None and is_literal(value)
    )
    text = shown if len(shown) <= 200 else f"{shown[:200]} ..."
    return UnsupportedError(
        f"the JAX primitive {name}[{text}] cannot be recorded",
        hint="name the fallback, @fuse(fallback='jax'), to let JAX compute it, or compute it outside of the function",
        where=source.user_line(), runs_function=False,
    )  # fmt: skip
