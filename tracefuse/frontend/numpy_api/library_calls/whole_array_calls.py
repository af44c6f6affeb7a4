"""Calls of library ops on whole arrays, by the signature of NumPy's or SciPy's function.

An op that names its function needs no code here: its array parameters become operands, the others attributes.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, OperandError, OutOfRangeError, ShapeError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import array_of
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import (
    as_array,
    as_tensor,
    missing,
    number_at_trace,
    recorder_of,
    refuse,
)
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.libraries.stage_calls import call_or_refuse
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import product
from tracefuse.ir.library_kinds import ARRAYS, WholeArrayOp
from tracefuse.ops import REGISTRY

IGNORED = frozenset(("overwrite_input", "overwrite_x", "overwrite_a", "overwrite_b", "check_finite", "workers", "plan"))
"""Parameters that change no result: what NumPy and SciPy may overwrite, check or share among threads."""


def op_named(name: str) -> WholeArrayOp:
    """Returns a library op on whole arrays by name."""
    op = REGISTRY[name]
    assert isinstance(op, WholeArrayOp)
    return op


def as_operand(value: Any) -> Any:
    """Returns an argument as a traced array; lists may hold traced arrays."""
    if isinstance(value, (list, tuple)):
        return as_array(array_of(value) if holds_traced(value) else np.asarray(value))
    return as_tensor(value)


def as_strong(value: Any) -> Any:
    """Returns a number of Python that a call computes as the array that NumPy makes of it; any other value as it is."""
    value = as_tensor(value) if isinstance(value, SymbolicSize) else value
    if not isinstance(value, Traced) or value.weak is None:
        return value
    strong = value.recorder.traced_type(value.recorder, value.number, None, value.read)
    if not value.is_immutable:
        strong.own_memory()
    return strong


def make_strong(result: Any) -> Any:
    """Clears the weak flag: NumPy functions return NumPy scalars. Results computed from sizes alone stay weak."""
    return result if isinstance(result, Traced) and result.sized else as_strong(result)


def as_attribute(function: str, name: str, value: Any) -> Any:
    """Returns an argument that is no array as an attribute: a number, text, a size, or a tuple of them.

    Reads and guards the value of a host scalar. Raises UnsupportedError for other values that only a call knows.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, SymbolicSize, DType, enum.Enum)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (np.generic, np.ndarray)):
        return as_attribute(function, name, value.tolist())
    if isinstance(value, Traced) and value.on_host:
        return number_at_trace(value, function, name)
    if isinstance(value, (list, tuple, range)):
        return tuple(as_attribute(function, name, element) for element in value)
    if isinstance(value, Traced):
        known = value.recorder.contents.of(value.number, None)
        if known is not None:
            return as_attribute(function, name, known)
        raise missing(f"{function} with a computed {name}", f"give {name} as a number")
    return value


def call_whole(op: WholeArrayOp, name: str, arguments: Mapping[str, Any]) -> Any:
    """Records an op from its arguments by parameter. name: of the function, in messages.

    Returns the result, or a tuple of results. Raises UnsupportedError for a parameter that the op does not have.
    """
    parameters = {key: value for key, value in arguments.items() if key not in IGNORED}
    out = parameters.pop("out", None)
    operands = {key: parameters.pop(key) for key in op.parameters if _is_operand(op, key, parameters.get(key))}
    for key in op.parameters:
        value = arguments.get(key)
        if key not in operands and key not in op.either and (isinstance(value, str) or not op.optional):
            raise OperandError(f"{name}: {type(value).__name__} is no array of numbers", hint=f"give an array as {key}")
    known = dict(op.attributes)
    attributes = {key: as_attribute(name, key, value) for key, value in parameters.items() if key in known}
    refuse(name, **{key: v for key, v in parameters.items() if key not in known and key not in op.parameters})
    if op.optional:
        attributes[ARRAYS] = tuple(operands)
    recorder = recorder_of((*operands.values(), *parameters.values()))
    parts = [as_operand(value) for value in operands.values()]
    try:
        results = record_whole(recorder, op, parts, **attributes)
    except DtypeError:
        results = _without_elements(op, parts, attributes)
        if results is None:
            raise
    if out is not None:
        return into(out, results[0])
    return results[0] if len(results) == 1 else results


