"""What arrays can do, on traced values: the meaning behind methods, operators and NumPy's functions.

Each function takes traced values and NumPy's parameters, normalised by NumPy's own rules, and records rows.

Knows: the recorder, rows, NumPy's rules for axes, shapes and keys. Must not know: which protocol called it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, ShapeError, TraceError, TracefuseError, UnsupportedError
from tracefuse.extents import Expression, Extent, divide_exactly, floordiv, product
from tracefuse.indexing_keys import plan_of
from tracefuse.ir import Shape
from tracefuse.ops import REGISTRY, Pointwise, Reduction
from tracefuse.ops.row import broadcast_shapes, normalize_axes, normalize_axis
from tracefuse.recorder import Recorder, Traced, current
from tracefuse.sizes import SymbolicSize


def recorder_of(values: Sequence[Any]) -> Recorder:
    """The recorder of the first traced value among `values`, or the trace in progress."""
    for value in values:
        if isinstance(value, Traced):
            value.recorder.check_alive()
            return value.recorder
        if isinstance(value, (list, tuple)) and value:
            for inner in value:
                if isinstance(inner, Traced):
                    inner.recorder.check_alive()
                    return inner.recorder
    recorder = current.get()
    if recorder is None:
        raise TraceError("no trace is in progress", hint="call this inside a fused function")
    return recorder


def apply(name: str, *operands: Any, compute_in: Any = None, **attributes: Any) -> Any:
    """A pointwise row by name. compute_in: the type to compute in instead of the promoted one."""
    row = REGISTRY[name]
    assert isinstance(row, Pointwise)
    chosen = None if compute_in is None else dtype_of(compute_in)
    return recorder_of(operands).pointwise(row, operands, compute_in=chosen, **attributes)


def has_row(name: str) -> bool:
    return name in REGISTRY


def missing(what: str, instead: str) -> UnsupportedError:
    """The refusal of something that no row expresses."""
    return UnsupportedError(f"{what} cannot be fused yet", hint=instead, where=source.user_line())


def refuse(function: str, **given: Any) -> None:
    """UnsupportedError for the first parameter that is set to something else than its default."""
    for name, value in given.items():
        if value is not None and value is not np._NoValue:
            raise UnsupportedError(
                f"{function}: the parameter {name} is not supported", hint=f"call {function} without {name}",
                where=source.user_line(),
            )  # fmt: skip


def located(function: Callable[..., Any]) -> Callable[..., Any]:
    """Errors of axes and shapes get the user's line where the layer below did not know it."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TracefuseError as error:
            if error.where is None:
                raise type(error)(error.message, hint=error.hint, where=source.user_line()) from None
            raise

    call.__name__, call.__doc__, call.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return call


# ---------------------------------------------------------------------------------------------------------------------
# values


def as_traced(value: Any) -> Traced:
    """`value` as a traced value: itself, a captured array, or a literal filled into a 0-d array."""
    if isinstance(value, Traced):
        return value
    recorder = recorder_of((value,))
    resolved = recorder.resolve(value)
    if resolved.traced is not None:
        return resolved.traced
    return recorder.movement("full", [value], shape=())  # type: ignore[no-any-return]


def as_tensor(value: Any) -> Traced:
    """`value` as a traced tensor: a host scalar becomes a 0-d array."""
    traced = as_traced(value)
    return traced.recorder.movement("full", [traced], shape=()) if traced.on_host else traced


def shape_of(value: Any) -> Shape:
    return recorder_of((value,)).resolve(value).shape


def astype(x: Traced, dtype: Any, *, copy: bool = True) -> Any:
    """x converted; the same value where it has the type already."""
    target = dtype_of(dtype)
    if x.value.dtype is target and x.weak is None:
        if not copy:
            return x
        return apply("set", x)
    if x.value.dtype.kind == "complex" and target.kind != "complex":
        raise DtypeError(
            f"casting {x.value.dtype} to {target} discards the imaginary part", hint="take np.real first",
            where=source.user_line(),
        )  # fmt: skip
    return apply("cast", x, dtype=target)


