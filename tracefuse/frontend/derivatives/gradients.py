"""`grad`, `value_and_grad`, `vjp`, `jvp` and `checkpoint` of functions that `fuse` records, with the signatures of JAX.

In a trace they record the function and its derivative into that trace. Outside of one they compile, and cache, a
function that does so. Where JAX traces the arguments they are JAX's own transformations. Captured arrays are constants.
Numbers and arrays of integers have no derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees, source
from tracefuse.caches import memoized
from tracefuse.errors import DtypeError, ShapeError, TraceError, shown
from tracefuse.frontend.control_flow.carried_types import as_leaf, is_value
from tracefuse.frontend.derivatives.differentiation import Differentiation
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.fuse_decorator import fuse
from tracefuse.frontend.jax_api.fused_primitive import holds_jax_tracer
from tracefuse.frontend.tracer.array_ops.rebuilt_trees import as_ordinary, rebuilt
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted, is_inexact, zeros
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ops.roles import CAST


@source.hides_own_frames
def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, holomorphic: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the gradient of `fun`, a function with a result without axes.

    argnums: the positional arguments to differentiate by. The gradient has the structure, shapes and dtypes of that
    argument; for a sequence it is a tuple. has_aux: `fun` returns (result, aux), and the gradient comes as (gradient,
    aux). holomorphic: arguments and result are complex. Raises DtypeError for arguments or a result of integers, or of
    complex numbers without `holomorphic`, ShapeError for a result with axes, and UnsupportedError, with the line, for
    an op without a derivative rule.
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic=holomorphic)

    @functools.wraps(fun, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return _outside_or_in(gradient)


@source.hides_own_frames
def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, holomorphic: bool = False
) -> Callable[..., Any]:
    """Returns a function that computes the result of `fun` and its gradient, as a pair; see `grad`.

    With has_aux the pair is ((result, aux), gradient).
    """

    @functools.wraps(fun, updated=())
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        if holds_jax_tracer(args, kwargs):
            of_jax = _jax().value_and_grad(_overlay(_current_recorder(), fun), argnums, has_aux, holomorphic)
            return of_jax(*args, **kwargs)
        recorder = _recorder()
        chosen = _positions(argnums, len(args))
        run = _Linearized(recorder, fun, args, kwargs, chosen, has_aux, "grad", holomorphic)
        seed = run.scalar_seed(holomorphic)
        gradients = run.pull_back([seed])
        result = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        value = run.result()
        return ((value, run.aux) if has_aux else value), result

    return _outside_or_in(value_and_gradient)


@source.hides_own_frames
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Returns (fun(*primals), pull_back): pull_back(cotangent) returns a cotangent for each primal, as a tuple.

    The cotangent has the structure, shapes and dtypes of the result. has_aux: `fun` returns (result, aux), and aux
    comes third. In a trace the function is recorded once; outside of one pull_back computes it again. pull_back raises
    TraceError for a cotangent of another structure and ShapeError for one of other shapes; an op without a derivative
    rule raises UnsupportedError, with the line.
    """
    if holds_jax_tracer(primals, {}):
        return _jax().vjp(_overlay(current.get(), fun), *primals, has_aux=has_aux)  # type: ignore[no-any-return]
    if current.get() is not None:
        run = _Linearized(_recorder(), fun, primals, {}, range(len(primals)), has_aux, "vjp", True)
        pull_back = lambda cotangent: tuple(run.pull_back(run.seeds(cotangent)))  # noqa: E731
        return (run.result(), pull_back, run.aux) if has_aux else (run.result(), pull_back)
    values = _calling(fun)(*primals)
    pulled = _pulling_back(fun, has_aux)
    result, *aux = values if has_aux else (values,)
    return (result, lambda cotangent: pulled(cotangent, *primals), *aux)


