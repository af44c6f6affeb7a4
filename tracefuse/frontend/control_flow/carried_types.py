"""The types of the values that a loop carries or that a branch returns, leaf by leaf of a pytree.

A Python number is weak, as in NumPy's promotion: it takes the type of the arrays that it is combined with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import pytrees, source
from tracefuse.dtypes import DType, promote_numpy
from tracefuse.errors import DtypeError, ShapeError, TraceError, shown
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.fusion import Shape, Type
from tracefuse.runtime.devices import arrays

_NUMBERS = (bool, int, float, complex, np.generic, SymbolicSize)


@dataclass(frozen=True, slots=True)
class LeafType:
    """The type of a leaf. weak: the kind of Python number that it promotes as, or None."""

    dtype: DType
    shape: Shape
    weak: str | None

    def text(self, recorder: Recorder) -> str:
        """Returns the type with the sizes of the current call."""
        text = str(Type(self.dtype, tuple(map(recorder.known, self.shape))))
        return f"{text}, a Python {self.weak}" if self.weak is not None else text


def is_value(leaf: Any) -> bool:
    """Whether a leaf is an array or a number; other leaves are Python objects that stay as they are."""
    return isinstance(leaf, (Traced, MaskedElements, *_NUMBERS)) or arrays.kind_of(leaf) not in (None, "refused")


def as_leaf(recorder: Recorder, leaf: Any) -> Traced:
    """Returns an array or a number as a traced tensor; a number without a type of its own is weak."""
    if isinstance(leaf, MaskedElements):
        raise leaf.refusal()
    resolved = recorder.resolve(leaf)
    if resolved.traced is not None and not resolved.traced.on_host:
        return resolved.traced  # type: ignore[no-any-return]
    operand = leaf if resolved.traced is None else resolved.traced
    tensor: Traced = recorder.movement("full", [operand], shape=())
    tensor.weak = resolved.weak
    return tensor


def type_of(traced: Traced) -> LeafType:
    return LeafType(traced.value.dtype, traced.extents, traced.weak)


def join_types(recorder: Recorder, name: str, first: LeafType, second: LeafType, description: str) -> LeafType:
    """Returns the type that two values both have, or that the one that is a Python number can take.

    description: of the two types, with {first} and {second}. Raises DtypeError for two other types.
    """
    if first.weak is not None and second.weak is not None:
        dtype = promote_numpy((), (first.weak, second.weak))
        return replace(first, dtype=dtype, weak=first.weak if dtype is first.dtype else second.weak)
    strong = [leaf.dtype for leaf in (first, second) if leaf.weak is None]
    dtype = promote_numpy(strong, [leaf.weak for leaf in (first, second) if leaf.weak is not None])
    if any(known is not dtype for known in strong):
        texts = {"first": first.text(recorder), "second": second.text(recorder)}
        raise DtypeError(
            f"{name}: {description.format(**texts)}", hint=f"convert one of them, as in x.astype('{strong[0].name}')",
            where=source.user_line(),
        )  # fmt: skip
    return replace(first, dtype=dtype, weak=None)


def is_wide_of(strong: LeafType, weak: LeafType) -> bool:
    """Whether a type has every number of Python of a kind: the largest type of that kind, or a larger kind."""
    is_wide = strong.dtype.name in ("float64", "complex128", "int64", "bool")
    is_number = strong.weak is None and weak.weak is not None and not strong.shape
    return is_number and is_wide and promote_numpy([strong.dtype], [weak.weak or ""]) is strong.dtype


def can_begin_as(before: Any, own: LeafType, target: LeafType, is_branch: bool) -> bool:
    """Whether a variable that is a number of Python before a loop can begin in the type that an iteration gives it.

    The number is the same in both. before: the variable. own: its type before the loop. is_branch: whether it is a
    branch, before which the number may be one that the call computes.
    """
    if own.weak is None:
        return False
    if is_branch and is_wide_of(target, own):
        return True
    if type(before) not in (int, float):
        return target.dtype is own.dtype
    if type(before) is int and target.dtype.name == "int64":
        return abs(before) < 2**31
    is_exact = type(before) is float or abs(before) <= 2**53
    return before == 0 or (is_exact and target.dtype.name in ("float64", "complex128"))


def converted(traced: Traced, target: LeafType) -> Traced:
    """Returns a value in the dtype of `target`."""
    if traced.value.dtype is target.dtype:
        return traced
    result: Traced = traced_ops.apply("cast", traced, dtype=target.dtype)
    return result


def have_equal_extents(recorder: Recorder, shape: Shape, other: Shape) -> bool:
    """Whether two shapes of a variable of a loop are equal in every iteration; guarded."""
    if len(shape) != len(other):
        return False
    return all(
        recorder.decide(pair[0], "==", pair[1], "the shape of a variable of a loop")
        for pair in zip(shape, other, strict=True)
    )


def require_same_shape(
    recorder: Recorder, name: str, first: LeafType, second: LeafType, description: str, hint: str
) -> None:  # fmt: skip
    """Requires that two values have one shape at every call. Raises ShapeError if they differ in this one.

    description: of the two types, with {first} and {second}. hint: what both must return.
    """
    texts = {"first": first.text(recorder), "second": second.text(recorder)}
    error = ShapeError(f"{name}: {description.format(**texts)}", hint=hint, where=source.user_line())
    if len(first.shape) != len(second.shape):
        raise error
    for axis, (left, right) in enumerate(zip(first.shape, second.shape, strict=True)):
        if recorder.known(left) != recorder.known(right):
            raise error
        message = f"{name}: axis {axis} has {{left}} elements, then {{right}}"
        recorder.builder.require(left, "==", right, message, hint, source.user_line())


def require_same_structure(name: str, first: Any, second: Any, description: str) -> None:
    """Raises TraceError if two pytrees differ in structure. description: with {first} and {second}."""
    if first != second:
        texts = {"first": _structure_text(first), "second": _structure_text(second)}
        raise TraceError(
            f"{name}: {description.format(**texts)}", hint="return the same structure with the same keys",
            where=source.user_line(),
        )  # fmt: skip


class _Leaf:
    """Prints as a star, for the leaves of a structure in a message."""

    def __repr__(self) -> str:
        return "*"


def _structure_text(structure: Any) -> str:
    return repr(pytrees.unflatten(structure, [_Leaf()] * structure.num_leaves))


def require_same_objects(name: str, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Raises TraceError if a leaf that is no array and no number differs."""
    for left, right in zip(first, second, strict=True):
        if is_value(left) or is_value(right):
            if is_value(left) and is_value(right):
                continue
        elif left is right or left == right:
            continue
        raise TraceError(
            f"{name}: a value is {shown(left)}, then {shown(right)}",
            hint="carry arrays and numbers; another object must stay the same", where=source.user_line(),
        )  # fmt: skip