def copy(x: Any) -> Any:
    """A copy: a value of its own."""
    return apply("set", as_traced(x))


# ---------------------------------------------------------------------------------------------------------------------
# axes and reductions


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """NumPy's axis parameter (None, an integer, a tuple) as sorted non-negative axes."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, (tuple, list)):
        return normalize_axes([operator.index(a) for a in axis], rank)
    return (normalize_axis(operator.index(axis), rank),)


@located
def reduce(
    name: str, x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *,
    initial: Any = None, where: Any = None, **attributes: Any,
) -> Any:  # fmt: skip
    """A reduction row by name, with the parameters of NumPy's reductions."""
    row = REGISTRY[name]
    assert isinstance(row, Reduction)
    keepdims = bool(keepdims) if keepdims is not np._NoValue else False
    initial = None if initial is np._NoValue else initial
    where = None if where is True or where is np._NoValue else where
    x = as_tensor(x)
    chosen = None if dtype is None else dtype_of(dtype)
    if where is not None:
        if row.initial is None or (isinstance(row.initial, str) and initial is None):
            raise missing(f"{name} with where=", "select with np.where(mask, x, other) before the reduction")
        neutral = initial if isinstance(row.initial, str) else row.initial
        x = apply("where", where, x, neutral)
    axes = axes_of(axis, len(x.extents))
    result = x.recorder.reduction(row, x, axes, keepdims, chosen, **attributes)
    if initial is not None:
        joined = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[name]
        result = apply(joined, result, initial)
    return result if out is None else into(out, result)


def var(
    x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *,
    correction: Any = None, mean: Any = None, where: Any = None,
) -> Any:  # fmt: skip
    """Variance: the sum of squared deviations over n - ddof."""
    refuse("var", mean=mean, where=None if where is True else where)
    if correction is not None and correction is not np._NoValue:
        ddof = correction
    x = as_tensor(x) if dtype is None else astype(as_tensor(x), dtype)
    return reduce("var", x, axis, None, out, keepdims, correction=_number(ddof))


def std(
    x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, **more: Any
) -> Any:
    """Standard deviation: the square root of var."""
    result = apply("sqrt", var(x, axis, dtype, None, ddof, keepdims, **more))
    return result if out is None else into(out, result)


def _number(value: Any) -> Any:
    """A parameter that must be a number: a host scalar's value is asked for."""
    if isinstance(value, SymbolicSize):
        return int(value)
    if isinstance(value, Traced):
        return value.recorder.value_of(value, "a parameter that is no array")
    return value


# ---------------------------------------------------------------------------------------------------------------------
# shapes


def _extents(shape: Any, recorder: Recorder) -> tuple[Extent, ...]:
    """A shape parameter: an integer or a sequence of integers and sizes."""
    entries = shape if isinstance(shape, (tuple, list)) else (shape,)
    result = []
    for entry in entries:
        if isinstance(entry, SymbolicSize):
            result.append(recorder.simplify(entry.extent))
        elif isinstance(entry, Expression):
            result.append(recorder.simplify(entry))
        elif isinstance(entry, Traced) and entry.value.extent is not None:
            result.append(recorder.simplify(entry.value.extent))
        else:
            result.append(operator.index(entry))
    return tuple(result)


def new_shape(shape: Any, recorder: Recorder) -> tuple[Extent, ...]:
    """The shape of an array to be made: no entry may be negative."""
    extents = _extents(shape, recorder)
    for extent in extents:
        message, hint = "negative dimensions are not allowed: {right}", "sizes are at least 0"
        recorder.builder.require(0, "<=", extent, message, hint, source.user_line())
    return extents