@source.hides_own_frames
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Returns (fun(*primals), tangent): the derivative of `fun` along `tangents`, in forward mode.

    primals, tangents: tuples or lists of equal structure, shapes and dtypes. The tangent has the structure of the
    result. has_aux: `fun` returns (result, aux), and aux comes third. Raises TraceError for another number of tangents
    than of primals, ShapeError for tangents of other shapes, and UnsupportedError, with the line, for an op without a
    derivative rule.
    """
    if len(primals) != len(tangents):
        raise TraceError(
            f"jvp: {len(primals)} primals and {len(tangents)} tangents", hint="give one tangent for each primal",
            where=source.user_line(),
        )  # fmt: skip
    if holds_jax_tracer((primals, tangents), {}):
        return _jax().jvp(_overlay(current.get(), fun), tuple(primals), tuple(tangents), has_aux=has_aux)
    if current.get() is None:
        return _pushing_forward(fun, has_aux)(tuple(primals), tuple(tangents))
    run = _Linearized(_recorder(), fun, primals, {}, range(len(primals)), has_aux, "jvp", True)
    tangent = run.push_forward(tangents)
    return (run.result(), tangent, run.aux) if has_aux else (run.result(), tangent)


@source.hides_own_frames
def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fun` as a function of which reverse mode keeps the arguments alone, and computes the rest again.

    That trades time for memory. Elsewhere it is `fun` itself.
    """

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = _current_recorder()
        if holds_jax_tracer(args, kwargs):
            return _jax().checkpoint(_overlay(recorder, fun))(*args, **kwargs)
        if recorder is None:
            return fun(*args, **kwargs)
        nodes = recorder.builder.nodes
        first = len(nodes)
        result = _overlay(recorder, fun)(*args, **kwargs)
        if len(nodes) > first:
            recorder.checkpoints.append(nodes[first:])
        return result

    return call


# ---------------------------------------------------------------------------------------------------------------------
# outside of a trace


def _outside_or_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that records `function` in a trace, and outside of one runs it compiled."""
    fused = fuse(function)

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return (fused if _current_recorder() is None else function)(*args, **kwargs)

    return call


@memoized("functions that vjp runs outside of a trace", key="function", most=256)
def _calling(fun: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fun, updated=())
    def call(*args: Any) -> Any:
        return _overlay(_recorder(), fun)(*args)

    return _outside_or_in(call)


@memoized("functions that pull cotangents back outside of a trace", key="function", most=256)
def _pulling_back(fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    def pull_back(cotangent: Any, *primals: Any) -> Any:
        return vjp(fun, *primals, has_aux=has_aux)[1](cotangent)

    return _outside_or_in(pull_back)


@memoized("functions that push tangents forward outside of a trace", key="function", most=256)
def _pushing_forward(fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    def push_forward(primals: Any, tangents: Any) -> Any:
        return jvp(fun, primals, tangents, has_aux)

    return _outside_or_in(push_forward)


# ---------------------------------------------------------------------------------------------------------------------
# in a trace


def _current_recorder() -> Recorder | None:
    """Returns the recorder of the trace in progress. (A clone would take the variable that holds it for state.)"""
    return current.get()


def _jax() -> Any:
    """Returns JAX. (A clone would take a name of the module for state.)"""
    import jax

    return jax


def _recorder() -> Recorder:
    recorder = current.get()
    assert recorder is not None
    recorder.check_alive()
    return recorder


def _overlay(recorder: Recorder | None, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a clone calls in the place of `fun`."""
    if isinstance(fun, FusedFunction) or recorder is None or recorder.overlays is None:
        return fun
    name = getattr(fun, "__qualname__", type(fun).__name__)
    overlay: Callable[..., Any] = recorder.overlays.of_inner(fun, name, None)[0]
    return overlay


def _positions(argnums: int | Sequence[int], count: int) -> list[int]:
    chosen = [argnums] if isinstance(argnums, int) else [*argnums]
    for position in chosen:
        if not -count <= position < count:
            raise TraceError(
                f"grad: argnums={argnums} and {count} positional arguments",
                hint="pass the arguments to differentiate by position", where=source.user_line(),
            )  # fmt: skip
    return [position % count for position in chosen]


