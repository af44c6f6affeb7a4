"""NumPy's products of vectors and matrices, on traced values."""

from __future__ import annotations

import operator
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.formulas.composed_ufuncs import vecdot
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, as_strong
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import arithmetic, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.contraction import contract
from tracefuse.frontend.tracer.array_ops.in_place import check_writable, into
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, as_traced, refuse
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import holds_traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import product

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


_TAKES_TYPE_OF_SECOND = np.dot([], np.zeros(0, np.uint8)).dtype == np.uint8
"""Whether a first operand without entries is of the type of the second, as since NumPy 2.5; before, it is of floats."""


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns two operands as arrays: numbers of Python as NumPy makes arrays of them.

    A list without entries is of the type of the other operand.
    """
    left, right = (as_strong(as_operand(x)) for x in (a, b))
    if _has_no_entries(b):
        return left, traced_ops.astype(right, left.value.dtype)
    if _TAKES_TYPE_OF_SECOND and _has_no_entries(a):
        return traced_ops.astype(left, right.value.dtype), right
    return left, right


def _has_no_entries(operand: Any) -> bool:
    return isinstance(operand, (list, tuple)) and not holds_traced(operand) and not np.size(operand)


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """The product with a scalar, else the sum over the last axis of `a` and the second-to-last axis of `b`."""
    left, right = _operands(a, b)
    ranks = len(left.extents), len(right.extents)
    if 0 in ranks:
        result = _scaled(left, right)
        kind = result.value.dtype
        is_of_blas = max(ranks) <= 2 and (kind.is_complex or (kind.is_floating and not kind.is_half))
        if out is not None and not is_of_blas:
            return _as_returned(np.multiply(left, right, out=out))  # by the ufunc, where BLAS has no function
    elif ranks[1] <= 2:
        result = arithmetic.matmul(left, right)
    else:
        result = tensordot(left, right, (-1, -2))
    if out is None:
        return result
    check_writable(out)
    if as_traced(out).value.dtype is not result.value.dtype or not array_memory.ArrayFlags(out).c_contiguous:
        raise ScalarError(
            f"output array is not acceptable: it has type {as_traced(out).value.dtype} and strides {out.strides}, not "
            f"type {result.value.dtype} and C-contiguous elements", hint="write out[...] = np.dot(a, b)",
            where=source.user_line(),
        )  # fmt: skip
    return _as_returned(into(out, result))


def _as_returned(written: Any) -> Any:
    """Returns an array that took a result; a scalar, as NumPy returns it, if it has no axes."""
    return written if written.extents else apply("set", written)


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    left, right = _operands(a, b)
    if not left.extents or not right.extents:
        return _scaled(left, right)
    return tensordot(left, right, (-1, -1))


def _scaled(left: Any, right: Any) -> Any:
    """The product with a number. For a vector or a matrix NumPy calls BLAS, which adds it to 0 unless the number is 0.

    So no product is -0 then, and a product of 0 is 0 also beside infinities and NaN.
    """
    result = apply("mul", left, right)
    kind = result.value.dtype
    number, array = (left, right) if not left.extents else (right, left)
    if kind.is_half or not (kind.is_floating or kind.is_complex) or len(array.extents) > 2:
        return result
    if result.recorder.decide(product(array.extents), "==", 1, "whether an array has one element"):
        return result
    return views.in_order(apply("where", apply("eq", number, 0), 0, apply("add", result, 0)), "C")


@implements(np.linalg.outer)
def outer_of_vectors(x1: Any, x2: Any, /) -> Any:
    ranks = [len(as_tensor(x).extents) for x in (x1, x2)]
    if ranks != [1, 1]:
        message = f"np.linalg.outer: the operands have {ranks[0]} and {ranks[1]} axes, and not one each"
        raise ShapeError(message, hint="write np.outer, which flattens both")
    return outer(x1, x2)


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    left, right = shaping.reshape(a, -1), shaping.reshape(b, -1)
    result = apply("mul", shaping.expand_dims(left, 1), shaping.expand_dims(right, 0))
    return result if out is None else array_memory.into_broadcast(out, result)


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    first, second = _operands(a, b)
    if 1 < len(first.extents) <= len(_LETTERS) and first.shape == second.shape:
        letters = _LETTERS[: len(first.extents)]  # in the order of memory, which flattening would not follow
        return contract([(arithmetic.conjugate(first), letters), (second, letters)], "")
    left, right = shaping.reshape(arithmetic.conjugate(first), -1), shaping.reshape(second, -1)
    message, hint = "vdot: {left} elements and {right}", "give as many of both"
    left.recorder.builder.require(left.extents[0], "==", right.extents[0], message, hint, source.user_line())
    return contract([(left, "i"), (right, "i")], "")


@implements(np.tensordot, np.linalg.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    left, right = as_tensor(a), as_tensor(b)
    ranks = len(left.extents), len(right.extents)
    if isinstance(axes, (tuple, list)):
        first, second = (tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in axes)
    else:
        count = operator.index(axes)
        first, second = tuple(range(-count, 0)), tuple(range(count))
    if len(first) != len(second):
        raise ShapeError(f"tensordot: {len(first)} axes and {len(second)} axes", hint="name equally many axes of both")
    places = [normalize_axis(operator.index(k), ranks[0]) for k in first]
    second_axes = [normalize_axis(operator.index(k), ranks[1]) for k in second]
    if len({*places}) < len(places) or len({*second_axes}) < len(places):
        raise ShapeError(f"repeated axis in the sum of tensordot: {first} and {second}", hint="name each axis once")
    letters = [_LETTERS[k] for k in range(ranks[0])]
    more = [_LETTERS[ranks[0] + k] for k in range(ranks[1])]
    for place, other in zip(places, second_axes, strict=True):
        more[other] = letters[place]
        message, hint = "shape-mismatch for sum: {left} and {right}", "sum over axes of equal extents"
        same = (left.extents[place], "==", right.extents[other])
        left.recorder.builder.require(*same, message, hint, source.user_line())
    output_letters = [x for k, x in enumerate(letters) if k not in places] + [
        x for k, x in enumerate(more) if k not in second_axes
    ]
    result = contract([(left, "".join(letters)), (right, "".join(more))], "".join(output_letters))
    return result if output_letters else traced_ops.copy(result)  # an array, also without axes


@implements(np.einsum)
def einsum(*operands: Any, out: Any = None, dtype: Any = None, optimize: Any = False, **more: Any) -> Any:
    refuse("np.einsum", **{k: v for k, v in more.items() if k not in ("order", "casting")})
    subscripts, arrays = _parse_subscripts(operands)
    tensors = [as_tensor(a) for a in arrays]
    letters, result = _expand_subscripts(subscripts, [len(a.extents) for a in tensors], optimize is False)
    is_view = len(tensors) == 1 and out is None and set(letters[0]) == set(result)
    if dtype is not None and not is_view:  # NumPy returns a view of the operand, whatever the type
        rule = more.get("casting", "safe")
        for tensor in tensors:
            if not np.can_cast(tensor.value.dtype.numpy, dtype_of(dtype).numpy, rule):
                raise DtypeError(
                    f"einsum: an operand of {tensor.value.dtype} does not go into {dtype_of(dtype)} according to the "
                    f"rule '{rule}'", hint="give casting='unsafe', or cast the operand",
                )  # fmt: skip
        tensors = [traced_ops.astype(a, dtype, copy=False) for a in tensors]
    has_one_type = len({tensor.value.dtype for tensor in tensors}) == 1
    in_pairs = not (optimize is False or has_one_type)
    result_tensor = (_contract_along_path if in_pairs else _contract)(tensors, letters, result, optimize)
    if is_view and not result:
        result_tensor = traced_ops.as_scalar(traced_ops.copy(result_tensor))
    return result_tensor if out is None else into(out, result_tensor)


def _contract(tensors: Sequence[Any], letters: Sequence[str], result: str, optimize: Any = False) -> Any:
    return contract(list(zip(tensors, letters, strict=True)), result)


def _contract_along_path(tensors: Sequence[Any], letters: Sequence[str], result: str, optimize: Any) -> Any:
    """Contracts arrays of different types in NumPy's order, each step in the type of its own operands.

    The order depends on the extents, which become constants of the trace if there are more than two arrays.
    """
    remaining, named = list(tensors), list(letters)
    for places in _path_of(tensors, letters, result, optimize):
        chosen = [(remaining.pop(place), named.pop(place)) for place in sorted(places, reverse=True)]
        together = "".join(own for _, own in chosen)
        kept = {letter for letter in together if letter in result or any(letter in other for other in named)}
        new = "".join(sorted(kept, key=together.find)) if remaining else result
        parts, texts = [part for part, _ in chosen], [own for _, own in chosen]
        if _SUMS_BEFORE_PAIRS and len(parts) == 2:
            parts, texts = _summed_alone(parts, texts, new)
        remaining.append(_contract(parts, texts, new))
        named.append(new)
    return remaining[0]


def _path_of(tensors: Sequence[Any], letters: Sequence[str], result: str, optimize: Any) -> Sequence[tuple[int, ...]]:
    """Returns the positions of the operands of each step, as NumPy chooses them."""
    if len(tensors) < 3:
        return [tuple(range(len(tensors)))]
    recorder = tensors[0].recorder
    shapes = [[recorder.pin(extent, "the order in which np.einsum contracts") for extent in x.extents] for x in tensors]
    shaped = [np.broadcast_to(np.zeros((), tensor.dtype), shape) for tensor, shape in zip(tensors, shapes, strict=True)]
    names = dict(zip(dict.fromkeys("".join(letters)), _LETTERS, strict=False))
    text = ",".join("".join(map(names.__getitem__, own)) for own in letters)
    found = np.einsum_path(f"{text}->{''.join(map(names.__getitem__, result))}", *shaped, optimize=optimize)
    return found[0][1:]


def ends_in_pair(operands: Sequence[Any], optimize: Any) -> bool:
    """Whether the last step of an optimized np.einsum sums along an axis of two arrays, as a matrix product."""
    subscripts, arrays = _parse_subscripts(operands)
    tensors = [as_tensor(a) for a in arrays]
    letters, result = _expand_subscripts(subscripts, [len(a.extents) for a in tensors], False)
    if result or len(letters) < 2:
        return False  # its result has axes, or is a scalar
    decide = tensors[0].recorder.decide
    # For each operand, its letters whose extents are not 1.
    wide = [
        {one for one, extent in zip(own, tensor.extents, strict=True) if not decide(extent, "==", 1, "np.einsum")}
        for own, tensor in zip(letters, tensors, strict=True)
    ]
    for places in _path_of(tensors, letters, result, optimize):
        chosen = [wide.pop(place) for place in sorted(places, reverse=True)]
        if not wide:
            return len(chosen) == 2 and bool(chosen[0] & chosen[1])
        wide.append(set().union(*chosen) & set().union(*wide))
    return False


_SUMS_BEFORE_PAIRS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4)
"""Whether an optimized einsum of two arrays sums the axes of one of them in its own type, as from NumPy 2.4 on."""


def _summed_alone(tensors: Sequence[Any], letters: Sequence[str], result: str) -> tuple[list[Any], list[str]]:
    """Sums each of two arrays of different types over the axes that neither the other one nor the result has."""
    if tensors[0].value.dtype is tensors[1].value.dtype:
        return list(tensors), list(letters)
    kept = [
        "".join(dict.fromkeys(letter for letter in own if letter in other or letter in result))
        for own, other in (letters, letters[::-1])
    ]
    pairs = zip(tensors, letters, kept, strict=True)
    return [x if set(own) == set(rest) else contract([(x, own)], rest) for x, own, rest in pairs], [
        own if set(own) == set(rest) else rest for own, rest in zip(letters, kept, strict=True)
    ]


_LETTERS = string.ascii_letters
# Letters for the axes of an ellipsis, from the last axis on.
_ELLIPSIS = [chr(0x391 + k) for k in range(17)]


def _parse_subscripts(operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Returns the subscripts as text, and the arrays; NumPy also takes arrays alternating with lists of integers."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), operands[1:]
    pairs = len(operands) // 2
    arrays = [operands[2 * k] for k in range(pairs)]
    lists = [operands[2 * k + 1] for k in range(pairs)]
    texts = ["".join("..." if entry is Ellipsis else _LETTERS[entry] for entry in subscripts) for subscripts in lists]
    result = ""
    if len(operands) % 2:
        result = "->" + "".join("..." if entry is Ellipsis else _LETTERS[entry] for entry in operands[-1])
    return ",".join(texts) + result, arrays


def _expand_subscripts(subscripts: str, ranks: Sequence[int], names_all: bool) -> tuple[list[str], str]:
    """Returns the letters of each operand and of the result, with ellipses and an implicit result expanded.

    names_all: whether a result has to name the axes of an ellipsis, as in NumPy without `optimize=`.
    """
    inputs, arrow, result = subscripts.partition("->")
    texts = inputs.split(",")
    if len(texts) != len(ranks):
        raise ShapeError(f"einsum: {subscripts!r} is for {len(texts)} operands, got {len(ranks)}")
    letters, widest = [], 0
    for text, rank in zip(texts, ranks, strict=True):
        named = len(text.replace("...", ""))
        count = rank - named if "..." in text else 0
        if count < 0 or named + count != rank or any(x not in _LETTERS for x in text.replace("...", "")):
            raise ShapeError(
                f"einsum: {text!r} does not name the {rank} axes of an operand", hint="write one letter for each axis"
            )
        widest = max(widest, count)
        letters.append(text.replace("...", "".join(reversed(_ELLIPSIS[:count]))))
    free = "".join(reversed(_ELLIPSIS[:widest]))
    if arrow:
        if names_all and free and "..." not in result:
            raise ShapeError(
                f"einsum: {subscripts!r} has no '...' in its result for the axes of an ellipsis",
                hint="write '...' in the result, or name the axes that are summed",
            )
        result = result.replace("...", free)
    else:
        everything = "".join(letters)
        result = free + "".join(sorted(x for x in set(everything) - set(free) if everything.count(x) == 1))
    if len(set(result)) != len(result):
        raise ShapeError(f"einsum: the result {result!r} repeats a letter", hint="name each letter once")
    unknown = [letter for letter in result if not any(letter in own for own in letters)]
    if unknown:
        raise ShapeError(f"einsum: the result has {unknown[0]!r}, which is in no operand", where=source.user_line())
    return letters, result


def sides_of(offset: Any) -> tuple[Any, Any]:
    """Returns how many rows and columns stand before a diagonal: an integer or a size, whose sign is a guard."""
    size = as_size(offset)
    size = size if isinstance(size, SymbolicSize) else operator.index(size)
    return (0, size) if size >= 0 else (-size, 0)


@implements(np.diagonal)
def diagonal(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
    """The diagonal of two axes, as the last axis of the result."""
    traced = as_tensor(a)
    rank = len(traced.extents)
    if rank < 2:
        raise ShapeError("diag requires an array of at least two dimensions", hint="give a matrix")
    first, second = normalize_axis(axis1, rank), normalize_axis(axis2, rank)
    recorder = traced.recorder
    rows, columns = recorder.sizes(traced.extents)[first], recorder.sizes(traced.extents)[second]
    low, high = sides_of(offset)
    rows, columns = rows - low, columns - high
    length = rows if rows <= columns else columns
    length = length if length >= 0 else 0
    key: list[Any] = [slice(None)] * rank
    key[first], key[second] = slice(low, low + length), slice(high, high + length)
    square = shaping.getitem(traced, tuple(key))
    letters = [_LETTERS[k] for k in range(rank)]
    letters[second] = letters[first]
    output_letters = "".join(x for k, x in enumerate(letters) if k not in (first, second))
    result = contract([(square, "".join(letters))], output_letters + letters[first])
    result.read_only = "the result of np.diagonal"
    return result


@implements(np.trace)
def trace(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None) -> Any:
    rank = len(as_tensor(a).extents)
    if normalize_axis(operator.index(axis1), rank) == normalize_axis(operator.index(axis2), rank):
        raise ShapeError("axis1 and axis2 cannot be the same", hint="name two axes")
    return traced_ops.reduce("sum", diagonal(a, offset, axis1, axis2), -1, dtype, out)


@implements(np.linalg.matmul)
def linalg_matmul(x1: Any, x2: Any, /) -> Any:
    return arithmetic.matmul(x1, x2)


@implements(np.linalg.vecdot)
def linalg_vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return vecdot(x1, x2, axis)


@implements(np.linalg.diagonal)
def linalg_diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return diagonal(x, offset, -2, -1)


@implements(np.linalg.trace)
def linalg_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return trace(x, offset, -2, -1, dtype)