@located
def reshape(x: Any, shape: Any, order: str | None = "C") -> Any:
    """The same elements in row-major order; one entry of `shape` may be -1."""
    if order not in ("C", None):
        if order == "F":
            entries = shape if isinstance(shape, (tuple, list)) else (shape,)
            return transpose(reshape(transpose(x), tuple(reversed(entries))))
        raise missing(f"reshape with order={order!r}", "use order='C'")
    traced = as_tensor(x)
    recorder, own = traced.recorder, traced.extents
    target = list(_extents(shape, recorder))
    unknown = [k for k, e in enumerate(target) if _is_minus_one(e, recorder)]
    if len(unknown) > 1:
        raise ShapeError("reshape: only one extent can be -1", hint="spell out the others")
    if unknown:
        total = product(own)
        others = product(e for k, e in enumerate(target) if k != unknown[0])
        target[unknown[0]] = _quotient(total, others, recorder)
    if tuple(target) == own:
        return _same(traced)
    return recorder.movement("reshape", [traced], view_of=traced, new_shape=tuple(target))


def _same(traced: Traced) -> Traced:
    """Another name for the same value, which in NumPy is a view."""
    return traced.recorder.alias(traced)


def _is_minus_one(extent: Extent, recorder: Recorder) -> bool:
    return extent == -1 if isinstance(extent, int) else not recorder.decide(0, "<=", extent, "the sign of an extent")


def _quotient(total: Extent, others: Extent, recorder: Recorder) -> Extent:
    """What -1 stands for: total / others, which must divide."""
    exact = divide_exactly(total, others)
    if exact is not None:
        return exact
    if not recorder.decide(1, "<=", others, "the extents beside -1"):
        raise ShapeError(f"reshape: -1 beside extents whose product is {others}", hint="spell out every extent")
    result = floordiv(total, others)
    message = f"reshape: the elements do not fill rows of {others}: {{left}} are left over"
    hint = f"the number of elements must be a multiple of {others}"
    recorder.builder.require(total % others, "==", 0, message, hint, source.user_line())
    return result


@located
def transpose(x: Any, axes: Any = None) -> Any:
    """Axis k of the result is axis axes[k] of x; without axes they are reversed."""
    traced = as_tensor(x)
    rank = len(traced.extents)
    if axes is None:
        dims = tuple(reversed(range(rank)))
    else:
        dims = tuple(normalize_axis(operator.index(a), rank) for a in axes)
        if sorted(dims) != list(range(rank)):
            raise ShapeError(f"transpose: {tuple(axes)} does not order {rank} axes", hint="name each axis once")
    return traced.recorder.movement("permute", [traced], view_of=traced, dims=dims)


@located
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    rank = len(as_traced(x).extents)
    dims = list(range(rank))
    a, b = (normalize_axis(operator.index(axis), rank) for axis in (axis1, axis2))
    dims[a], dims[b] = dims[b], dims[a]
    return transpose(x, dims)


@located
def moveaxis(x: Any, from_axes: Any, to_axes: Any) -> Any:
    rank = len(as_traced(x).extents)
    start, end = (
        [normalize_axis(operator.index(a), rank) for a in (axes if isinstance(axes, (tuple, list)) else (axes,))]
        for axes in (from_axes, to_axes)
    )
    if len(start) != len(end) or len({*start}) != len(start) or len({*end}) != len(end):
        raise ShapeError(
            f"moveaxis: {from_axes} and {to_axes} do not pair axes", hint="name as many axes in both, once"
        )
    order = [k for k in range(rank) if k not in start]
    for destination, origin in sorted(zip(end, start, strict=True)):
        order.insert(destination, origin)
    return transpose(x, order)


@located
def squeeze(x: Any, axis: Any = None) -> Any:
    """Drops axes of extent 1."""
    traced = as_tensor(x)
    extents = traced.extents
    if axis is None:
        dims = tuple(k for k, e in enumerate(extents) if traced.recorder.decide(e, "==", 1, "squeeze"))
    else:
        dims = axes_of(axis, len(extents))
        for dim in dims:
            # For an axis of an argument this is in the key of the trace, so that it is known here.
            if not traced.recorder.decide(extents[dim], "==", 1, "squeeze"):
                size = traced.recorder.known(extents[dim])
                message = f"squeeze: axis {dim} has extent {size}"
                raise ShapeError(message, hint="only an axis of extent 1 can be squeezed")
    if not dims:
        return _same(traced)
    return traced.recorder.movement("squeeze", [traced], view_of=traced, dims=dims)


