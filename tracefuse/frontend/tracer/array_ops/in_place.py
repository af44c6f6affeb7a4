"""In-place updates of traced values: `y += x`, `np.add(x, y, out=t)`, and the writes of `y[key] = v`.

As in NumPy, every traced value that shares the memory sees the update: views and their bases. Every call copies the
final contents of an updated argument into the caller's array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, ReadOnlyError, ShapeError, TracefuseError, UnsupportedError
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.views import chain_of, owner_of, write_through
from tracefuse.ir.extents import Symbol
from tracefuse.ops import REGISTRY, Pointwise


def into(target: Any, result: Traced) -> Any:
    """Writes a result into the memory of `target`; every view and base of it sees the update."""
    check_writable(target)
    recorder = target.recorder
    recorder.resolve(target)
    _check_result(target, result)
    dtype = target.value.dtype
    if result.value.dtype is not dtype:
        cast = REGISTRY["cast"]
        assert isinstance(cast, Pointwise)
        result = recorder.pointwise(cast, [result], dtype=dtype)
    note_update(target)
    write_through(target, result, source.user_line() or "an earlier line")
    target.weak, target.read = None if result.weak is None else target.weak, result.read
    return target


def note_update(target: Traced) -> None:
    """Records that a call writes the argument, if any, that owns the memory of a name; raises if that is read-only."""
    check_writable(target)
    owner = owner_of(target)
    if owner.memory is not None and owner.memory.input is not None:
        target.recorder.updated[owner.memory.input] = owner


def _not_traced(target: Any) -> TracefuseError:
    """Returns the error for an in-place update of an array that is not traced, or of what is no array."""
    dtype, kind = getattr(target, "dtype", None), type(target).__name__
    if isinstance(target, np.generic) or (dtype is None and not isinstance(target, tuple)):
        message, hint = f"return arrays must be of ArrayType, not {kind}", "give an array: np.zeros(shape, dtype)"
        return DtypeError(message, hint=hint, where=source.user_line())
    of_type = "" if dtype is None else f" of {dtype}"
    return UnsupportedError(
        f"in-place change of a {kind}{of_type} that is not traced: it lies in the memory of another object, or its "
        "type is not supported", hint="change a copy of a supported type: y = np.array(y, dtype=np.float64)",
        where=source.user_line(),
    )  # fmt: skip


class SharedByLoop(str):
    """What an array is that a recorded loop made of one that has another name too. symbol: the counter of the loop.

    If it is changed in place, the loop is unrolled.
    """

    symbol: Symbol

    def __new__(cls, text: str, symbol: Symbol) -> SharedByLoop:
        self = super().__new__(cls, text)
        self.symbol = symbol
        return self


class ReboundByLoop(str):
    """What an array is that each iteration of a recorded loop binds to a variable. place: of the loop.

    If it is changed in place, the trace begins again: the loop may exchange the arrays of variables.
    """

    place: Any

    def __new__(cls, place: Any) -> ReboundByLoop:
        self = super().__new__(cls, "an array that each iteration rebinds")
        self.place = place
        return self


def check_writable(target: Any) -> None:
    """Raises if `target` is not traced, a number or read-only. Decides which of its bases are views."""
    if not isinstance(target, Traced):
        raise _not_traced(target)
    if target.is_immutable:
        kind = target.weak or f"numpy.{target.value.dtype}"
        raise DtypeError(
            f"a {kind} is a scalar, which cannot be changed in place", hint="make an array of it: x = np.array(x)",
            where=source.user_line(),
        )  # fmt: skip
    for view in reversed(chain_of(target)):
        view.settle()
    for name in (target, owner_of(target)):  # a loop may have shared the array after the view was made
        if isinstance(name.read_only, SharedByLoop):
            raise NotInEveryIteration(f"in-place change of {name.read_only}", name.read_only.symbol)
        if isinstance(name.read_only, ReboundByLoop):
            decisions = target.recorder.loops.decisions
            if name.read_only.place in decisions.rotating:
                raise NotInEveryIteration(f"in-place change of {name.read_only}")
            decisions.rotating.add(name.read_only.place)
            raise AnotherAttempt
    if target.read_only is not None:
        raise ReadOnlyError(
            f"in-place change of {target.read_only}, which is read-only",
            hint="change a copy: y = y.copy()", where=source.user_line(),
        )  # fmt: skip
    if target.recorder.body is not None:
        target.recorder.body.check_inside(owner_of(target))


def check_result_type(target: Traced, result: DType) -> None:
    """Raises DtypeError unless a result of a type goes into the target."""
    dtype = target.value.dtype
    if not np.can_cast(result.numpy, dtype.numpy, "same_kind"):
        raise DtypeError(
            f"an in-place operation gives {result}, which does not go into {dtype}",
            hint="write y = y + x", where=source.user_line(),
        )  # fmt: skip


def _check_result(target: Traced, result: Traced) -> None:
    """Raises unless the result fits the type and the shape of the target."""
    recorder = target.recorder
    if result.weak is None:
        check_result_type(target, result.value.dtype)
    extents, new = target.extents, result.extents
    if len(extents) != len(new):
        raise ShapeError(
            f"an in-place operation on {len(extents)} axes gives {len(new)}",
            hint="write y = y + x",
            where=source.user_line(),
        )
    for axis, (before, after) in enumerate(zip(extents, new, strict=True)):
        message = f"an in-place operation changes axis {axis} from {{left}} to {{right}}"
        recorder.builder.require(before, "==", after, message, "write y = y + x", source.user_line())
