"""A fused function inside of jax.jit, jax.grad or jax.vmap: one primitive of JAX that holds the closed jaxpr.

Derivatives and batching transform that jaxpr: the tangent is a primitive that computes values and residuals and a
linear one, and reverse mode transposes the latter. Lowering traces and compiles the jaxpr for its shapes; a program of
XLA then calls the plans on its buffers and its stream, and never calls JAX.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.caches import memoized
from tracefuse.compiler.executable import Executable
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.jax_api.watched_state import WatchedState
from tracefuse.ops.jax_primitives import JAX_PRIMITIVE, called_primitive
from tracefuse.runtime.devices import cuda_arrays

Fuse = Callable[..., Any]
"""Makes a fused function of a function of jax.numpy."""


def holds_jax_tracer(args: Any, kwargs: Any) -> bool:
    """Whether JAX traces one of the arguments of a call."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "core"):
        return False
    try:
        leaves = jax.tree_util.tree_leaves((args, kwargs))
    except ValueError:  # a dict whose keys JAX cannot sort is no argument of a function that it traces
        return False
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def call_in_jax(function: Callable[..., Any], name: str, fuse: Fuse, args: Any, kwargs: Any) -> Any:
    """Calls a function of jax.numpy on JAX's tracers, as one primitive.

    Raises UnsupportedError for a function that gives its arguments to NumPy, asks for their elements or changes state.
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten(pytrees.with_words((args, kwargs)))
    positions = [k for k, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    results: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        filled = list(leaves)
        for k, array in zip(positions, arrays, strict=True):
            filled[k] = array
        positional, keywords = jax.tree_util.tree_unflatten(structure, filled)
        result_leaves, tree = jax.tree_util.tree_flatten(pytrees.with_words(function(*positional, **keywords)))
        results[:] = [tree]
        return list(result_leaves)

    arrays = [leaves[k] for k in positions]
    state = WatchedState(function, [leaf for k, leaf in enumerate(leaves) if k not in positions])
    closed = _traced_by_jax(flat, name, arrays, state)
    captured = closed.consts

    def with_captured(*values: Any) -> Any:
        without_constants = closed.replace(consts=list(values[: len(captured)]))
        return _function_of(without_constants)(*values[len(captured) :])

    call = FusedJaxpr(name, jax.make_jaxpr(with_captured)(*captured, *arrays), fuse)
    return jax.tree_util.tree_unflatten(results[0], call(*captured, *arrays))


def _traced_by_jax(flat: Callable[..., Any], name: str, arrays: Sequence[Any], state: WatchedState) -> Any:
    """Returns the jaxpr of a function of arrays. Raises UnsupportedError if JAX cannot trace it or it changes state."""
    import jax

    try:
        closed = jax.make_jaxpr(flat)(*arrays)
    except jax.errors.JAXTypeError as error:
        raise UnsupportedError(
            f"{name} is no function of jax.numpy: {str(error).splitlines()[0]}",
            hint="write it with jax.numpy, or call it outside of jax.jit, jax.grad and jax.vmap",
            where=source.user_line(),
        ) from None
    finally:
        changed = state.take_back()
    if changed is not None:
        raise UnsupportedError(
            f"{name} changes {changed}, and is called inside of jax.jit, jax.grad or jax.vmap",
            hint="return the new value, and store it outside of JAX's transformations", where=source.user_line(),
        )  # fmt: skip
    return closed


class FusedJaxpr:
    """The parameter of the primitive: a closed jaxpr, and what fuses functions of jax.numpy."""

    def __init__(self, name: str, closed: Any, fuse: Fuse) -> None:
        self.name, self.closed, self.fuse = name, closed, fuse
        self.input_types, self.output_types = closed.in_avals, closed.out_avals

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *arrays: Any) -> list[Any]:
        """Binds the primitive."""
        return fused_call().bind(*arrays, call=self)  # type: ignore[no-any-return]

    @property
    def function(self) -> Callable[..., Any]:
        return _function_of(self.closed)

    def of(self, function: Callable[..., Any], types: Sequence[Any], relation: str) -> FusedJaxpr:
        """Returns the call of another function with operands of these types. relation: its relation to this one."""
        import jax

        return FusedJaxpr(f"{relation} of {self.name}", jax.make_jaxpr(function)(*map(_plain_type, types)), self.fuse)

    def linearized(self, active: Sequence[int]) -> tuple[FusedJaxpr, FusedJaxpr, int]:
        """Returns the call that computes results and residuals, the linear call of residuals and tangents, and how many
        results there are that have tangents.

        active: the operands with tangents.
        """
        import jax

        run = self.function
        linear: list[Any] = []
        smooth = [
            k
            for k, output_type in enumerate(self.output_types)
            if jax.numpy.issubdtype(output_type.dtype, jax.numpy.inexact)
        ]

        def values(*operands: Any) -> list[Any]:
            def of_active(*chosen: Any) -> list[Any]:
                arguments = list(operands)
                for k, value in zip(active, chosen, strict=True):
                    arguments[k] = value
                results = run(*arguments)
                return [results[k] for k in smooth]

            tangent_of = jax.linearize(of_active, *(operands[k] for k in active))[1]
            # The constants of its jaxpr are all that it reads of this trace.
            linear[:] = [jax.make_jaxpr(tangent_of)(*(_plain_type(self.input_types[k]) for k in active))]
            return [*run(*operands), *linear[0].consts]

        first = self.of(values, self.input_types, "values and residuals")
        residual_types = first.output_types[len(self.output_types) :]

        def tangents(*operands: Any) -> list[Any]:
            residuals = list(operands[: len(residual_types)])
            tangent_of = _function_of(linear[0].replace(consts=residuals))
            return tangent_of(*operands[len(residual_types) :])  # type: ignore[no-any-return]

        types = [*residual_types, *(self.input_types[k] for k in active)]
        return first, self.of(tangents, types, "tangent"), len(residual_types)

    def transposed(self, linear: Sequence[int]) -> FusedJaxpr:
        """Returns the call of the other operands and the cotangents of the results. linear: operands to transpose."""
        import jax

        run, count = self.function, len(self.input_types)
        known = [k for k in range(count) if k not in linear]
        types = [_plain_type(self.input_types[k]) for k in linear]

        def cotangents(*operands: Any) -> list[Any]:
            def of_linear(*chosen: Any) -> list[Any]:
                places = dict(zip((*known, *linear), (*operands[: len(known)], *chosen), strict=True))
                return run(*(places[k] for k in range(count)))  # type: ignore[no-any-return]

            return list(jax.linear_transpose(of_linear, *types)(list(operands[len(known) :])))

        return self.of(cotangents, [*(self.input_types[k] for k in known), *self.output_types], "transpose")

    def copies(self) -> dict[int, tuple[bool, int]]:
        """Returns the results that are operands (True and which) or other results (False and which), by position."""
        jaxpr = self.closed.jaxpr
        copies: dict[int, tuple[bool, int]] = {}
        first: dict[Any, int] = {}
        operands = {variable: k for k, variable in enumerate(jaxpr.invars)}
        for k, variable in enumerate(jaxpr.outvars):
            if hasattr(variable, "val"):
                continue  # a constant
            if variable in operands:
                copies[k] = (True, operands[variable])
            elif first.setdefault(variable, k) != k:
                copies[k] = (False, first[variable])
        return copies

    def runner(self, empty: Callable[..., Any]) -> Callable[[Sequence[Any], Sequence[Any]], None]:
        """Returns what computes arrays into others, with its plan for the shapes of the jaxpr.

        empty: makes arrays of the platform.
        """
        copies = self.copies()
        computed = [k for k in range(len(self.output_types)) if k not in copies]
        fused = self._compiled(empty, computed)

        def run(results: Sequence[Any], operands: Sequence[Any]) -> None:
            if computed:
                fused.into([results[k] for k in computed], *operands)
            for k, (is_operand, source_of) in copies.items():
                results[k][...] = operands[source_of] if is_operand else results[source_of]

        return run

    def _compiled(self, empty: Callable[..., Any], computed: Sequence[int]) -> Any:
        """Returns the fused function of some of the results, with its plan."""
        function = self.function
        fused = self.fuse(lambda *operands: [function(*operands)[k] for k in computed])
        fused.__name__ = fused.__qualname__ = self.name
        arguments = [empty(input_type.shape, input_type.dtype) for input_type in self.input_types]
        entry, values = fused._entry_for_inspection(arguments, {})
        for node in entry.trace.fusion.nodes:
            if node.op is JAX_PRIMITIVE:
                called = called_primitive(node.attributes)
                raise UnsupportedError(
                    f"{self.name}: JAX computes {called}, which a program of XLA cannot call",
                    hint="compute it outside of the fused function", where=node.where,
                )  # fmt: skip
        if isinstance(entry.executable, Executable):
            fused._place(entry).plan_for(values)
        return fused


def _function_of(closed: Any) -> Callable[..., Any]:
    """Returns a jaxpr as a function of arrays that returns a list."""
    import jax.extend.core

    return jax.extend.core.jaxpr_as_fun(closed)  # type: ignore[no-any-return]


def _plain_type(aval: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


@memoized("the primitive of JAX that calls a fused function", key="none", most=1)
def fused_call() -> Any:
    """Returns the primitive, with its rules."""
    import jax.extend.core
    from jax.interpreters import ad, batching, mlir

    primitive = jax.extend.core.Primitive("fused_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *types, call: call.output_types)
    primitive.def_impl(lambda *arrays, call: jax.jit(functools.partial(primitive.bind, call=call))(*arrays))
    ad.primitive_jvps[primitive] = _tangent
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    for platform, lowering in (("cpu", _on_host), ("cuda", _on_gpu)):
        rule = mlir.lower_fun(functools.partial(_lowered, lowering), multiple_results=True)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def _tangent(primals: Sequence[Any], tangents: Sequence[Any], *, call: FusedJaxpr) -> tuple[list[Any], list[Any]]:
    import jax
    from jax.interpreters import ad

    active = [k for k, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    first, second, count = call.linearized(active)
    values = first(*primals)
    results, residuals = values[: len(call.output_types)], values[len(call.output_types) :]
    assert len(residuals) == count
    computed = iter(second(*residuals, *(tangents[k] for k in active)))
    has_tangent = [jax.numpy.issubdtype(output_type.dtype, jax.numpy.inexact) for output_type in call.output_types]
    return results, [
        next(computed) if smooth else ad.Zero(output_type.to_tangent_aval())
        for smooth, output_type in zip(has_tangent, call.output_types, strict=True)
    ]


def _transpose(cotangents: Sequence[Any], *operands: Any, call: FusedJaxpr) -> list[Any]:
    from jax.interpreters import ad

    linear = [k for k, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
    known = [operand for operand in operands if not ad.is_undefined_primal(operand)]
    seeds = [ad.instantiate_zeros(operand) if type(operand) is ad.Zero else operand for operand in cotangents]
    by_position = dict(zip(linear, call.transposed(linear)(*known, *seeds), strict=True))
    return [by_position.get(k) for k in range(len(operands))]


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, call: FusedJaxpr) -> tuple[list[Any], list[int]]:
    import jax

    batched = jax.vmap(call.function, in_axes=tuple(axes), out_axes=0)
    mapped = call.of(
        batched, [jax.typeof(operand) if hasattr(jax, "typeof") else operand for operand in operands], "vmap"
    )
    return mapped(*operands), [0] * len(call.output_types)


# ---------------------------------------------------------------------------------------------------------------------
# lowering


def _lowered(lowering: Callable[..., Any], *operands: Any, call: FusedJaxpr) -> Any:
    import jax
    from jax.experimental.buffer_callback import buffer_callback

    types = [jax.ShapeDtypeStruct(output_type.shape, output_type.dtype) for output_type in call.output_types]
    return buffer_callback(lowering(call), types)(*operands)


def _on_host(call: FusedJaxpr) -> Callable[..., None]:
    compute = call.runner(np.empty)

    def run(context: Any, results: Sequence[Any], *buffers: Any) -> None:
        compute([np.asarray(array) for array in results], [np.asarray(array) for array in buffers])

    return run


def _on_gpu(call: FusedJaxpr) -> Callable[..., None]:
    import cupy

    compute = call.runner(cupy.empty)

    def run(context: Any, results: Sequence[Any], *buffers: Any) -> None:
        with cuda_arrays.external_stream(context.stream):
            compute([cupy.asarray(array) for array in results], [cupy.asarray(array) for array in buffers])

    return run