@located
def expand_dims(x: Any, axis: Any) -> Any:
    """Adds axes of extent 1 at the positions `axis` of the result."""
    traced = as_tensor(x)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(traced.extents) + len(places)
    added = normalize_axes([operator.index(a) for a in places], rank)
    flags = tuple(k in added for k in range(rank))
    return traced.recorder.movement("broadcast", [traced], view_of=traced, is_broadcast_dim=flags)


@located
def broadcast_to(x: Any, shape: Any) -> Any:
    """Repeats axes of extent 1 up to `shape`."""
    traced = as_tensor(x)
    recorder = traced.recorder
    target = new_shape(shape, recorder)
    own = traced.extents
    if len(own) > len(target):
        raise ShapeError(
            f"broadcast_to: {len(own)} axes do not fit {len(target)}", hint="give at least as many extents as axes"
        )
    if own == target:
        return _same(traced)
    lead = len(target) - len(own)
    ones = [
        axis for axis, extent in enumerate(own)
        if extent != target[lead + axis] and recorder.decide(extent, "==", 1, "broadcasting of a computed extent")
    ]  # fmt: skip
    source_value = recorder.with_ones(traced, ones) if any(own[axis] != 1 for axis in ones) else traced
    return recorder.movement("expand", [source_value], view_of=traced, shape=target)


@located
def getitem(x: Traced, key: Any) -> Any:
    """x[key] for integers, slices, None, `...` and one integer array."""
    traced = as_tensor(x)
    recorder, shape = traced.recorder, traced.extents
    plan = plan_of(key, shape, recorder)
    if len(plan.arrays) > 1:
        raise missing("indexing with several arrays", "index the flattened axes: x.reshape(-1)[i * m + j]")
    result = traced
    if plan.flips:
        result = recorder.movement("flip", [result], view_of=traced, dims=tuple(plan.flips))
    if not plan.whole(shape):
        starts, ends, steps = tuple(plan.starts), tuple(plan.ends), tuple(plan.steps)
        result = recorder.movement("slice", [result], view_of=traced, start_indices=starts, end_indices=ends, strides=steps)  # fmt: skip # noqa: E501
    if plan.drops:
        result = recorder.movement("squeeze", [result], view_of=traced, dims=tuple(plan.drops))
    if any(plan.new_axes):
        result = recorder.movement("broadcast", [result], view_of=traced, is_broadcast_dim=tuple(plan.new_axes))
    if plan.arrays:
        ((axis, index),) = plan.arrays.items()
        if any(d > axis for d in plan.drops) or any(d < axis for d in plan.drops):
            raise missing("an integer array beside integers in one index", "index twice: x[i][idx]")
        kept = [k for k, new in enumerate(plan.new_axes) if not new]
        return take(result, index, kept[axis])
    return _same(traced) if result is traced else result


@located
def take(x: Any, indices: Any, axis: Any = None) -> Any:
    """The elements at integer positions along an axis; the axes of `indices` take its place."""
    if axis is None:
        return take(reshape(x, -1), indices, 0)
    traced = as_tensor(x)
    recorder = traced.recorder
    rank = len(traced.extents)
    dim = normalize_axis(operator.index(axis), rank)
    index = as_tensor(np.asarray(indices) if isinstance(indices, (list, int)) else indices)
    if not index.value.dtype.is_integer:
        raise DtypeError(f"an index array has dtype {index.value.dtype}", hint="cast it to an integer type")
    shape = index.extents
    flat = reshape(index, (product(shape),)) if len(shape) != 1 else index
    flags = tuple(k != dim for k in range(rank))
    lined_up = recorder.movement("broadcast", [flat], is_broadcast_dim=flags)
    taken = recorder.movement("take_along_axis", [traced, lined_up], dim=dim)
    if len(shape) == 1:
        return taken
    return reshape(taken, tuple(recorder.sizes((*traced.extents[:dim], *shape, *traced.extents[dim + 1 :]))))