@dataclass
class _Argument:
    """An argument to differentiate by. leaves: its leaves; numbers: of the values that stand for them."""

    leaves: list[Any]
    structure: Any
    values: list[Traced | None]


class _Linearized:
    """One recorded call of a function, with what its derivative needs. aux: the second part of its result."""

    def __init__(
        self, recorder: Recorder, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
        chosen: Sequence[int], has_aux: bool, name: str, allows_complex: bool,
    ) -> None:  # fmt: skip
        self.recorder, self.name = recorder, name
        self.arguments = [self._argument(args[k], f"argument {k}", allows_complex) for k in chosen]
        traced_args = list(args)
        for k, argument in zip(chosen, self.arguments, strict=True):
            leaves = [
                leaf if value is None else value for leaf, value in zip(argument.leaves, argument.values, strict=True)
            ]
            traced_args[k] = rebuilt(self.recorder, argument.structure, leaves)
        self.wanted = [
            value.number for argument_values in self.arguments for value in argument_values.values if value is not None
        ]
        self.first = len(recorder.builder.nodes)
        recorder.differentiated += 1
        try:
            returned = _overlay(recorder, fun)(*traced_args, **kwargs)
        finally:
            recorder.differentiated -= 1
        self.aux = None
        if has_aux:
            returned, self.aux = self._pair(returned)
        self.objects, self.structure = pytrees.flatten(as_ordinary(recorder, returned))
        self.values = [as_leaf(recorder, leaf) if is_value(leaf) else None for leaf in self.objects]
        self.last = len(recorder.builder.nodes)

    def _pair(self, returned: Any) -> tuple[Any, Any]:
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            raise TraceError(
                f"{self.name} with has_aux=True: the function returned {shown(returned)}",
                hint="return (result, aux)", where=source.user_line(),
            )  # fmt: skip
        return returned[0], returned[1]

    def _argument(self, tree: Any, path: str, allows_complex: bool) -> _Argument:
        leaves, structure = pytrees.flatten(as_ordinary(self.recorder, tree))
        names = pytrees.paths(structure, path)
        values = [self._input(leaf, name, allows_complex) for leaf, name in zip(leaves, names, strict=True)]
        return _Argument(leaves, structure, values)

    def _input(self, leaf: Any, path: str, allows_complex: bool) -> Traced | None:
        """Returns a value of its own for an array or a number to differentiate by; None for another object."""
        if not is_value(leaf):
            return None
        traced = as_leaf(self.recorder, leaf)
        dtype = traced.value.dtype
        if not is_inexact(dtype) or (dtype.is_complex and not allows_complex):
            kind = "complex numbers" if dtype.is_complex else "integers or truth values"
            hint = "pass holomorphic=True, or differentiate by its real and imaginary parts"
            raise DtypeError(
                f"{self.name}: {path} has dtype {dtype}: {kind} have no gradient",
                hint=hint if dtype.is_complex else "convert it with astype(float), or leave it out of argnums",
                where=source.user_line(),
            )  # fmt: skip
        copy: Traced = self.recorder.pointwise(CAST, [traced], dtype=dtype)
        copy.weak = traced.weak
        return copy

    def result(self) -> Any:
        leaves = [leaf if value is None else value for leaf, value in zip(self.objects, self.values, strict=True)]
        return rebuilt(self.recorder, self.structure, leaves)

    # -- reverse mode -------------------------------------------------------------------------------------------------

    def scalar_seed(self, holomorphic: bool) -> Traced:
        """Returns the cotangent 1 of the only result. Raises if the function has another result."""
        value = self.values[0] if len(self.values) == 1 else None
        if value is None:
            raise TraceError(
                f"{self.name}: the function returned {shown(self.result())}",
                hint="return one number, or (number, aux) with has_aux=True", where=source.user_line(),
            )  # fmt: skip
        if value.extents:
            raise ShapeError(
                f"{self.name}: the function returned an array with {len(value.extents)} axes",
                hint="reduce it, as with .sum(), or use vjp", where=source.user_line(),
            )  # fmt: skip
        dtype = value.value.dtype
        if not is_inexact(dtype) or dtype.is_complex != holomorphic:
            raise DtypeError(
                f"{self.name}: the result has dtype {dtype}",
                hint="return a real floating-point number, or a complex one with holomorphic=True",
                where=source.user_line(),
            )  # fmt: skip
        seed: Traced = self.recorder.movement("full", [1], dtype=dtype, shape=())
        return seed

    def seeds(self, tree: Any) -> list[Traced | None]:
        """Returns the cotangents of the results from a pytree like the result."""
        leaves, structure = pytrees.flatten(as_ordinary(self.recorder, tree))
        if structure != self.structure:
            raise TraceError(
                f"{self.name}: the cotangent is {shown(tree)}, and the result {shown(self.result())}",
                hint="give a cotangent with the structure of the result", where=source.user_line(),
            )  # fmt: skip
        return [
            None if value is None else self._like(value, leaf, "cotangent")
            for leaf, value in zip(leaves, self.values, strict=True)
        ]

    def _like(self, value: Traced, tangent: Any, name: str) -> Traced:
        traced = as_leaf(self.recorder, tangent)
        if len(traced.extents) != len(value.extents):
            raise ShapeError(
                f"{self.name}: a {name} with {len(traced.extents)} axes for a value with {len(value.extents)}",
                hint="give it the shape of the value", where=source.user_line(),
            )  # fmt: skip
        for axis, (left, right) in enumerate(zip(value.extents, traced.extents, strict=True)):
            message = f"{self.name}: axis {axis} of the {name} has {{right}} elements, that of the value {{left}}"
            self.recorder.builder.require(
                left, "==", right, message, "give it the shape of the value", source.user_line()
            )
        result: Traced = converted(self.recorder, traced, value.value.dtype)
        return result

    def pull_back(self, seeds: Sequence[Traced | None]) -> list[Any]:
        """Returns the cotangent of each argument, as a pytree like it."""
        recorder = self.recorder
        run = Differentiation(recorder, self.first, self.last, self.wanted)
        of_results: dict[int, Traced] = {}
        for value, seed in zip(self.values, seeds, strict=True):
            if value is not None and seed is not None and is_inexact(value.value.dtype):
                run.add(of_results, value.number, seed)
        cotangents = run.cotangents(of_results)
        return [self._tree(argument, cotangents) for argument in self.arguments]

    def _tree(self, argument: _Argument, cotangents: dict[int, Traced]) -> Any:
        leaves = []
        for leaf, value in zip(argument.leaves, argument.values, strict=True):
            leaves.append(leaf if value is None else self._or_zeros(cotangents.get(value.number), value))
        return rebuilt(self.recorder, argument.structure, leaves)

    # -- forward mode -------------------------------------------------------------------------------------------------

    def push_forward(self, tangents: Sequence[Any]) -> Any:
        """Returns the tangent of the result, as a pytree like it."""
        known: dict[int, Traced] = {}
        for argument, tree in zip(self.arguments, tangents, strict=True):
            leaves, structure = pytrees.flatten(as_ordinary(self.recorder, tree))
            if structure != argument.structure:
                raise TraceError(
                    f"jvp: the tangent {shown(tree)} does not have the structure of its primal",
                    hint="give tangents with the structure of the primals", where=source.user_line(),
                )  # fmt: skip
            for value, leaf in zip(argument.values, leaves, strict=True):
                if value is not None:
                    known[value.number] = self._like(value, leaf, "tangent")
        run = Differentiation(self.recorder, self.first, self.last, self.wanted)
        computed = run.tangents(known)
        results = [
            leaf if value is None else self._or_zeros(computed.get(value.number), value)
            for leaf, value in zip(self.objects, self.values, strict=True)
        ]
        return rebuilt(self.recorder, self.structure, results)

    def _or_zeros(self, derivative: Traced | None, value: Traced) -> Traced:
        return zeros(self.recorder, value.extents, value.value.dtype) if derivative is None else derivative
