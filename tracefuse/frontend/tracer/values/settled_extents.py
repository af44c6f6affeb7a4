"""Decides whether computed extents are 1, before operands broadcast, and the shape to which they do.

For an axis of an argument the key of the trace has the answer; for any other axis a guard does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from segments.lazy_dataclasses import replace
from tracefuse import source
from tracefuse.errors import ShapeError, TracefuseError
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import broadcast_shapes
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Shape

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder


def settled(recorder: Recorder, resolved: Sequence[Resolved]) -> Sequence[Resolved]:
    """Decides whether each computed extent is 1 before it is compared with others, and guards the answer.

    An extent that what is known makes 1 is settled too, as passes see the expression.

    (For an axis of an argument the key of the trace holds that answer.)
    """
    rank = max((len(r.shape) for r in resolved), default=0)
    ones: dict[int, list[int]] = {}
    for axis in range(-rank, 0):
        extents = {r.shape[axis] for r in resolved if len(r.shape) >= -axis and r.shape[axis] != 1}
        for position, operand in enumerate(resolved):
            if not extents or len(operand.shape) < -axis:
                continue
            extent = operand.shape[axis]
            place = axis + len(operand.shape)  # of the value too, whose last axes a batch lacks
            if isinstance(extent, int):
                is_one = extent == 1 and operand.traced is not None and operand.traced.value.shape[place] != 1
            else:
                is_one = len(extents) > 1 and recorder.decide(extent, "==", 1, "broadcasting of a computed extent")
            if is_one:
                ones.setdefault(position, []).append(place)
    result = list(resolved)
    for position, axes in ones.items():
        result[position] = recorder.resolve(with_ones(recorder, resolved[position].traced, axes))
    return result


def with_ones(recorder: Recorder, traced: Any, axes: Sequence[int]) -> Traced:
    """Returns the same value with static extents for axes that were decided to have extent 1."""
    flags = tuple(k in axes for k in range(len(traced.extents)))
    dropped = recorder.movement("squeeze", [traced], dims=tuple(axes))
    return recorder.movement("broadcast", [dropped], is_broadcast_dim=flags)  # type: ignore[no-any-return]


def settled_batch(recorder: Recorder, resolved: Sequence[Resolved]) -> Sequence[Resolved]:
    """Applies `settled` to the leading axes of a matrix product."""
    batch = [replace(r, shape=r.shape[:-2]) for r in resolved]
    after = settled(recorder, batch)
    return [old if new is lead else new for old, lead, new in zip(resolved, batch, after, strict=True)]


def require_broadcast(arrays: Sequence[Traced], kind: type[TracefuseError] = ShapeError) -> None:
    """Requires that arrays broadcast against each other. kind: the error of a call in which they do not."""
    recorder = arrays[0].recorder
    parts = settled(recorder, [recorder.resolve(array) for array in arrays])
    broadcast_shape([part.shape for part in parts], recorder, kind)


def broadcast_shape(shapes: Sequence[Shape], recorder: Recorder, kind: type[TracefuseError] = ShapeError) -> Shape:
    """Returns the shape that `shapes` broadcast to, and requires the extents to match."""

    def require(left: Extent, relation: str, right: Extent, message: str, hint: str) -> None:
        recorder.builder.require(left, relation, right, f"broadcast: {message}", hint, source.user_line(), kind)

    return broadcast_shapes(shapes, require)