def _without_elements(op: WholeArrayOp, parts: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """The results of an op that takes no elements of the type of an operand, if that has no elements; else None."""
    recorder, (first, *further) = parts[0].recorder, parts
    if further or not recorder.decide(product(first.extents), "==", 0, "whether an array has elements"):
        return None
    shape = tuple(recorder.pin(extent, op.name) for extent in first.extents)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            results = op.call([np.empty(shape, first.dtype)], attributes)
    except TypeError:
        return None
    return tuple(traced_ops.copy(recorder.capture(np.asarray(result))) for result in results)


def _is_operand(op: WholeArrayOp, parameter: str, value: Any) -> bool:
    if (
        value is None
        or isinstance(value, str)
        or (isinstance(value, SymbolicSize) and parameter in dict(op.attributes))
    ):
        return False
    if parameter not in op.either:
        return True
    is_traced = not value.on_host if isinstance(value, Traced) else holds_traced(value)
    return is_traced or isinstance(value, (np.ndarray, np.generic))


def function_name(function: Any) -> str:
    """Returns the name of a function in messages, such as `np.fft.fft`."""
    module = getattr(function, "__module__", "numpy").replace("numpy", "np")
    return f"{module}.{function.__name__}"


_ALONG_AXES = {np.fft.fftn, np.fft.ifftn, np.fft.fft2, np.fft.ifft2}
"""Functions that return the array itself if they get no axes."""


_OF_SEVERAL_AXES = {*_ALONG_AXES, np.fft.rfftn, np.fft.irfftn, np.fft.rfft2, np.fft.irfft2}
"""Transforms of several axes: those of one axis give halves for float16."""

_TO_REALS = {np.fft.irfft, np.fft.hfft, np.fft.irfft2, np.fft.irfftn}
"""Transforms of complex numbers whose results are real."""

_BY_AXIS_INTO_OUTPUTS = {*_ALONG_AXES, np.fft.rfftn, np.fft.rfft2}
"""Transforms that write each axis in turn to `out=`, the last one first."""

_OF_ONE_AXIS = {np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft, np.fft.hfft, np.fft.ihfft}
"""Transforms that check their axis before the type of the elements."""

_TRANSFORMS = {*_OF_SEVERAL_AXES, *_OF_ONE_AXIS}


def _axes_of_transform(given: Mapping[str, Any], default: Any) -> Any:
    """The axes along which a call transforms: those it names, as many as `s` has entries, or all."""
    axes, rank = given.get("axes", default), len(as_operand(given["a"]).extents)
    if axes is None:
        return given["s"] if given.get("s") is not None else range(rank)
    if not rank and given.get("s") is None and (np.ndim(axes) == 0 or len(axes)):
        message = "cannot do a non-empty take from an empty axes."
        raise OutOfRangeError(message, hint="transform an array with axes", where=source.user_line())
    for axis in axes:
        normalize_axis(operator.index(axis), rank)
    return axes


def _check_axes(function: Any, given: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raises for axes that an array does not have, before its type is looked at."""
    default, sizes = signature.parameters["axes"].default, given.get("s")
    axes, rank = _axes_of_transform(given, default), len(as_operand(given["a"]).extents)
    if sizes is not None:
        if len(sizes) != len(axes):
            raise ShapeError("Shape and axes have different lengths.", hint="give one size for each axis")
        if given.get("axes", default) is None and len(sizes) > rank:
            normalize_axis(-len(sizes), rank)  # raises
    if not len(axes) and function not in _ALONG_AXES:
        raise OutOfRangeError("list index out of range", hint="transform at least one axis", where=source.user_line())


def returns_operand(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a call returns its operand itself: a transform along no axes."""
    if function not in _ALONG_AXES:
        return False
    signature = inspect.signature(function)
    given = signature.bind(*arguments, **keywords).arguments
    return not _axes_of_transform(given, signature.parameters["axes"].default)


def _check_sizes_of_output(name: str, given: Mapping[str, Any], default: Any) -> None:
    """Raises for a transform into `out=` whose `s=` changes an axis that comes after the first.

    NumPy writes each axis in turn to the array: it raises or, along an axis of extent 1, transforms copies of it.
    """
    x, sizes, axes = as_operand(given["a"]), tuple(given["s"]), given.get("axes", default)
    places = range(-len(sizes), 0) if axes is None else axes
    for size, place in list(zip(sizes, places, strict=False))[:-1]:
        extent = x.extents[normalize_axis(operator.index(place), len(x.extents))]
        if size is not None and size != -1 and not x.recorder.decide(extent, "==", size, f"s= of {name}"):
            raise missing(f"{name} with out= and s= of other extents", f"write out[...] = {name}(x, s)")


def _ignores_output(function: Any) -> bool:
    buffer = np.zeros_like(function(np.ones((2, 2))))
    return function(np.ones((2, 2)), out=buffer) is not buffer


_IGNORING_OUTPUTS = frozenset(filter(_ignores_output, (np.fft.ifft2, np.fft.irfft2, np.fft.hfft)))
"""Transforms that do not write into `out=`: NumPy's own do not pass it on in some versions."""


def _depends_on_output(function: Any, given: Mapping[str, Any]) -> bool:
    """Whether the type of `out=` decides the bits: of transforms of narrow numbers into doubles, and of halves.

    NumPy computes the former in doubles. It scales halves by a half, and rounds the products to the type of `out`.
    """
    if given.get("out") is None:
        return False
    kind, target = as_operand(given["a"]).value.dtype, as_operand(given["out"]).value.dtype
    if function in _TO_REALS and kind.is_half:
        return True
    is_narrow = kind.name in ("float16", "float32", "complex64")
    return is_narrow and target.name in ("float64", "complex128")


def _into_type(function: Any, dtype: Any, **keywords: Any) -> Any:
    """Calls a transform with an array of a type as `out=`."""
    narrow = function(**keywords)
    return function(**keywords, out=np.empty(narrow.shape, dtype))


def _is_open(given: dict[str, Any], signature: inspect.Signature) -> bool:
    """Whether the arguments of a transform name no axes, so that it has those of its operand."""
    return given.get("axes", signature.parameters["axes"].default) is None and given.get("s") is None


def implementation_of(op: WholeArrayOp, function: Any) -> Any:
    """Returns what records a function of NumPy or SciPy as an op."""
    signature, name = inspect.signature(function), function_name(function)

    def call(*arguments: Any, **keywords: Any) -> Any:
        given = signature.bind(*arguments, **keywords).arguments
        if function in _OF_ONE_AXIS:
            normalize_axis(operator.index(given.get("axis", -1)), len(as_operand(given["a"]).extents))
        if function in _IGNORING_OUTPUTS:
            given.pop("out", None)
        if returns_operand(function, arguments, keywords):
            return as_operand(given["a"])
        if function in _OF_SEVERAL_AXES:
            _check_axes(function, given, signature)
        if function in _OF_SEVERAL_AXES and _is_open(given, signature) and len(as_operand(given["a"]).extents) == 1:
            given["axes"] = (0,)  # the number of axes decides the type of the result for float16
        if function in _BY_AXIS_INTO_OUTPUTS and given.get("out") is not None and given.get("s") is not None:
            _check_sizes_of_output(name, given, signature.parameters["axes"].default)
        if function in _TRANSFORMS and _depends_on_output(function, given):
            out = given.pop("out")
            refusal = missing(f"{name} with out= of another type", f"write out[...] = {name}(x)")
            computed = functools.partial(_into_type, function, as_operand(out).value.dtype.numpy)
            return into(out, call_or_refuse(computed, name, (), given, refusal))
        result = call_whole(op, name, given)
        return _NAMED[function](*result) if function in _NAMED and isinstance(result, tuple) else result

    call.__name__ = function.__name__
    return call


def _type_of_result(function: Any) -> Any:
    """Returns the class of named tuples that a function of np.linalg returns."""
    return type(function(np.eye(1, dtype=complex)))


_NAMED = {
    function: _type_of_result(function) for function in (np.linalg.eigh, np.linalg.slogdet, np.linalg.svd, np.linalg.qr)
}

FUNCTIONS = Functions()
for _op in list(REGISTRY.values()):
    if isinstance(_op, WholeArrayOp) and _op.function is not None:
        FUNCTIONS.implements(_op.function)(implementation_of(_op, _op.function))


_pinv = FUNCTIONS[np.linalg.pinv]


@FUNCTIONS.implements(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> Any:
    x = as_operand(a)
    result = call_whole(op_named("qr"), "np.linalg.qr", {"a": x, "mode": mode})
    if mode in ("reduced", "complete", "r") and len(x.extents) > 2:  # the triangle of a copy, by a mask
        triangle = result if mode == "r" else result[1]
        mask = x.recorder.movement("full", [True], shape=triangle.extents[-2:])
        views.of_new_array(triangle, [mask, x])
    return _NAMED[np.linalg.qr](*result) if mode in ("reduced", "complete") else result


@FUNCTIONS.implements(np.linalg.pinv)
def pinv(a: Any, *arguments: Any, **keywords: Any) -> Any:
    x = as_operand(a)
    if len(x.extents) > 1 and x.recorder.decide(product(x.extents[-2:]), "==", 0, "whether a matrix has elements"):
        shape = (*x.extents[:-2], x.extents[-1], x.extents[-2])
        return x.recorder.movement("full", [0], shape=shape, dtype=x.value.dtype)  # in its own type, as NumPy's
    return _pinv(x, *arguments, **keywords)


LIBRARY_FUNCTIONS = {
    *FUNCTIONS, np.bincount, np.histogramdd, np.lexsort, np.polyfit, np.linalg.lstsq, np.linalg.eig,
    np.linalg.eigvals, np.convolve, np.correlate,
}  # fmt: skip
"""Functions that record library ops on whole arrays."""
