"""Functions of NumPy on whole arrays as calls of the C functions behind NumPy's generalized ufuncs.

np.linalg and np.fft compute by such ufuncs. A compiled loop calls the function of a ufunc, its inner loop, between its
kernels, so that the numbers are NumPy's. Its address lies in the ufunc object, whose layout is part of NumPy's C API
(`PyUFuncObject` in numpy/ndarraytypes.h and numpy/ufuncobject.h).

Must not know: single ops.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import memoized


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """A view of an array of a call. position: of the array, among the operands and then the results."""

    position: int
    array: Any


@dataclass(frozen=True, slots=True)
class UfuncCall:
    """A call of a generalized ufunc. arguments: parts of arrays, or numbers in the type that the ufunc takes."""

    ufunc: Any
    arguments: tuple[ArrayPart | float, ...]


Plan: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], "Sequence[UfuncCall] | None"]


@dataclass(frozen=True, slots=True)
class NativeUfuncs:
    """A function as calls of ufuncs.

    plan(operands, results): the calls for arrays of one layout, None if no calls compute the function. fails: whether
    NaN in the first result may stand for an exception.
    """

    plan: Plan
    fails: bool = False


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """A call of an inner loop.

    function, data: addresses. arguments: positions of arrays, or numbers with their type. extents: of the outer loop,
    then of the core axes. strides: of the outer loop for each argument, then of the core axes of each.
    """

    function: int
    data: int
    arguments: tuple[int | tuple[float, Any], ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]


class _UfuncObject(ctypes.Structure):
    """The first fields of a PyUFuncObject behind its PyObject."""

    _fields_ = (
        ("inputs", ctypes.c_int), ("outputs", ctypes.c_int), ("arguments", ctypes.c_int), ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)), ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("types", ctypes.c_int),
    )  # fmt: skip


@memoized("the addresses of the inner loops of NumPy's ufuncs", key="ufunc, types", most=256)
def _addresses(ufunc: Any, types: str) -> tuple[int, int] | None:
    """Returns the addresses of the inner loop for types, as in "dd->d", and of its data; None if it has none."""
    if types not in ufunc.types:
        return None
    fields = _UfuncObject.from_address(id(ufunc) + object.__basicsize__)
    known = (fields.inputs, fields.outputs, fields.arguments, fields.types)
    if known != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return None
    position = ufunc.types.index(types)
    function = fields.functions[position]
    data = fields.data[position] if fields.data else None
    return (function, data or 0) if function else None


def inner_loop(call: UfuncCall) -> InnerLoop | None:
    """Returns a call of a ufunc as a call of its inner loop; None if there is none for its types and layouts."""
    ufunc = call.ufunc
    types, core_axes = _typed(call), _core_axes(ufunc.signature)
    addresses = _addresses(ufunc, types)
    if addresses is None:
        return None
    kinds = types.replace("->", "")
    extents: dict[str, int] = {}
    outer: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    core_strides: list[int] = []
    for argument, axes in zip(call.arguments, core_axes, strict=True):
        if not isinstance(argument, ArrayPart):
            outer.append(((), ()))
            continue
        array = argument.array
        first = array.ndim - len(axes)
        extents.update(zip(axes, array.shape[first:], strict=True))
        core_strides += array.strides[first:]
        outer.append((array.shape[:first], array.strides[:first]))
    joined = _joined([shape for shape, _ in outer], [strides for _, strides in outer])
    if joined is None:
        return None
    names = dict.fromkeys(name for axes in core_axes for name in axes)
    return InnerLoop(
        *addresses,
        tuple(
            one.position if isinstance(one, ArrayPart) else (one, np.dtype(kind))
            for one, kind in zip(call.arguments, kinds, strict=True)
        ),
        (joined[0], *(extents[name] for name in names)),
        (*joined[1], *core_strides),
    )


def _typed(call: UfuncCall) -> str:
    """Returns the types of a call, as in "dd->d"; a number has the real type of the first array."""
    first = next(one.array.dtype for one in call.arguments if isinstance(one, ArrayPart))
    of_number = np.empty(0, first).real.dtype.char
    kinds = [one.array.dtype.char if isinstance(one, ArrayPart) else of_number for one in call.arguments]
    return f"{''.join(kinds[: call.ufunc.nin])}->{''.join(kinds[call.ufunc.nin :])}"


def _core_axes(signature: str) -> list[list[str]]:
    """Returns the names of the core axes of each argument of a ufunc with a signature like "(m,n),(n)->(m)"."""
    groups = signature.replace(" ", "").replace("?", "").replace("->", ",").replace("),(", ")|(").split("|")
    return [[name for name in group.strip("()").split(",") if name] for group in groups]


def _joined(
    shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]
) -> tuple[int, tuple[int, ...]] | None:
    """Returns the extent of outer axes as one axis and its stride for each argument; None if they are not one."""
    shape = np.broadcast_shapes(*shapes)
    expanded = []
    for own, steps in zip(shapes, strides, strict=True):
        missing = len(shape) - len(own)
        wide = (1,) * missing + own
        expanded.append([0 if e == 1 else s for e, s in zip(wide, (0,) * missing + steps, strict=True)])
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    for axis, inner in itertools.pairwise(axes):
        if any(steps[axis] != steps[inner] * shape[inner] for steps in expanded):
            return None
    last = axes[-1] if axes else None
    return math.prod(shape), tuple(0 if last is None else steps[last] for steps in expanded)


# ---------------------------------------------------------------------------------------------------------------------
# products


def product(views: Callable[..., tuple[Any, Any] | None] | None = None) -> NativeUfuncs:
    """Returns a matrix product as np.matmul.

    views(operands): the factors, None if the operands are no product; by default the factors are the operands.
    """

    def plan(operands: Sequence[Any], results: Sequence[Any]) -> Sequence[UfuncCall] | None:
        factors = tuple(operands) if views is None else views(*operands)
        if factors is None:
            return None
        if factors[0].dtype.kind not in "bifc" or (factors[0].dtype.itemsize == 2 and factors[0].dtype.kind == "f"):
            return None  # matmul adds halves in half precision
        if not all(map(np.may_share_memory, factors, operands)):
            return None
        left, right = factors
        result = results[0].reshape((*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), *_matrix(left, right)))
        left, right = (left[None] if left.ndim == 1 else left), (right[:, None] if right.ndim == 1 else right)
        return (UfuncCall(np.matmul, (ArrayPart(0, left), ArrayPart(1, right), ArrayPart(2, result))),)

    return NativeUfuncs(plan)


def _matrix(left: Any, right: Any) -> tuple[int, int]:
    """Returns the rows and columns of a product, where a vector is one row or one column."""
    return left.shape[-2] if left.ndim > 1 else 1, right.shape[-1] if right.ndim > 1 else 1


# ---------------------------------------------------------------------------------------------------------------------
# np.linalg


def _library(module: Any, name: str) -> Any:
    """Returns the module of NumPy that holds ufuncs; None where this NumPy has none of the name."""
    return getattr(module, name, None)


_LINALG, _FOURIER = _library(np.linalg, "_umath_linalg"), _library(np.fft, "_pocketfft_umath")


def linear_algebra(name: str, vector: str = "", *, fails: bool = True) -> NativeUfuncs | None:
    """Returns a function of np.linalg as its ufunc. vector: the ufunc for a second operand with one axis."""
    matrices = getattr(_LINALG, name, None)
    if matrices is None:
        return None
    of_vector = getattr(_LINALG, vector, None) if vector else matrices

    def plan(operands: Sequence[Any], results: Sequence[Any]) -> Sequence[UfuncCall] | None:
        ufunc = of_vector if operands[-1].ndim == 1 else matrices
        arrays = (*operands, *results)
        return None if ufunc is None else (UfuncCall(ufunc, tuple(map(ArrayPart, range(len(arrays)), arrays))),)

    return NativeUfuncs(plan, fails)


# ---------------------------------------------------------------------------------------------------------------------
# np.fft


def fourier(name: str, norm: str | None, axes: Sequence[int], lengths: Sequence[int | None]) -> NativeUfuncs | None:
    """Returns a transform as passes over axes, in the order of NumPy's `_raw_fftnd`, each with its scale.

    name: fft, ifft, rfft or irfft; all passes but the first are complex. lengths: that the caller set.
    """
    given = next((n for n in lengths if n is not None), None)
    if _FOURIER is None or norm not in (None, "backward", "ortho", "forward"):
        return None
    if given is not None and (len(axes) > 1 or (name == "rfft" and not isinstance(given, int))):
        return None
    if name not in ("fft", "ifft", "rfft", "irfft") or (name == "irfft" and len(axes) > 1):
        return None

    def plan(operands: Sequence[Any], results: Sequence[Any]) -> Sequence[UfuncCall] | None:
        calls, source = [], ArrayPart(0, operands[0])
        for number, axis in enumerate(reversed(axes)):
            step = name if number == 0 else name.replace("r", "")
            target = ArrayPart(1, np.moveaxis(results[0], axis, -1))
            moved = ArrayPart(source.position, np.moveaxis(source.array, axis, -1))
            length = target.array.shape[-1]  # the ufunc pads and cuts
            if step == "rfft":
                length = moved.array.shape[-1] if given is None else given
            scale = _scale(norm, length, step in ("ifft", "irfft"), results[0].real.dtype)
            if step == "rfft":
                step = "rfft_n_odd" if length % 2 else "rfft_n_even"
            calls.append(UfuncCall(getattr(_FOURIER, step), (moved, scale, target)))
            source = ArrayPart(1, results[0])
        return calls

    return NativeUfuncs(plan)


def _scale(norm: str | None, length: int, inverse: bool, dtype: Any) -> float:
    """Returns the factor of a transform, rounded as NumPy rounds it."""
    if norm == "ortho":
        return float(np.reciprocal(np.sqrt(length, dtype=dtype)))
    scaled = norm == "forward" if not inverse else norm in (None, "backward")
    return float(np.reciprocal(length, dtype=dtype)) if scaled else 1.0