# ---------------------------------------------------------------------------------------------------------------------
# several arrays


@located
def concatenate(arrays: Sequence[Any], axis: Any = 0, dtype: Any = None) -> Any:
    """Arrays one after another along an axis; None flattens them first."""
    parts = [as_tensor(a) for a in arrays]
    if not parts:
        raise ShapeError("need at least one array to concatenate")
    if axis is None:
        parts, axis = [reshape(p, -1) for p in parts], 0
    rank = len(parts[0].extents)
    if rank == 0:
        raise ShapeError("zero-dimensional arrays cannot be concatenated", hint="use np.stack")
    dim = normalize_axis(operator.index(axis), rank)
    chosen = None if dtype is None else dtype_of(dtype)
    if len(parts) == 1:
        return copy(parts[0]) if chosen is None else astype(parts[0], chosen)
    return parts[0].recorder.movement("cat", parts, dim=dim, dtype=chosen)


def stack(arrays: Sequence[Any], axis: Any = 0, dtype: Any = None) -> Any:
    """Arrays along a new axis."""
    parts = [as_tensor(a) for a in arrays]
    if not parts:
        raise ShapeError("need at least one array to stack", where=source.user_line())
    rank = len(parts[0].extents) + 1
    dim = located(normalize_axis)(operator.index(axis), rank)
    return concatenate([expand_dims(p, dim) for p in parts], dim, dtype)


def matmul(a: Any, b: Any) -> Any:
    """Matrix product with NumPy's broadcasting of the leading axes."""
    row = REGISTRY["matmul"]
    recorder = recorder_of((a, b))
    return recorder.library(row, [as_tensor(a), as_tensor(b)])


@located
def dot(a: Any, b: Any) -> Any:
    """NumPy's dot: a product with scalars, an inner product, a matrix product."""
    left, right = as_traced(a), as_traced(b)
    ranks = len(left.extents), len(right.extents)
    if 0 in ranks:
        return apply("mul", left, right)
    if ranks[1] <= 2:
        return matmul(left, right)
    raise missing(f"dot of {ranks[0]} and {ranks[1]} axes", "use matmul or einsum")


# ---------------------------------------------------------------------------------------------------------------------
# in place


def into(target: Any, result: Traced) -> Any:
    """Binds `target` to a result, as an in-place operation on an intermediate: every name of it sees the change."""
    if not isinstance(target, Traced):
        raise UnsupportedError(
            f"out= is a {type(target).__name__} that is not traced", hint="return the result instead",
            where=source.user_line(),
        )  # fmt: skip
    recorder = target.recorder
    group = target.group
    if group is not None and group.of_argument is not None:
        raise UnsupportedError(
            f"in-place change of the argument {group.of_argument}",
            hint="return the new value: write y = x + 1, not x += 1",
            where=source.user_line(),
        )  # fmt: skip
    if group is not None and group.others(target):
        raise UnsupportedError(
            "in-place change of a value of which a view is alive", hint="change a copy: y = y + 1 or y.copy()",
            where=source.user_line(),
        )  # fmt: skip
    dtype = target.value.dtype
    if result.weak is None and not np.can_cast(result.value.dtype.numpy, dtype.numpy, "same_kind"):
        raise DtypeError(
            f"an in-place operation gives {result.value.dtype}, which does not go into {dtype}",
            hint="write y = y + x", where=source.user_line(),
        )  # fmt: skip
    own, new = target.extents, result.extents
    if len(own) != len(new):
        raise ShapeError(
            f"an in-place operation on {len(own)} axes gives {len(new)}",
            hint="write y = y + x",
            where=source.user_line(),
        )
    for axis, (mine, theirs) in enumerate(zip(own, new, strict=True)):
        message = f"an in-place operation changes axis {axis} from {{left}} to {{right}}"
        recorder.builder.require(mine, "==", theirs, message, "write y = y + x", source.user_line())
    if result.value.dtype is not dtype:
        result = apply("cast", result, dtype=dtype)
    target.number, target.weak, target.read = result.number, None if result.weak is None else target.weak, result.read
    target.group = None
    return target


