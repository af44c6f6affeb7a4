"""Functions whose results have a size or a type that the data decide: positions under a mask, distinct elements.

The array library computes them between two stages of a call, as the answer to a question. The results are inputs of
what follows, which is symbolic in their sizes and compiled for sizes of 0, of 1 and of more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tracefuse import source
from tracefuse.errors import ShapeError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.record.captured_inputs import ComputedOutside
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Memory, Traced
from tracefuse.ir.extents import Extent, product
from tracefuse.runtime.devices.arrays import dtype_of_array

ResultShape: TypeAlias = Sequence["Extent | str"]
"""The shape of a result: extents, and names for those that the data decide; equal names are equal extents."""


def decided_by_data(
    name: str, function: Callable[..., Any], operands: Sequence[Any], shapes: Sequence[ResultShape],
    hint: str = "call it outside the fused function", listed: str | None = None,
    where: str | None = None, **keywords: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Calls `function(library, *arrays, **keywords)` on elements, and returns its results as traced arrays.

    name: of the function, as the user writes it. listed: its name in listings of the prologue. where: the line, if it
    is not the current one. library: NumPy or CuPy.
    The function returns an array for each of `shapes`, or a tuple of arrays. Raises UnsupportedError where no call can
    go on with the results: inside of a recorded body, and when a function is inspected.
    """
    tensors = [as_tensor(operand) for operand in operands]
    recorder = tensors[0].recorder
    of_state = call_on_state(functools.partial(function, np), tensors, keywords, name=listed or name, where=where)
    if of_state is not NOT_OF_STATE:
        return _as_tuple(of_state)
    known = [recorder.contents.of(tensor.number, None) for tensor in tensors]
    if all(elements is not None for elements in known):
        return tuple(recorder.capture(np.asarray(array)) for array in _as_tuple(function(np, *known, **keywords)))
    numbers = [tensor.number for tensor in tensors]
    results = recorder.equal_calls.find(function, keywords, numbers, recorder.builder.is_same_value)
    if results is None:
        where = where or source.user_line()
        arrays = _computed(recorder, name, function, tensors, keywords, len(shapes), hint, where)
        results = _as_inputs(recorder, name, arrays, shapes, ComputedOutside(numbers, name, where))
        recorder.equal_calls.add(function, keywords, numbers, results)
    return tuple(_as_array(recorder, number) for number in results)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _computed(
    recorder: Recorder, name: str, function: Callable[..., Any], tensors: Sequence[Traced],
    keywords: Mapping[str, Any], count: int, hint: str, where: str | None,
) -> Sequence[Any]:  # fmt: skip
    message = f"{name}: the size of the result depends on the data"
    if recorder.body is not None:
        raise UnsupportedError(
            f"{message}, inside of a recorded loop or branch", hint="write np.where(mask, x, other)", where=where
        )
    if recorder.answers is None:
        raise UnsupportedError(message, hint=hint, where=where)
    return recorder.answers.compute(
        recorder, name, lambda library, *arrays: function(library, *arrays, **keywords),
        [tensor.number for tensor in tensors], count, where,
    )  # fmt: skip


def _as_inputs(
    recorder: Recorder, name: str, arrays: Sequence[Any], shapes: Sequence[ResultShape], outside: ComputedOutside
) -> list[int]:  # fmt: skip
    """Adds computed arrays as inputs, and returns their numbers. Extents equal in every call are one symbol."""
    sizes: dict[str, Extent] = {}
    results = []
    for array, shape in zip(arrays, shapes, strict=True):
        number = recorder.tensor_input(array.shape, dtype_of_array(array), f"{name}()", source.user_line())
        recorder.computed_outside[number] = outside
        for extent, expected in zip(recorder.builder.values[number].shape, shape, strict=True):
            known = sizes.setdefault(expected, extent) if isinstance(expected, str) else expected
            recorder.equate(extent, known)
        results.append(number)
    return results


def _as_array(recorder: Recorder, number: int) -> Traced:
    """Returns a new array with the elements of a result."""
    traced = recorder.traced_type(recorder, number)
    traced.memory = Memory()
    return traced


# -- positions under a mask -------------------------------------------------------------------------------------------


def _flat_positions(library: Any, mask: Any) -> Any:
    return mask.reshape(-1).nonzero()[0]


def flat_positions(mask: Any, name: str = "indexing with a boolean mask", where: str | None = None) -> Traced:
    """Returns the positions, int64, of the elements that are not 0, in row-major order. name: for messages."""
    hint = "write np.where(mask, x, other)"
    (positions,) = decided_by_data(name, _flat_positions, [mask], [("n",)], hint, "np.flatnonzero", where)
    recorder: Recorder = positions.recorder
    if positions.number in recorder.computed_outside:
        recorder.fresh_inputs.add(positions.number)
    return positions  # type: ignore[no-any-return]


def positions(mask: Any, name: str = "indexing with a boolean mask") -> tuple[Any, ...]:
    """Returns the positions of the elements that are not 0, an array for each axis."""
    tensor = as_tensor(mask)
    sizes = tensor.recorder.sizes(tensor.extents)
    rest: Any = flat_positions(tensor, name)
    by_axis: list[Any] = []
    for size in reversed(sizes[1:]):
        by_axis.append(rest % size)
        rest = rest // size
    places = (rest, *reversed(by_axis))
    for place in places:
        place.layout = (len(places),) if len(places) > 1 else None  # NumPy's are the columns of one array
    return places


def positions_along_axes(mask: Any, name: str) -> tuple[Any, ...]:
    """Returns the positions of the elements that are not 0. Raises ShapeError for an array without axes."""
    if not as_tensor(mask).extents:
        raise ShapeError(
            "Calling nonzero on 0d arrays is not allowed", hint="use np.atleast_1d(scalar).nonzero()",
            where=source.user_line(),
        )  # fmt: skip
    return positions(mask, name)


def elements_at(values: Any, flat: Any, first: int, count: int) -> Traced:
    """Returns the elements at positions in the axis that `count` axes from `first` on are joined into."""
    traced = as_tensor(values)
    extents = traced.extents
    joined = (*extents[:first], product(extents[first : first + count]), *extents[first + count :])
    line = traced if count == 1 else traced.recorder.movement("reshape", [traced], new_shape=joined)
    return shaping.take(line, flat, first)  # type: ignore[no-any-return]
