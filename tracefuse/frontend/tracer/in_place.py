"""Changing a traced value in place: `y += x`, `np.add(x, y, out=t)`.

The name is bound to the result, so that every use of it sees the change as in NumPy. An argument of the function is
updated at every call: what its name is bound to at the end is written into the caller's array. A view of an argument is
not changed, and other names of what was changed (its views, what it is a view of) are refused when they are used: NumPy
would show the change there.

Knows: the recorder, names and views. Must not know: which operation made the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError, ReadOnlyError, ShapeError, UnsupportedError
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ops import REGISTRY, Pointwise


def into(target: Any, result: Traced) -> Any:
    """Binds `target` to a result, as an in-place operation on an intermediate: every name of it sees the change."""
    if not isinstance(target, Traced):
        raise _not_traced(target, result)
    _check_names(target)
    target.recorder.resolve(target)
    _check_result(target, result)
    dtype = target.value.dtype
    if result.value.dtype is not dtype:
        cast = REGISTRY["cast"]
        assert isinstance(cast, Pointwise)
        result = target.recorder.pointwise(cast, [result], dtype=dtype)
    group = target.group
    if group is not None:
        updated = target.recorder.updated
        if group.of_argument is not None and not any(name is target for name in updated.values()):
            updated[target.number] = target
        group.change_through(target, source.user_line() or "an earlier line")
    target.number, target.weak, target.read = result.number, None if result.weak is None else target.weak, result.read
    return target


def of_captured(name: str, where: str | None) -> ReadOnlyError:
    """The refusal of a change of an array that the function captures."""
    return ReadOnlyError(
        f"in-place change of {name}, an array that the function captures: it is an input that is only read",
        hint="make it a parameter of the function; an argument is changed at every call", where=where,
    )  # fmt: skip


def _not_traced(target: Any, result: Traced) -> UnsupportedError:
    """The refusal of a change of what is no traced value."""
    name = result.recorder.captured_paths.get(id(target))
    if name is not None:
        return of_captured(name, source.user_line())
    return UnsupportedError(
        f"out= is a {type(target).__name__} that is not traced", hint="return the result instead",
        where=source.user_line(),
    )  # fmt: skip


def _check_names(target: Traced) -> None:
    """No read-only or captured array, view of an argument or number that an array holds."""
    if target.read_only is not None:
        raise ReadOnlyError(
            f"in-place change of {target.read_only}, which is read-only",
            hint="change a copy: y = y.copy()", where=source.user_line(),
        )  # fmt: skip
    if any(capture.number == target.number for capture in target.recorder.captures.values()):
        raise of_captured(target.value.name or "a captured array", source.user_line())
    group = target.group
    if group is None:
        return
    argument = group.of_argument
    if target.on_host:
        raise UnsupportedError(
            f"in-place change of {argument}, an array without axes, which is read as a number",
            hint="return the new value, or pass an array with one element", where=source.user_line(),
        )  # fmt: skip
    if argument is not None and group.members[0]() is not target:
        raise UnsupportedError(
            f"in-place change of a view of the argument {argument}",
            hint=f"change {argument} itself, as in {argument} += np.where(condition, change, 0)",
            where=source.user_line(),
        )  # fmt: skip


def _check_result(target: Traced, result: Traced) -> None:
    """The result goes into the type and the shape of the target."""
    recorder, dtype = target.recorder, target.value.dtype
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
