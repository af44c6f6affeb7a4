"""The masks of a key by the axes that they select from, and by the positions of their elements.

A mask with n axes stands for n integer arrays, which broadcast with the other arrays of the key. A truth value, and a
mask without axes, selects from a new axis of extent 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import OutOfRangeError
from tracefuse.frontend.tracer.array_ops import selections, shaping
from tracefuse.frontend.tracer.array_ops.index_keys import are_adjacent, is_array, is_mask
from tracefuse.frontend.tracer.array_ops.state_calls import call_on_state, depends_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.values.symbolic_size import rank_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.fusion import Shape


def with_axes_of_truth(x: Traced, parts: tuple[Any, ...]) -> tuple[Traced, tuple[Any, ...]]:
    """Returns (a view of x, a key) in which each truth value and mask without axes among other parts has an axis.

    Raises OutOfRangeError if the masks and the other parts name more axes than x has.
    """
    if not any(isinstance(part, (bool, np.bool_)) or is_mask(part) for part in parts):
        return x, parts
    named = sum(map(_axes_named, parts))
    if named > len(x.extents):
        raise OutOfRangeError(
            f"too many indices: {named} for {len(x.extents)} axes",
            hint=f"give at most {len(x.extents)}; a mask counts as many as it has axes", where=source.user_line(),
        )  # fmt: skip
    if len(parts) == 1 or all(_axes_named(part) or part is None or part is Ellipsis for part in parts):
        return x, parts
    result: list[Any] = []
    axis = 0
    for part in parts:
        is_truth = part is not None and part is not Ellipsis and not _axes_named(part)
        if part is Ellipsis:
            axis = len(x.extents) - sum(map(_axes_named, parts[len(result) + 1 :]))
        elif is_truth:
            x = shaping.expand_dims(x, axis)
            part = shaping.reshape(part, 1) if isinstance(part, Traced) else np.asarray(part).reshape(1)
        axis += 1 if is_truth else _axes_named(part)
        result.append(part)
    return x, tuple(result)


def is_alone(parts: Sequence[Any]) -> bool:
    """Whether a key has one array, and the axis of its elements stays in place: no integer lies apart from it."""
    return sum(map(is_array, parts)) == 1 and are_adjacent(parts)


def _axes_named(part: Any) -> int:
    """Returns the number of axes that a part of a key selects from, without an ellipsis."""
    if part is None or part is Ellipsis or isinstance(part, (bool, np.bool_)):
        return 0
    return rank_of(part) if is_mask(part) else 1


def with_known_positions(x: Traced, parts: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns a key with positions in place of its masks; None if the elements of a mask depend on arguments."""
    result: list[Any] = []
    axis = 0
    for part in parts:
        if not is_mask(part):
            if part is Ellipsis:
                return None
            axis += part is not None
            result.append(part)
            continue
        if depends_on_state(part):
            positions = call_on_state(np.nonzero, (part,), {})
            require_extents(x, axis, part.extents)
            axis += len(part.extents)
            result += positions
            continue
        known = x.recorder.contents.of(part.number, None) if isinstance(part, Traced) else part
        if not isinstance(known, (np.ndarray, list)) or not np.ndim(known):
            return None
        mask = np.asarray(known)
        require_extents(x, axis, mask.shape)
        axis += mask.ndim
        result += mask.nonzero()
    return tuple(result)


def with_positions(x: Traced, parts: Sequence[Any]) -> tuple[Any, ...]:
    """Returns a key with positions in place of its masks, as many as the data decide."""
    axis, result = 0, list[Any]()
    for position, part in enumerate(parts):
        if part is Ellipsis:
            axis = len(x.extents) - sum(map(_axes_named, parts[position + 1 :]))
        if is_mask(part):
            mask = as_tensor(np.asarray(part) if isinstance(part, list) else part)
            require_extents(x, axis, mask.extents)
            result += selections.positions(mask)
        else:
            result.append(part)
        axis += _axes_named(part)
    return tuple(result)


def require_extents(x: Traced, first: int, extents: Shape) -> None:
    """Requires that a mask has the extents of the axes that it selects from, which begin at `first`."""
    recorder, reason = x.recorder, "whether a mask has elements"
    for axis, extent in enumerate(extents, first):
        if extent == x.extents[axis] or recorder.decide(extent, "==", 0, reason):
            continue  # without elements, NumPy takes nothing, whatever the extent of the array
        message = f"boolean index has {{left}} elements on axis {axis}, the array has {{right}}"
        hint = "the mask has the extents of the axes that it selects from"
        x.recorder.builder.require(extent, "==", x.extents[axis], message, hint, source.user_line(), OutOfRangeError)


def is_without_elements(x: Traced, extents: Shape) -> bool:
    """Whether a mask has an axis without elements in the current call, which is guarded then."""
    recorder, reason = x.recorder, "whether a mask has elements"
    return any(recorder.known(extent) == 0 and recorder.decide(extent, "==", 0, reason) for extent in extents)