# ---------------------------------------------------------------------------------------------------------------------
# operators


def binary(name: str, a: Any, b: Any) -> Any:
    """A Python operator on two operands."""
    if name == "pow":
        return power(a, b)
    if name == "matmul":
        return matmul(a, b)
    if name not in REGISTRY:
        raise missing(name, "compute it outside the fused function")
    return apply(name, a, b)


def power(a: Any, b: Any) -> Any:
    """a ** b. Small constant exponents are products, as in NumPy; 0.5 is a square root."""
    if isinstance(b, (bool, np.bool_)):
        b = int(b)
    if isinstance(b, SymbolicSize) or (isinstance(b, Traced) and b.on_host and b.value.dtype.is_integer):
        kind = as_traced(a).value.dtype
        b = operator.index(b) if kind.is_integer else b  # type: ignore[arg-type]
    if isinstance(b, (int, float)) and not isinstance(b, np.generic):
        special = _constant_power(a, b)
        if special is not None:
            return special
    return apply("pow", a, b)


def _constant_power(a: Any, b: float) -> Any:
    x = as_traced(a)
    floating = x.value.dtype.kind in ("float", "complex") or x.weak == "float"
    if isinstance(b, float) and not floating:
        x = astype(x, dtypes.float64) if x.weak is None else apply("mul", x, 1.0)
    if b == 2:
        return apply("mul", x, x)
    if b == 1:
        return apply("set", x)
    if b == 0.5:
        return apply("sqrt", x)
    if b == -1 and floating:
        return apply("div", 1, x)
    if isinstance(b, int) and not floating:
        if b < 0:
            raise DtypeError(
                "Integers to negative integer powers are not allowed", hint="cast the base with astype(float)",
                where=source.user_line(),
            )  # fmt: skip
        return _repeated_product(x, b)
    return None


def _repeated_product(x: Traced, exponent: int) -> Any:
    """x ** exponent for integers by squaring; wraps as NumPy's."""
    result: Any = None
    square: Any = x
    while exponent:
        if exponent & 1:
            result = square if result is None else apply("mul", result, square)
        exponent >>= 1
        if exponent:
            square = apply("mul", square, square)
    return apply("add", apply("mul", x, 0), 1) if result is None else result


def conjugate(x: Any) -> Any:
    """The complex conjugate; real arrays are their own."""
    traced = as_traced(x)
    if traced.value.dtype.kind != "complex":
        return traced
    return _by_name("conj", traced)


def real(x: Any) -> Any:
    traced = as_traced(x)
    return _by_name("real", traced) if traced.value.dtype.kind == "complex" else traced


def imag(x: Any) -> Any:
    traced = as_traced(x)
    return _by_name("imag", traced) if traced.value.dtype.kind == "complex" else apply("mul", traced, 0)


def _by_name(name: str, x: Traced) -> Any:
    if name not in REGISTRY:
        raise missing(f"{name} of complex arrays", "compute it outside the fused function")
    return apply(name, x)


def broadcast_shape(shapes: Sequence[Shape], recorder: Recorder) -> Shape:
    """The shape that `shapes` broadcast to; what must be equal becomes a requirement."""

    def require(left: Extent, relation: str, right: Extent, message: str, hint: str) -> None:
        recorder.builder.require(left, relation, right, f"broadcast: {message}", hint, source.user_line())

    return broadcast_shapes(shapes, require)


def new_shape_entries(entries: Sequence[Any], recorder: Recorder) -> tuple[Extent, ...]:
    """Integers and sizes as extents, of any sign."""
    return _extents(tuple(entries), recorder)
