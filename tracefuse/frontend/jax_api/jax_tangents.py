"""Records the derivatives of functions of JAX that one node computes, as JAX's own rules give them.

Sizes stay symbolic where JAX can compare them; otherwise they are constants of the trace, with a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.dtypes import dtype_of
from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.frontend.jax_api.jaxpr_recording import JaxprRecording
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced


def record_tangents(
    recorder: Recorder, name: str, function: Callable[..., Any], operands: Sequence[Any], given: Sequence[Any]
) -> list[Any]:
    """Returns the tangents of the results of `function` from those of its operands, None for zero.

    function: of arrays of JAX, returns a list. name: of the function, for errors. Raises UnsupportedError if JAX has no
    derivative of it.
    """
    values = [traced_ops.as_tensor(operand) for operand in operands]
    active = [position for position, tangent in enumerate(given) if tangent is not None]
    smooth: list[bool] = []

    def pushed(*arrays: Any) -> list[Any]:
        import jax

        primals, tangents = arrays[: len(values)], arrays[len(values) :]
        results, found = jax.jvp(_of(function, primals, active), [primals[k] for k in active], list(tangents))
        smooth[:] = map(_is_smooth, results)
        return [tangent for tangent, is_smooth in zip(found, smooth, strict=True) if is_smooth]

    tangents = [converted(recorder, given[position], values[position].value.dtype) for position in active]
    recorded = iter(_recorded(recorder, name, pushed, [*values, *tangents]))
    return [next(recorded) if is_smooth else None for is_smooth in smooth]


def record_cotangents(
    recorder: Recorder, name: str, function: Callable[..., Any], operands: Sequence[Any], active: Sequence[bool],
    given: Sequence[Any],
) -> list[Any]:  # fmt: skip
    """Returns the cotangents of the active operands of `function` from those of its results, None for the others.

    given: None for zero. See `record_tangents`.
    """
    values = [traced_ops.as_tensor(operand) for operand in operands]
    chosen = [position for position, is_active in enumerate(active) if is_active]
    known = [position for position, cotangent in enumerate(given) if cotangent is not None]

    def pulled(*arrays: Any) -> list[Any]:
        import jax

        primals = arrays[: len(values)]
        of_known = lambda *inner: [_of(function, primals, chosen)(*inner)[k] for k in known]  # noqa: E731
        results, pull_back = jax.vjp(of_known, *(primals[k] for k in chosen))
        return list(pull_back([c.astype(r.dtype) for c, r in zip(arrays[len(values) :], results, strict=True)]))

    recorded = iter(_recorded(recorder, name, pulled, [*values, *(given[position] for position in known)]))
    return [next(recorded) if is_active else None for is_active in active]


def _of(function: Callable[..., Any], operands: Sequence[Any], active: Sequence[int]) -> Callable[..., Any]:
    """Returns the function of some operands, with the others as they are."""

    def of_active(*chosen: Any) -> Any:
        filled = list(operands)
        for position, value in zip(active, chosen, strict=True):
            filled[position] = value
        return function(*filled)

    return of_active


def _is_smooth(result: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(result.dtype, jax.numpy.inexact))


def _recorded(recorder: Recorder, name: str, function: Callable[..., Any], arrays: Sequence[Traced]) -> list[Any]:
    try:
        try:
            return _recorded_with(recorder, function, arrays, *_types(recorder, arrays, True))
        except TracefuseError:
            raise
        except Exception:  # JAX cannot compare two dimensions, or needs a size
            return _recorded_with(recorder, function, arrays, *_types(recorder, arrays, False))
    except NotImplementedError as error:
        raise UnsupportedError(
            f"{name} has no derivative rule: {str(error).splitlines()[0]}",
            hint="compute it outside of the differentiated function",
            runs_function=False,
        ) from None


def _recorded_with(
    recorder: Recorder, function: Callable[..., Any], arrays: Sequence[Traced], types: Any, sizes: Any
) -> list[Any]:
    import jax

    closed = jax.make_jaxpr(function)(*types)
    inputs = [
        converted(recorder, array, dtype_of(variable.aval.dtype))
        for array, variable in zip(arrays, closed.jaxpr.invars, strict=True)
    ]
    return JaxprRecording(recorder, sizes).record(closed, inputs)


def _types(recorder: Recorder, arrays: Sequence[Traced], is_symbolic: bool) -> tuple[list[Any], dict[str, Any]]:
    """Returns the types of arrays, and the extent of each symbolic dimension in them by name."""
    import jax
    import jax.export

    scope = jax.export.SymbolicScope()
    dimensions: dict[Any, Any] = {}
    sizes: dict[str, Any] = {}
    for extent in dict.fromkeys(one for array in arrays for one in array.extents if not isinstance(one, int)):
        if is_symbolic:
            dimensions[extent] = jax.export.symbolic_shape(f"d{len(sizes)}", scope=scope)[0]
            sizes[f"d{len(sizes)}"] = extent
        else:
            dimensions[extent] = recorder.known(extent)
            recorder.pin(extent, "a size that JAX compares")
    shapes = [tuple(dimensions.get(extent, extent) for extent in array.extents) for array in arrays]
    types = [
        jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(array.value.dtype.numpy))
        for shape, array in zip(shapes, arrays, strict=True)
    ]
    return types, sizes
