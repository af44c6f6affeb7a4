"""The order in memory of the arrays that NumPy's functions make: whether a later reshape is a view depends on it.

The order is asked of NumPy itself, by a call with arrays of the same sizes and strides, once something depends on it.
The layouts of arguments that it follows from are guarded.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import LayoutFrom, Traced
from tracefuse.ir.fusion import Shape

_REASON = "the order in memory of an array that a function makes"

MOST_ELEMENTS = 1 << 24
"""Elements of the largest array with which NumPy is asked for the order of its results."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Describes a traced value in a call that computes the order: its layout, extents and type, no elements."""

    layout: Shape | LayoutFrom | None
    extents: Shape
    dtype: Any
    known: Any

    def make(self, recorder: Recorder, *, distinct: bool) -> Any:
        """Returns an array with the strides of the current call.

        distinct: elements that differ and are not 0, else zeros.
        """
        if self.known is not None:
            return self.known
        shape = tuple(map(recorder.known, self.extents))
        if not shape:
            return self.dtype.type(distinct)
        strides = tuple(map(recorder.known, views.strides_in(self.layout, self.extents)))
        reach = [stride * max(extent - 1, 0) for stride, extent in zip(strides, shape, strict=True)]
        first, last = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        if first + last >= MOST_ELEMENTS or math.prod(shape) >= MOST_ELEMENTS:
            raise UnsupportedError(
                f"{_REASON} cannot be found for {shape}", hint="write through np.ascontiguousarray(result)",
                where=source.user_line(),
            )  # fmt: skip
        count = first + last + 1
        elements = (np.arange(count) ** 2 % 97 + 1 if distinct else np.zeros(count)).astype(self.dtype)
        in_bytes = tuple(stride * self.dtype.itemsize for stride in strides)
        return np.lib.stride_tricks.as_strided(elements[first:], shape, in_bytes)

    def guard(self, recorder: Recorder) -> None:
        """Guards what of the layout can decide the order of a result: signs, zeros, order and contiguity of axes."""
        strides = views.strides_in(self.layout, self.extents)
        sizes = []
        for stride, extent in zip(strides, self.extents, strict=True):
            if recorder.decide(extent, "==", 1, _REASON) or recorder.decide(stride, "==", 0, _REASON):
                continue
            sizes.append(stride if recorder.decide(0, "<=", stride, _REASON) else -stride)
        for position, outer in enumerate(sizes):
            for inner in sizes[position + 1 :]:
                recorder.decide(inner, "<=", outer, _REASON)
        for last_first in (True, False):
            views.are_contiguous(recorder, strides, self.extents, _REASON, last_first=last_first)


