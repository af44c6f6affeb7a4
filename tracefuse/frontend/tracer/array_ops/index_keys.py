"""Parses `x[key]`: lowers NumPy's basic indexing to flips, slices, dropped and new axes, with symbolic bounds.

NumPy clamps slice bounds to the axis. If a bound or an extent is symbolic, the current call decides the case and a
guard records it (`3 <= n`), so that the bounds stay simple expressions. An integer index must lie inside its axis. An
index outside is the user's error, so the slice op records a requirement.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.errors import OutOfRangeError, ShapeError, UnsupportedError, shown
from tracefuse.frontend.tracer.array_ops.computed_slices import computed_bounds, is_computed, reads_bounds
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, ceildiv, mod, product
from tracefuse.ir.fusion import Shape


@dataclass(slots=True)
class IndexPlan:
    """The steps of one indexing operation, in order: flip axes, slice every axis, drop axes, add axes.

    Axes of flips, bounds and drops are axes of the operand; `new_axes` has one flag per axis of the result. arrays:
    integer arrays by axis of the operand, applied last. together: whether these arrays and integers are adjacent in
    the key; else the axes of the arrays come first, as in NumPy. copies: whether NumPy returns a copy, as an array
    without axes is among the indices.
    """

    flips: list[int] = field(default_factory=list)
    starts: list[Extent] = field(default_factory=list)
    ends: list[Extent] = field(default_factory=list)
    steps: list[Extent] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    new_axes: list[bool] = field(default_factory=list)
    arrays: dict[int, Any] = field(default_factory=dict)
    together: bool = True
    copies: bool = False

    def whole(self, shape: Shape) -> bool:
        """Whether the slices select everything."""
        return all(
            start == 0 and end == extent and step == 1
            for start, end, step, extent in zip(self.starts, self.ends, self.steps, shape, strict=True)
        )


def plan_of(key: Any, shape: Shape, recorder: Recorder) -> IndexPlan:
    """Returns the steps of `x[key]` for an x of `shape`. Raises OutOfRangeError, ShapeError or UnsupportedError."""
    given = key if isinstance(key, tuple) else (key,)
    parts = _expanded(given, len(shape))
    plan = IndexPlan()
    for part in parts:
        if part is None:
            plan.new_axes.append(True)
            continue
        axis = len(plan.starts)
        extent = shape[axis]
        if isinstance(part, slice):
            _add_slice(plan, part, extent, axis, recorder)
            plan.new_axes.append(False)
        elif is_array(part):
            plan.arrays[axis] = part
            _add_bounds(plan, 0, extent, 1)
            plan.new_axes.append(False)
        else:
            index = _wrapped(_integer(part, recorder), extent, recorder)
            if _may_be_outside(index, extent, recorder):
                plan.arrays[axis] = _position_of(index, parts, len(shape), recorder)
                _add_bounds(plan, 0, extent, 1)
                plan.new_axes.append(False)
                continue
            plan.copies |= isinstance(part, Traced) and not part.is_immutable and part.weak is None
            _add_integer(plan, index, extent, axis, recorder)
    plan.together = are_adjacent(given)
    return plan


def are_adjacent(parts: Sequence[Any]) -> bool:
    """Whether the integers and arrays of a key are adjacent; an ellipsis separates them also where it has no axes."""
    chosen = [k for k, part in enumerate(parts) if not (part is None or part is Ellipsis or isinstance(part, slice))]
    return not chosen or chosen[-1] - chosen[0] == len(chosen) - 1


MOST_KNOWN = 1024
"""Positions of an array that are compared with the extent of the axis before anything runs."""


def require_known_positions(plan: IndexPlan, shape: Shape, recorder: Recorder) -> None:
    """Requires that positions which the program names, as in `x[[0, 9]]`, are inside of their axes."""
    known = [(axis, _known_numbers(positions, recorder)) for axis, positions in plan.arrays.items()]
    if not all(numbers.size for _, numbers in known):
        return  # one is not known, or no element is selected
    hint, where = "index inside of the axis", source.user_line()
    for axis, numbers in known:
        for outermost in {int(numbers.max()), int(numbers.min())}:
            text = f"index {outermost} is out of bounds for axis {axis} with size {{right}}"
            least = outermost + 1 if outermost >= 0 else -outermost
            recorder.builder.require(least, "<=", shape[axis], text, hint, where, OutOfRangeError)


def _known_numbers(positions: Any, recorder: Recorder) -> Any:
    """Returns positions that no argument decides, of at most 1024 elements; others without elements."""
    unknown = np.zeros(0, np.int64)
    if isinstance(positions, Traced):
        builder, number = recorder.builder, positions.number
        is_known = number in builder.independent and number not in builder.of_state
        is_short = is_known and recorder.known(product(positions.extents)) <= MOST_KNOWN
        positions = recorder.contents.elements(number, None) if is_short else None
    elif not isinstance(positions, list) or any(isinstance(one, (Traced, SymbolicSize)) for one in positions):
        return unknown
    numbers = np.asarray(() if positions is None else positions)
    if numbers.dtype.kind not in "iu" or numbers.size > MOST_KNOWN:
        return unknown
    return numbers.astype(np.int64)  # NumPy wraps uint64


def is_array(part: Any) -> bool:
    if isinstance(part, Traced):
        return not part.on_host
    return isinstance(part, (list, np.ndarray)) or (hasattr(part, "shape") and not isinstance(part, np.generic))


def is_mask(part: Any) -> bool:
    """Whether a part of a key is an array of truth values."""
    return is_array(part) and _dtype_kind(part) == "bool"


def _dtype_kind(part: Any) -> str:
    if isinstance(part, Traced):
        return part.value.dtype.kind
    return {"b": "bool", "i": "int", "u": "uint"}.get(np.asarray(part).dtype.kind, "float")


def _expanded(parts: Sequence[Any], rank: int) -> list[Any]:
    """Expands the ellipsis: returns one part for each axis, and None for new axes."""
    for part in parts:
        if isinstance(part, (bool, np.bool_)) or is_mask(part):
            raise UnsupportedError(
                "indexing with a boolean mask: the size of the result depends on the data",
                hint="write np.where(mask, x, other)", where=source.user_line(),
            )  # fmt: skip
    ellipses = [k for k, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise OutOfRangeError("an index can have one ellipsis ('...') only", where=source.user_line())
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if named > rank:
        raise OutOfRangeError(
            f"too many indices: {named} for {rank} axes", hint=f"give at most {rank}", where=source.user_line()
        )
    fill = [slice(None)] * (rank - named)
    if not ellipses:
        return [*parts, *fill]
    return [*parts[: ellipses[0]], *fill, *parts[ellipses[0] + 1 :]]


def _integer(part: Any, recorder: Recorder) -> Extent:
    part = as_size(part)
    if isinstance(part, SymbolicSize):
        return recorder.simplify(part.extent)
    try:
        return operator.index(part)
    except TypeError:
        raise OutOfRangeError(
            f"{shown(part)} of type {type(part).__name__} is not an index",
            hint="use integers, slices, ..., None, integer arrays or masks",
            where=source.user_line(),
        ) from None  # fmt: skip


def _add_bounds(plan: IndexPlan, start: Extent, end: Extent, step: Extent) -> None:
    plan.starts.append(start)
    plan.ends.append(end)
    plan.steps.append(step)


def _wrapped(index: Extent, extent: Extent, recorder: Recorder) -> Extent:
    """Returns an index that is negative in some iterations of a recorded loop alone, as `x[k - 1]`, without a sign."""
    if not recorder.counters.occur_in(index, extent):
        return index
    if _always_holds(recorder, 0, index) is not None:
        return index
    if _always_holds(recorder, -index, extent) and _always_holds(recorder, index + 1, extent):
        return mod(index + extent, extent)
    return index


def _always_holds(recorder: Recorder, left: Extent, right: Extent) -> bool | None:
    """Whether left <= right in every iteration of the loops around; None if that differs or is not known."""
    try:
        return recorder.decide(left, "<=", right, "the sign of an index")
    except NotInEveryIteration:
        return None


def _may_be_outside(index: Extent, extent: Extent, recorder: Recorder) -> bool:
    """Whether an index by the counter of a recorded loop is not known to be inside, with one sign in all iterations.

    It may be outside in an iteration that no call reaches, and negative in some: `x[k - 1]` reads the end for k = 0.
    """
    counters, reason = recorder.counters, "the range of an index that not every iteration reaches"
    if not counters.occur_in(index, extent):
        return False
    try:
        least = index + 1 if recorder.decide(0, "<=", index, reason) else -index
        if not recorder.loops.conditional:
            return False
        return not counters.follows(extent - least) and not recorder.decide(least, "<=", extent, reason)
    except NotInEveryIteration:
        return True


def _position_of(index: Extent, parts: Sequence[Any], rank: int, recorder: Recorder) -> Traced:
    """Returns the index of an element as a computed integer, which the kernel checks.

    Raises NotInEveryIteration for a key that selects a row or a slice, which may be a view.
    """
    is_element = len(parts) == rank and not any(part is None or isinstance(part, slice) for part in parts)
    if not is_element:
        symbol = recorder.counters.innermost(index)
        raise NotInEveryIteration("a row by the counter may be outside in an iteration that no call reaches", symbol)
    value = recorder.scalar(index)
    return recorder.traced_type(recorder, value.number)


def _add_integer(plan: IndexPlan, index: Extent, extent: Extent, axis: int, recorder: Recorder) -> None:
    negative = not recorder.decide(0, "<=", index, "the sign of an index")
    start = extent + index if negative else index
    text = f"index {{left}} is out of bounds for axis {axis} with extent {{right}}"
    where, least = source.user_line(), index + 1
    if negative:
        least, text, hint = (
            -index,
            text.replace("{left}", "-{left}"),
            "valid indices are from minus the extent to the extent - 1",
        )
    else:
        text = f"index {index} is out of bounds for axis {axis} with extent {{right}}"
        hint = "valid indices are from minus the extent to the extent - 1"
    recorder.builder.require(least, "<=", extent, text, hint, where, OutOfRangeError)
    _add_bounds(plan, start, start + 1, 1)
    plan.drops.append(axis)


def _add_slice(plan: IndexPlan, part: slice, extent: Extent, axis: int, recorder: Recorder) -> None:
    if reads_bounds(part, recorder):
        first = 0 if part.start is None else _bound(part.start, extent, recorder)
        end = extent if part.stop is None else _bound(part.stop, extent, recorder)
        _add_bounds(plan, *computed_bounds(first, end, extent, recorder), 1)
        return
    step = _step(part.step, recorder)
    start = None if part.start is None else _integer(part.start, recorder)
    stop = None if part.stop is None else _integer(part.stop, recorder)
    if _is_forward(step, recorder):
        low = 0 if start is None else _clamped(start, extent, recorder)
        high = extent if stop is None else _clamped(stop, extent, recorder)
    else:
        # x[a:b:-k] is the flipped axis from n - 1 - a to n - 1 - b in steps of k.
        low = 0 if start is None else extent - _clamped_plus_one(start, extent, recorder)
        high = extent if stop is None else extent - _clamped_plus_one(stop, extent, recorder)
        if extent != 1:
            plan.flips.append(axis)
        step = -step
    if not recorder.decide(low, "<=", high, "slice bounds"):
        high = low
    elif not isinstance(step, int) and not recorder.decide(step, "<=", high - low, "the step of a slice"):
        # A step beyond the bounds leaves one element at most: what follows computes nothing from large steps.
        high, step = (low + 1 if recorder.decide(low + 1, "<=", high, "slice bounds") else low), 1
    _add_bounds(plan, low, high, step)


def _bound(bound: Any, extent: Extent, recorder: Recorder) -> Any:
    """Returns a bound that is computed as it is, and another one inside of the axis."""
    if is_computed(bound):
        return bound
    return _clamped(_integer(bound, recorder), extent, recorder)


def positions_of_slice(part: slice, extent: Extent, recorder: Recorder) -> tuple[Extent, Extent, Extent, bool]:
    """Returns (first, step, count, is_reversed): the positions that a slice selects on an axis, in ascending order."""
    plan, is_reversed = IndexPlan(), not _is_forward(_step(part.step, recorder), recorder)
    _add_slice(plan, part, extent, 0, recorder)
    (first,), (end,), (step,) = plan.starts, plan.ends, plan.steps
    count = ceildiv(end - first, step)
    return (extent - 1 - first - (count - 1) * step if is_reversed else first), step, count, is_reversed


def _step(given: Any, recorder: Recorder) -> Extent:
    """Returns the step of a slice, whose sign is guarded if it is symbolic. Raises ShapeError for 0."""
    step = 1 if given is None else _integer(given, recorder)
    if not isinstance(step, int) and recorder.counters.occur_in(step):
        step = recorder.pin(step, "the step of a slice")
    if not _is_forward(step, recorder) and recorder.decide(0, "==", step, _SIGN):
        raise ShapeError("slice step cannot be zero", where=source.user_line())
    return step


_SIGN = "the sign of the step of a slice"


def _is_forward(step: Extent, recorder: Recorder) -> bool:
    return recorder.decide(1, "<=", step, _SIGN)


def _clamped(bound: Extent, extent: Extent, recorder: Recorder) -> Extent:
    """Normalises a slice bound as NumPy does: negative bounds count from the end, then 0 <= bound <= extent."""
    if not recorder.decide(0, "<=", bound, "the sign of a slice bound"):
        bound = bound + extent
        if not recorder.decide(0, "<=", bound, "slice bounds"):
            return 0
        return bound
    return bound if recorder.decide(bound, "<=", extent, "slice bounds") else extent


def _clamped_plus_one(bound: Extent, extent: Extent, recorder: Recorder) -> Extent:
    """Normalises a bound for a negative step, where -1 <= bound <= extent - 1, and adds 1."""
    if not recorder.decide(0, "<=", bound, "the sign of a slice bound"):
        bound = bound + extent
        if not recorder.decide(-1, "<=", bound, "slice bounds"):
            return 0
        return bound + 1
    return bound + 1 if recorder.decide(bound + 1, "<=", extent, "slice bounds") else extent
