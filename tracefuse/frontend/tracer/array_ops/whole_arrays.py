"""Records library ops on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import source
from tracefuse.errors import DtypeError, ShapeError, TracefuseError, UnsupportedError
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.operands import located_error
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Require
from tracefuse.ir.library_kinds import WholeArrayOp


def _shape_check(recorder: Recorder, op: WholeArrayOp) -> Require:
    """Returns what raises for a relation that the extents of the current call do not have."""

    def require(
        left: Extent, relation: str, right: Extent, message: str, hint: str, kind: type[TracefuseError] = ShapeError,
    ) -> None:  # fmt: skip
        if not recorder.decide(left, relation, right, f"an error of {op.name}"):
            text = message.format(left=left, right=right)
            raise kind(f"{op.name}: {text}", hint=hint, where=source.user_line())

    return require


def record_whole(
    recorder: Recorder, op: WholeArrayOp, operands: Sequence[Traced], **attributes: Any
) -> tuple[Traced, ...]:
    """Records a library op on traced arrays and returns its results.

    Raises ShapeError, DtypeError or UnsupportedError, with the user's line, for operands that the op does not take.
    """
    recorder.check_alive()
    where = source.user_line()
    resolved = [recorder.resolve(operand) for operand in operands]
    plain = {name: recorder.plain(value) for name, value in attributes.items()}
    numbers = [entry.operand for entry in resolved]
    recorder.builder.reading, recorder.builder.named = numbers, [entry.traced for entry in resolved]
    try:
        types = op.dtypes(
            [entry.dtype for entry in resolved if entry.dtype is not None], {**dict(op.attributes), **plain}
        )
        results = recorder.builder.node(op, numbers, plain, types[0], types, where=where)
    except DtypeError as error:
        if op.shape_before_types is not None:
            shapes, full = [entry.shape for entry in resolved], {**dict(op.attributes), **plain}
            op.shape_before_types(shapes, full, _shape_check(recorder, op))
        raise located_error(error, recorder.describe, resolved, where) from None
    except (ShapeError, UnsupportedError) as error:
        error.locate(where)
        raise
    finally:
        recorder.builder.reading, recorder.builder.named = (), ()
    return tuple(recorder.traced_type(recorder, number) for number in results)