def ordered(function: Callable[..., Any], implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an implementation of NumPy's `function` whose new arrays have the order in memory of NumPy's."""

    @functools.wraps(implementation)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return in_order_of(function, implementation(*arguments, **keywords), arguments, keywords)

    return call


def in_order_of(
    function: Callable[..., Any], result: Any, arguments: Sequence[Any], keywords: dict[str, Any]
) -> Any:  # fmt: skip
    """Returns the result of a call, in which new arrays have the order in memory that NumPy gives them."""
    values = list(_flattened([*arguments, *keywords.values()]))
    if any(map(_may_be_of_user, values)):
        return result  # it may do more than compute
    traced = [value for value in values if isinstance(value, Traced)]
    if type(result) in (list, tuple):
        placed = [_placed(entry, traced, function, (arguments, keywords), k) for k, entry in enumerate(result)]
        return type(result)(placed)
    return _placed(result, traced, function, (arguments, keywords), None)


def _may_be_of_user(value: Any) -> bool:
    """Whether a value is a function that is neither NumPy's nor of another library."""
    if not callable(value) or isinstance(value, Traced | type | np.ufunc):
        return False
    return isinstance(value, functools.partial) or not is_of_library(getattr(value, "__module__", None))


def _flattened(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flattened(value)
        else:
            yield value


def _placed(result: Any, traced: Sequence[Traced], function: Any, call: Any, position: int | None) -> Any:
    """Returns a result, with NumPy's order if it is a new array with several axes."""
    if not isinstance(result, Traced) or len(result.extents) < 2:
        return result
    owner = views.owner_of(result)
    if any(owner is views.owner_of(operand) for operand in traced):
        return result
    if result.parent is not None:  # a view of an array that nothing else refers to
        if position is not None or result.read_only is not None:
            return result
        result = result.recorder.traced_type(result.recorder, result.number)
    recorder, extents = result.recorder, result.extents
    samples = _sampled(call, recorder)
    layouts = {id(operand.layout): operand.layout for operand in traced if isinstance(operand.layout, LayoutFrom)}

    def strides() -> Shape:
        return _strides_of_sample(function, samples, recorder, extents, position)

    result.layout = LayoutFrom(tuple(layouts.values()), strides)
    return result


def _sampled(value: Any, recorder: Recorder) -> Any:
    """Returns nested arguments with samples in the place of traced values."""
    if isinstance(value, Traced):
        builder, number = recorder.builder, value.number
        is_constant = number in builder.independent and number not in builder.of_state
        known = recorder.contents.elements(number, None) if is_constant else None
        return _Sample(value.layout, value.extents, value.value.dtype.numpy, known)
    if isinstance(value, SymbolicSize):
        return recorder.known(value.extent)
    if type(value) in (list, tuple):
        return type(value)(_sampled(entry, recorder) for entry in value)
    return {k: _sampled(entry, recorder) for k, entry in value.items()} if isinstance(value, dict) else value


def _made(value: Any, recorder: Recorder, distinct: bool) -> Any:
    if isinstance(value, _Sample):
        return value.make(recorder, distinct=distinct)
    if type(value) in (list, tuple):
        return type(value)(_made(entry, recorder, distinct) for entry in value)
    return {k: _made(entry, recorder, distinct) for k, entry in value.items()} if isinstance(value, dict) else value


def _strides_of_sample(
    function: Callable[..., Any], samples: Any, recorder: Recorder, extents: Shape, position: int | None
) -> Shape:  # fmt: skip
    """Returns the strides, in elements, of an array that NumPy makes of arrays with the layouts of the current call."""
    for sample in _flattened([*samples[0], *samples[1].values()]):
        if isinstance(sample, _Sample):
            sample.guard(recorder)
    array = _call_on_samples(function, samples, recorder, position)
    if not isinstance(array, np.ndarray) or array.ndim != len(extents):
        return views.contiguous(extents)
    strides = [abs(stride) // array.itemsize for stride in array.strides]
    order = sorted(
        range(array.ndim), key=lambda axis: (strides[axis], -axis) if array.shape[axis] > 1 else (math.inf, 0)
    )
    dense = math.prod(array.shape[axis] for axis in order) == 0 or all(
        strides[axis] == math.prod(array.shape[k] for k in order[:place]) or array.shape[axis] == 1
        for place, axis in enumerate(order)
    )
    if not dense:  # a part of a larger array
        for extent in extents:
            recorder.pin(extent, _REASON)
        return tuple(stride // array.itemsize for stride in array.strides)
    result: list[Any] = [0] * len(order)
    step: Any = 1
    for axis in order:
        result[axis] = step
        step = step * extents[axis]
    return tuple(result)


def _call_on_samples(function: Callable[..., Any], samples: Any, recorder: Recorder, position: int | None) -> Any:
    """Calls NumPy's function on samples; None where it takes none of them, as an inverse of a singular matrix."""
    enclosing = current.set(None)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for distinct in (True, False):
                arguments, keywords = (_made(sample, recorder, distinct) for sample in samples)
                try:
                    result = function(*arguments, **keywords)
                except (ValueError, TypeError, IndexError, ArithmeticError):
                    continue
                return result if position is None else result[position]
    finally:
        current.reset(enclosing)
    return None
